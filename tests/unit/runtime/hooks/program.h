// What the tests of the overrides share: a runtime as a program has it, over the fake driver, and a record of which
// overrides the tables of these tests cover.
//
// The runtime is one per process and reads its settings once, so each of these programs is a child process. It checks
// with EXPECT; a failed check is printed with the name of the override being tested.
#pragma once

#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "generated/driver_symbols.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"
#include "tests/unit/runtime/fake_driver.h"

namespace rota::test {

struct Settings {
  const char* memory = "native";  // ROTA_MEMORY
  const char* limit = "";         // ROTA_GPU_MEM_LIMIT
  const char* small = "0";        // ROTA_MEMORY_SMALL: the tests' memory is small, but must be converted
};

// Whether all checks of `program` pass, in a child process with its own runtime and no rotad.
bool holds(const Settings& settings, const std::function<void(FakeDriver& driver)>& program);

// In the child: which override or case is being tested, for the messages.
void now_testing(std::string what);
void expect(bool holds, const char* text, const char* file, int line);
#define EXPECT(...) rota::test::expect(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

// A table of calls, one row an override or more; each row has a `symbol`. The tests of its file go through the rows,
// and covered_test.cpp compares all tables' rows with runtime/overrides.inc.
std::set<Symbol>& covered();
template <typename Row>
class Table : public std::vector<Row> {
 public:
  Table(std::initializer_list<Row> rows) : std::vector<Row>(rows) {
    for (const Row& row : rows) covered().insert(row.symbol);
  }
};

inline const char* name_of(Symbol symbol) {
  return kSymbolNames[static_cast<std::size_t>(symbol)];
}

// Live bytes on all GPUs together.
inline std::uint64_t live_bytes() {
  std::uint64_t sum = 0;
  for (int device = 0; device < memory::kMaxDevices; ++device) sum += runtime().ledger.live_bytes(device);
  return sum;
}

inline constexpr std::uint64_t kMiB = 1 << 20;

}  // namespace rota::test
