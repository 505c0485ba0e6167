// Copies of private tables; gated_table_stubs.S has the functions in them.
#include "runtime/hooks/gated_table.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>

#include "runtime/core/runtime.h"
#include "runtime/gate/scope.h"

namespace rota::interpose {
namespace {

constexpr std::size_t kStubs = 256;
constexpr std::size_t kStubBytes = 16;

#if defined(__x86_64__)
constexpr std::size_t kGeneral = 8;
constexpr std::size_t kVectorResults = 2;
#else
constexpr std::size_t kGeneral = 10;  // the last is not used
constexpr std::size_t kVectorResults = 4;
#endif

// Written before the copy with the stub is handed out, and never again.
constinit std::array<void*, kStubs> driver_functions{};

}  // namespace
}  // namespace rota::interpose

extern "C" {

// As the stubs' common part lays it out.
struct RotaGatedCall {
  std::uint64_t general[rota::interpose::kGeneral];
  alignas(16) unsigned char vectors[8][16];
  std::uint64_t number;
  const void* stacked;
  std::uint64_t results[2];
  unsigned char vector_results[rota::interpose::kVectorResults][16];
};
static_assert(sizeof(RotaGatedCall) ==
              192 + 8 * (rota::interpose::kGeneral - 8) + 32 + 16 * rota::interpose::kVectorResults);

extern const unsigned char rota_gated_stubs[];
void rota_gated_go_on(RotaGatedCall* call, void* function);

// If a thread is cancelled in the function the scope is left: the frames of the stubs can be unwound.
[[gnu::visibility("hidden"), gnu::used]] void rota_gated_call(RotaGatedCall* call) {
  rota::gate::Scope scope({rota::Symbol::k_cuGetExportTable, nullptr, false, false, rota::driver::Reaches::kAll});
  if (scope.refused()) {
    call->results[0] = rota::gate::refusal.load();
    return;
  }
  rota_gated_go_on(call, rota::interpose::driver_functions[call->number]);
}
}

namespace rota::interpose {
namespace {

struct Copy {
  const void* table = nullptr;
  std::uint64_t* words = nullptr;
};

}  // namespace

const void* gated_copy(const void* table, std::size_t bytes) noexcept {
  if (runtime().contexts.needs_streams() || bytes < sizeof(std::uint64_t)) return nullptr;
  static constinit std::mutex mutex;
  static constinit std::array<Copy, 8> copies{};
  static constinit std::size_t used = 0;
  const std::lock_guard lock(mutex);
  Copy* free = nullptr;
  for (Copy& copy : copies) {
    if (copy.table == table) return copy.words;
    if (copy.table == nullptr && free == nullptr) free = &copy;
  }
  const std::size_t count = bytes / sizeof(std::uint64_t);
  if (free == nullptr || count - 1 > kStubs - used) return nullptr;
  auto* words = new (std::nothrow) std::uint64_t[count];  // for as long as the process lives, as the driver's
  if (words == nullptr) return nullptr;
  std::memcpy(words, table, bytes);
  for (std::size_t index = 1; index < count; ++index) {
    if (words[index] == 0) continue;
    driver_functions[used] = reinterpret_cast<void*>(words[index]);
    words[index] = reinterpret_cast<std::uint64_t>(rota_gated_stubs + used * kStubBytes);
    ++used;
  }
  *free = {table, words};
  return words;
}

}  // namespace rota::interpose
