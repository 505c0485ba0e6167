// How many tests may be started at once.
#include "tools/rota/ci/parallel.h"

#include <catch2/catch.hpp>

#include "tools/rota/ci/selected.h"

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
        Words{"python3", "-B", "-m", "pytest", "--numprocesses=8"}, Words{"python3", "-m", "pytest", "-n8"},
        Words{"/bin/pytest", "--numprocesses", "8"}}) {
    CHECK(jobs_of(command) == 8);
    CHECK(jobs_of(with_jobs(command, 3)) == 3);
    CHECK(with_jobs(with_jobs(command, 3), 8) == command);
  }
  CHECK(jobs_of({"ctest", "-j2", "-j16"}) == 16);
  for (const Words& command :
       {Words{"ctest"}, Words{"ctest", "-j"}, Words{"ctest", "-j", "-R"}, Words{"ctest", "-j0"}, Words{"make", "-j8"},
        Words{"ctest", "--parallel=x"}, Words{"pytest", "-n", "x"}, Words{"pytest"}, Words{"python3", "-n", "8"},
        Words{"python3", "a.py", "-m", "pytest", "-n8"}, Words{}}) {
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
  CHECK(ci::jobs_of({"pytest"}, with("PYTEST_ADDOPTS", "-n '8'")) == 8);
  CHECK(ci::jobs_of({"pytest"}, with("PYTEST_ADDOPTS", "-n 8 -k 'a or -n 2'")) == 8);
}

TEST_CASE("what follows -- is a file's name, whatever it looks like") {
  const Words files{"pytest", "--", "-n", "8"};
  CHECK_FALSE(jobs_of(files));
  CHECK(with_jobs(files, 3) == files);
  CHECK_FALSE(pytest_timeout({"pytest", "--", "--timeout=8"}, unset));
  CHECK(jobs_of({"pytest", "-n", "8", "--", "-n", "2"}) == 8);
  CHECK(with_jobs({"pytest", "-n", "8", "--", "-n", "2"}, 3) == Words{"pytest", "-n", "3", "--", "-n", "2"});
}

TEST_CASE("xdist's automatic number of workers is limited by its variable") {
  using Changed = std::vector<std::pair<std::string, std::string>>;
  const std::string name = "PYTEST_XDIST_AUTO_NUM_WORKERS";
  for (const char* word : {"auto", "logical"}) {
    const Words command{"pytest", "-n", word};
    CHECK(ci::jobs_of(command, with(name, "8")) == 8);
    const Run fewer = ci::with_jobs(command, with(name, "8"), 3);
    CHECK(fewer.command == command);
    CHECK(fewer.changed == Changed{{name, "3"}});
    CHECK(ci::jobs_of({"pytest", "-n", word, "--maxprocesses=5"}, with(name, "8")) == 5);
    // As many as there are processors, and not more with the variable than without.
    REQUIRE(jobs_of(command));
    CHECK(ci::with_jobs(command, unset, 100'000).changed[0].second.size() < 6);
    const auto added = [&](const char* asked) {
      return name == asked ? "8" : std::string("PYTEST_ADDOPTS") == asked ? "-n auto" : nullptr;
    };
    CHECK(ci::jobs_of({"pytest"}, added) == 8);
    CHECK(ci::with_jobs({"pytest"}, added, 2).changed == Changed{{name, "2"}});
  }
}

TEST_CASE("a ctest that a build tool starts is limited by its variable, or by make's ARGS") {
  const Variables level = with("CTEST_PARALLEL_LEVEL", "8");
  for (const Words& command :
       {Words{"make", "test"}, Words{"/usr/bin/make", "-C", "build", "test"}, Words{"ninja", "-C", "build", "test"},
        Words{"cmake", "--build", "build", "--target", "test"}, Words{"cmake", "--build", ".", "--target=test"}}) {
    CHECK(ci::jobs_of(command, level) == 8);
    const Run fewer = ci::with_jobs(command, level, 3);
    CHECK(fewer.command == command);
    CHECK(fewer.changed == std::vector<std::pair<std::string, std::string>>{{"CTEST_PARALLEL_LEVEL", "3"}});
    CHECK_FALSE(jobs_of(command));
  }
  for (const Words& command : {Words{"make", "check"}, Words{"make", "-C", "test"}, Words{"make", "-f", "test"},
                               Words{"cmake", "--build", "test"}, Words{"cmake", "--install", "test"}}) {
    CHECK_FALSE(ci::jobs_of(command, level));
  }
  const Words arguments{"make", "test", "ARGS=-V -j 6"};
  CHECK(ci::jobs_of(arguments, level) == 6);
  CHECK(with_jobs(arguments, 3) == Words{"make", "test", "ARGS=-V -j 6 -j3"});
  CHECK(jobs_of({"make", "test", "ARGS=-V -j 6 -j3"}) == 3);
}

TEST_CASE("only tests that pytest's words name count, where that is known") {
  const PytestSelection none({"-v", "-n8"}, ROTA_TEST_SOURCES);
  CHECK(none.complete());
  CHECK(none.has("any.py::test"));
  // Ids are relative to pytest's root, which may be above this folder.
  for (const char* folder : {"tests/integration", "tests", "."}) {
    const std::string here = std::string(ROTA_TEST_SOURCES) + "/" + folder;
    const std::string file = std::string(ROTA_TEST_SOURCES) + "/tests/integration/ci_test.py";
    const PytestSelection one({"-n", "8", file, "--timeout", "3"}, here);
    CHECK(one.complete());
    CHECK(one.has("tests/integration/ci_test.py::Rig::test_x"));
    CHECK(one.has("ci_test.py::Rig::test_x"));
    CHECK_FALSE(one.has("tests/integration/demo_test.py::Demo::test_x"));
    CHECK_FALSE(one.has("another_ci_test.py::Rig::test_x"));
  }
  const PytestSelection folder({"tests/integration"}, ROTA_TEST_SOURCES);
  CHECK(folder.has("tests/integration/ci_test.py::Rig::test_x"));
  CHECK(folder.has("ci_test.py::Rig::test_x"));
  CHECK_FALSE(folder.has("tests/pages.py::test_x"));
  const PytestSelection test({"--", "ci_test.py::Rig::test_x"}, std::string(ROTA_TEST_SOURCES) + "/tests/integration");
  CHECK(test.has("ci_test.py::Rig::test_x"));
  CHECK(test.has("ci_test.py::Rig::test_x[1]"));
  CHECK_FALSE(test.has("ci_test.py::Rig::test_xy"));
}

TEST_CASE(
    "what selects in a way that is not known makes the selection incomplete, and bounds it no further than files do") {
  const PytestSelection expression({"-k", "fast", "tests"}, ROTA_TEST_SOURCES);
  CHECK_FALSE(expression.complete());
  CHECK(expression.has("tests/pages.py::test_slow"));
  CHECK_FALSE(expression.has("COVERAGE.md::test_slow"));
  // The file may be the value of an option that is not known.
  const PytestSelection unknown({"--plugins-own", "tests"}, ROTA_TEST_SOURCES);
  CHECK_FALSE(unknown.complete());
  CHECK(unknown.has("COVERAGE.md::test_slow"));
  CHECK_FALSE(PytestSelection({"--pyargs", "package.tests"}, ROTA_TEST_SOURCES).complete());
}

TEST_CASE("ctest's options that select tests are found, and those that need files make the selection incomplete") {
  const CtestSelection selection = ctest_selection({"-j8", "-R", "^a", "--label-exclude=slow", "-V", "-LE", "x"});
  CHECK(selection.words == Words{"-R", "^a", "--label-exclude=slow", "-LE", "x"});
  CHECK(selection.complete);
  CHECK_FALSE(ctest_selection({"--rerun-failed"}).complete);
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
  // A test that is not selected does not count, and where that is not known the line says so.
  CHECK(fit_to_timeouts({"pytest", "-n8", "--timeout=30", "b.py"}, unset, baseline, 1).note.empty());
  CHECK(fit_to_timeouts({"pytest", "-n8", "--timeout=30", "-k", "x"}, unset, baseline, 1)
            .note.ends_with(". Tests that the command leaves out may be among those that count"));
  for (const Words& unchanged : {Words{"pytest", "-n", "8"}, Words{"pytest", "-n", "4", "--timeout=30"},
                                 Words{"pytest", "-n", "8", "--timeout=300"}}) {
    const FittedCommand same = fit_to_timeouts(unchanged, unset, baseline, 1);
    CHECK(same.run.command == unchanged);
    CHECK(same.note.empty());
  }
}

}  // namespace
}  // namespace rota::ci
