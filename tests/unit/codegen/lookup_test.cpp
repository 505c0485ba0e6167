// The generated cuGetProcAddress table against what a real driver answered for every name, version and flag.
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "generated/driver_symbols.h"
#include "tests/unit/recorded_lookups.h"

namespace {

using rota::test::RecordedLookup;

// The recording's driver is of CUDA 13.0; the models go on.
constexpr int kRecordedVersion = 13000;

struct Row {
  std::string base;
  int version;
  int form;
  std::string symbol;
};

const std::vector<Row>& generated() {
  static const std::vector<Row> rows = {
#define ROTA_LOOKUP(base, version, form, symbol) {#base, version, form, #symbol},
#include "generated/driver_lookup.inc"
#undef ROTA_LOOKUP
  };
  return rows;
}

// An answer without a function is "-" here.
std::vector<RecordedLookup> recorded() {
  std::vector<RecordedLookup> rows = rota::test::recorded_lookups(ROTA_RECORDED_LOOKUPS);
  for (RecordedLookup& row : rows) {
    if (!row.found()) row.answer = "-";
  }
  return rows;
}

std::string answer(const std::string& base, int form, int version) {
  std::string symbol = "-";
  int best = 0;
  for (const Row& row : generated()) {
    if (row.base == base && row.form == form && row.version <= version && row.version >= best) {
      best = row.version;
      symbol = row.symbol;
    }
  }
  return symbol;
}

}  // namespace

TEST_CASE("the generated look-up table answers every recorded look-up like the driver") {
  std::size_t compared = 0;
  std::size_t too_new = 0;
  for (const RecordedLookup& row : recorded()) {
    if (row.version > kRecordedVersion) {
      // A version newer than the driver is refused before any name is looked at: no matter of the table.
      CHECK(row.answer == "-");
      ++too_new;
      continue;
    }
    ++compared;
    INFO(row.name << " flag " << row.flags << " version " << row.version);
    CHECK(answer(row.name, row.flags == 2 ? 2 : 0, row.version) == row.answer);
  }
  CHECK(compared == 3127);
  CHECK(too_new == 1437);
}

TEST_CASE("the generated look-up table has no change point that was not recorded") {
  std::set<std::string> known;
  std::set<std::tuple<std::string, int, int>> points;
  for (const RecordedLookup& row : recorded()) {
    known.insert(row.name);
    points.insert({row.name, row.flags, row.version});
  }
  std::set<std::string> unrecorded;
  for (const Row& row : generated()) {
    if (row.version > kRecordedVersion) continue;
    if (!known.contains(row.base)) {
      unrecorded.insert(row.base);
      continue;
    }
    INFO(row.symbol);
    CHECK(points.contains({row.base, row.form, row.version}));
    CHECK(rota::find_symbol(row.symbol));
  }
  // cudaEGL.h declares it for Tegra alone: the recorded driver neither exports nor answers it.
  CHECK(unrecorded == std::set<std::string>{"cuEventCreateFromEGLSync"});
}

TEST_CASE("every symbol can be found by its name, and nothing else") {
  for (std::size_t i = 0; i < rota::kSymbolCount; ++i) {
    REQUIRE(rota::find_symbol(rota::kSymbolNames[i]) == static_cast<rota::Symbol>(i));
  }
  for (const char* name : {"", "cu", "cuMemAlloc_v", "cuMemAlloc_v22", "zzz", "CUInit"})
    CHECK_FALSE(rota::find_symbol(name));
}
