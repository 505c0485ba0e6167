// A real ctest, real tests, and what they themselves say of their ancestors.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "tools/rota/ci/tests.h"

namespace rota::ci {
namespace {

namespace fs = std::filesystem;

report::PersonRecord person_of(const nlohmann::json& object) {
  return {object["pid"], object["start"], object["command"], object["folder"]};
}

class Build {
 public:
  Build() {
    std::string name = (fs::temp_directory_path() / "rota-ctest-run-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = fs::canonical(name);
    fs::create_directories(folder_ / "build/sub");
    fs::create_directories(folder_ / "said");
  }
  ~Build() { fs::remove_all(folder_); }
  Build(const Build&) = delete;
  Build& operator=(const Build&) = delete;

  fs::path path(const std::string& name) const { return folder_ / name; }

  // As CMake writes it. `properties`: "NAME [==[value]==] …".
  void test(const std::string& name, const std::vector<std::string>& command, const std::string& properties = "") {
    std::ofstream file(folder_ / "build/CTestTestfile.cmake", std::ios::app);
    file << "add_test([==[" << name << "]==]";
    for (const std::string& argument : command) file << " [==[" << argument << "]==]";
    file << ")\n";
    if (!properties.empty()) file << "set_tests_properties([==[" << name << "]==] PROPERTIES " << properties << ")\n";
  }
  fs::path script(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    fs::permissions(folder_ / name, fs::perms::owner_all);
    return folder_ / name;
  }
  // A shell in the build folder that runs the command line.
  pid_t start(const std::string& line) {
    const pid_t child = fork();
    if (child == 0) {
      setpgid(0, 0);
      setenv("DESCENDANT_FOLDER", (folder_ / "said").c_str(), 1);
      if (chdir((folder_ / "build").c_str()) != 0) _exit(126);
      execl("/bin/sh", "sh", "-c", (line + " >../output 2>&1").c_str(), nullptr);
      _exit(127);
    }
    setpgid(child, child);
    return child;
  }
  static void wait_for(pid_t child) { REQUIRE(waitpid(child, nullptr, 0) == child); }

  std::vector<report::ProcessAccount> processes() const {
    std::vector<report::ProcessAccount> all;
    for (const auto& entry : fs::directory_iterator(folder_ / "said")) {
      if (entry.path().extension() != ".json") continue;
      std::ifstream file(entry.path());
      const auto said = nlohmann::json::parse(file);
      report::ProcessAccount account;
      account.self = person_of(said["self"]);
      account.id = account.self.id();
      for (const auto& ancestor : said["ancestors"]) {
        if (ancestor["pid"] == getpid()) break;  // this one may run under a ctest itself
        account.ancestors.push_back(person_of(ancestor));
      }
      account.began_ns = said["began"];
      account.running_test = said.value("test", "");  // for the tests of these tests only
      all.push_back(std::move(account));
    }
    return all;
  }

 private:
  fs::path folder_;
};

// Of each attempt: "outcome, number of processes" and the second argument of each process, which tells what it is.
std::map<std::string, std::string> found(const Build& build) {
  const auto processes = build.processes();
  const FoundTests tests = find_tests(processes, boot_time());
  for (const std::string& problem : tests.problems) FAIL_CHECK(problem);
  std::map<std::string, std::string> all;
  for (const report::TestRecord& test : tests.tests) {
    std::string& text = all[test.name + "#" + std::to_string(test.attempt)];
    text = test.outcome + (test.ambiguous ? "?" : "");
    for (const report::ProcessAccount& process : processes) {
      if (std::ranges::find(test.processes, process.self.id()) != test.processes.end())
        text += " " + process.self.command.back();
    }
  }
  return all;
}

const std::string kCtest = ROTA_TEST_CTEST;
const std::string kProgram = ROTA_TEST_DESCENDANT;

std::string log_of(const Build& build) {
  std::ifstream file(build.path("build/Testing/Temporary/LastTest.log"));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("tests of a parallel ctest are told apart by command and folder, below make or a script, however started") {
  Build build;
  build.test("plain", {kProgram, "0", "0", "plain"});
  build.test("a \"name\" with; spaces", {kProgram, "0", "0", "an argument with spaces"});
  build.test("in sub", {kProgram, "0", "0"}, "WORKING_DIRECTORY [==[" + build.path("build/sub").string() + "]==]");
  build.test("in build", {kProgram, "0", "1"});
  build.test("no cuda", {"/bin/true"});
  build.test("disabled", {kProgram, "0", "0", "disabled"}, "DISABLED TRUE");
  build.test("forks", {build.script("forks.sh", "#!/bin/sh\n" + kProgram + " 0 0 one\n" + kProgram + " 0 0 two\n")});
  build.test("execs", {build.script("execs.sh", "#!/bin/sh\ncd /\nexec " + kProgram + " 0 0 execed\n")});
  build.test("wrapped", {"/usr/bin/env", "A=b", kProgram, "0", "0", "wrapped"});
  build.test("timeout", {kProgram, "30", "0", "timeout"}, "TIMEOUT 1");
  build.test("setup", {kProgram, "0", "0", "setup"}, "FIXTURES_SETUP f");
  build.test("uses", {kProgram, "0", "0", "uses"}, "FIXTURES_REQUIRED f");
  Build::wait_for(build.start("true; /bin/sh -c '" + kCtest + " -j4; true'"));
  const std::string log = log_of(build);
  const auto all = found(build);
  CHECK(all.at("plain#1") == "passed plain");
  CHECK(all.at("a \"name\" with; spaces#1") == "passed an argument with spaces");
  CHECK(all.at("in sub#1") == "passed 0");
  CHECK(all.at("in build#1") == "failed 1");
  CHECK(all.at("no cuda#1") == "passed");
  CHECK(all.at("disabled#1") == "skipped");
  CHECK((all.at("forks#1") == "passed one two" || all.at("forks#1") == "passed two one"));
  CHECK(all.at("execs#1") == "passed execed");
  CHECK(all.at("wrapped#1") == "passed wrapped");
  CHECK(all.at("timeout#1") == "timeout timeout");
  CHECK(all.at("setup#1") == "passed setup");
  CHECK(all.at("uses#1") == "passed uses");
  CHECK(all.size() == 12);
  // The user's log is as ctest left it.
  CHECK_FALSE(log.empty());
  CHECK(log_of(build) == log);
}

TEST_CASE("names of several lines, or with bytes that are no UTF-8, have their outcome and processes") {
  const std::vector<std::string> parts{"a",
                                       "\n",
                                       " ",
                                       "\"",
                                       "\xe9",
                                       "\xc3\xa9",
                                       "\xc3",
                                       "\xa9",
                                       "\xff",
                                       "\xe2\x82\xac",
                                       "\xe2",
                                       "\x82",
                                       "\xf0\x9f\x98\x80",
                                       "\xf0",
                                       "\xf4\x90",
                                       "\xed\xa0\x80",
                                       "\xc0\x80",
                                       "\xe0\x80\x80"};
  std::mt19937 random(5);
  Build build;
  constexpr int kTests = 150;
  for (int i = 0; i < kTests; ++i) {
    std::string name = std::to_string(i) + ":";
    for (int length = 1 + i % 6; length > 0; --length) name += parts[random() % parts.size()];
    build.test(name, {kProgram, "0", i % 3 == 0 ? "1" : "0", std::to_string(i)}, i % 10 == 1 ? "DISABLED TRUE" : "");
  }
  Build::wait_for(build.start(kCtest + " -j8"));
  std::map<int, std::string> outcomes;
  for (const auto& [name, said] : found(build)) {
    const int number = std::stoi(name);
    const std::string expected =
        number % 10 == 1 ? "skipped" : (number % 3 == 0 ? "failed " : "passed ") + std::to_string(number);
    CAPTURE(name);
    CHECK(said == expected);
    CHECK(outcomes.emplace(number, said).second);
  }
  CHECK(outcomes.size() == kTests);
}

TEST_CASE("names that differ only in bytes that are no UTF-8 are those of several tests") {
  Build build;
  const std::vector<std::string> names{"a\xff", "a\xfe", "a\xf9", "a\xfb", "a (2)"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    build.test(names[i], {kProgram, "0", i % 2 == 0 ? "1" : "0", std::to_string(i)}, i == 1 ? "DISABLED TRUE" : "");
  }
  Build::wait_for(build.start(kCtest + " -j4"));
  std::set<std::string> tests;
  std::multiset<std::string> outcomes;
  for (const auto& [name, said] : found(build)) {
    CAPTURE(name, said);
    CHECK(name.ends_with("#1"));
    tests.insert(name);
    outcomes.insert(said);
    if (name == "a (2)#1") CHECK(said == "failed 4");
  }
  CHECK(tests.size() == names.size());
  CHECK(outcomes == std::multiset<std::string>{"failed 0", "failed 2", "failed 4", "passed 3", "skipped"});
}

TEST_CASE("attempts of a test that is repeated until it passes have their own processes and outcomes") {
  Build build;
  const std::string flag = build.path("flag").string();
  build.test("flaky", {"/bin/sh", "-c",
                       "test -e " + flag + " && exec " + kProgram + " 0 0 second; touch " + flag + "; " + kProgram +
                           " 0 1 first; exit 1"});
  Build::wait_for(build.start(kCtest + " --repeat until-pass:3"));
  const auto all = found(build);
  CHECK(all.at("flaky#1") == "failed first");
  CHECK(all.at("flaky#2") == "passed second");
  CHECK(all.size() == 2);
}

TEST_CASE("equal commands are told apart, or marked where nothing tells them apart") {
  for (const std::string jobs : {"-j1", "-j3"}) {
    CAPTURE(jobs);
    Build build;
    for (const char* name : {"a", "b", "c"}) {
      build.test(name, {kProgram, "0.3"}, "ENVIRONMENT [==[DESCENDANT_TEST=" + std::string(name) + "]==]");
    }
    Build::wait_for(build.start(kCtest + " " + jobs));
    const auto processes = build.processes();
    const FoundTests tests = find_tests(processes, boot_time());
    CHECK(tests.problems.empty());
    REQUIRE(tests.tests.size() == 3);
    for (const report::TestRecord& test : tests.tests) {
      CAPTURE(test.name, test.ambiguous);
      REQUIRE(test.processes.size() == 1);
      if (jobs == "-j1") CHECK_FALSE(test.ambiguous);
      if (test.ambiguous) continue;
      for (const report::ProcessAccount& process : processes) {
        if (process.self.id() == test.processes.front()) CHECK(process.running_test == test.name);
      }
    }
  }
}

TEST_CASE("of a ctest that is killed midway the tests that had begun are there") {
  Build build;
  build.test("first", {kProgram, "0", "0", "first"});
  build.test("second", {kProgram, "60", "0", "second"});
  build.test("never", {kProgram, "0", "0", "never"});
  const pid_t child = build.start("exec " + kCtest + " -j1");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (build.processes().size() < 2 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(-child, SIGKILL);
  Build::wait_for(child);
  for (const auto& process : build.processes()) kill(static_cast<pid_t>(process.self.pid), SIGKILL);
  const auto all = found(build);
  CHECK(all.at("first#1") == "passed first");
  CHECK(all.at("second#1") == "unknown second");
  CHECK(all.size() == 2);
}

TEST_CASE("a build folder that is gone, or a ctest that is, is a problem in one line") {
  Build build;
  build.test("plain", {kProgram, "0"});
  Build::wait_for(build.start(kCtest + " --test-dir " + build.path("build").string()));
  auto processes = build.processes();
  REQUIRE(processes.size() == 1);
  CHECK(find_tests(processes, boot_time()).problems.empty());
  for (auto& person : processes[0].ancestors) {
    if (!person.command.empty() && person.command[0] == kCtest) person.command[0] = "/no/such/ctest";
  }
  auto gone = find_tests(processes, boot_time());
  REQUIRE(gone.problems.size() == 1);
  CHECK(gone.problems[0].find("/no/such/ctest is not there any more") != std::string::npos);
  fs::remove(build.path("build/CTestTestfile.cmake"));
  gone = find_tests(build.processes(), boot_time());
  REQUIRE(gone.problems.size() == 1);
  CHECK(gone.problems[0].find("CTestTestfile.cmake") != std::string::npos);
}

}  // namespace rota::ci
