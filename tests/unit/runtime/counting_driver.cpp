#include "tests/unit/runtime/counting_driver.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <mutex>

#include "generated/driver_functions.h"
#include "generated/driver_real.h"
#include "generated/driver_types.h"

namespace rota::test {

namespace {

struct Entry {
  void* function = nullptr;
  std::atomic<long> calls{0};
  std::atomic<long> nanoseconds{0};
};
std::array<Entry, kSymbolCount> entries;
std::mutex lock_of_driver;

void spend(long nanoseconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(nanoseconds);
  while (std::chrono::steady_clock::now() < end) {
  }
}

template <Symbol kSymbol, typename Function>
struct Counted;
template <Symbol kSymbol, typename Result, typename... Arguments>
struct Counted<kSymbol, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    Entry& entry = entries[static_cast<std::size_t>(kSymbol)];
    entry.calls.fetch_add(1, std::memory_order_relaxed);
    if (const long nanoseconds = entry.nanoseconds.load(std::memory_order_relaxed); nanoseconds > 0) {
      const std::lock_guard lock(lock_of_driver);
      spend(nanoseconds);
    }
    return reinterpret_cast<Result (*)(Arguments...)>(entry.function)(arguments...);
  }
};

#define ROTA_UNDECLARED(name) using name##_fn = api::CUresult();
namespace undeclared {
using namespace api;  // NOLINT(google-build-using-namespace): the names are CUDA's own
#include "generated/driver_undeclared.inc"
void* const kCounted[kSymbolCount] = {
#define ROTA_SYMBOL(name) reinterpret_cast<void*>(&Counted<Symbol::k_##name, name##_fn>::call),
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL
};
}  // namespace undeclared
#undef ROTA_UNDECLARED

}  // namespace

CountingDriver::CountingDriver() {
  for (std::size_t index = 0; index < kSymbolCount; ++index) {
    entries[index].function = real::table[index];
    entries[index].calls.store(0);
    entries[index].nanoseconds.store(0);
    real::table[index] = undeclared::kCounted[index];
  }
}

CountingDriver::~CountingDriver() {
  for (std::size_t index = 0; index < kSymbolCount; ++index) real::table[index] = entries[index].function;
}

void CountingDriver::cost(Symbol symbol, std::chrono::nanoseconds locked) {
  entries[static_cast<std::size_t>(symbol)].nanoseconds.store(locked.count());
}

void CountingDriver::reset() const {
  for (Entry& entry : entries) entry.calls.store(0);
}

std::map<std::string, long> CountingDriver::calls() const {
  std::map<std::string, long> counted;
  for (std::size_t index = 0; index < kSymbolCount; ++index) {
    if (const long calls = entries[index].calls.load(); calls > 0) counted[kSymbolNames[index]] = calls;
  }
  return counted;
}

long CountingDriver::total() const {
  long sum = 0;
  for (const Entry& entry : entries) sum += entry.calls.load();
  return sum;
}

long CountingDriver::locked() const {
  long sum = 0;
  for (const Entry& entry : entries) sum += entry.nanoseconds.load() > 0 ? entry.calls.load() : 0;
  return sum;
}

}  // namespace rota::test
