// The screen of `rota top`.
#include "tools/rota/top/layout.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <clocale>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

namespace rota::top {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kSecond = 1'000'000'000;

View two_gpus() {
  View view;
  view.daemon = "rotad pid 7: automatic mode, quantum automatic";
  view.gpus = {{.number = 0,
                .name = "NVIDIA H200",
                .busy_percent = 45,
                .used_bytes = 70 * kGiB,
                .total_bytes = 140 * kGiB,
                .programs = 2,
                .holders = 1,
                .waiters = 1,
                .note = "in turns"},
               {.number = 1, .name = "NVIDIA H200", .busy_percent = {}, .used_bytes = 0, .total_bytes = 140 * kGiB}};
  const auto row = [](unsigned gpu, int pid, const char* user, const char* command, Doing doing, std::uint64_t bytes) {
    Row made{.gpu = gpu, .pid = pid, .user = user, .session = {}, .command = command, .doing = doing};
    made.allocated_bytes = bytes;
    return made;
  };
  view.rows = {row(1, 10, "alice", "python train.py", Doing::kIdle, 30 * kGiB),
               row(0, 20, "bob", "infer", Doing::kWaits, 20 * kGiB),
               row(0, 30, "alice", "bench", Doing::kHolds, 10 * kGiB)};
  view.rows[0].held_part = 0.25;
  view.rows[1].since_ns = 3 * kSecond / 2;
  view.rows[1].resident_bytes = 15 * kGiB;
  view.rows[1].out_bytes = 5 * kGiB;
  view.rows[2].held_part = 0.75;
  return view;
}

std::string whole(const Frame& frame) {
  std::string text;
  for (const Line& line : frame.lines) text += line.text + "\n";
  return text;
}

bool shows(const Frame& frame, const std::string& part) {
  return whole(frame).find(part) != std::string::npos;
}

// The pids of the rows, from top to bottom.
std::vector<int> order(const Frame& frame) {
  std::vector<int> pids;
  bool below_heading = false;
  for (const Line& line : frame.lines) {
    if (line.style == Style::kHeading) {
      below_heading = true;
    } else if (below_heading) {
      const int pid = std::atoi(line.text.substr(3).c_str());
      if (pid != 0) pids.push_back(pid);
    }
  }
  return pids;
}

void type(Choices& choices, std::string_view keys) {
  KeyReader reader;
  for (const Pressed& key : reader.read(keys)) press(choices, key);
}

constexpr Screen kScreen{.rows = 24, .columns = 120, .utf8 = true};

TEST_CASE("GPUs have a line each with load and memory, programs with who holds, who waits and for how long") {
  View view = two_gpus();
  const Frame frame = lay_out(view, {}, kScreen);
  CHECK(shows(frame, "rotad pid 7: automatic mode, quantum automatic; 1 hold, 1 wait"));
  CHECK(shows(frame, "45%]"));
  CHECK(shows(frame, "70.0G/140.0G]"));
  CHECK(shows(frame, "1 holds, 1 waits NVIDIA H200; in turns"));
  CHECK(shows(frame, "load ?"));
  CHECK(shows(frame, "waits   1.5s"));
  CHECK(shows(frame, "20.0G  15.0G   5.0G"));
  view.rows[2].command = "/usr/bin/bench /data/x";
  CHECK(shows(lay_out(view, {}, kScreen), " bench /data/x"));
  CHECK_FALSE(shows(lay_out(view, {.chosen = 1}, kScreen), "/usr/bin"));
  CHECK(shows(lay_out(view, {.chosen = 0}, kScreen), "alice: /usr/bin/bench /data/x"));
  // By GPU, those who hold it first.
  CHECK(order(frame) == std::vector{30, 20, 10});
}

TEST_CASE("every frame has exactly the screen's rows and columns, however small that is") {
  View view = two_gpus();
  for (int i = 0; i < 40; ++i) view.rows.push_back(view.rows[0]);
  for (unsigned i = 2; i < 16; ++i) view.gpus.push_back({.number = i, .name = "NVIDIA H200"});
  for (const bool help : {false, true}) {
    for (int rows = 1; rows < 60; rows += 3) {
      for (int columns = 1; columns < 240; columns += 7) {
        const Screen screen{.rows = rows, .columns = columns, .utf8 = true};
        const Frame frame = lay_out(view, {.help = help, .chosen = 20}, screen);
        REQUIRE(frame.lines.size() == static_cast<std::size_t>(rows));
        for (const Line& line : frame.lines) REQUIRE(columns_of(line.text, screen) == columns);
      }
    }
  }
}

TEST_CASE("letters sort as in htop, I turns the order round, and F6 goes on to the next") {
  const View view = two_gpus();
  Choices choices;
  const auto after = [&](const char* keys) {
    type(choices, keys);
    return order(lay_out(view, choices, kScreen));
  };
  CHECK(after("P") == std::vector{30, 10, 20});
  CHECK(after("M") == std::vector{10, 20, 30});
  CHECK(after("I") == std::vector{30, 20, 10});
  CHECK(after("W") == std::vector{20, 30, 10});
  CHECK(after("N") == std::vector{10, 20, 30});
  type(choices, "G");
  for (int i = 0; i < kSorts; ++i) type(choices, "\x1b[17~");
  CHECK(choices.sort == Sort::kGpu);
  type(choices, "<");
  CHECK(choices.sort == Sort::kPid);
}

TEST_CASE("a filter leaves the rows that have its text, is shown, and Esc removes it") {
  const View view = two_gpus();
  Choices choices;
  type(choices, "/ALICE");
  CHECK(choices.typing);
  Frame frame = lay_out(view, choices, kScreen);
  CHECK(shows(frame, "filter: ALICE_"));
  CHECK(order(frame) == std::vector{30, 10});
  type(choices, "\r");
  CHECK_FALSE(choices.typing);
  CHECK(shows(lay_out(view, choices, kScreen), "F4 filter: ALICE (2 of 3)"));
  type(choices, "/\x7f\x7f\x7f\x7f\x7fgpu 1\r");
  CHECK(order(lay_out(view, choices, kScreen)) == std::vector{10});
  type(choices, "/x");
  press(choices, {Key::kEscape});
  CHECK(order(lay_out(view, choices, kScreen)).size() == 3);
  // The letters of other keys are the filter's while it is typed.
  type(choices, "/qM");
  CHECK(choices.filter == "qM");
  CHECK(choices.sort == Sort::kGpu);
  type(choices, "é\x7f\x7f\x7f");
  CHECK(choices.filter.empty());
}

TEST_CASE("the chosen row stays in sight and within the list") {
  View view = two_gpus();
  for (int pid = 100; pid < 200; ++pid) {
    view.rows.push_back(view.rows[0]);
    view.rows.back().pid = pid;
  }
  Choices choices;
  const auto draw = [&] {
    Frame frame = lay_out(view, choices, kScreen);
    choices = frame.choices;
    return frame;
  };
  draw();
  const std::size_t page = choices.page;
  CHECK(page == 24 - 1 - 2 - 1 - 3);
  type(choices, "\x1b[6~");
  draw();
  CHECK(choices.chosen == page);
  CHECK(choices.first == 1);
  type(choices, "\x1b[F");
  const Frame last = draw();
  CHECK(choices.chosen == 102);
  CHECK(order(last).back() == 199);
  type(choices, "\x1b[A");
  draw();
  CHECK(choices.chosen == 101);
  view.rows.resize(2);
  draw();
  CHECK(choices.chosen == 1);
  CHECK(choices.first == 0);
  view.rows.clear();
  draw();
  type(choices, "\x1b[B\x1b[A\x1b[5~");
  draw();
  CHECK(choices.chosen == 0);
}

TEST_CASE("whatever is typed, and whatever programs come and go, frames keep to the screen") {
  std::mt19937 random(1);
  const auto below = [&](std::uint32_t end) { return random() % end; };
  KeyReader reader;
  Choices choices;
  View view = two_gpus();
  for (int step = 0; step < 3000; ++step) {
    std::string bytes;
    // Half of them are such as keys begin with, or mean something.
    constexpr std::string_view kLikely = "\x1b[O156~ABHF/\rqhIM<> \xc3\xa9\x7f";
    for (std::uint32_t i = below(6); i > 0; --i) {
      bytes += below(2) == 0 ? kLikely[below(kLikely.size())] : static_cast<char>(below(256));
    }
    std::vector<Pressed> keys = reader.read(bytes);
    if (below(4) == 0) std::ranges::copy(reader.pause(), std::back_inserter(keys));
    for (const Pressed& key : keys) press(choices, key);
    if (below(8) == 0) view.rows.resize(1 + below(60), view.rows.front());
    const Screen screen{
        .rows = static_cast<int>(1 + below(40)), .columns = static_cast<int>(1 + below(200)), .utf8 = below(2) == 0};
    const Frame frame = lay_out(view, choices, screen);
    choices = frame.choices;
    REQUIRE(frame.lines.size() == static_cast<std::size_t>(screen.rows));
    for (const Line& line : frame.lines) {
      REQUIRE(columns_of(line.text, screen) == screen.columns);
      REQUIRE(line.text.find('\x1b') == std::string::npos);
    }
    REQUIRE((choices.chosen == 0 || choices.chosen < view.rows.size()));
  }
}

TEST_CASE("names cannot command the terminal, and wide letters take two columns") {
  const bool wide = setlocale(LC_CTYPE, "C.UTF-8") != nullptr;
  const Screen screen{.rows = 4, .columns = 6, .utf8 = true};
  CHECK(fitted("a\x1b[2J\x9b\n", 6, screen) == "a?[2J?");
  CHECK(fitted("abc", 5, screen, Side::kRight) == "  abc");
  if (wide) {
    CHECK(fitted("漢字", 5, screen) == "漢字 ");
    CHECK(fitted("漢字", 3, screen) == "漢 ");
    CHECK(columns_of("e\xcc\x81", screen) == 1);  // an accent above it
  }
  const Screen ascii{.rows = 4, .columns = 6, .utf8 = false};
  CHECK(fitted("漢é", 4, ascii) == "??  ");
  View view = two_gpus();
  view.rows[0].command = "evil\x1b]0;title\x07\r\n";
  view.rows[0].user = "\x1b[31mred";
  view.gpus[0].name = "\x1b[H";
  for (const Line& line : lay_out(view, {}, kScreen).lines) {
    CHECK(line.text.find_first_of("\x1b\x07\r\n") == std::string::npos);
  }
}

TEST_CASE("on a narrow screen what matters most stays") {
  const Frame frame = lay_out(two_gpus(), {}, {.rows = 24, .columns = 60, .utf8 = true});
  CHECK(shows(frame, "STATE"));
  CHECK(shows(frame, "ALLOC"));
  CHECK(shows(frame, "PROGRAM"));
  CHECK_FALSE(shows(frame, "MOVED/s"));
}

TEST_CASE("without a rotad it says so, and the GPUs are there") {
  View view;
  view.problem = "rota: no rotad is running: `rota run` starts one\n";
  view.gpus = {{.number = 0, .name = "NVIDIA H200", .busy_percent = 3}};
  const Frame frame = lay_out(view, {}, kScreen);
  CHECK(shows(frame, "no rotad is running"));
  CHECK(shows(frame, "NVIDIA H200"));
  const Frame narrow = lay_out(view, {}, {.rows = 24, .columns = 40, .utf8 = true});
  CHECK(shows(narrow, "rota: no rotad is running: `rota run`   \n  starts one "));
}

TEST_CASE("any key leaves the help, and q and F10 end") {
  Choices choices;
  type(choices, "h");
  CHECK(shows(lay_out(two_gpus(), choices, kScreen), "any key goes back"));
  type(choices, "x");
  CHECK_FALSE(choices.help);
  CHECK(press(choices, {Key::kText, "q"}) == After::kEnd);
  CHECK(press(choices, {Key::kFunction, "", 10}) == After::kEnd);
  CHECK(press(choices, {Key::kRedraw}) == After::kRedraw);
}

TEST_CASE("sizes and times are short") {
  CHECK(short_size(0) == "0");
  CHECK(short_size(640 << 10) == "640K");
  CHECK(short_size((1 << 20) - 1) == "1.0M");
  CHECK(short_size(kGiB * 140) == "140.0G");
  CHECK(short_size(std::uint64_t{1010} << 20) == "1010M");
  CHECK(short_size((std::uint64_t{1} << 30) - 1) == "1.0G");
  for (std::uint64_t bytes = 1; bytes < UINT64_MAX / 3; bytes += bytes / 2 + 1) CHECK(short_size(bytes).size() <= 6);
  CHECK(short_time(400'000'000) == "0.4s");
  CHECK(short_time(247 * kSecond) == "4:07");
  CHECK(short_time(7500 * kSecond) == "2h05");
  CHECK(short_time(86400 * 31 * kSecond) == "31d");
}

}  // namespace
}  // namespace rota::top
