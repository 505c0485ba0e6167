// What ctest 3.25 wrote and printed of a project with every kind of outcome, -j4 --repeat until-pass:3.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <string>

#include "tools/rota/ci/ctest_files.h"

namespace rota::ci {
namespace {

std::string recorded(const std::string& name) {
  std::ifstream file(std::string(ROTA_TEST_DATA "/ctest/") + name, std::ios::binary);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

const ListedTest& named(const std::vector<ListedTest>& tests, const std::string& name) {
  for (const ListedTest& test : tests) {
    if (test.name == name) return test;
  }
  throw std::runtime_error("no test " + name);
}

}  // namespace

TEST_CASE("ctest's list has commands, folders, time-outs and what is disabled") {
  const auto tests = read_ctest_listing("Unable to find executable: /x\n" + recorded("listing.json"));
  REQUIRE(tests);
  CHECK(tests->size() == 15);
  CHECK(named(*tests, "plain").command == std::vector<std::string>{"/bin/sh", "-c", "sleep 0.2; echo hello"});
  CHECK(named(*tests, "with \"quotes\" and spaces; x").command ==
        std::vector<std::string>{"/bin/echo", "a b", "q\"q", "back\\slash", ""});
  CHECK(named(*tests, "needs").folder == "/tmp");
  CHECK(named(*tests, "plain").folder == "/build");
  CHECK(named(*tests, "slow").timeout_s == 1);
  CHECK(named(*tests, "disabled").disabled);
  CHECK_FALSE(named(*tests, "plain").disabled);
  CHECK(named(*tests, "missing").command.empty());
}

TEST_CASE("what is no list of ctest's is refused") {
  for (const char* text : {"", "Test project /x", "{}", "{\"tests\":3}", "{\"tests\":[", "[]"}) {
    CAPTURE(text);
    const auto tests = read_ctest_listing(text);
    REQUIRE_FALSE(tests);
    CHECK(tests.error().text.find("3.14") != std::string::npos);
  }
  // Of other types than expected: left out.
  const auto odd =
      read_ctest_listing(R"({"tests":[3,{"name":4,"command":"x","properties":[1,{"name":"TIMEOUT","value":"x"}]}]})");
  REQUIRE(odd);
  CHECK(odd->size() == 1);
  CHECK(odd->front().timeout_s == 0);
}

TEST_CASE("ctest's log has each attempt with its outcome and duration, in the order of their ends") {
  using Verdict = LoggedTest::Verdict;
  const auto log = read_ctest_log(recorded("LastTest.log"));
  std::map<std::string, std::vector<Verdict>> verdicts;
  for (const LoggedTest& test : log) verdicts[test.name].push_back(test.verdict);
  CHECK(verdicts["plain"] == std::vector{Verdict::kPassed});
  CHECK(verdicts["with \"quotes\" and spaces; x"] == std::vector{Verdict::kPassed});
  CHECK(verdicts["fails"] == std::vector(3, Verdict::kFailed));
  CHECK(verdicts["slow"] == std::vector(3, Verdict::kFailed));
  CHECK(verdicts["crash"] == std::vector(3, Verdict::kFailed));
  CHECK(verdicts["regex"] == std::vector(3, Verdict::kFailed));
  CHECK(verdicts["flaky"] == std::vector{Verdict::kFailed, Verdict::kPassed});
  CHECK(verdicts["willfail"] == std::vector{Verdict::kPassed});
  CHECK(verdicts["skips_by_text"] == std::vector{Verdict::kSkipped});
  CHECK(verdicts["disabled"] == std::vector{Verdict::kNotRun});
  CHECK(verdicts["missing"] == std::vector{Verdict::kNotRun});
  CHECK(verdicts["needs"] == std::vector{Verdict::kNotRun});
  CHECK(verdicts.size() == 15);
  for (const LoggedTest& test : log) {
    CAPTURE(test.name);
    CHECK(test.folder == (test.name == "needs" ? "/tmp" : "/build"));
    if (test.name == "slow") CHECK(test.seconds == Approx(1).margin(0.1));
    if (test.name == "plain") CHECK(test.seconds == Approx(0.2).margin(0.1));
    if (test.name == "regex") CHECK(test.message.find("Required regular expression not found") == 0);
  }
}

TEST_CASE("a test whose output looks like the log is one test, and has its own verdict") {
  const auto log = read_ctest_log(recorded("LastTest.log"));
  int found = 0;
  for (const LoggedTest& test : log) {
    if (test.name != "evil") continue;
    ++found;
    CHECK(test.verdict == LoggedTest::Verdict::kPassed);
    CHECK(test.seconds < 1);
  }
  CHECK(found == 1);
}

TEST_CASE("of a ctest that was killed the log has the tests that had ended") {
  const auto log = read_ctest_log(recorded("killed.log"));
  REQUIRE(log.size() == 1);
  CHECK(log[0].name == "plain");
  // Wherever it is cut off, no test appears that is not there.
  const std::string whole = recorded("LastTest.log");
  std::size_t before = 0;
  for (std::size_t bytes = 0; bytes <= whole.size(); bytes += 7) {
    const std::size_t tests = read_ctest_log(whole.substr(0, bytes)).size();
    CHECK(tests >= before);
    before = tests;
  }
}

TEST_CASE("a name of several lines is read whole, in the log and in ctest's lists of names") {
  const std::string log =
      "12/40 Testing: a\nb\n12/40 Test: a\nb\nCommand: \"/bin/false\"\nDirectory: /build\n\"a\nb\" start time: "
      "x\nOutput:\n"
      "----------------------------------------------------------\n12/40 Test: a\n<end of output>\nTest time =   1.50 "
      "sec\n"
      "----------------------------------------------------------\nTest Failed.\n\"a\nb\" end time: x\n"
      "\"a\nb\" time elapsed: 00:00:01\n----------------------------------------------------------\n\n";
  const auto tests = read_ctest_log(log + log);
  REQUIRE(tests.size() == 2);
  for (const LoggedTest& test : tests) {
    CHECK(test.name == "a\nb");
    CHECK(test.folder == "/build");
    CHECK(test.seconds == 1.5);
    CHECK(test.verdict == LoggedTest::Verdict::kFailed);
  }
  CHECK(read_ctest_names("5:a\nb\n12:c\n\nd:e") == std::set<std::string>{"a\nb", "c\n\nd:e"});
}

TEST_CASE("ctest's lists of names are read with colons and without an end of line") {
  CHECK(read_ctest_names(recorded("LastTestsDisabled.log")) ==
        std::set<std::string>{"disabled", "skips", "skips_by_text"});
  CHECK(read_ctest_names("5:a:b\n12:c") == std::set<std::string>{"a:b", "c"});
  CHECK(read_ctest_names("").empty());
}

}  // namespace rota::ci
