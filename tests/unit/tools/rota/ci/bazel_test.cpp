#include "tools/rota/ci/bazel.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tools/rota/ci/tests.h"

namespace rota::ci {
namespace {

report::ProcessAccount process(std::uint32_t pid, const std::string& test, report::Realtime began) {
  report::ProcessAccount account;
  account.self.pid = pid;
  account.self.start_ticks = static_cast<std::uint64_t>(began / 10'000'000);
  account.self.command = {"/sandbox/test", std::to_string(pid)};
  account.id = account.self.id();
  account.test = test;
  account.began_ns = began;
  account.ended_ns = began + 500'000'000;
  return account;
}

constexpr report::Realtime kSecond = 1'000'000'000;

}  // namespace

TEST_CASE("processes of bazel's tests are joined by target, shard and attempt") {
  const auto tests =
      bazel_tests({process(1, "bazel //gpu:all_test", 5 * kSecond), process(2, "bazel //gpu:all_test", 4 * kSecond),
                   process(3, "bazel //gpu:b shard 0 of 2 attempt 1", 4 * kSecond),
                   process(4, "bazel //gpu:b shard 1 of 2 attempt 1", 4 * kSecond),
                   process(5, "bazel //gpu:b shard 1 of 2 attempt 2", 4 * kSecond),
                   process(6, "bazel //py:c\npytest a.py::b", 4 * kSecond), process(7, "pytest a.py::b", 4 * kSecond),
                   process(8, "", 4 * kSecond)},
                  0);
  REQUIRE(tests.size() == 5);
  CHECK(tests[0].name == "//gpu:all_test");
  CHECK(tests[0].processes == std::vector<std::string>{"1-500", "2-400"});
  CHECK(tests[0].begin_ns == 4 * kSecond);
  CHECK(tests[0].end_ns == 5 * kSecond + kSecond / 2);
  CHECK(tests[0].command == std::vector<std::string>{"/sandbox/test", "2"});
  CHECK(tests[0].runner == "bazel");
  CHECK(tests[0].outcome == "unknown");
  CHECK(tests[1].name == "//gpu:b shard 0 of 2");
  CHECK(tests[2].name == "//gpu:b shard 1 of 2");
  CHECK(tests[2].attempt == 1);
  CHECK(tests[3].name == "//gpu:b shard 1 of 2");
  CHECK(tests[3].attempt == 2);
  CHECK(tests[4].name == "//py:c");
}

TEST_CASE("a target named like an attempt stays whole") {
  const auto tests = bazel_tests({process(1, "bazel //a attempt x", kSecond), process(2, "bazel ", kSecond)}, 0);
  REQUIRE(tests.size() == 2);
  CHECK(tests[0].name.empty());
  CHECK(tests[1].name == "//a attempt x");
}

TEST_CASE("the list of tests is what the report reads, whatever the names are") {
  report::TestRecord test;
  test.name = "quote \" \xff and \xe2\x82\xac";
  test.runner = "ctest";
  test.attempt = 2;
  test.ambiguous = true;
  test.outcome = "timeout";
  test.begin_ns = 5;
  test.end_ns = 7;
  test.command = {"a", "\xc3"};
  test.folder = "/x";
  test.processes = {"1-2"};
  std::vector<std::string> problems;
  const auto read = report::read_test_list(test_list({test}), "tests.json", problems);
  CHECK(problems.empty());
  REQUIRE(read.size() == 1);
  CHECK(read[0].name == "quote \" \xef\xbf\xbd and \xe2\x82\xac");
  CHECK(read[0].attempt == 2);
  CHECK(read[0].ambiguous);
  CHECK(read[0].outcome == "timeout");
  CHECK(read[0].end_ns == 7);
  CHECK(read[0].command.size() == 2);
  CHECK(read[0].processes == test.processes);
}

TEST_CASE("a list that cannot be written is named") {
  const auto written = write_test_list("/proc/no/such", {});
  REQUIRE_FALSE(written);
  CHECK(written.error().text.find("/proc/no/such/tests.json") == 0);
}

}  // namespace rota::ci
