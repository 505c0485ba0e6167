#include "runtime/core/attach.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "generated/driver_gates.h"
#include "runtime/core/log.h"
#include "runtime/core/runtime.h"
#include "runtime/core/tables.h"
#include "runtime/hooks/overrides.h"
#include "runtime/preload/symbol_list.h"

namespace rota::interpose {
namespace {

struct RealFunction {
  const void* address;
  std::uint16_t symbol;
};

RotaAttachment attached{};
// Sorted by address, then symbol; only what the driver really has.
std::array<RealFunction, kSymbolCount> by_address{};
std::size_t by_address_count = 0;

void index_by_address() noexcept {
  by_address_count = 0;
  for (std::size_t index = 0; index < kSymbolCount; ++index) {
    if (attached.available[index] == 0) continue;
    by_address[by_address_count++] = {attached.real[index], static_cast<std::uint16_t>(index)};
  }
  std::sort(by_address.begin(), by_address.begin() + static_cast<std::ptrdiff_t>(by_address_count),
            [](const RealFunction& left, const RealFunction& right) {
              return left.address != right.address ? std::less<>()(left.address, right.address)
                                                   : left.symbol < right.symbol;
            });
}

// A program without a GPU is normal; a driver that was named and cannot be used is not.
void report_driver() noexcept {
  switch (attached.driver_state) {
    case kRotaDriverFound:
      log::info("the real driver is {}", attached.driver_path);
      if (!available(Symbol::k_cuGetProcAddress) && !available(Symbol::k_cuGetProcAddress_v2)) {
        // Under rota run nobody finds the function; a preload set by hand shows it.
        log::info("the driver {} is older than CUDA 11.3; rota answers cuGetProcAddress in its place",
                  attached.driver_path);
      }
      break;
    case kRotaDriverRefused:
      log::error(
          "ROTA_REAL_LIBCUDA is {}: {}; CUDA programs see no GPU. Set it to the path of the NVIDIA driver's "
          "libcuda.so.1, or unset it to have the driver found",
          attached.driver_path, attached.detail);
      break;
    default:
      log::warn(
          "no NVIDIA driver's libcuda.so.1 found on this machine; CUDA programs see no GPU. If there is one, set "
          "ROTA_REAL_LIBCUDA to its path");
  }
}

bool is_wanted(Symbol symbol, const char* wanted) noexcept {
  const char* name = kSymbolNames[static_cast<std::size_t>(symbol)];
  const std::size_t length = std::strlen(wanted);
  return std::strncmp(name, wanted, length) == 0 && (name[length] == '\0' || name[length] == '_');
}

// An export that no header declares: rota cannot wrap a function with unknown parameters. Its slot keeps leading to the
// preload's resolver, which reports the first call.
bool left_to_resolver(Symbol symbol) noexcept {
  switch (symbol) {
#define ROTA_UNDECLARED(name) case Symbol::k_##name:
#include "generated/driver_undeclared.inc"
#undef ROTA_UNDECLARED
    return available(symbol);
    default:
      return false;
  }
}

// A function that rota does not know is about to be called: it may do anything.
void note_unknown(const char* name, int first) noexcept {
  runtime().mark_unevictable("it calls a driver function that rota does not know", name);
  if (first == 0) return;
  runtime().unknown_pointers.fetch_add(1, std::memory_order_relaxed);
  log::info("the driver's function {} is unknown to rota and passes through: rota does not see calls to it", name);
}

void before_load(const char* name) noexcept {
  if (Runtime* known = made_runtime(); known != nullptr) known->before_load(name);
}

}  // namespace

int attach(const RotaAttachment& attachment, StartTracing* start_tracing, StartAccounting* start_accounting) noexcept {
  void* const* tracers = nullptr;
  if (attachment.version != kRotaAttachmentVersion || attachment.symbol_count != kSymbolCount ||
      attachment.symbol_list != kSymbolListHash) {
    log::error(
        "librota.so and librota-core.so come from different builds; CUDA goes on without rota. Install rota again");
    return 1;
  }
  log::set_standard_error(attachment.standard_error);
  try {
    attached = attachment;
    std::copy_n(attached.real, kSymbolCount, real::table);
    index_by_address();
    report_driver();
    const Accounting accounting = start_accounting != nullptr ? start_accounting(attachment) : Accounting{};
    for (std::size_t index = 0; index < kSymbolCount; ++index) {
      void* target = overrides::find(static_cast<Symbol>(index));
      if (target == nullptr) target = gates::table[index];
      next::table[index] = target != nullptr ? target : real::table[index];
      if (accounting.counters == nullptr || accounting.counters[index] == nullptr) continue;
      accounting.targets[index] = next::table[index];
      next::table[index] = accounting.counters[index];
    }
    runtime();
    if (start_tracing != nullptr) tracers = start_tracing();
  } catch (...) {
    log::error("rota could not start in this process; CUDA goes on without it");
    return 2;
  }
  __atomic_store_n(attached.note_unknown, &note_unknown, __ATOMIC_RELEASE);
  __atomic_store_n(attached.before_load, &before_load, __ATOMIC_RELEASE);
  for (std::size_t index = 0; index < kSymbolCount; ++index) {
    void* tracer = tracers != nullptr ? tracers[index] : nullptr;
    if (tracer == nullptr && left_to_resolver(static_cast<Symbol>(index))) continue;
    __atomic_store_n(&attached.slots[index], tracer != nullptr ? tracer : next::table[index], __ATOMIC_RELEASE);
  }
  return 0;
}

bool driver_found() noexcept {
  return attached.driver_state == kRotaDriverFound;
}

bool available(Symbol symbol) noexcept {
  return attached.available != nullptr && attached.available[static_cast<std::size_t>(symbol)] != 0;
}

void* thunk(Symbol symbol) noexcept {
  return attached.thunks + static_cast<std::size_t>(symbol) * attached.thunk_stride;
}

std::optional<Symbol> symbol_at(const void* real_function, const char* wanted) noexcept {
  const RealFunction* begin = by_address.data();
  const RealFunction* end = begin + by_address_count;
  const auto* found = std::lower_bound(begin, end, real_function, [](const RealFunction& entry, const void* address) {
    return std::less<>()(entry.address, address);
  });
  if (found == end || found->address != real_function) return std::nullopt;
  const auto first = static_cast<Symbol>(found->symbol);
  if (wanted == nullptr || is_wanted(first, wanted)) return first;
  for (++found; found != end && found->address == real_function; ++found) {
    if (is_wanted(static_cast<Symbol>(found->symbol), wanted)) return static_cast<Symbol>(found->symbol);
  }
  return first;
}

}  // namespace rota::interpose
