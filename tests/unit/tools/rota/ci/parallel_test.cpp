// How many tests may be started at once.
#include "tools/rota/ci/parallel.h"

#include <catch2/catch.hpp>

namespace rota::ci {
namespace {

using Words = std::vector<std::string>;

TEST_CASE("the test with the least time to wait for others says how many run at once") {
  const TimedTest slow{.name = "slow", .time = 10, .gpu = 5, .timeout = 30};      // 17 s for others
  const TimedTest tight{.name = "tight", .time = 20, .gpu = 10, .timeout = 60};   // 34 s
  const TimedTest quick{.name = "quick", .time = 1, .gpu = 0.01, .timeout = 60};  // thousands
  const auto most = most_at_once({quick, slow, tight}, 1);
  REQUIRE(most);
  CHECK(most->most == 4);  // three others of 5 s, or of 10 s
  CHECK(most->bound.name == "slow");
  // On two GPUs twice as many others.
  CHECK(most_at_once({quick, slow, tight}, 2)->most == 7);
  CHECK(most_at_once({quick}, 1)->most == 5301);
}

TEST_CASE("tests that need no GPU, or that time out alone, bound nothing") {
  CHECK_FALSE(most_at_once({}, 1));
  CHECK_FALSE(most_at_once({{.name = "host", .time = 10, .gpu = 0, .timeout = 11}}, 1));
  CHECK_FALSE(most_at_once({{.name = "hopeless", .time = 10, .gpu = 5, .timeout = 5}}, 1));
  CHECK(most_at_once({{.name = "just fits", .time = 9, .gpu = 5, .timeout = 10}}, 1)->most == 1);
}

const char* unset(const char*) {
  return nullptr;
}

// With one variable.
Variables with(const std::string& name, const std::string& value) {
  return [=](const char* asked) { return name == asked ? value.c_str() : nullptr; };
}

std::optional<unsigned> jobs_of(const Words& command) {
  return ci::jobs_of(command, unset);
}
Words with_jobs(const Words& command, unsigned jobs) {
  return ci::with_jobs(command, unset, jobs).command;
}

TEST_CASE("the number of jobs is read and written in each form that ctest and pytest know, and of them alone") {
  for (const Words& command :
       {Words{"ctest", "-j8"}, Words{"/usr/bin/ctest", "-V", "-j", "8"}, Words{"ctest", "--parallel", "8", "-R", "x"},
        Words{"ctest", "--parallel=8"}, Words{"pytest", "-n8"}, Words{"py.test", "-n", "8", "a.py"},
        Words{"python3", "-m", "pytest", "--numprocesses=8"}, Words{"/bin/pytest", "--numprocesses", "8"}}) {
    CHECK(jobs_of(command) == 8);
    CHECK(jobs_of(with_jobs(command, 3)) == 3);
    CHECK(with_jobs(with_jobs(command, 3), 8) == command);
  }
  CHECK(jobs_of({"ctest", "-j2", "-j16"}) == 16);
  for (const Words& command : {Words{"ctest"}, Words{"ctest", "-j"}, Words{"ctest", "-j", "-R"}, Words{"ctest", "-j0"},
                               Words{"make", "-j8"}, Words{"ctest", "--parallel=x"}, Words{"pytest", "-n", "auto"},
                               Words{"pytest"}, Words{"python3", "-n", "8"}, Words{}}) {
    CHECK_FALSE(jobs_of(command));
    CHECK(with_jobs(command, 3) == command);
  }
}

TEST_CASE("the number of jobs is also read in variables, and then written there") {
  const Variables level = with("CTEST_PARALLEL_LEVEL", "8");
  CHECK(ci::jobs_of({"ctest"}, level) == 8);
  CHECK(ci::jobs_of({"ctest", "-j4"}, level) == 4);
  CHECK_FALSE(ci::jobs_of({"ctest", "-j"}, level));
  CHECK_FALSE(ci::jobs_of({"pytest"}, level));
  const Run fewer = ci::with_jobs({"ctest", "-R", "x"}, level, 3);
  CHECK(fewer.command == Words{"ctest", "-R", "x"});
  CHECK(fewer.changed == std::vector<std::pair<std::string, std::string>>{{"CTEST_PARALLEL_LEVEL", "3"}});
  const Variables added = with("PYTEST_ADDOPTS", "-v -n 8");
  CHECK(ci::jobs_of({"pytest"}, added) == 8);
  CHECK(ci::jobs_of({"pytest", "-n2"}, added) == 2);
  CHECK(ci::with_jobs({"pytest"}, added, 3).changed ==
        std::vector<std::pair<std::string, std::string>>{{"PYTEST_ADDOPTS", "-v -n 8 -n 3"}});
  CHECK(ci::with_jobs({"pytest", "-n2"}, added, 1).changed.empty());
}

TEST_CASE("pytest starts no more at once than its time-out allows, where that is known") {
  report::Baseline baseline;
  baseline["a.py::test_x"].time_ns = 10'000'000'000;
  baseline["a.py::test_x"].use.gpu_ns = 5'000'000'000;
  const Words command{"pytest", "-n", "8", "--timeout=30"};
  const FittedCommand fitted = fit_to_timeouts(command, unset, baseline, 1);
  CHECK(fitted.run.command == Words{"pytest", "-n", "4", "--timeout=30"});
  CHECK(
      fitted.note.starts_with("pytest starts 4 tests at once and not 8: a.py::test_x has a time-out of 30 s, takes 10 "
                              "s, 5 s of that on the GPU"));
  CHECK(fit_to_timeouts({"pytest", "-n8"}, with("PYTEST_TIMEOUT", "30"), baseline, 1).run.command ==
        Words{"pytest", "-n4"});
  CHECK(fit_to_timeouts({"pytest"}, with("PYTEST_ADDOPTS", "-n 8 --timeout 30"), baseline, 1).run.changed.size() == 1);
  for (const Words& unchanged : {Words{"pytest", "-n", "8"}, Words{"pytest", "-n", "4", "--timeout=30"},
                                 Words{"pytest", "-n", "8", "--timeout=300"}}) {
    const FittedCommand same = fit_to_timeouts(unchanged, unset, baseline, 1);
    CHECK(same.run.command == unchanged);
    CHECK(same.note.empty());
  }
}

}  // namespace
}  // namespace rota::ci
