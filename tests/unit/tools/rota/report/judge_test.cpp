// Sessions as a whole: whose the processes are, what was in use at the same time, and what is found.
#include "tools/rota/report/judge.h"

#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "account_builder.h"
#include "tools/rota/report/outputs.h"

namespace rota::report {
namespace {

using nlohmann::json;

struct SessionFolder : ScratchFolder {
  std::filesystem::path processes() const { return path() / kProcessFolder; }
  Model model() const {
    if (!std::filesystem::exists(path() / kSessionFile)) {
      write(kSessionFile, json{{"command", {"make", "check"}}, {"exit_code", 0}}.dump());
    }
    auto session = read_session(path().string());
    REQUIRE(session);
    return make_model(std::move(*session));
  }
};

json numbers(std::uint64_t used, std::uint64_t peak, std::uint64_t calls = 0) {
  return {{"used_bytes", used}, {"peak_bytes", peak}, {"calls", calls}};
}

std::string event(const char* what, const char* test, int attempt, std::int64_t second, json more = json::object()) {
  json line = {{"event", what},
               {"test", test},
               {"runner", "pytest"},
               {"attempt", attempt},
               {"time_ns", kBegan + second * kSecond}};
  line.update(more);
  return line.dump() + "\n";
}

Demands demanding(const std::string& rules) {
  Demands demands;
  demands.rules = *parse_rules(rules);
  return demands;
}

TEST_CASE("peaks are added where they were at the same time") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1).memory({10 * kMiB, 2 * kMiB, 2 * kMiB}).exited(3).write(folder.processes());
  AccountBuilder(4'000'002, 2).began(1).memory({5 * kMiB, 5 * kMiB}).exited(2).write(folder.processes());
  AccountBuilder(4'000'003, 3).began(3).memory({9 * kMiB}).exited(1).write(folder.processes());
  const Model model = folder.model();
  REQUIRE(model.processes.size() == 3);
  CHECK(model.total.peak_bytes == 10 * kMiB);
  CHECK(model.rest.empty());
}

TEST_CASE("what follows at once is not added, and where the accounts leave it open, the report says both") {
  const SessionFolder folder;
  // It frees, and goes on living; another one allocates right afterwards, a third when that has ended.
  AccountBuilder(4'000'001, 1).level(0.1, kMiB, kMiB).level(0.2, 0, 0).exited(3).write(folder.processes());
  AccountBuilder(4'000'002, 2).level(0.200001, kMiB, kMiB).exited(1).write(folder.processes());
  AccountBuilder(4'000'003, 3).began(1).level(0, kMiB, kMiB).exited(1).write(folder.processes());
  // Ended by a signal that nobody saw, a moment before the next one began.
  AccountBuilder(4'000'004, 4).began(3).level(0, kMiB, kMiB).write(folder.processes());
  AccountBuilder(4'000'005, 5).began(3).level(0.000001, kMiB, kMiB).exited(1).write(folder.processes());
  const Model exact = folder.model();
  CHECK(exact.total.peak_bytes == kMiB);
  CHECK(exact.total.peak_at_most_bytes == kMiB);
  CHECK_FALSE(contains(text_report({.model = exact, .suppressions = {}, .judgement = {}}), "perhaps"));
  AccountBuilder(4'000'006, 6).began(1).level(0, 4 * kMiB, kMiB / 2).exited(1).write(folder.processes());
  const Model open = folder.model();
  CHECK(open.total.peak_bytes == 4 * kMiB);
  CHECK(open.total.peak_at_most_bytes == 5 * kMiB);
  CHECK(contains(text_report({.model = open, .suppressions = {}, .judgement = {}}),
                 "4.0 MiB for certain, 5.0 MiB perhaps"));
}

TEST_CASE("a test that ends with its process is found, unless it runs, hung, or is its runner's to judge") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1).command("/usr/bin/pytest", "-x").write(folder.processes());
  AccountBuilder(4'000'002, 2).command("/usr/bin/pytest", "-x").write(folder.processes());
  // Without CUDA there is no account; the process itself may have been seen to end, or run.
  const std::string own = std::to_string(getpid()) + "-" + std::to_string(start_ticks_of(getpid()));
  folder.write("tests/4000001-1.jsonl", event("begin", "exits", 1, 0));
  folder.write("tests/4000002-2.jsonl", event("begin", "hangs", 1, 1));
  folder.write("hangs/4000002-2.txt", "pytest (pid 4000002): no CUDA call for 9 s\n");
  folder.write("tests/4000003-3.jsonl", event("begin", "crashes", 1, 2));
  folder.write("tests/4000004-4.jsonl", event("begin", "vanishes", 1, 3));
  folder.write("tests/" + own + ".jsonl", event("begin", "runs", 1, 4));
  folder.write(
      "tests.json",
      json{{"tests", {{{"name", "listed"}, {"runner", "ctest"}, {"outcome", "died"}, {"processes", {}}}}}}.dump());
  folder.write(
      kSessionFile,
      json{{"exit_code", 0},
           {"ended", {{{"process", "4000001-1"}, {"exit_code", 0}}, {{"process", "4000003-3"}, {"signal", SIGSEGV}}}}}
          .dump());
  const Model model = folder.model();
  std::map<std::string, std::string> outcomes;
  for (const TestReport& test : model.tests) outcomes[test.record.name] = test.record.outcome;
  CHECK(outcomes["runs"] == "running");
  std::map<std::string, std::string> died;
  std::size_t hangs = 0;
  for (const Finding& finding : judge(model, {}).findings) {
    REQUIRE(finding.test);
    const std::string name = model.tests[*finding.test].record.name;
    if (finding.kind == "hang") ++hangs;
    if (finding.kind == "died") died[name] = finding.text;
  }
  CHECK(hangs == 1);
  CHECK(died == std::map<std::string, std::string>{
                    {"exits", "its process, pytest -x (pid 4000001), ended with 0 during the test"},
                    {"crashes", "its process (pid 4000003) ended by SIGSEGV during the test"},
                    {"vanishes", "its process (pid 4000004) ended during the test"}});
}

TEST_CASE("a test whose process pytest-timeout has ended timed out, and did not die") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1).command("pytest", "-x").write(folder.processes());
  const auto limited = [](const char* name) {
    return event("begin", name, 1, 100) + event("limit", name, 1, 0, {{"seconds", 10}});
  };
  folder.write("tests/4000001-1.jsonl", limited("slow"));
  folder.write("tests/4000002-2.jsonl", limited("crashes"));
  folder.write("tests/4000003-3.jsonl", limited("gives up early"));
  folder.write("tests/4000004-4.jsonl",
               limited("ends well") + event("end", "ends well", 1, 101, {{"outcome", "passed"}}));
  const auto ended = [](const char* process, std::int64_t second, json more) {
    more["process"] = process;
    more["time_ns"] = kBegan + second * kSecond;
    return more;
  };
  folder.write(kSessionFile,
               json{{"exit_code", 1},
                    {"ended",
                     {ended("4000001-1", 110, {{"exit_code", 1}}), ended("4000002-2", 110, {{"signal", SIGSEGV}}),
                      ended("4000003-3", 103, {{"exit_code", 1}}), ended("4000004-4", 200, {{"exit_code", 1}})}}}
                   .dump());
  const Model model = folder.model();
  std::map<std::string, TestReport> tests;
  for (const TestReport& test : model.tests) tests[test.record.name] = test;
  CHECK(tests["slow"].record.outcome == "timeout");
  CHECK(tests["slow"].record.message == "pytest-timeout ended the process after 10.0 s, by its thread method");
  CHECK(tests["slow"].duration_ns() == 10'000'000'000);
  CHECK(tests["crashes"].record.outcome == "died");
  CHECK(tests["gives up early"].record.outcome == "died");
  CHECK(tests["ends well"].record.outcome == "passed");
  CHECK(model.problems.empty());
}

TEST_CASE("a process that is killed while it waits has waited until its last sign of life") {
  const SessionFolder folder;
  const auto waiting = [](AccountBuilder& builder, std::int64_t alive) -> AccountBuilder& {
    const auto second = [&](std::int64_t number) {
      return static_cast<std::uint64_t>(builder.header().began_monotonic_ns + number * kSecond);
    };
    builder.thread().tid = 5;
    builder.thread().waited_ns = static_cast<std::uint64_t>(kSecond);
    builder.thread().waits_since_ns = second(2);
    if (alive != 0) builder.header().alive_monotonic_ns = second(alive);
    return builder;
  };
  AccountBuilder unseen(4'000'001, 1), seen(4'000'002, 2), silent(4'000'003, 3), exited(4'000'004, 4),
      over(4'000'005, 5);
  waiting(unseen, 7).write(folder.processes());
  waiting(seen, 7).write(folder.processes());
  waiting(silent, 0).write(folder.processes());
  waiting(exited, 7).exited(3).write(folder.processes());
  waiting(over, 7).thread().tid = 0;  // the thread had ended, and its page is nobody's
  over.write(folder.processes());
  folder.write(
      kSessionFile,
      json{{"ended", {{{"process", "4000002-2"}, {"time_ns", kBegan + 8 * kSecond}, {"signal", SIGKILL}}}}}.dump());
  folder.write("tests/4000001-1.jsonl", event("begin", "waits", 1, 0));
  const Model model = folder.model();
  std::map<std::string, std::uint64_t> waited;
  for (const ProcessReport& process : model.processes) {
    waited[process.account.id] = process.use.waited_ns / static_cast<std::uint64_t>(kSecond);
  }
  CHECK(waited == std::map<std::string, std::uint64_t>{
                      {"4000001-1", 6}, {"4000002-2", 7}, {"4000003-3", 1}, {"4000004-4", 2}, {"4000005-5", 1}});
  REQUIRE(model.tests.size() == 1);
  CHECK(model.tests[0].use.waited_ns == 6 * static_cast<std::uint64_t>(kSecond));
}

TEST_CASE("what the sum of a job is made of") {
  const SessionFolder folder;
  AccountBuilder first(4'000'001, 1);
  first.memory({kMiB}).calls(Symbol::k_cuMemcpyHtoD_v2, 2).calls(Symbol::k_cuLaunchKernel, 3).exited(1);
  first.error(Symbol::k_cuEventQuery, 600, 50).error(Symbol::k_cuMemAlloc_v2, 2);
  first.thread().to_device.bytes = 100;
  first.write(folder.processes());
  AccountBuilder(4'000'002, 2).calls(Symbol::k_cuMemcpyHtoD_v2_ptds, 1).exited(1).write(folder.processes());
  const Model model = folder.model();
  CHECK(model.total.copies == 3);
  CHECK(model.total.launches == 3);
  CHECK(model.total.copied_bytes == 100);
  CHECK(model.total.functions.at("cuMemcpyHtoD") == 3);
  CHECK(model.total.errors == 1);  // not ready is no error
  CHECK(model.total.failures.at({"cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY"}) == 1);
}

TEST_CASE("a process belongs to the test that its runner, its environment or its ancestor names") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1).memory({kMiB}).exited(1).write(folder.processes());
  AccountBuilder named(4'000'002, 2);
  std::strcpy(named.header().test, "bazel //a:all shard 0 of 2 attempt 2\npytest a.py::test_named");
  named.memory({2 * kMiB}).exited(1).write(folder.processes());
  AccountBuilder target(4'000'005, 5);
  std::strcpy(target.header().test, "bazel //a:all shard 0 of 2 attempt 2");
  target.memory({5 * kMiB}).exited(1).write(folder.processes());
  AccountBuilder child(4'000'003, 3);
  child.header().ancestor_count = 1;
  child.header().ancestors[0].pid = 50;
  child.header().ancestors[0].start_ticks = 9;
  child.began(5).memory({3 * kMiB}).exited(1).write(folder.processes());
  AccountBuilder(4'000'004, 4).memory({4 * kMiB}).exited(1).write(folder.processes());
  folder.write(
      "tests.json",
      json{{"tests", {{{"name", "list"}, {"runner", "ctest"}, {"outcome", "passed"}, {"processes", {"4000001-1"}}}}}}
          .dump());
  folder.write("tests/50-9.jsonl",
               event("begin", "early", 1, 0) + event("end", "early", 1, 4, {{"outcome", "passed"}}) +
                   event("begin", "late", 1, 4) + event("end", "late", 1, 9, {{"outcome", "failed"}}));
  const Model model = folder.model();
  const auto test = [&](const std::string& name) -> const TestReport& {
    for (const TestReport& one : model.tests) {
      if (one.record.name == name) return one;
    }
    FAIL("no test " << name);
    return model.tests.front();
  };
  CHECK(test("list").use.peak_bytes == kMiB);
  CHECK(test("a.py::test_named").use.peak_bytes == 2 * kMiB);
  CHECK(test("a.py::test_named").record.runner == "pytest");
  CHECK(test("//a:all shard 0 of 2").use.peak_bytes == 5 * kMiB);
  CHECK(test("//a:all shard 0 of 2").record.attempt == 2);
  CHECK(test("late").use.peak_bytes == 3 * kMiB);
  CHECK(test("early").processes.empty());
  REQUIRE(model.rest.size() == 1);
  CHECK(model.processes[model.rest[0]].account.id == "4000004-4");
}

TEST_CASE("a test within a process has what it took on top of what was there") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1).memory({30 * kMiB}).exited(9).write(folder.processes());
  folder.write("tests/4000001-1.jsonl",
               event("begin", "t", 1, 1, {{"begin", numbers(10 * kMiB, 0, 5)}}) +
                   event("end", "t", 1, 2, {{"outcome", "passed"}, {"end", numbers(12 * kMiB, 30 * kMiB, 8)}}) +
                   event("begin", "cut", 1, 3) + "{\"event\": \"en");
  const Model model = folder.model();
  REQUIRE(model.tests.size() == 2);
  CHECK(model.tests[0].use.peak_bytes == 30 * kMiB);
  CHECK(model.tests[0].base_bytes == 10 * kMiB);
  CHECK(model.tests[0].growth_bytes == static_cast<std::int64_t>(2 * kMiB));
  CHECK(model.tests[0].use.calls == 3);
  CHECK(model.tests[0].duration_ns() == static_cast<std::uint64_t>(kSecond));
  CHECK(model.tests[1].record.outcome == "died");
  CHECK(model.problems.empty());  // half a line is what a death leaves
  CHECK(model.rest.empty());
  const Baseline known = baseline_of(model, {});
  CHECK(known.at("t").added_bytes == 20 * kMiB);
  CHECK(parse_baseline(baseline_text(known), "x")->at("t").added_bytes == 20 * kMiB);
}

TEST_CASE("memory freed twice and ended handles are findings without being asked for") {
  const SessionFolder folder;
  AccountBuilder builder(4'000'001, 1);
  builder.finding(account::FindingKind::kFreedTwice, Symbol::k_cuMemFree_v2, Symbol::k_cuMemFreeAsync);
  builder.finding(account::FindingKind::kEndedHandle, Symbol::k_cuStreamQuery, Symbol::k_cuStreamDestroy_v2);
  builder.exited(1).write(folder.processes());
  const auto found = judge(folder.model(), {}).findings;
  REQUIRE(found.size() == 2);
  CHECK(found[0].kind == "freed-twice");
  CHECK(found[0].text ==
        "cuMemFree was called with memory that cuMemFreeAsync had freed already (0xbeef; once in all)");
  CHECK(found[1].kind == "ended-handle");
  CHECK(found[1].text == "cuStreamQuery was called with a handle that cuStreamDestroy had ended (0xbeef; once in all)");
}

TEST_CASE("memory that rises in the second and third repeat is a finding, a cache that fills once is none") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1)
      .module("/opt/libleak.so", 6 * kMiB)
      .module("/opt/libother.so", kMiB)
      .exited(9)
      .write(folder.processes());
  std::string lines;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    const auto used = static_cast<std::uint64_t>(attempt) * 2 * kMiB;
    lines += event("begin", "leaks", attempt, attempt) +
             event("end", "leaks", attempt, attempt, {{"outcome", "passed"}, {"end", numbers(used, used)}});
    const std::uint64_t cached = attempt == 1 ? kMiB : 2 * kMiB;
    lines += event("begin", "caches", attempt, attempt) +
             event("end", "caches", attempt, attempt, {{"outcome", "passed"}, {"end", numbers(cached, cached)}});
  }
  folder.write("tests/4000001-1.jsonl", lines);
  const Model model = folder.model();
  const auto found = judge(model, {}).findings;
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == "growth");
  CHECK(model.tests[*found[0].test].record.name == "leaks");
  CHECK(found[0].text ==
        "memory in use grows with each repeat: 2.0 MiB, then 4.0 MiB, then 6.0 MiB; at the end libleak.so held most of "
        "it, 6.0 MiB");
}

TEST_CASE("rules are judged against limits and against the baseline, and what it does not know is said") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1)
      .memory({10 * kMiB})
      .calls(Symbol::k_cuMemAlloc_v2, 12)
      .error(Symbol::k_cuCtxGetDevice, 201)
      .exited(1)
      .write(folder.processes());
  folder.write("tests.json", json{{"tests",
                                   {{{"name", "known"}, {"outcome", "passed"}, {"processes", {"4000001-1"}}},
                                    {{"name", "new"}, {"outcome", "passed"}}}}}
                                 .dump());
  const Model model = folder.model();
  CHECK(judge(model, demanding("peak>10M")).findings.empty());
  REQUIRE(judge(model, demanding("peak>9M")).findings.size() == 1);
  CHECK(judge(model, demanding("peak>9M")).findings[0].text == "peak is 10 MiB (peak>9M)");
  CHECK(judge(model, demanding("errors")).findings[0].text == "cuCtxGetDevice returned CUDA_ERROR_INVALID_CONTEXT");

  Demands demands = demanding("peak>+10%,calls:cuMemAlloc>+20%,errors");
  demands.baseline.emplace();
  BaselineEntry& entry = (*demands.baseline)["known"];
  entry.use.peak_bytes = 9 * kMiB;
  entry.use.functions["cuMemAlloc"] = 10;
  entry.use.failures[{"cuCtxGetDevice", "CUDA_ERROR_INVALID_CONTEXT"}] = 1;
  const Judgement judged = judge(model, demands);
  REQUIRE(judged.findings.size() == 1);
  CHECK(judged.findings[0].text == "peak is 10 MiB, was 9.0 MiB (peak>+10%)");
  REQUIRE(judged.notes.size() == 1);
  CHECK(contains(judged.notes[0], "the baseline does not know new:"));
}

TEST_CASE("what is live at exit fails only by the rule, and not where a module is suppressed or a signal ended it") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1).module("/opt/libleak.so", kMiB).exited(1).write(folder.processes());
  AccountBuilder(4'000'002, 2).module("/x/torch/lib/libc10_cuda.so", kMiB).exited(1).write(folder.processes());
  AccountBuilder(4'000'003, 3).module("/opt/libleak.so", kMiB).write(folder.processes());
  const Model model = folder.model();
  CHECK(judge(model, {}).findings.empty());
  const auto found = judge(model, demanding("live")).findings;
  REQUIRE(found.size() == 1);
  CHECK(model.processes[*found[0].process].account.id == "4000001-1");
  CHECK(found[0].text == "not freed at exit: 1.0 MiB of libleak.so");
  CHECK(judge(model, demanding("live>1M")).findings.empty());
}

TEST_CASE("the baseline of a job without tests is the job's own, and failed tests are in none") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1).memory({kMiB}).exited(1).write(folder.processes());
  const Baseline job = baseline_of(folder.model(), {});
  REQUIRE(job.contains("make"));
  CHECK(job.at("make").use.peak_bytes == kMiB);
  folder.write("tests.json", json{{"tests",
                                   {{{"name", "good"}, {"outcome", "passed"}, {"processes", {"4000001-1"}}},
                                    {{"name", "bad"}, {"outcome", "failed"}}}}}
                                 .dump());
  const Baseline tests = baseline_of(folder.model(), {});
  CHECK(tests.contains("good"));
  CHECK(tests.size() == 1);
}

TEST_CASE("how a process ended is known from rota run where it saw the end") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1).write(folder.processes());
  AccountBuilder(4'000'002, 2).write(folder.processes());
  folder.write(kSessionFile,
               json{{"command", {"x"}}, {"ended", {{{"process", "4000001-1"}, {"signal", 9}, {"time_ns", 5}}}}}.dump());
  const Model model = folder.model();
  CHECK(model.processes[0].ending == "ended by SIGKILL");
  CHECK(model.processes[1].ending == "ended by a signal or by _exit()");
}

TEST_CASE("damaged files are problems that name them, and the rest is read") {
  const SessionFolder folder;
  AccountBuilder(4'000'001, 1).exited(1).write(folder.processes());
  AccountBuilder(4'000'002, 2).write(folder.processes(), 100);
  folder.write(kSessionFile, "[]");
  folder.write("tests.json", "{\"tests\": [3, {\"name\": 5}]}");
  folder.write("tests/1-1.jsonl", "\xff\xfe\n{\"event\": \"end\", \"test\": \"t\"}\n");
  const Model model = folder.model();
  CHECK(model.processes.size() == 1);
  REQUIRE(model.problems.size() == 4);
  CHECK(contains(model.problems[0], "session.json: not the description of a session"));
  CHECK(contains(model.problems[1], "4000002-2.account: cut off at 100 bytes"));
  CHECK(contains(model.problems[2], "1-1.jsonl: line 1 is no begin, limit or end of a test"));
  CHECK(contains(model.problems[3], "1-1.jsonl: line 2 ends a test that did not begin: t"));
  CHECK_FALSE(read_session((folder.path() / "nowhere").string()));
  CHECK(contains(read_session((folder.path() / "tests").string()).error().text, "it is no session that"));
}

}  // namespace
}  // namespace rota::report
