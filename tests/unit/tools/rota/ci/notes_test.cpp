#include <catch2/catch.hpp>

#include "tools/rota/ci/notes.h"
#include "tools/rota/ci/suggest.h"

namespace {

using namespace rota::report;
using rota::ci::rig_notes;

constexpr Realtime kSecond = 1'000'000'000;

TestReport test(const std::string& name, Realtime begin_s, Realtime end_s, std::uint64_t waited_s) {
  TestReport made;
  made.record.name = name;
  made.record.runner = "ctest";
  made.record.outcome = "passed";
  made.record.begin_ns = begin_s * kSecond;
  made.record.end_ns = end_s * kSecond;
  made.use.waited_ns = waited_s * static_cast<std::uint64_t>(kSecond);
  return made;
}

bool any_has(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("a test that waited for half of its time is named, and so is one that was ended while it waited") {
  Model model;
  model.tests = {test("long", 100, 110, 6), test("quick", 100, 110, 2), test("ended", 100, 110, 1)};
  ProcessReport process;
  process.account.ending = Ending::kKilled;
  process.account.inside = {{.tid = 1, .function = "cuLaunchKernel", .at_gate = true}};
  model.processes = {process};
  model.tests[2].processes = {0};
  const auto notes = rig_notes(model);
  CHECK(any_has(notes, "long waited 6.0 s of its 10.0 s for the GPU"));
  CHECK_FALSE(any_has(notes, "quick"));
  CHECK(any_has(notes, "ended was ended while it waited for its turn"));
  // No turn is needed to make a context.
  model.processes[0].account.inside = {{.tid = 1, .function = "cuDevicePrimaryCtxRetain", .at_gate = true}};
  CHECK(any_has(rig_notes(model), "ended was ended while it waited for memory that other tests need"));
}

TEST_CASE("tests that their own time-outs ended although they waited are named together, with the remedy") {
  Model model;
  for (const char* name : {"a", "b", "worked", "passed"}) model.tests.push_back(test(name, 100, 110, 8));
  for (std::size_t i = 0; i < 3; ++i) model.tests[i].record.outcome = "timeout";
  model.tests[2].use.waited_ns = 0;
  model.tests.push_back(test("py", 100, 110, 3));
  model.tests.back().record.runner = "pytest";
  model.tests.back().record.outcome = "failed";
  model.tests.back().record.message = "Failed: Timeout (>10.0s) from pytest-timeout.";
  const auto notes = rig_notes(model);
  CHECK(
      notes.front() ==
      "3 tests were ended by their own time-out, in which waiting for the GPU counts: a (waited 8.0 s of its 10.0 s), "
      "b (waited 8.0 s of its 10.0 s), py (waited 3.0 s of its 10.0 s). Give longer time-outs (ctest: TIMEOUT or "
      "--timeout; pytest: --timeout), or run fewer at once, such as 3");
  CHECK_FALSE(any_has(notes, "worked"));
  CHECK(any_has(notes, "passed waited 8.0 s of its 10.0 s for the GPU"));
  model.tests = {test("a", 100, 110, 8)};
  model.tests[0].record.outcome = "timeout";
  CHECK(any_has(rig_notes(model), "1 test was ended by its own time-out"));
}

TEST_CASE("how many tests at once were worth it") {
  Model model;
  for (int i = 0; i < 8; ++i) model.tests.push_back(test("t", 100, 110, 7));
  CHECK(any_has(rig_notes(model),
                "up to 8 tests ran at once, of which 2.4 did not wait, on average: -j3 would do as well"));
  model.tests.clear();
  for (int i = 0; i < 4; ++i) model.tests.push_back(test("t", 100, 110, 0));
  CHECK(any_has(rig_notes(model), "up to 4 tests ran at once, and that was worth it"));
  model.tests = {test("a", 100, 110, 9), test("b", 110, 120, 9)};  // one after the other
  CHECK_FALSE(any_has(rig_notes(model), "at once"));
}

TEST_CASE("tests one after the other do not run at once, however badly their ends are known") {
  Model model;
  // Two lanes of tests of a second, each of which seems to end 40 ms after the next has begun.
  for (int i = 0; i < 6; ++i) {
    for (int lane = 0; lane < 2; ++lane) {
      model.tests.push_back(test("t", 0, 0, 0));
      model.tests.back().record.begin_ns = 100 * kSecond + i * kSecond;
      model.tests.back().record.end_ns = model.tests.back().record.begin_ns + kSecond + 40'000'000;
    }
  }
  CHECK(any_has(rig_notes(model), "up to 2 tests ran at once"));
  // Short ones, too.
  for (TestReport& each : model.tests) each.record.end_ns = each.record.begin_ns + 60'000'000;
  CHECK(any_has(rig_notes(model), "up to 2 tests ran at once"));
}

TEST_CASE("memory is suggested with a reserve, and names are quoted for CMake") {
  Model model;
  model.tests = {test("a \"b\" $c", 100, 101, 0), test("none", 100, 101, 0)};
  model.tests[0].use.peak_bytes = std::uint64_t{100} << 20;
  ProcessReport process;
  process.account.gpus.resize(1);
  process.account.gpus[0].total_bytes = std::uint64_t{1000} << 20;
  model.processes = {process};
  const std::string text = rota::ci::suggestions(model);
  CHECK(text.find("set_tests_properties(\"a \\\"b\\\" \\$c\" PROPERTIES RESOURCE_GROUPS \"gpu_mib:111\")") !=
        std::string::npos);
  CHECK(text.find("none") == std::string::npos);
  CHECK(text.find("set_per_process_memory_fraction(0.110)") != std::string::npos);
  CHECK(text.find("\"slots\": 1000") != std::string::npos);
}
