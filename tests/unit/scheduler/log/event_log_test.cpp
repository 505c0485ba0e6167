// Replays logs of real runs: the core must make the decisions that it made then. tests/data/events/record made them;
// run it again after an intended change of the scheduler's behavior.
#include "scheduler/log/event_log.h"

#include <algorithm>
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
      step(event::Join{id, id == 3 ? 0 : DomainId{1} << 63 | id, id == 1 ? 0 : id});
      if (id != 1) step(event::Session{id, 4});
      step(event::AddGpu{id, 63, 1000, 3});
      step(event::Usage{id, 63, 600, 5});
      step(event::Want{id, ~GpuMask{0}, id == 3, id == 2});
    }
    CHECK(core.client(3)->grant == 4);  // the number after the last grant of the client whose place it has taken
    step(event::Withdraw{1, 500ms});
    CHECK(core.give_back_by(1) != Time{});
    step(event::GiveBack{1, core.client(1)->grant});
    step(event::GiveBack{3, core.client(3)->grant});
    step(event::Ask{2, 63, 700});
    CHECK(core.promised_bytes(2, 63) >= 700);
    step(event::Tick{});
    // Clients that swap: the idle one is to evict the deficit of the other, including what the driver has refused.
    step(event::GiveBack{2, core.client(2)->grant});
    step(event::Usage{1, 63, 600, 5, 600, 0, 0});
    step(event::Want{2, ~GpuMask{0}});
    CHECK(core.bytes_to_clear(1, 63) == 214);  // 600 + 600 + 9 for contexts, and 5 fixed bytes of the third
    step(event::Usage{2, 63, 700, 0, 300, 400, 50});
    step(event::Usage{2, 63, 700, 0, 300, 400, 50, 7});
    step(event::Usage{1, 63, 600, 600, 600, 0, 0, 0, 590});
    CHECK(core.later_gpus() == bit(63));
    step(event::Measured{63, 100, 77});
    CHECK(core.gpu(63).outside == 77);
    step(event::Measured{63, 50, std::nullopt});
    step(event::Unmeasured{63});
    step(event::HadBefore{63, 1001, -3s, 2s});
    step(event::Returned{1, 63, -1s, 1s, 7ms, 0s, 5s, 6s});
    step(event::MeasuredBefore{1, 7, 2, Candidate::kTurns, true, -1, 970'000, 8s, 10s, 3});
    step(event::MeasuredBefore{3, 7, 2, Candidate::kTurns, false, 950'000, 970'000, 8s, 10s, 3});
    REQUIRE(core.measured(now).size() == 2);
    settings.mode = Mode::kConcurrent;
    step(event::Configure{settings});
    step(event::Leave{2});
    const Replay result = replay_text(text);
    CHECK(result.problem == "");
    CHECK(result.events == 34);
    CHECK(text.find("> clear 1 0 63 ") != std::string::npos);
    CHECK(result.decisions == decisions);
  }
}

TEST_CASE("a decision that the core does not make, or makes and the log lacks, is named with its line") {
  const std::string text = content(std::string(EVENT_LOGS) + "/exclusive_turns.txt");
  const std::size_t promised = text.find("> promised");  // the last one after its event
  REQUIRE(promised != std::string::npos);
  const std::size_t end = text.find('\n', promised);
  std::string other = text;
  other.replace(promised, 10, "> revoked");
  CHECK(replay_text(other).problem.find("records '> revoked") != std::string::npos);
  const std::string less = text.substr(0, promised) + text.substr(end + 1);
  CHECK(replay_text(less).problem.find("which the log does not record") != std::string::npos);
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
}

const std::string kHeader = "rota-events 1 mode=exclusive quantum=50000000 grace=300000000 window=2000000000\n";

TEST_CASE("what cannot be read in a log is named with its line, what is wrong there, and what to do") {
  struct Bad {
    std::string log;
    std::string problem;  // it begins with this
    std::string remedy = "record a log with rotad --event-log";
  };
  const std::string third = "; record the log again, or replay only the lines before it: head -n 2";
  const std::string join = kHeader + "1000 join 1\n";
  const std::vector<Bad> logs{
      {"", "line 1: the log is empty"},
      {"hello\n", "line 1: 'hello' is not the first line of a rotad event log"},
      {std::string(5000, 'x'), "line 1: '" + std::string(40, 'x') + "...' is not the first line"},
      {std::string("\x1b[2J\0\n", 6), "line 1: '?[2J?"},
      {"rota-events 2 mode=exclusive\n", "line 1: the log has version '2', but this rotad reads version 1",
       "replay it with the rotad that wrote it"},
      {"rota-events 1 mode=fair quantum=1 grace=1 window=1\n", "line 1: cannot read the settings: unknown mode 'fair'"},
      {"rota-events 1 mode=exclusive quantum=1 grace=1\n", "the line ends before the window"},
      {"rota-events 1 mode=exclusive quantum=0 grace=1 window=1\n", "'0' is not a number of nanoseconds above 0"},
      {"rota-events 1 mode=exclusive quantum=86400000000001 grace=1 window=1\n",
       "'86400000000001' is not a valid number of nanoseconds (maximum 86400000000000)"},
      {join + "1001 fly 1\n", "line 3: unknown event 'fly'", third},
      {join + "1001\n", "line 3: the line ends before the event", third},
      {join + "1001 \n", "line 3: unknown event ''", third},
      {join + "soon join 2\n", "line 3: 'soon' is not a valid time in nanoseconds (maximum ", third},
      {join + "-5 join 2\n", "line 3: the time is earlier than that of the event before it", third},
      {join + "999 join 2\n", "line 3: the time is earlier than that of the event before it", third},
      {join + "9223372036854775807 join 2\n", "line 3: '9223372036854775807' is not a valid time", third},
      {join + "1001 join 1\n", "line 3: client 1 has already joined", third},
      {join + "1001 join 4294967296\n", "line 3: '4294967296' is not a valid client number (maximum 4294967295)",
       third},
      {join + "1001 join\n", "line 3: the line ends before the client number", third},
      {join + "1001 join 2 3\n", "line 3: unexpected '3' at the end of the line", third},
      {join + "1001 join 2 \n", "line 3: unexpected ''", third},
      {join + "1001 join 2 domain\n", "line 3: the line ends before the domain number", third},
      {join + "1001 join 2 grants x\n", "line 3: 'x' is not a valid grant number", third},
      {join + "1001 join 2 domain x\n", "line 3: 'x' is not a valid domain number", third},
      {join + "1001 join 2 domain 1 2\n", "line 3: unexpected '2' at the end of the line", third},
      {join + "1001 ask 1 64 1\n", "line 3: '64' is not a valid GPU number (maximum 63)", third},
      {join + "1001 add_gpu 1 64 1000 0\n", "line 3: '64' is not a valid GPU number (maximum 63)", third},
      {join + "1001 usage 1 64 1000 0\n", "line 3: '64' is not a valid GPU number (maximum 63)", third},
      {join + "1001 usage 1 0 18446744073709551616 0\n",
       "line 3: '18446744073709551616' is not a valid number of bytes", third},
      {join + "1001 usage 1 0 5\n", "line 3: the line ends before the number of bytes", third},
      {join + "1001 measured 64 1000 0\n", "line 3: '64' is not a valid GPU number (maximum 63)", third},
      {join + "1001 measured 0\n", "line 3: the line ends before the number of bytes", third},
      {join + "1001 measured 0 5 -1\n", "line 3: '-1' is not a valid number of bytes", third},
      {join + "1001 measured 0 5 6 7\n", "line 3: unexpected '7' at the end of the line", third},
      {join + "1001 unmeasured\n", "line 3: the line ends before the GPU number", third},
      {join + "1001 want 1 fffffffff00000000 0\n", "line 3: 'fffffffff00000000' is not a valid GPU mask", third},
      {join + "1001 want 1 1 2\n", "line 3: '2' is not a valid running flag (maximum 1)", third},
      {join + std::string(2000, '#') + "\n", "line 3: the line is longer than 1024 characters", third},
  };
  for (const Bad& bad : logs) {
    INFO(bad.log);
    const std::string problem = replay_text(bad.log).problem;
    CHECK(problem.find(bad.problem) != std::string::npos);
    CHECK(problem.rfind("line ", 0) == 0);
    CHECK(problem.find(bad.remedy) != std::string::npos);
    CHECK(std::all_of(problem.begin(), problem.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  }
}

TEST_CASE("a log that breaks off says in which line, and one that ends with a whole line does not") {
  const std::string log = kHeader + "1000 join 1\n1001 join 2\n";
  CHECK(replay_text(log).broken_off == 0);
  CHECK(replay_text(log).events == 2);
  for (std::size_t cut = 1; cut < 12; ++cut) {
    const Replay result = replay_text(log.substr(0, log.size() - cut));
    CHECK(result.problem == "");
    CHECK(result.broken_off == 3);
    CHECK(result.events == 1);
  }
  CHECK(replay_text(kHeader).events == 0);
}

}  // namespace
}  // namespace rota::scheduler
