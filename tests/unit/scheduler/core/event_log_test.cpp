// Logs of real runs, played to the core: it decides today what it decided then. How they were made:
// tests/data/events/record. A change of the scheduler's behaviour that is meant records them anew.
#include "scheduler/core/event_log.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "scheduler/core/core.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

Replay replay_text(const std::string& text) {
  std::istringstream log(text);
  return replay(log);
}

TEST_CASE("logs of real runs lead to the same decisions as then") {
  int logs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(EVENT_LOGS)) {
    if (entry.path().extension() != ".txt") continue;
    INFO(entry.path().string());
    const Replay result = replay_text(content(entry.path()));
    CHECK(result.problem == "");
    CHECK(result.decisions > 5);
    ++logs;
  }
  CHECK(logs >= 3);
}

TEST_CASE("whatever is written down can be read again, and every event comes through whole") {
  for (const Mode mode : {Mode::kAutomatic, Mode::kExclusive, Mode::kConcurrent}) {
    Settings settings{.mode = mode, .quantum = 7ms, .grace = 11ms, .memory_window = 13ms};
    Core core(settings);
    std::string text = log_header(settings);
    Time now = 5s;
    std::uint64_t decisions = 0;
    const auto step = [&](const Event& event) {
      now += 4ms;
      text += log_line(event, now);
      for (const Decision& decision : core.step(event, now)) {
        text += log_line(decision);
        ++decisions;
      }
    };
    for (ClientId id = 1; id <= 3; ++id) {
      step(event::Join{id});
      step(event::AddGpu{id, 63, 1000, 3});
      step(event::Usage{id, 63, 600, 5});
      step(event::Want{id, ~GpuMask{0}, id == 3});
    }
    step(event::GiveBack{1, core.client(1)->grant});
    step(event::Tick{});
    settings.mode = Mode::kConcurrent;
    step(event::Configure{settings});
    step(event::Leave{2});
    const Replay result = replay_text(text);
    CHECK(result.problem == "");
    CHECK(result.events == 16);
    CHECK(result.decisions == decisions);
  }
}

TEST_CASE("a decision that the core does not make, or makes and the log lacks, is named with its line") {
  const std::string text = content(std::string(EVENT_LOGS) + "/exclusive_turns.txt");
  const std::size_t granted = text.find("> granted");
  REQUIRE(granted != std::string::npos);
  const std::size_t end = text.find('\n', granted);
  std::string other = text;
  other.replace(granted, 9, "> revoked");
  CHECK(replay_text(other).problem.find("recorded '> revoked") != std::string::npos);
  const std::string less = text.substr(0, granted) + text.substr(end + 1);
  CHECK(replay_text(less).problem.find("which is not recorded") != std::string::npos);
  const std::string more = text.substr(0, end + 1) + "> ended 9 9\n" + text.substr(end + 1);
  CHECK(replay_text(more).problem.find("decides nothing") != std::string::npos);
}

TEST_CASE("a log that breaks off anywhere is played as far as it goes, and no bytes hurt the reader") {
  const std::string text = content(std::string(EVENT_LOGS) + "/stopped_and_killed.txt");
  for (std::size_t length = text.find('\n') + 1; length < text.size(); length += 7) {
    INFO(length);
    CHECK(replay_text(text.substr(0, length)).problem == "");
  }
  std::mt19937 random(3);
  int caught = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string broken = text;
    for (unsigned changes = random() % 4; changes != ~0U; --changes) {
      broken[random() % broken.size()] = static_cast<char>(random() % 3 == 0 ? random() : '0' + random() % 10);
    }
    if (!replay_text(broken).problem.empty()) ++caught;
  }
  CHECK(caught > 1000);
  CHECK(replay_text("").problem.find("line 1: that is no event log") == 0);
}

}  // namespace
}  // namespace rota::scheduler
