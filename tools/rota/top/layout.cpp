#include "tools/rota/top/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <sstream>
#include <utility>

namespace rota::top {
namespace {

constexpr int kLeastCommand = 16;  // columns

struct Column {
  const char* heading;
  int columns;
  Side side;
  int leaves;  // in this order where the screen is narrow; 0: never
  std::string (*text)(const Row&);
};

std::string or_dash(const std::optional<std::uint64_t>& bytes) {
  return bytes ? short_size(*bytes) : "-";
}

std::string percent(const std::optional<double>& part) {
  return part ? fmt::format("{:.0f}", *part * 100) : "-";
}

const char* doing_text(Doing doing) {
  return doing == Doing::kHolds ? "holds" : doing == Doing::kWaits ? "waits" : "idle";
}

const std::array<Column, 15> kColumns = {{
    {"GPU", 3, Side::kRight, 0, [](const Row& row) { return std::to_string(row.gpu); }},
    {"PID", 7, Side::kRight, 0, [](const Row& row) { return row.pid == 0 ? "?" : std::to_string(row.pid); }},
    {"USER", 8, Side::kLeft, 6, [](const Row& row) { return row.user; }},
    {"STATE", 5, Side::kLeft, 0, [](const Row& row) { return std::string(doing_text(row.doing)); }},
    {"FOR", 6, Side::kRight, 0,
     [](const Row& row) { return row.doing == Doing::kIdle ? "" : short_time(row.since_ns); }},
    {"HELD%", 5, Side::kRight, 8, [](const Row& row) { return percent(row.held_part); }},
    {"BUSY%", 5, Side::kRight, 1, [](const Row& row) { return percent(row.busy_part); }},
    {"HELD", 6, Side::kRight, 5, [](const Row& row) { return short_time(row.held_ns); }},
    {"WAITED", 6, Side::kRight, 4, [](const Row& row) { return short_time(row.waited_ns); }},
    {"ALLOC", 6, Side::kRight, 10, [](const Row& row) { return short_size(row.allocated_bytes); }},
    {"RES", 6, Side::kRight, 7, [](const Row& row) { return or_dash(row.resident_bytes); }},
    {"OUT", 6, Side::kRight, 9, [](const Row& row) { return or_dash(row.out_bytes); }},
    {"MOVED", 6, Side::kRight, 3, [](const Row& row) { return short_size(row.moved_bytes); }},
    {"MOVED/s", 7, Side::kRight, 2,
     [](const Row& row) { return row.moved_rate ? short_size(static_cast<std::uint64_t>(*row.moved_rate)) : "-"; }},
    {"SESSION", 10, Side::kLeft, 1, [](const Row& row) { return row.session; }},
}};

// Those for which the screen has the columns, in their order.
std::vector<const Column*> shown_columns(const Screen& screen) {
  std::vector<const Column*> shown;
  for (const Column& column : kColumns) shown.push_back(&column);
  const auto width = [&] {
    int sum = kLeastCommand;
    for (const Column* column : shown) sum += column->columns + 1;
    return sum;
  };
  while (width() > screen.columns) {
    const auto next = std::ranges::min_element(
        shown, {}, [](const Column* column) { return column->leaves == 0 ? 1000 : column->leaves; });
    if (next == shown.end() || (*next)->leaves == 0) break;
    shown.erase(next);
  }
  return shown;
}

const char* sort_name(Sort sort) {
  switch (sort) {
    case Sort::kGpu:
      return "GPU";
    case Sort::kHeld:
      return "HELD%";
    case Sort::kMemory:
      return "ALLOC";
    case Sort::kTime:
      return "HELD";
    case Sort::kWait:
      return "waiting";
    case Sort::kMoved:
      return "MOVED";
    case Sort::kPid:
      return "PID";
  }
  return "";
}

// Whether `left` comes before `right`. Only the chosen order is inverted, not the order among equals.
bool before(const Row& left, const Row& right, Sort sort, bool inverted) {
  const auto rank = [](Doing doing) { return doing == Doing::kHolds ? 0 : doing == Doing::kWaits ? 1 : 2; };
  const auto waiting = [](const Row& row) { return row.doing == Doing::kWaits ? row.since_ns : 0; };
  const auto order = [&]() -> std::partial_ordering {
    switch (sort) {
      case Sort::kGpu:
        return left.gpu <=> right.gpu;
      case Sort::kHeld:
        return right.held_part.value_or(-1) <=> left.held_part.value_or(-1);
      case Sort::kMemory:
        return right.allocated_bytes <=> left.allocated_bytes;
      case Sort::kTime:
        return right.held_ns <=> left.held_ns;
      case Sort::kWait:
        return waiting(right) <=> waiting(left);
      case Sort::kMoved:
        return right.moved_bytes <=> left.moved_bytes;
      case Sort::kPid:
        return left.pid <=> right.pid;
    }
    return std::partial_ordering::equivalent;
  }();
  if (order != 0) return inverted ? order > 0 : order < 0;
  if (left.gpu != right.gpu) return left.gpu < right.gpu;
  if (left.doing != right.doing) return rank(left.doing) < rank(right.doing);
  if (waiting(left) != waiting(right)) return waiting(left) > waiting(right);
  return left.pid < right.pid;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& letter : result) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return result;
}

std::vector<const Row*> chosen_rows(const View& view, const Choices& choices) {
  std::vector<const Row*> rows;
  const std::string wanted = lower(choices.filter);
  for (const Row& row : view.rows) {
    const std::string text = lower(fmt::format("gpu {} pid {} {} {} {} {}", row.gpu, row.pid, row.user,
                                               doing_text(row.doing), row.session, row.command));
    if (text.find(wanted) != std::string::npos) rows.push_back(&row);
  }
  std::ranges::stable_sort(
      rows, [&](const Row* left, const Row* right) { return before(*left, *right, choices.sort, choices.inverted); });
  return rows;
}

std::string gpu_line(const Gpu& gpu, const Screen& screen) {
  const double memory =
      gpu.total_bytes == 0 ? 0 : static_cast<double>(gpu.used_bytes) / static_cast<double>(gpu.total_bytes);
  const int columns = std::clamp((screen.columns - 40) / 4, 10, 30);
  std::string line = fmt::format(
      "{:>3} {} {}", gpu.number,
      gpu.busy_percent ? meter(*gpu.busy_percent / 100.0, fmt::format("{}%", *gpu.busy_percent), columns)
                       : meter(0, "load ?", columns),
      meter(memory, fmt::format("{}/{}", short_size(gpu.used_bytes), short_size(gpu.total_bytes)), columns + 7));
  if (gpu.programs != 0)
    line += fmt::format(" {} hold{}, {} wait{}", gpu.holders, gpu.holders == 1 ? "s" : "", gpu.waiters,
                        gpu.waiters == 1 ? "s" : "");
  line += " " + gpu.name;
  if (!gpu.note.empty()) line += "; " + gpu.note;
  return line;
}

const std::vector<std::string>& help_lines() {
  static const std::vector<std::string> lines = {
      "rota top: the GPUs of this machine, and the programs that share them under rota",
      "",
      "  up, down, PgUp, PgDn, Home, End   choose a program; the line below the list has the rest about it",
      "  / or F4    show only programs with this text: GPU, pid, user, state, session, command; Esc removes it",
      "  G  by GPU, holders first          P  by the part of the time that they held it (HELD%)",
      "  M  by memory allocated            T  by how long they have held it in all (HELD)",
      "  W  by how long they have waited   V  by bytes moved   N  by pid",
      "  F6, >, <   the next order, the one before      I  turn the order round",
      "  Z or space stop and go on      Ctrl-L  draw again      q or F10  quit",
      "",
      "  FOR      how long it has held the GPU, or has waited for it",
      "  HELD%    of the time since the last look, in which it held the GPU; of its own time BUSY%, in which the GPU",
      "           worked for it, where rotad measures that. Programs that run at once all hold the GPU",
      "  HELD, WAITED   in all",
      "  ALLOC    memory that it has for this GPU; RES: the part of it on the GPU, OUT: that in the host's memory",
      "           ('-': Unified Memory, of which the driver alone knows)",
      "  MOVED    bytes copied to the host and back, of all its GPUs together, in all and per second; what goes "
      "without a",
      "           copy (unchanged, or handed over to another program) does not count",
      "",
      "  any key goes back",
  };
  return lines;
}

// At its newlines, and between words where a line is too long.
std::vector<std::string> lines_of(const std::string& text, const Screen& screen) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string shown;
    for (std::string word; words >> word;) {
      if (!shown.empty() && columns_of(shown + " " + word, screen) > screen.columns) {
        lines.push_back(std::exchange(shown, "  "));
      } else if (!shown.empty()) {
        shown += " ";
      }
      shown += word;
    }
    lines.push_back(shown);
  }
  return lines;
}

std::string heading(const std::vector<const Column*>& columns, const Screen& screen) {
  std::string text;
  for (const Column* column : columns) text += fitted(column->heading, column->columns, screen, column->side) + " ";
  return text + "PROGRAM";
}

// The command without its folder: the line about the chosen program has all of it.
std::string without_folder(const std::string& command) {
  const std::string program = command.substr(0, command.find(' '));
  const std::size_t slash = program.rfind('/');
  return slash == std::string::npos || slash + 1 == program.size() ? command : command.substr(slash + 1);
}

std::string row_text(const Row& row, const std::vector<const Column*>& columns, const Screen& screen) {
  std::string text;
  for (const Column* column : columns) text += fitted(column->text(row), column->columns, screen, column->side) + " ";
  return text + without_folder(row.command);
}

std::string keys_line(const Choices& choices, std::size_t shown, std::size_t all) {
  if (choices.typing) return fmt::format("filter: {}_   Enter keeps it, Esc removes it", choices.filter);
  std::string text = fmt::format(
      "F1 help  F4 filter{}  F6 order: {}{}  {}F10 quit",
      choices.filter.empty() ? "" : fmt::format(": {} ({} of {})", choices.filter, shown, all), sort_name(choices.sort),
      choices.inverted ? " turned round" : "", choices.paused ? "Z goes on  " : "");
  return text;
}

// Collects lines as long as there are rows left.
class Lines {
 public:
  explicit Lines(const Screen& screen) : screen_(screen) {}
  std::size_t left(std::size_t kept = 0) const {
    const auto rows = static_cast<std::size_t>(std::max(screen_.rows, 1));
    return rows > lines_.size() + kept ? rows - lines_.size() - kept : 0;
  }
  void add(const std::string& text, Style style = Style::kPlain) {
    if (left() != 0) lines_.push_back({fitted(text, std::max(screen_.columns, 1), screen_), style});
  }
  void fill(std::size_t kept) {
    while (left(kept) != 0) add("");
  }
  std::vector<Line> take() { return std::move(lines_); }

 private:
  const Screen& screen_;
  std::vector<Line> lines_;
};

void add_gpus(Lines& lines, const View& view, const Screen& screen) {
  // At most half of the screen.
  const auto most = static_cast<std::size_t>(std::max(1, screen.rows / 2 - 2));
  const bool all = view.gpus.size() <= most;
  const std::size_t shown = all ? view.gpus.size() : most - 1;
  for (std::size_t i = 0; i < shown; ++i) lines.add(gpu_line(view.gpus[i], screen));
  if (!all) lines.add(fmt::format("    {} GPUs more: a higher window shows them", view.gpus.size() - shown));
}

}  // namespace

Frame lay_out(const View& view, const Choices& choices, const Screen& screen) {
  Frame frame{.lines = {}, .choices = choices};
  Lines lines(screen);
  if (choices.help) {
    for (const std::string& line : help_lines()) lines.add(line);
    lines.fill(0);
    frame.lines = lines.take();
    return frame;
  }
  const auto count = [&](Doing doing) { return std::ranges::count(view.rows, doing, &Row::doing); };
  lines.add(view.daemon.empty() ? "rota top"
                                : fmt::format("rota top: {}; {} hold, {} wait{}", view.daemon, count(Doing::kHolds),
                                              count(Doing::kWaits), choices.paused ? "; stopped: Z goes on" : ""),
            Style::kTitle);
  add_gpus(lines, view, screen);
  for (const std::string& line : lines_of(view.problem, screen)) lines.add(line, Style::kProblem);
  for (const std::string& notice : view.notices) lines.add(notice);
  const std::vector<const Column*> columns = shown_columns(screen);
  const std::vector<const Row*> rows = chosen_rows(view, choices);
  lines.add(heading(columns, screen), Style::kHeading);
  // Below the list: two lines about the chosen program, and the keys.
  constexpr std::size_t kBelow = 3;
  const std::size_t page = std::max<std::size_t>(1, lines.left(kBelow));
  Choices& now = frame.choices;
  now.page = page;
  now.chosen = rows.empty() ? 0 : std::min(now.chosen, rows.size() - 1);
  now.first = std::min(now.first, rows.size() > page ? rows.size() - page : 0);
  if (now.chosen < now.first) now.first = now.chosen;
  if (now.chosen >= now.first + page) now.first = now.chosen - page + 1;
  for (std::size_t i = now.first; i < rows.size() && lines.left(kBelow) != 0; ++i) {
    const Row& row = *rows[i];
    const Style style = i == now.chosen              ? Style::kChosen
                        : row.doing == Doing::kHolds ? Style::kHolds
                        : row.doing == Doing::kWaits ? Style::kWaits
                                                     : Style::kPlain;
    lines.add(row_text(row, columns, screen), style);
  }
  lines.fill(kBelow);
  if (!rows.empty()) {
    const Row& row = *rows[now.chosen];
    lines.add(fmt::format("{}{}{}", row.user.empty() ? "" : row.user + ": ", row.command,
                          row.session.empty() ? "" : ", session " + row.session));
    lines.add(row.detail);
  }
  lines.fill(1);
  lines.add(keys_line(choices, rows.size(), view.rows.size()), Style::kKeys);
  frame.lines = lines.take();
  return frame;
}

namespace {

void sort_by(Choices& choices, Sort sort) {
  choices.sort = sort;
  choices.inverted = false;
}

// To the next or previous order, cyclically.
void step_sort(Choices& choices, int step) {
  sort_by(choices, static_cast<Sort>((static_cast<int>(choices.sort) + step + kSorts) % kSorts));
}

void remove_letter(std::string& text) {
  while (!text.empty()) {
    const auto last = static_cast<unsigned char>(text.back());
    text.pop_back();
    if ((last & 0xc0) != 0x80) break;
  }
}

After type(Choices& choices, const Pressed& pressed) {
  constexpr std::size_t kLongestFilter = 200;
  switch (pressed.key) {
    case Key::kText:
      if (choices.filter.size() < kLongestFilter) choices.filter += pressed.text;
      break;
    case Key::kBackspace:
      remove_letter(choices.filter);
      break;
    case Key::kEscape:
      choices.filter.clear();
      choices.typing = false;
      break;
    case Key::kEnter:
      choices.typing = false;
      break;
    default:
      // Any other key ends typing and has its usual effect.
      choices.typing = false;
      return press(choices, pressed);
  }
  return After::kGoOn;
}

After press_letter(Choices& choices, char letter) {
  switch (letter) {
    case 'q':
    case 'Q':
      return After::kEnd;
    case 'h':
    case '?':
      choices.help = true;
      break;
    case '/':
    case '\\':
      choices.typing = true;
      break;
    case 'G':
      sort_by(choices, Sort::kGpu);
      break;
    case 'P':
      sort_by(choices, Sort::kHeld);
      break;
    case 'M':
      sort_by(choices, Sort::kMemory);
      break;
    case 'T':
      sort_by(choices, Sort::kTime);
      break;
    case 'W':
      sort_by(choices, Sort::kWait);
      break;
    case 'V':
      sort_by(choices, Sort::kMoved);
      break;
    case 'N':
      sort_by(choices, Sort::kPid);
      break;
    case 'I':
      choices.inverted = !choices.inverted;
      break;
    case '>':
    case '.':
      step_sort(choices, 1);
      break;
    case '<':
    case ',':
      step_sort(choices, -1);
      break;
    case 'Z':
    case ' ':
      choices.paused = !choices.paused;
      break;
    default:
      break;
  }
  return After::kGoOn;
}

}  // namespace

After press(Choices& choices, const Pressed& pressed) {
  if (pressed.key == Key::kRedraw) return After::kRedraw;
  if (pressed.key == Key::kFunction && pressed.number == 10) return After::kEnd;
  if (choices.help) {
    choices.help = false;
    return After::kGoOn;
  }
  if (choices.typing) return type(choices, pressed);
  const std::size_t page = std::max<std::size_t>(choices.page, 1);
  switch (pressed.key) {
    case Key::kText:
      return pressed.text.size() == 1 ? press_letter(choices, pressed.text[0]) : After::kGoOn;
    case Key::kFunction:
      if (pressed.number == 1) choices.help = true;
      if (pressed.number == 3 || pressed.number == 4) choices.typing = true;
      if (pressed.number == 6) step_sort(choices, 1);
      break;
    case Key::kUp:
      if (choices.chosen != 0) --choices.chosen;
      break;
    case Key::kDown:
      ++choices.chosen;  // lay_out() keeps it within the list
      break;
    case Key::kPageUp:
      choices.chosen -= std::min(choices.chosen, page);
      break;
    case Key::kPageDown:
      choices.chosen += page;
      break;
    case Key::kHome:
      choices.chosen = 0;
      break;
    case Key::kEnd:
      choices.chosen = SIZE_MAX / 2;
      break;
    case Key::kEscape:
      choices.filter.clear();
      break;
    default:
      break;
  }
  return After::kGoOn;
}

}  // namespace rota::top
