// The terminal while `rota top` has it: what it was like comes back whatever happens.
#pragma once

#include <termios.h>

#include <string>
#include <vector>

#include "tools/rota/top/layout.h"

namespace rota::top {

// Whether standard input and output are a terminal on which a cursor can be moved.
bool is_capable_terminal();

// Switches standard input and output to single keys and a screen of its own; the destructor switches back, and so does
// a handler if this process crashes. One at a time.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Of the window as it is now, and the locale.
  Screen screen() const;
  // Writes the lines that differ from those on the screen. False: it cannot be written to.
  bool show(const std::vector<Line>& lines);
  // Everything is written again next time: the screen has another size, or others have written to it.
  void forget() { shown_.clear(); }
  // Switches back, stops this process as SIGTSTP does, and takes the terminal again once it is continued.
  void stop();
  // After somebody else may have changed the terminal.
  void take();

 private:
  void give_back();

  termios before_{};
  bool utf8_;
  bool coloured_;
  std::vector<Line> shown_;
};

}  // namespace rota::top
