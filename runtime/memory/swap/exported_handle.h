// What rota writes into the 64 bytes of a legacy IPC handle of memory that it moves. It names the allocation, so it is
// the same at every call and for every address inside. A process that has it can ask the exporting process for the
// memory.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "generated/driver_types.h"

namespace rota::memory {

struct ExportedHandle {
  std::uint64_t process[2] = {};  // the exporting process's random number
  std::uint64_t serial = 0;       // of the allocation; never used again in that process
  std::uint64_t key[2] = {};      // random for each allocation: knowing the process is not enough to guess a handle
  bool operator==(const ExportedHandle&) const = default;
};

namespace exported_handle {

// "rota ipc": the driver's own handles do not begin so.
inline constexpr std::uint64_t kMagic = 0x6370692061746f72;
inline constexpr std::uint64_t kLayout = 1;

struct Bytes {
  std::uint64_t magic = kMagic;
  std::uint64_t layout = kLayout;
  ExportedHandle handle;
  std::uint64_t zero = 0;
};
static_assert(sizeof(Bytes) == sizeof(api::CUipcMemHandle));

}  // namespace exported_handle

inline api::CUipcMemHandle handle_bytes(const ExportedHandle& handle) {
  exported_handle::Bytes bytes;
  bytes.handle = handle;
  return std::bit_cast<api::CUipcMemHandle>(bytes);
}

// Whether the handle is not one of rota's: the driver judges it.
inline bool is_drivers(const api::CUipcMemHandle& all) {
  const auto bytes = std::bit_cast<exported_handle::Bytes>(all);
  return bytes.magic != exported_handle::kMagic;
}

// None: the driver's, or of a layout that this rota does not know.
inline std::optional<ExportedHandle> read_handle(const api::CUipcMemHandle& all) {
  const auto bytes = std::bit_cast<exported_handle::Bytes>(all);
  if (is_drivers(all) || bytes.layout != exported_handle::kLayout || bytes.zero != 0) return std::nullopt;
  return bytes.handle;
}

}  // namespace rota::memory
