#include "tools/rota/top/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tools/rota/run/signals.h"

namespace rota::top {
namespace {

// A screen of its own without a cursor, on which a long line does not wrap, and back.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
// In each direction: more than any terminal shows, and few enough to draw.
constexpr int kMostCells = 1000;
constexpr std::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

// The signals that end a program by default, except those that top.cpp waits for.
constexpr std::array kDeadly = {SIGSEGV, SIGBUS,  SIGFPE,    SIGILL, SIGABRT, SIGTRAP, SIGSYS,  SIGUSR1,   SIGUSR2,
                                SIGPIPE, SIGALRM, SIGSTKFLT, SIGIO,  SIGPWR,  SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF};

// How long a terminal that takes no output is waited for when it is given back.
constexpr int kLastPatienceMs = 200;

// For the handler, which may call nothing that allocates.
termios restored{};
int written_to = STDOUT_FILENO;

void on_end(int signal) {
  [[maybe_unused]] const ssize_t written = write(written_to, kLeave.data(), kLeave.size());
  if (written_to == STDOUT_FILENO) fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) & ~O_NONBLOCK);
  tcsetattr(STDIN_FILENO, TCSANOW, &restored);
  raise(signal);  // with its default action, since the handler was for one signal only
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
    : own_(open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)),
      utf8_(setlocale(LC_CTYPE, "") != nullptr && strcmp(nl_langinfo(CODESET), "UTF-8") == 0),
      coloured_(!is_set("NO_COLOR")) {
  tcgetattr(STDIN_FILENO, &before_);
  restored = before_;
  written_to = output();
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
  // If it cannot be opened again (another user's terminal, after su), all processes that share this file do not wait
  // either.
  if (!own_) fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
  unwritten_ = kEnter;
  write_more();
  forget();
}

// Drops what is left of the last lines: it would only delay the end.
void Terminal::give_back() {
  unwritten_ = kLeave;
  while (write_more() && !unwritten_.empty()) {
    pollfd ready{output(), POLLOUT, 0};
    if (poll(&ready, 1, kLastPatienceMs) <= 0) break;
  }
  unwritten_.clear();
  if (!own_) fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) & ~O_NONBLOCK);
  tcsetattr(STDIN_FILENO, TCSANOW, &before_);  // not TCSADRAIN, which waits for the output
}

int Terminal::output() const {
  return own_ ? own_.get() : STDOUT_FILENO;
}

bool Terminal::write_more() {
  while (!unwritten_.empty()) {
    const ssize_t written = write(output(), unwritten_.data(), unwritten_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno == EAGAIN;
    unwritten_.erase(0, static_cast<std::size_t>(written));
  }
  return true;
}

void Terminal::stop() {
  give_back();
  tool::stop_as(SIGTSTP);
  tcgetattr(STDIN_FILENO, &before_);
  restored = before_;
  take();
}

bool Terminal::show(const std::vector<Line>& lines) {
  if (!write_more()) return false;
  if (!unwritten_.empty()) return true;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    if (i < shown_.size() && shown_[i].text == line.text && shown_[i].style == line.style) continue;
    const char* const colours = colours_of(line.style, coloured_);
    unwritten_ += fmt::format("\x1b[{};1H{}{}{}", i + 1, colours, line.text, *colours == '\0' ? "" : "\x1b[0m");
  }
  shown_ = lines;
  return write_more();
}

}  // namespace rota::top
