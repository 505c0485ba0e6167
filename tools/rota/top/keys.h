// Keys as terminals send them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rota::top {

enum class Key { kText, kUp, kDown, kPageUp, kPageDown, kHome, kEnd, kEnter, kBackspace, kEscape, kFunction, kRedraw };

struct Pressed {
  Key key = Key::kText;
  std::string text{};  // kText: one character, in UTF-8
  int number = 0;      // kFunction: 1 for F1
  friend bool operator==(const Pressed&, const Pressed&) = default;
};

// Turns a terminal's bytes into keys. It knows the escape sequences of xterm, the Linux console, rxvt, tmux and screen,
// and ignores any other sequence as a whole.
class KeyReader {
 public:
  std::vector<Pressed> read(std::string_view bytes);
  // Whether the last bytes may be the beginning of a key. If no more follow for a moment, the caller calls pause().
  bool waits() const { return !rest_.empty(); }
  // No more bytes have come: those that begin with an escape become the Escape key, an incomplete character is dropped.
  std::vector<Pressed> pause();

 private:
  std::string rest_;
};

}  // namespace rota::top
