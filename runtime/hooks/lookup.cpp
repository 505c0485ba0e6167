// cuGetProcAddress and cuGetExportTable: how frameworks get at the driver without ever naming an exported symbol.
//
// The driver returns the address of an export, so rota calls it and returns its own thunk of that export instead.
// Versions, flags and the query status are left to the driver and pass through unread. A pointer that is not a known
// export (a function newer than this rota) is passed on: it works, but rota does not see its calls, so the process's
// memory must stay where it is.
#include "runtime/hooks/lookup.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string_view>

#include "runtime/core/attach.h"
#include "runtime/core/log.h"
#include "runtime/core/runtime.h"
#include "runtime/core/tables.h"
#include "runtime/hooks/gated_table.h"
#include "runtime/hooks/overrides.h"

namespace rota::interpose {
namespace {

struct Lookup {
  const char* base;
  int version;
  unsigned form;
  Symbol symbol;
};

constexpr Lookup kLookups[] = {
#define ROTA_LOOKUP(base, version, form, symbol) {#base, version, form, Symbol::k_##symbol},
#include "generated/driver_lookup.inc"
#undef ROTA_LOOKUP
};

constexpr unsigned long long kPerThreadStream = api::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
constexpr unsigned long long kAllFlags = kPerThreadStream | api::CU_GET_PROC_ADDRESS_LEGACY_STREAM;

// Addresses that have been met before; there are few of them.
class Seen {
 public:
  // Whether the address is new; also false once there are too many.
  bool add(const void* what) noexcept {
    for (auto& entry : all_) {
      const void* seen = nullptr;
      if (entry.compare_exchange_strong(seen, what, std::memory_order_relaxed)) return true;
      if (seen == what) return false;
    }
    return false;
  }
  bool contains(const void* what) const noexcept {
    return std::any_of(std::begin(all_), std::end(all_),
                       [what](const auto& entry) { return entry.load(std::memory_order_relaxed) == what; });
  }

 private:
  std::atomic<const void*> all_[256]{};
};

constinit Seen reported;  // functions and tables that were logged; a program may ask for the same one many times
constinit Seen tools;     // paths of files that have asked for unknown tables, as file_of() returns them

// Replaces a real function's address by rota's own.
void hand_out_thunk(const char* name, void** function) noexcept {
  if (function == nullptr || *function == nullptr) return;
  if (const auto symbol = symbol_at(*function, name)) {
    *function = thunk(*symbol);
    return;
  }
  runtime().unknown_pointers.fetch_add(1, std::memory_order_relaxed);
  runtime().mark_unevictable("the driver returned a function that rota does not know", name != nullptr ? name : "");
  if (reported.add(*function)) {
    log::info(
        "cuGetProcAddress: rota does not know the function that the driver returned for '{}' and does not see calls to "
        "it",
        name != nullptr ? name : "");
  }
}

// A private table of the driver that the policy lists, with what was recorded of it.
struct KnownTable {
  std::array<unsigned char, 16> id;
  std::uint64_t bytes;  // 0: it does not begin with its length
  bool gated;           // work is submitted through it
};

constexpr KnownTable kKnownTables[] = {
#define ROTA_EXPORT_TABLE(bytes, gated, ...) {{{__VA_ARGS__}}, bytes, gated},
#include "generated/driver_export_tables.inc"
#undef ROTA_EXPORT_TABLE
    {{}, 0, false},  // no table's identifier; the list may be empty
};

// Most of the driver's private tables begin with their length in bytes, including this word; none is near 64 KiB. Every
// table has at least one word.
std::uint64_t table_length(const void* table) noexcept {
  std::uint64_t first = 0;
  std::memcpy(&first, table, sizeof first);
  constexpr std::uint64_t kLongest = 64 * 1024;
  return first >= sizeof first && first <= kLongest && first % sizeof first == 0 ? first : 0;
}

// Tables grow at the end: one that is shorter than the recorded one holds a part of the same functions, a longer one
// also unknown functions.
const KnownTable* known_table(const api::CUuuid& id, std::uint64_t bytes) noexcept {
  for (const KnownTable& known : kKnownTables) {
    if (std::memcmp(known.id.data(), id.bytes, known.id.size()) != 0) continue;
    return bytes <= known.bytes && (bytes == 0) == (known.bytes == 0) ? &known : nullptr;
  }
  return nullptr;
}

// As uuidgen prints one, zero-terminated.
std::array<char, 37> spelled(const api::CUuuid& id) noexcept {
  constexpr char kDigits[] = "0123456789abcdef";
  std::array<char, 37> text{};
  std::size_t at = 0;
  for (std::size_t index = 0; index < sizeof id.bytes; ++index) {
    if (index == 4 || index == 6 || index == 8 || index == 10) text[at++] = '-';
    const auto byte = static_cast<unsigned char>(id.bytes[index]);
    text[at++] = kDigits[byte >> 4];
    text[at++] = kDigits[byte & 15];
  }
  return text;
}

// The file that an address belongs to. Not by dladdr: that waits for a library that is being opened, whose constructor
// may be waiting for this very call.
struct Owner {
  const void* address;
  const char* path;
};

const char* file_of(const void* address) noexcept {
  Owner owner{address, nullptr};
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        auto& wanted = *static_cast<Owner*>(data);
        const auto where = reinterpret_cast<std::uintptr_t>(wanted.address);
        for (int index = 0; index < object->dlpi_phnum; ++index) {
          const auto& segment = object->dlpi_phdr[index];
          const std::uintptr_t start = object->dlpi_addr + segment.p_vaddr;
          if (segment.p_type != PT_LOAD || where < start || where - start >= segment.p_memsz) continue;
          wanted.path = object->dlpi_name;
          return 1;
        }
        return 0;
      },
      &owner);
  return owner.path == nullptr ? "code that belongs to no file"
         : *owner.path == '\0' ? "the program itself"
                               : owner.path;
}

// NVIDIA's profiling library, CUPTI, or a file that it is linked into: no other library is known to request so many. It
// calls the driver's tables with its own lock held, also in the middle of other threads' calls: one that waited at the
// gate would keep rota's own thread, which calls the driver, from ever opening it.
bool is_tool(const char* path) noexcept {
  const char* const slash = std::strrchr(path, '/');
  return tools.contains(path) || std::string_view(slash != nullptr ? slash + 1 : path).starts_with("libcupti.so");
}

// What the program gets instead of the driver's table, which may be that table itself.
const void* handed_out(const void* table, const api::CUuuid& id, const void* caller) noexcept {
  const std::uint64_t bytes = table_length(table);
  const KnownTable* entry = known_table(id, bytes);
  const bool gated = entry != nullptr && entry->gated;
  const char* const asker = file_of(caller);
  const bool tool = gated && is_tool(asker);
  const void* copy = gated && !tool ? gated_copy(table, bytes) : nullptr;
  const char* const unseen = entry == nullptr ? "it uses a private table of the driver that rota does not know"
                             : tool ? "like a profiler (CUPTI) it uses private tables of the driver, and submits "
                                      "work through one that is not gated for those"
                             : gated && copy == nullptr
                                 ? "it submits work through a private table of the driver, which rota can gate only on "
                                   "x86-64 and with CUDA 12.5 or later"
                                 : nullptr;
  if (unseen != nullptr) runtime().mark_unevictable(unseen, "cuGetExportTable");
  if (entry == nullptr) tools.add(asker);
  const auto level = unseen != nullptr ? log::Level::kInfo : log::Level::kDebug;
  if (log::enabled(log::Level::kDebug) || (log::enabled(level) && reported.add(table))) {
    log::message(level, "cuGetExportTable: {} table {} of {} bytes for {}",
                 entry == nullptr    ? "unknown"
                 : copy != nullptr   ? "gated"
                 : unseen != nullptr ? "ungated"
                                     : "known",
                 spelled(id).data(), bytes, asker);
  }
  return copy != nullptr ? copy : table;
}

int driver_version() noexcept {
  int version = 0;
  if (!driver_found() || real::cuDriverGetVersion(&version) != api::CUDA_SUCCESS) return 0;
  return version;
}

}  // namespace

int emulated_proc_address(const char* name, int version, unsigned long long flags, int driver_version, void** function,
                          int* status) noexcept {
  if (name == nullptr || function == nullptr || (flags & ~kAllFlags) != 0) return api::CUDA_ERROR_INVALID_VALUE;
  if (driver_version != 0 && version > driver_version) return api::CUDA_ERROR_INVALID_VALUE;
  const unsigned wanted_form = (flags & kPerThreadStream) != 0 ? 2 : 0;
  const Lookup* best = nullptr;
  bool known = false;
  for (const Lookup& entry : kLookups) {
    if (std::strcmp(entry.base, name) != 0) continue;
    known = true;
    if (entry.version > version || entry.form != wanted_form) continue;
    // With a driver, only functions that the driver has; without one, every thunk answers itself.
    if (driver_found() && !available(entry.symbol)) continue;
    best = &entry;  // rows of a form come in the order of versions
  }
  *function = best != nullptr ? thunk(best->symbol) : nullptr;
  *status = best != nullptr ? api::CU_GET_PROC_ADDRESS_SUCCESS
            : known         ? api::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : api::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return api::CUDA_SUCCESS;
}

}  // namespace rota::interpose

namespace rota::overrides {

// CUDA 11.3's form, without a status: there a name that is not found is an error.
api::CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, api::cuuint64_t flags) {
  if (interpose::available(Symbol::k_cuGetProcAddress)) {
    const auto result = real::cuGetProcAddress(symbol, pfn, cudaVersion, flags);
    if (result == api::CUDA_SUCCESS) interpose::hand_out_thunk(symbol, pfn);
    return result;
  }
  int status = 0;
  const auto result = static_cast<api::CUresult>(
      interpose::emulated_proc_address(symbol, cudaVersion, flags, interpose::driver_version(), pfn, &status));
  return result == api::CUDA_SUCCESS && *pfn == nullptr ? api::CUDA_ERROR_NOT_FOUND : result;
}

api::CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, api::cuuint64_t flags,
                                  api::CUdriverProcAddressQueryResult* symbolStatus) {
  if (interpose::available(Symbol::k_cuGetProcAddress_v2)) {
    const auto result = real::cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == api::CUDA_SUCCESS) interpose::hand_out_thunk(symbol, pfn);
    return result;
  }
  int status = 0;
  api::CUresult result;
  if (interpose::available(Symbol::k_cuGetProcAddress)) {
    // A driver from 11.3 to 11.8.
    result = real::cuGetProcAddress(symbol, pfn, cudaVersion, flags);
    if (result == api::CUDA_ERROR_NOT_FOUND) {
      status = api::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
      result = api::CUDA_SUCCESS;
      if (pfn != nullptr) *pfn = nullptr;
    } else if (result == api::CUDA_SUCCESS) {
      interpose::hand_out_thunk(symbol, pfn);
    }
  } else {
    result = static_cast<api::CUresult>(
        interpose::emulated_proc_address(symbol, cudaVersion, flags, interpose::driver_version(), pfn, &status));
  }
  if (result == api::CUDA_SUCCESS && symbolStatus != nullptr) {
    *symbolStatus = static_cast<api::CUdriverProcAddressQueryResult>(status);
  }
  return result;
}

// Most tables are the driver's own and are returned untouched: libcudart checks its own and refuses copies. Nothing
// that users of the known tables call through them allocates or launches (policy.toml has the evidence), except for the
// gated ones, whose functions are wrapped; for the others that is unknown.
api::CUresult cuGetExportTable(const void** ppExportTable, const api::CUuuid* pExportTableId) {
  const auto result = real::cuGetExportTable(ppExportTable, pExportTableId);
  if (result == api::CUDA_SUCCESS && ppExportTable != nullptr && *ppExportTable != nullptr &&
      pExportTableId != nullptr) {
    *ppExportTable = interpose::handed_out(*ppExportTable, *pExportTableId, __builtin_return_address(0));
  }
  return result;
}

}  // namespace rota::overrides
