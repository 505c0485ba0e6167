// The scenarios of tests/scenarios: the core makes the decisions that they tell, and is in the states that they tell.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "scheduler/log/event_log.h"
#include "tests/unit/scheduler/core/scenario.h"

namespace rota::scheduler {
namespace {

struct Scenario {
  std::string sentence;
  std::string log;                   // an event log, without units and with one event on a line
  std::vector<std::uint64_t> lines;  // of the file, for each of the log's

  // Semicolons part the events, decisions or questions of a line.
  void add(std::uint64_t number, const std::string& line) {
    const std::string begin = line.substr(0, line.find(' ') + 1);
    std::size_t at = 0;
    for (std::size_t end = 0; end != std::string::npos; at = end + 2) {
      end = line.find("; ", at);
      log += without_units((at == 0 ? "" : begin) + line.substr(at, end == std::string::npos ? end : end - at)) + '\n';
      lines.push_back(number);
    }
  }
};

// Each begins with the sentence that it shows, as a comment, and the settings. Blank lines separate them. A line that
// begins with ## begins a variant, which continues from the events before the first such line.
std::vector<Scenario> scenarios(std::istream& file) {
  std::vector<Scenario> all;
  std::string sentence;
  std::optional<Scenario> common;
  std::uint64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) {
      sentence.clear();
    } else if (line.rfind("rota-events ", 0) == 0) {
      all.push_back({sentence, "", {}});
      all.back().add(number, line);
      common.reset();
    } else if (sentence.empty()) {
      sentence = line;
    } else if (line.rfind("## ", 0) == 0 && !all.empty()) {
      if (!common) {
        common = all.back();
        all.pop_back();
      }
      all.push_back({common->sentence + ": " + line.substr(3), common->log, common->lines});
    } else if (!all.empty()) {
      all.back().add(number, line);
    }
  }
  return all;
}

// What the core says otherwise than a line "#= question: answer"; empty if nothing.
std::string difference(const Core& core, const std::string& line) {
  const std::size_t colon = std::min(line.find(": "), line.size());
  const std::string question = line.substr(3, colon - 3);
  const std::string expected = colon == line.size() ? "" : line.substr(colon + 2);
  const auto is = answer(core, question);
  if (!is) return "nobody answers \"" + question + '"';
  return *is == expected ? "" : question + " is \"" + *is + "\" and not \"" + expected + '"';
}

// What is wrong with it; empty if nothing is.
std::string problem_of(Scenario scenario) {
  if (scenario.sentence.rfind("# ", 0) != 0) return "it has no sentence";
  std::istringstream lines(scenario.log);
  std::string time;
  std::vector<std::uint64_t> comments;  // where they are in the file
  std::uint64_t number = 0;
  for (std::string line; std::getline(lines, line); ++number) {
    if (line[0] >= '0' && line[0] <= '9') time = line.substr(0, line.find(' '));
    if (line[0] == '#') comments.push_back(scenario.lines[number]);
  }
  if (time.empty()) return "nothing happens in it";
  // Of the decisions behind the last event none is missing if another event may follow.
  scenario.add(number, time + " tick");
  std::istringstream log(scenario.log);
  std::string wrong;
  std::size_t comment = 0;
  const Replay result = replay(log, {.comment = [&](const Core& core, std::string_view line) {
                                 const std::uint64_t at = comments.at(comment++);
                                 if (line.rfind("#= ", 0) != 0 || !wrong.empty()) return;
                                 wrong = difference(core, std::string(line));
                                 if (!wrong.empty()) wrong = "line " + std::to_string(at) + ": " + wrong;
                               }});
  if (!wrong.empty() || result.problem.empty()) return wrong;
  // The replay counts the log's lines.
  const std::size_t colon = result.problem.find(": ");
  const std::uint64_t in_log = std::stoull(result.problem.substr(result.problem.find(' ') + 1, colon));
  return "line " + std::to_string(scenario.lines.at(in_log - 1)) + result.problem.substr(colon);
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
      INFO(path.filename().string() << ": " << scenario.sentence);
      CHECK(problem_of(scenario) == "");
      ++told;
    }
  }
  CHECK(told > 30);
}

TEST_CASE("a scenario that goes otherwise than it is told is noticed") {
  const std::string story =
      "# a client that wants a free GPU gets it\nrota-events 1 mode=exclusive quantum=100ms grace=1s window=2s\n"
      "10s join 1\n10s add_gpu 1 0 1000M 10M\n10s want 1 1 0\n> granted 1 1; promised 1 1 0 0\n#= client 1: holds 1\n"
      "10s give_back 1 1\n> ended 1 1\n#= client 1: rests\n";
  const auto told_so = [&](const std::string& from, const std::string& to) {
    std::string changed = story;
    REQUIRE(changed.find(from) != std::string::npos);
    std::istringstream file(changed.replace(changed.find(from), from.size(), to));
    const auto all = scenarios(file);
    REQUIRE(all.size() == 1);
    return problem_of(all.front());
  };
  CHECK(told_so("1000M", "1000M") == "");
  CHECK(told_so("> granted 1 1; promised 1 1 0 0\n", "") != "");
  CHECK(told_so("> ended 1 1\n", "") != "");
  CHECK(told_so("> granted 1 1", "> granted 2 1").rfind("line 6: the log records '> granted 2 1'", 0) == 0);
  CHECK(told_so("#= client 1: rests\n", "## one way on\n#= client 1: rests\n") == "");
  CHECK(told_so("holds 1", "holds 2") == "line 7: client 1 is \"holds 1\" and not \"holds 2\"");
  CHECK(told_so("client 1: rests", "clients 1: rests") == "line 10: nobody answers \"clients 1\"");
  CHECK(told_so("# a client that wants a free GPU gets it\n", "") == "it has no sentence");
}

}  // namespace rota::scheduler
