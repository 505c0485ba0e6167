// Which test a process belonged to, with made-up processes and logs.
#include <catch2/catch.hpp>
#include <ctime>

#include "tools/rota/ci/ctest.h"

namespace rota::ci {
namespace {

using Verdict = LoggedTest::Verdict;
using Command = std::vector<std::string>;

report::PersonRecord person(std::uint32_t pid, double start_s, Command command, std::string folder = "/build") {
  return {pid, static_cast<std::uint64_t>(start_s * 100 + 0.5), std::move(command), std::move(folder)};
}

const report::PersonRecord kRunner = person(10, 0, {"/usr/bin/ctest", "-j8"});

// A process that called CUDA, and the processes between it and ctest.
report::ProcessAccount process(report::PersonRecord self, double seconds,
                               std::vector<report::PersonRecord> between = {}, report::PersonRecord runner = kRunner) {
  report::ProcessAccount account;
  account.began_ns = static_cast<report::Realtime>(self.start_ticks) * 10'000'000 + 5'000'000;
  account.ended_ns = account.began_ns + static_cast<report::Realtime>(seconds * 1e9);
  account.self = std::move(self);
  account.id = account.self.id();
  account.ancestors = std::move(between);
  account.ancestors.push_back(std::move(runner));
  account.ancestors.push_back(person(5, 0, {"make", "check"}));
  return account;
}

struct Project {
  AskedCtest ctest{kRunner, {}, {}, {}, 1500};

  Project& test(std::string name, Command command, std::string folder = "/build") {
    ctest.listed.push_back({std::move(name), std::move(command), std::move(folder), false, 0});
    return *this;
  }
  Project& ended(std::string name, double seconds, Verdict verdict = Verdict::kPassed) {
    ctest.logged.push_back({std::move(name), "/build", seconds, verdict, ""});
    return *this;
  }
  std::vector<report::TestRecord> match(const std::vector<report::ProcessAccount>& processes) {
    return match_ctest(ctest, processes, 0);
  }
};

// "name#attempt: processes", with a question mark if it is ambiguous; in the order found.
std::vector<std::string> summary(const std::vector<report::TestRecord>& tests) {
  std::vector<std::string> lines;
  for (const report::TestRecord& test : tests) {
    std::string line = test.name + "#" + std::to_string(test.attempt) + (test.ambiguous ? "?" : "") + ":";
    for (const std::string& one : test.processes) line += " " + one.substr(0, one.find('-'));
    lines.push_back(line);
  }
  return lines;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("a process belongs to the test with its command, or with that of its ancestor below ctest") {
  Project project;
  project.test("a", {"/t", "a"}).test("b", {"/t", "b"}).test("none", {"/t", "c"});
  project.ended("b", 1).ended("none", 0.1).ended("a", 2, Verdict::kFailed);
  const auto tests = project.match({process(person(20, 1, {"/t", "a"}), 1),
                                    process(person(31, 1.2, {"python3", "x.py"}), 0.5, {person(30, 1, {"/t", "b"})}),
                                    process(person(32, 1.2, {"python3", "y.py"}), 0.5, {person(30, 1, {"/t", "b"})})});
  CHECK(summary(tests) == Lines{"b#1: 31 32", "none#1:", "a#1: 20"});
  CHECK(tests[0].begin_ns == 1'000'000'000);
  CHECK(tests[0].end_ns == 2'000'000'000);
  CHECK(tests[1].begin_ns == 0);
  CHECK(tests[1].outcome == "passed");
  CHECK(tests[2].outcome == "failed");
  CHECK(tests[2].command == Command{"/t", "a"});
}

TEST_CASE("equal commands in different folders are told apart by the folder") {
  Project project;
  project.test("a", {"/t"}, "/build/a").test("b", {"/t"}, "/build/b").ended("a", 1).ended("b", 1);
  CHECK(summary(project.match({process(person(20, 1, {"/t"}, "/build/b"), 0.5),
                               process(person(21, 1, {"/t"}, "/build/a"), 0.5)})) == Lines{"a#1: 21", "b#1: 20"});
}

TEST_CASE("arguments that are no UTF-8 are compared as ctest lists them") {
  Project project;
  project.test("latin", {"/t", "gr\xEF\xBF\xBD"}).test("other", {"/t", "-x"}).test("overlong", {"/t", "\xEF\xBF\xBD"});
  const std::vector<report::ProcessAccount> running = {process(person(20, 1, {"/t", "gr\xF6"}), 1),
                                                       process(person(30, 1, {"/t", "\xC0\x80"}), 1)};
  CHECK(summary(project.match(running)) == Lines{"latin#1: 20", "overlong#1: 30"});
}

TEST_CASE("commands that differ only in what the list cannot show are told apart by the log") {
  Project project;
  const std::string replaced = "\xEF\xBF\xBD";
  project.test("a", {"/t", replaced}).test("b", {"/t", replaced}).test("c", {"/t", replaced});
  project.ended("a", 1).ended("b", 1);
  project.ctest.logged[0].command = "\"/t\" \"\xE4\"";
  project.ctest.logged[1].command = "\"/t\" \"\xF6\"";
  const auto tests =
      project.match({process(person(20, 1, {"/t", "\xF6"}), 1), process(person(30, 1, {"/t", "\xE4"}), 1),
                     process(person(40, 1, {"/t", "\xFC"}), 1)});
  CHECK(summary(tests) == Lines{"a#1: 30", "b#1: 20", "c#1: 40"});
}

TEST_CASE("names and commands that differ only in what the list cannot show are told apart by the log") {
  Project project;
  const std::string replaced = "\xEF\xBF\xBD";
  project.test(replaced, {"/t", replaced}).test(replaced + " (2)", {"/t", replaced});
  project.ctest.listed[1].listed_as = replaced;
  project.ended(replaced, 1).ended(replaced, 1).ended(replaced, 1);
  for (const auto& [entry, byte] : {std::pair(0, "\xF6"), std::pair(1, "\xE4"), std::pair(2, "\xF6")}) {
    project.ctest.logged[entry].raw = byte;
    project.ctest.logged[entry].command = "\"/t\" \"" + std::string(byte) + '"';
  }
  const auto tests =
      project.match({process(person(20, 1, {"/t", "\xF6"}), 1), process(person(30, 1, {"/t", "\xE4"}), 1),
                     process(person(40, 3, {"/t", "\xF6"}), 1)});
  CHECK(summary(tests) == Lines{replaced + " (2)#1: 20", replaced + "#1: 30", replaced + " (2)#2: 40"});
}

TEST_CASE("a command that an account cuts off is compared up to there, in any character and behind a launcher") {
  for (std::size_t more = 0; more < 4; ++more) {
    const std::string one = std::string(1500 + more, 'a') + "\xC3\xA4";
    std::string other;
    for (std::size_t i = 0; i < 700; ++i) other += "\xC3\xA4";
    Project project;
    project.test("one", {"/t", one})
        .test("other", {"/t", other})
        .test("third", {"/bin/timeout", "9", "/t", "x" + other});
    const auto cut = [](Command command, std::size_t bytes) {
      std::size_t before = 0;
      for (std::size_t i = 0; i + 1 < command.size(); ++i) before += command[i].size() + 1;
      command.back().resize(bytes - before);
      return command;
    };
    const auto tests = project.match({process(person(20, 1, cut({"/t", one}, 1022 + more)), 1),
                                      process(person(30, 1, cut({"/t", other}, 1022 + more)), 1),
                                      process(person(40, 1, cut({"/t", "x" + other}, 1022 + more)), 1)});
    CHECK(summary(tests) == Lines{"one#1: 20", "other#1: 30", "third#1: 40"});
  }
}

TEST_CASE("equal commands are told apart by their ends and durations, where these decide") {
  Project project;
  project.test("short", {"/t"}).test("long", {"/t"});
  project.ended("short", 1).ended("long", 3);
  // The long one began first.
  CHECK(summary(project.match({process(person(20, 1, {"/t"}), 2.9), process(person(21, 1.1, {"/t"}), 0.9)})) ==
        Lines{"short#1: 21", "long#1: 20"});
  // Began at once and had equally much to do: nothing decides.
  Project equal;
  equal.test("a", {"/t"}).test("b", {"/t"}).ended("a", 1).ended("b", 1);
  const auto tests = equal.match({process(person(20, 1, {"/t"}), 0.9), process(person(21, 1, {"/t"}), 0.9)});
  CHECK(tests[0].ambiguous);
  CHECK(tests[1].ambiguous);
  CHECK(tests[0].processes.size() + tests[1].processes.size() == 2);
  // One after the other.
  CHECK(summary(equal.match({process(person(20, 1, {"/t"}), 0.9), process(person(21, 2, {"/t"}), 0.9)})) ==
        Lines{"a#1: 20", "b#1: 21"});
}

TEST_CASE("retries are attempts of one test") {
  Project project;
  project.test("flaky", {"/t"}).test("other", {"/o"});
  project.ended("flaky", 1, Verdict::kFailed).ended("other", 0.1).ended("flaky", 1, Verdict::kFailed).ended("flaky", 1);
  const auto tests = project.match(
      {process(person(20, 1, {"/t"}), 0.5), process(person(21, 2, {"/t"}), 0.5), process(person(22, 3, {"/t"}), 0.5)});
  CHECK(summary(tests) == Lines{"flaky#1: 20", "other#1:", "flaky#2: 21", "flaky#3: 22"});
  CHECK(tests[0].outcome == "failed");
  CHECK(tests[3].outcome == "passed");
}

TEST_CASE("a script's interpreter and a wrapper that became the program are the test's command all the same") {
  Project project;
  project.test("script", {"/src/run.sh", "x"}).test("wrapped", {"/usr/bin/taskset", "-c", "1", "/t", "y"});
  project.ended("script", 1).ended("wrapped", 1);
  CHECK(summary(
            project.match({process(person(21, 1.1, {"/t", "z"}), 0.5, {person(20, 1, {"/bin/sh", "/src/run.sh", "x"})}),
                           process(person(30, 1, {"/t", "y"}), 0.5)})) == Lines{"script#1: 21", "wrapped#1: 30"});
}

TEST_CASE("a shell command that became another program is known by naming it") {
  Project project;
  project.test("a", {"/bin/sh", "-c", "cd /x; exec ./alpha --flag"}).test("b", {"/bin/sh", "-c", "exec beta"});
  project.ended("a", 1).ended("b", 1);
  CHECK(summary(project.match(
            {process(person(20, 1, {"beta"}, "/y"), 0.5), process(person(21, 1, {"./alpha", "--flag"}, "/x"), 0.5)})) ==
        Lines{"a#1: 21", "b#1: 20"});
}

TEST_CASE("a launcher that became the program of another path is the test's command all the same") {
  Project project;
  project.test("a", {"/shims/python3", "test.py", "a"}).test("b", {"/shims/python3", "test.py", "b"});
  project.ended("a", 1).ended("b", 1);
  CHECK(summary(project.match({process(person(20, 1, {"/v/bin/python3.11", "test.py", "b"}), 0.5),
                               process(person(21, 1, {"/v/bin/python3.11", "test.py", "a"}), 0.5)})) ==
        Lines{"a#1: 21", "b#1: 20"});
}

TEST_CASE("a script that became the program of another test takes no attempt of that test") {
  Project project;
  project.test("plain", {"/t"})
      .test("script", {"/bin/sh", "-c", "exec /t"})
      .test("other", {"/bin/sh", "-c", "exec /u"});
  project.ended("plain", 1).ended("script", 1).ended("other", 1);
  CHECK(summary(project.match({process(person(20, 1, {"/t"}), 0.9), process(person(21, 2, {"/t"}), 0.9)})) ==
        Lines{"plain#1?: 20", "script#1?: 21", "other#1:"});
}

TEST_CASE("a command that an account has cut off is compared as far as it goes") {
  const std::string longer(2000, 'x');
  Project project;
  project.test("a", {"/t", longer + "1", "end"}).test("b", {"/u", longer + "2"}).ended("a", 1).ended("b", 1);
  CHECK(summary(project.match({process(person(20, 1, {"/u", longer.substr(0, 1020)}), 0.5)})) ==
        Lines{"a#1:", "b#1: 20"});
}

TEST_CASE("time-outs, skips and tests that were not run are reported") {
  Project project;
  project.test("slow", {"/s"}).test("skips", {"/k"}).test("disabled", {"/d"}).test("missing", {});
  project.ctest.listed[0].timeout_s = 2;
  project.ctest.listed[2].disabled = true;
  project.ctest.disabled = {"skips"};
  project.ended("slow", 2, Verdict::kFailed)
      .ended("skips", 0.1)
      .ended("disabled", 0, Verdict::kNotRun)
      .ended("missing", 0, Verdict::kNotRun);
  const auto tests = project.match({process(person(20, 1, {"/s"}), 1.9)});
  REQUIRE(tests.size() == 4);
  CHECK(tests[0].outcome == "timeout");
  CHECK(tests[1].outcome == "skipped");
  CHECK(tests[2].outcome == "skipped");
  CHECK(tests[3].outcome == "error");
  CHECK(tests[3].message == "it was not run");
}

// ctest 3.25 ended tests with a time-out of 2 s after 1.4 s, started last of 65.
TEST_CASE("a test that ctest killed a little before its time-out has timed out") {
  Project project;
  project.test("early", {"/e"}).test("fails", {"/f"}).test("crashes", {"/c"}).test("without CUDA", {"/w"});
  for (ListedTest& test : project.ctest.listed) test.timeout_s = 2;
  project.ended("early", 1.4, Verdict::kFailed)
      .ended("fails", 1.5, Verdict::kFailed)
      .ended("crashes", 0.9, Verdict::kFailed)
      .ended("without CUDA", 1.4, Verdict::kFailed);
  auto exits = process(person(21, 1, {"/f"}), 1.4);
  exits.ending = report::Ending::kExited;
  const auto tests = project.match({process(person(20, 1, {"/e"}), 1.3), exits, process(person(22, 1, {"/c"}), 0.8)});
  REQUIRE(tests.size() == 4);
  CHECK(tests[0].outcome == "timeout");
  CHECK(tests[1].outcome == "failed");
  CHECK(tests[2].outcome == "failed");
  CHECK(tests[3].outcome == "failed");
}

TEST_CASE("what still ran when ctest was killed is unknown, and has its processes") {
  Project project;
  project.test("a", {"/t"}).test("b", {"/t"}).test("c", {"/c"});
  project.ended("b", 1);
  const auto tests = project.match(
      {process(person(20, 1, {"/t"}), 5), process(person(21, 1, {"/t"}), 0.9), process(person(22, 3, {"/c"}), 1)});
  CHECK(summary(tests) == Lines{"b#1: 21", "c#1: 22", "a#1: 20"});
  CHECK(tests[1].outcome == "unknown");
  CHECK(tests[2].outcome == "unknown");
  CHECK(tests[1].end_ns == 0);
}

TEST_CASE("processes of another ctest are not this one's") {
  Project project;
  project.test("a", {"/t"}).ended("a", 1);
  CHECK(summary(project.match({process(person(20, 1, {"/t"}), 0.5, {}, person(11, 0, {"ctest"}))})) == Lines{"a#1:"});
}

TEST_CASE("ctests are found below anything, each once, and not those that only list or build") {
  const auto runs =
      ctest_runs({process(person(20, 1, {"/t"}, "/build/sub"), 1), process(person(21, 1, {"/t"}), 1),
                  process(person(22, 2, {"/t"}), 1, {}, person(12, 1, {"ctest3"})),
                  process(person(23, 2, {"/t"}), 1, {}, person(13, 1, {"ctest", "--build-and-test", "a", "b"})),
                  process(person(24, 2, {"/t"}), 1, {}, person(14, 1, {"../bin/ctest"}, "/build"))});
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].runner.pid == 10);
  CHECK(runs[0].child_folder == "/build/sub");
  CHECK_FALSE(runs[0].last);
  CHECK(runs[1].runner.pid == 14);
  CHECK(runs[1].last);
}

TEST_CASE("thousands of tests are matched in seconds, also where nothing but the time tells them apart") {
  constexpr int kTests = 2000 / ROTA_TEST_EVERY;
  const bool same_command = GENERATE(false, true);
  CAPTURE(same_command);
  Project project;
  std::vector<report::ProcessAccount> processes;
  for (int i = 0; i < kTests; ++i) {
    const std::string name = "t" + std::to_string(i);
    // A script's test becomes the program by exec; of the others the command says which it is.
    if (same_command) {
      project.test(name, {"/bin/sh", "-c", "exec program"});
      processes.push_back(process(person(static_cast<std::uint32_t>(100 + i), 1 + i * 0.05, {"program"}), 0.1));
    } else {
      project.test(name, {ROTA_TEST_DATA "/../dependencies.py", name});
      processes.push_back(process(person(static_cast<std::uint32_t>(100 + i), 1 + i * 0.05, {"python3", "x"}), 0.1,
                                  {person(static_cast<std::uint32_t>(10'000 + i), 1 + i * 0.05,
                                          {"python3", ROTA_TEST_DATA "/../dependencies.py", name})}));
    }
    // Four at once, each a little longer than the account.
    project.ended(name, 0.19);
  }
  const std::clock_t begin = std::clock();  // the processor's time, whatever else runs
  const auto tests = project.match(processes);
  // Each test is compared with each process.
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 30. / (ROTA_TEST_EVERY * ROTA_TEST_EVERY));
  REQUIRE(tests.size() == kTests);
  for (const report::TestRecord& test : tests) REQUIRE(test.processes.size() == 1);
}

TEST_CASE("attempts that fit no order of ends are given to a test all the same") {
  Project project;
  project.test("a", {"/t"}).test("b", {"/t"}).ended("a", 1).ended("b", 1);
  // The wall clock was set back between the two: by the accounts the first one lasted an hour.
  const auto tests = project.match({process(person(20, 1, {"/t"}), 3600), process(person(21, 1.1, {"/t"}), 0.9)});
  std::size_t assigned = 0;
  for (const report::TestRecord& test : tests) assigned += test.outcome == "passed" && !test.processes.empty();
  CHECK(assigned == 1);
}

}  // namespace rota::ci
