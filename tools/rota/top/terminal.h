// The terminal while `rota top` uses it: its former state is restored at the end, also if this process crashes.
#pragma once

#include <termios.h>

#include <string>
#include <vector>

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
  // Writes the lines that differ from those on the screen. False: the terminal cannot be written to.
  bool show(const std::vector<Line>& lines);
  // Makes the next show() write all lines, since the screen has another size or another process has written to it.
  void forget() { shown_.clear(); }
  // Switches back, stops this process as SIGTSTP does, and switches again once the process is continued.
  void stop();
  // Switches again, since another process may have changed the terminal's state.
  void take();

 private:
  void give_back();

  termios before_{};
  bool utf8_;
  bool coloured_;
  std::vector<Line> shown_;
};

}  // namespace rota::top
