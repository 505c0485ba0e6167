#include "tools/rota/top/terminal.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tools/rota/run/output.h"
#include "tools/rota/run/signals.h"

namespace rota::top {
namespace {

// A screen of its own without a cursor, on which a long line does not wrap, and back.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
// In each direction: more than any terminal shows, and few enough to draw.
constexpr int kMostCells = 1000;
constexpr std::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

// The signals that end a program by default, but for those that run.cpp waits for.
constexpr std::array kDeadly = {SIGSEGV, SIGBUS,  SIGFPE,    SIGILL, SIGABRT, SIGTRAP, SIGSYS,  SIGUSR1,   SIGUSR2,
                                SIGPIPE, SIGALRM, SIGSTKFLT, SIGIO,  SIGPWR,  SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF};

// For the handler, which may call nothing that allocates.
termios restored{};

void on_end(int signal) {
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, kLeave.data(), kLeave.size());
  tcsetattr(STDIN_FILENO, TCSANOW, &restored);
  raise(signal);  // by its default, since the handler was for once
}

void handle_deadly(bool handle) {
  struct sigaction action{};
  if (handle) {
    action.sa_handler = on_end;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  } else {
    action.sa_handler = SIG_DFL;
  }
  for (const int signal : kDeadly) sigaction(signal, &action, nullptr);
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) sigaction(signal, &action, nullptr);
}

const char* colours_of(Style style, bool coloured) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kTitle:
      return "\x1b[1m";
    case Style::kHeading:
    case Style::kChosen:
    case Style::kKeys:
      return "\x1b[7m";
    case Style::kHolds:
      return coloured ? "\x1b[32m" : "\x1b[1m";
    case Style::kWaits:
      return coloured ? "\x1b[33m" : "";
    case Style::kProblem:
      return coloured ? "\x1b[1;31m" : "\x1b[1m";
  }
  return "";
}

bool is_set(const char* name) {
  const char* const value = getenv(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

bool is_capable_terminal() {
  const char* const kind = getenv("TERM");
  const bool moves = kind != nullptr && *kind != '\0' && strcmp(kind, "dumb") != 0 && strcmp(kind, "unknown") != 0;
  return moves && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
}

Terminal::Terminal()
    : utf8_(setlocale(LC_CTYPE, "") != nullptr && strcmp(nl_langinfo(CODESET), "UTF-8") == 0),
      coloured_(!is_set("NO_COLOR")) {
  tcgetattr(STDIN_FILENO, &before_);
  restored = before_;
  handle_deadly(true);
  take();
}

Terminal::~Terminal() {
  give_back();
  handle_deadly(false);
}

Screen Terminal::screen() const {
  winsize window{};
  Screen screen{.rows = 24, .columns = 80, .utf8 = utf8_};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_row != 0 && window.ws_col != 0) {
    screen.rows = std::min<int>(window.ws_row, kMostCells);
    screen.columns = std::min<int>(window.ws_col, kMostCells);
  }
  return screen;
}

void Terminal::take() {
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C and Ctrl-Z are signals still
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  tool::write_all(STDOUT_FILENO, kEnter);
  forget();
}

void Terminal::give_back() {
  tool::write_all(STDOUT_FILENO, kLeave);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

void Terminal::stop() {
  give_back();
  tool::stop_as(SIGTSTP);
  tcgetattr(STDIN_FILENO, &before_);
  restored = before_;
  take();
}

bool Terminal::show(const std::vector<Line>& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    if (i < shown_.size() && shown_[i].text == line.text && shown_[i].style == line.style) continue;
    const char* const colours = colours_of(line.style, coloured_);
    text += fmt::format("\x1b[{};1H{}{}{}", i + 1, colours, line.text, *colours == '\0' ? "" : "\x1b[0m");
  }
  shown_ = lines;
  return text.empty() || tool::write_all(STDOUT_FILENO, text);
}

}  // namespace rota::top
