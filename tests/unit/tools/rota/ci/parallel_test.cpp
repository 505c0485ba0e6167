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

TEST_CASE("the number of jobs is read and written in each form that ctest knows, and of ctest alone") {
  for (const Words& command : {Words{"ctest", "-j8"}, Words{"/usr/bin/ctest", "-V", "-j", "8"},
                               Words{"ctest", "--parallel", "8", "-R", "x"}, Words{"ctest", "--parallel=8"}}) {
    CHECK(jobs_of(command) == 8);
    CHECK(jobs_of(with_jobs(command, 3)) == 3);
    CHECK(with_jobs(with_jobs(command, 3), 8) == command);
  }
  CHECK(jobs_of({"ctest", "-j2", "-j16"}) == 16);
  for (const Words& command : {Words{"ctest"}, Words{"ctest", "-j"}, Words{"ctest", "-j", "-R"}, Words{"ctest", "-j0"},
                               Words{"make", "-j8"}, Words{"ctest", "--parallel=x"}, Words{}}) {
    CHECK_FALSE(jobs_of(command));
    CHECK(with_jobs(command, 3).size() == command.size());
  }
}

}  // namespace
}  // namespace rota::ci
