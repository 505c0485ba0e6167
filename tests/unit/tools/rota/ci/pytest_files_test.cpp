// Time-outs and options in pytest's own files.
#include "tools/rota/ci/pytest_files.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "tools/rota/ci/parallel.h"
#include "tools/rota/ci/selected.h"

namespace rota::ci {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// Of tests, with a test file in a folder below; removed at the end.
class Project {
 public:
  Project() {
    std::string pattern = (fs::temp_directory_path() / "rota-pytest-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
    write("tests/a.py", "def test_x(): pass\n");
  }
  ~Project() {
    std::error_code error;
    fs::remove_all(root_, error);
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  std::string path(const std::string& name) const { return root_ / name; }
  PytestConfig config(const Words& words = {}) const { return pytest_config(words, path("tests")); }

 private:
  fs::path root_;
};

TEST_CASE("pytest's configuration is read in each of its files, the nearest first") {
  const Project project;
  CHECK(project.config().folder.empty());
  project.write("setup.cfg", "[metadata]\ntimeout = 1\n[tool:pytest]\ntimeout = 10\n");
  CHECK(project.config().timeout == "10");
  project.write("tox.ini",
                "[pytest]\n# a comment\ntimeout: 20\naddopts = -ra\n  --timeout=25 -n 8\n[other]\ntimeout = 1\n");
  CHECK(project.config().timeout == "20");
  CHECK(project.config().addopts == Words{"-ra", "--timeout=25", "-n", "8"});
  project.write("pyproject.toml", "[tool.other]\ntimeout = 1\n");  // says nothing of pytest
  CHECK(project.config().timeout == "20");
  project.write("pyproject.toml", "[tool.pytest.ini_options]\ntimeout = 30\naddopts = ['-k', 'not slow']\n");
  CHECK(std::stod(*project.config().timeout) == 30);
  CHECK(project.config().addopts == Words{"-k", "not slow"});
  CHECK(project.config().folder + "/tests" == project.path("tests"));
  project.write("pytest.ini", "");  // counts although it is empty
  CHECK_FALSE(project.config().timeout);
  project.write("tests/pytest.ini", "[pytest]\ntimeout = 40\naddopts = -m \"a b\"\n");
  CHECK(project.config().timeout == "40");
  CHECK(project.config().addopts == Words{"-m", "a b"});
}

TEST_CASE("the configuration is looked for from the folder of the files that the command names, or is named itself") {
  const Project project;
  project.write("pytest.ini", "[pytest]\ntimeout = 10\n");
  project.write("tests/pytest.ini", "[pytest]\ntimeout = 20\n");
  project.write("more/b.py", "");
  project.write("other.cfg", "[tool:pytest]\ntimeout = 30\n");
  const auto timeout = [&](const Words& words) { return pytest_config(words, "/").timeout; };
  CHECK_FALSE(timeout({}));
  CHECK(timeout({project.path("tests/a.py::test_x")}) == "20");
  CHECK(timeout({"-v", project.path("tests")}) == "20");
  CHECK(timeout({project.path("tests"), project.path("more/b.py")}) == "10");
  for (const Words& words : {Words{"-c", project.path("other.cfg")}, Words{"-c" + project.path("other.cfg")},
                             Words{"--config-file=" + project.path("other.cfg"), project.path("tests")}}) {
    CHECK(timeout(words) == "30");
  }
  CHECK_FALSE(timeout({"-c", project.path("nowhere.ini")}));
}

constexpr const char* kMarked = R"(
"""@pytest.mark.timeout(1) def test_x(): of a text"""
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]

@pytest.mark.parametrize("x", ["def test_y(", "#"])
@pytest.mark.timeout(
    30,  # seconds
    method="thread",
)
def test_x(x):
    pass

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.timeout(3)), pytest.param(3, marks=[pytest.mark.timeout(4)])])
def test_of_parameters(x): pass

@pytest.mark.parametrize("x", [pytest.param(2, marks=pytest.mark.timeout(3))])
@pytest.mark.timeout(timeout=2.5)
async def test_y(): pass

def test_of_the_file(): pass

@pytest.mark.timeout(0)
def test_without(): pass

@pytest.mark.timeout(LONG)
def test_unreadable(): pass

class TestOther:
    @pytest.mark.timeout(7)
    def test_x(self): pass

@pytest.mark.timeout(50)
class TestThings(Base):
    def test_of_the_class(self): pass

    @pytest.mark.timeout(60)
    @skip
    def test_x(self): pass
)";

TEST_CASE("a mark counts at the function, at its class or in the file, the closest first") {
  const auto seconds = [](const char* test) { return MarkedTimeouts(kMarked).of(test).seconds; };
  CHECK(seconds("test_x[def test_y(]") == 30);
  CHECK(seconds("test_y") == 2.5);
  CHECK(seconds("test_of_the_file") == 100);
  CHECK(seconds("test_of_parameters[2]") == 100);
  CHECK(seconds("test_without") == 0);
  CHECK(seconds("TestThings::test_of_the_class") == 50);
  CHECK(seconds("TestThings::test_x") == 60);
  CHECK(seconds("TestOther::test_x[1]") == 7);
  CHECK(seconds("test_elsewhere") == 100);
  CHECK_FALSE(seconds("test_unreadable"));
  CHECK(MarkedTimeouts(kMarked).of("test_unreadable").unreadable);
  CHECK_FALSE(MarkedTimeouts("def test_x(): pass").of("test_x").seconds);
  CHECK_FALSE(MarkedTimeouts("def test_x(): pass").of("test_x").unreadable);
  for (const char* broken :
       {"@pytest.mark.timeout(", "'''", "((((", "@pytest.mark.timeout(nan)\ndef test_x(): 0", "\\"}) {
    CHECK_FALSE(MarkedTimeouts(broken).of("test_x").seconds);
  }
}

TEST_CASE("options in a text are split as Python's shlex does") {
  CHECK(shell_words(R"(-k "a or b"  -m 'c "d"' e\ f "g\"h\n" '' # i)") ==
        Words{"-k", "a or b", "-m", "c \"d\"", "e f", "g\"h\\n", "", "#", "i"});
}

TEST_CASE("pytest starts no more at once than the time-outs in its files allow") {
  const Project project;
  report::Baseline baseline;
  baseline["tests/a.py::test_x"].time_ns = 10'000'000'000;
  baseline["tests/a.py::test_x"].use.gpu_ns = 5'000'000'000;
  const auto unset = [](const char*) -> const char* { return nullptr; };
  const Words command{"pytest", "-n", "8", project.path("tests")};
  const auto fitted = [&](const Words& words) { return fit_to_timeouts(words, unset, baseline, 1); };
  CHECK(fitted(command).note.empty());
  project.write("pytest.ini", "[pytest]\ntimeout = 30\n");
  CHECK(fitted(command).run.command == Words{"pytest", "-n", "4", project.path("tests")});
  CHECK(fitted(command).note.ends_with("A longer timeout in pytest's configuration allows more"));
  // --timeout goes before the configuration's, also in its addopts, and a mark before all.
  CHECK(fitted({"pytest", "-n", "8", "--timeout=300", project.path("tests")}).note.empty());
  project.write("pytest.ini", "[pytest]\ntimeout = 300\naddopts = --timeout 20 -n 6\n");
  const FittedCommand added = fitted({"pytest", project.path("tests")});
  CHECK(added.run.changed == std::vector<std::pair<std::string, std::string>>{{"PYTEST_ADDOPTS", " -n 2"}});
  CHECK(added.note.starts_with("pytest starts 2 tests at once and not 6"));
  project.write("tests/a.py", "@pytest.mark.timeout(30)\ndef test_x(): pass\n");
  CHECK(fitted(command).run.command == Words{"pytest", "-n", "4", project.path("tests")});
  CHECK(fitted(command).note.ends_with("A longer @pytest.mark.timeout allows more"));
  project.write("tests/a.py", "@pytest.mark.timeout(0)\ndef test_x(): pass\n");
  CHECK(fitted(command).note.empty());
}

const char* unset(const char*) {
  return nullptr;
}

// Of tests that take 10 s, 5 s of that on the GPU.
report::Baseline slow_tests(const Words& ids) {
  report::Baseline baseline;
  for (const std::string& id : ids) {
    baseline[id].time_ns = 10'000'000'000;
    baseline[id].use.gpu_ns = 5'000'000'000;
  }
  return baseline;
}

TEST_CASE("an id whose file is a directory or a FIFO has no mark") {
  const Project project;
  project.write("pytest.ini", "[pytest]\ntimeout = 30\n");
  fs::create_directory(project.path("tests/folder"));
  REQUIRE(mkfifo(project.path("tests/fifo").c_str(), 0600) == 0);
  for (const char* id : {"tests/folder::test_x", "tests/fifo::test_x"}) {
    const FittedCommand fitted =
        fit_to_timeouts({"pytest", "-n", "8", project.path("tests")}, unset, slow_tests({id}), 1);
    CHECK(fitted.run.command == Words{"pytest", "-n", "4", project.path("tests")});
  }
}

TEST_CASE("a file with many tests is read in a time that grows with its size alone") {
  const Project project;
  std::string source;
  while (source.size() < 300'000) source += "def helper(a, b): return [a, b, 'text']  # c\n";
  project.write("tests/a.py", source + "@pytest.mark.timeout(30)\ndef test_x(i): pass\n");
  project.write("pytest.ini", "");
  Words ids;
  for (int i = 0; i < 3000; ++i) ids.push_back("tests/a.py::test_x[" + std::to_string(i) + "]");
  const std::clock_t begun = std::clock();
  const FittedCommand fitted = fit_to_timeouts({"pytest", "-n", "8", project.path("tests")}, unset, slow_tests(ids), 1);
  CHECK((std::clock() - begun) / CLOCKS_PER_SEC < 10);  // 39 s where each test reads the file again
  CHECK(fitted.run.command == Words{"pytest", "-n", "4", project.path("tests")});
}

TEST_CASE("a command that names many files is compared once with each file, not with each test") {
  const Project project;
  Words names;
  for (int i = 0; i < 1000; ++i) names.push_back("more/" + std::to_string(i) + ".py");
  names.push_back("tests/a.py::test_x");
  const PytestSelection selection(names, project.path(""));
  const std::clock_t begun = std::clock();
  for (int i = 0; i < 3000; ++i) CHECK(selection.has("tests/a.py::test_x[" + std::to_string(i) + "]"));
  CHECK((std::clock() - begun) / CLOCKS_PER_SEC < 5);
  CHECK_FALSE(selection.has("tests/a.py::test_y"));
  CHECK(selection.has("more/7.py::test_y"));
}

TEST_CASE("a configuration of more than 1 MiB says nothing") {
  const Project project;
  const std::string words = "[pytest]\ntimeout = 10\naddopts = -v\n";
  const std::size_t most = std::size_t{1} << 20;
  project.write("tests/pytest.ini", words + std::string(most - words.size(), '\n'));
  CHECK(project.config().timeout == "10");
  project.write("tests/pytest.ini", words + std::string(most + 1 - words.size(), '\n'));
  CHECK_FALSE(project.config().timeout);
  CHECK(project.config().addopts.empty());
}

TEST_CASE("a time-out that is no number of seconds is none") {
  const Project project;
  const Words command{"pytest", "-n", "8", project.path("tests")};
  for (const std::string seconds : {"nan", "inf", "-nan", "-inf", "-5", "1e400"}) {
    project.write("pytest.ini", "[pytest]\ntimeout = " + seconds + "\n");
    CHECK_FALSE(pytest_timeout(command, unset));
    const FittedCommand fitted = fit_to_timeouts(command, unset, slow_tests({"tests/a.py::test_x"}), 1);
    CHECK(fitted.run.command == command);
    CHECK(fitted.note.empty());
    CHECK_FALSE(pytest_timeout({"pytest", "--timeout=" + seconds}, unset));
  }
  project.write("pytest.toml", "[pytest]\ntimeout = nan\n");
  CHECK_FALSE(pytest_timeout(command, unset));
}

}  // namespace
}  // namespace rota::ci
