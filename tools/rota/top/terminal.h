// The terminal while `rota top` uses it: its former state is restored at the end, also if this process crashes. No
// function waits for a terminal that takes no output (Ctrl-S, a window that hangs): what it has not taken is kept.
#pragma once

#include <termios.h>

#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/descriptor.h"

#include "tools/rota/top/layout.h"

namespace rota::top {

// Whether standard input and output are terminals, and TERM names a kind whose cursor can be moved.
bool is_capable_terminal();

// Switches standard input to unbuffered keys without echo, and standard output to the alternate screen. The destructor
// switches back, and so does a signal handler if this process crashes. Only one Terminal may exist at a time.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // The window's present size, and whether the locale uses UTF-8.
  Screen screen() const;
  // Writes the lines that differ from those on the screen, unless the terminal has not taken the last ones yet. False:
  // it cannot be written to.
  bool show(const std::vector<Line>& lines);
  // Where to wait until it takes more output; negative: it has taken all.
  int taking() const { return unwritten_.empty() ? -1 : output(); }
  // Makes the next show() write all lines, since the screen has another size or another process has written to it.
  void forget() { shown_.clear(); }
  // Switches back, stops this process as SIGTSTP does, and switches again once the process is continued.
  void stop();
  // Switches again, since another process may have changed the terminal's state.
  void take();

 private:
  int output() const;
  // Writes as much as the terminal takes. False: it cannot be written to.
  bool write_more();
  void give_back();

  Descriptor own_;  // an open file of its own, so that only this process does not wait; empty: there can be none
  std::string unwritten_;
  termios before_{};
  bool utf8_;
  bool coloured_;
  std::vector<Line> shown_;
};

}  // namespace rota::top
