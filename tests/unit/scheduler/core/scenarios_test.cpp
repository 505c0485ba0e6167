// The scenarios of tests/scenarios: the core makes the decisions that they tell, and is in the states that they tell.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "scheduler/core/event_log.h"
#include "tests/unit/scheduler/core/scenario.h"

namespace rota::scheduler {
namespace {

struct Scenario {
  std::string sentence;
  std::uint64_t line;  // of its file, with the settings
  std::string log;
};

// Each begins with the sentence that it shows, as a comment, and the settings. Blank lines stand between them.
std::vector<Scenario> scenarios(std::istream& file) {
  std::vector<Scenario> all;
  std::string sentence;
  std::uint64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) {
      sentence.clear();
    } else if (line.rfind("rota-events ", 0) == 0) {
      all.push_back({sentence, number, line + '\n'});
    } else if (sentence.empty()) {
      sentence = line;
    } else if (!all.empty()) {
      all.back().log += line + '\n';
    }
  }
  return all;
}

// What is wrong with it; empty if nothing is.
std::string problem_of(const Scenario& scenario) {
  if (scenario.sentence.rfind("# ", 0) != 0) return "it has no sentence";
  std::string log = without_units(scenario.log);
  const std::size_t last = log.rfind('\n', log.size() - 2) + 1;
  // After one more event, decisions that are missing at the end are noticed.
  std::string time = "0";
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line[0] >= '0' && line[0] <= '9') time = line.substr(0, line.find(' '));
  }
  if (last == 0 || time == "0") return "nothing happens in it";
  log += time + " tick\n";
  std::istringstream stream(log);
  std::string wrong;
  const Replay result = replay(stream, [&](const Core& core, std::string_view line) {
    if (line.rfind("#= ", 0) != 0 || !wrong.empty()) return;
    const std::size_t colon = line.find(": ");
    const std::string question(line.substr(3, colon == std::string_view::npos ? colon : colon - 3));
    const auto is = answer(core, question);
    const std::string expected(colon == std::string_view::npos ? "" : line.substr(colon + 2));
    if (!is) {
      wrong = "nobody answers \"" + question + '"';
    } else if (*is != expected) {
      wrong = question + " is \"" + *is + "\" and not \"" + expected + '"';
    }
  });
  return result.problem.empty() ? wrong : result.problem;
}

std::vector<std::filesystem::path> files() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(SCENARIOS)) {
    if (entry.path().extension() == ".txt") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

TEST_CASE("every scenario goes as it is told") {
  std::size_t told = 0;
  for (const auto& path : files()) {
    std::ifstream file(path);
    for (const Scenario& scenario : scenarios(file)) {
      INFO(path.filename().string() << ", from line " << scenario.line << " on: " << scenario.sentence);
      CHECK(problem_of(scenario) == "");
      ++told;
    }
  }
  CHECK(told > 30);
}

TEST_CASE("a scenario that goes otherwise than it is told is noticed") {
  const std::string story =
      "# a client that wants a free GPU gets it\nrota-events 1 mode=exclusive quantum=100ms grace=1s window=2s\n"
      "10s join 1\n10s add_gpu 1 0 1000M 10M\n10s want 1 1 0\n> granted 1 1\n#= client 1: holds 1\n10s give_back 1 1\n"
      "> ended 1 1\n#= client 1: rests\n";
  const auto told_so = [&](const std::string& from, const std::string& to) {
    std::string changed = story;
    REQUIRE(changed.find(from) != std::string::npos);
    std::istringstream file(changed.replace(changed.find(from), from.size(), to));
    const auto all = scenarios(file);
    REQUIRE(all.size() == 1);
    return problem_of(all.front());
  };
  CHECK(told_so("1000M", "1000M") == "");
  CHECK(told_so("> granted 1 1\n", "") != "");
  CHECK(told_so("> ended 1 1\n", "") != "");
  CHECK(told_so("> granted 1 1", "> granted 2 1") != "");
  CHECK(told_so("holds 1", "holds 2") == "client 1 is \"holds 1\" and not \"holds 2\"");
  CHECK(told_so("client 1: rests", "clients 1: rests") == "nobody answers \"clients 1\"");
  CHECK(told_so("# a client that wants a free GPU gets it\n", "") == "it has no sentence");
}

}  // namespace rota::scheduler
