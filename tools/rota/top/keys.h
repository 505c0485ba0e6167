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
  std::string text{};  // kText: one letter, in UTF-8
  int number = 0;      // kFunction: 1 for F1
  friend bool operator==(const Pressed&, const Pressed&) = default;
};

// Bytes in, keys out. The sequences are those of xterm, the Linux console, rxvt, tmux and screen; one that is not
// known is left out as a whole.
class KeyReader {
 public:
  std::vector<Pressed> read(std::string_view bytes);
  // Whether what came last may go on: an escape is a key of its own if nothing follows for a moment.
  bool waits() const { return !rest_.empty(); }
  std::vector<Pressed> pause();

 private:
  std::string rest_;
};

}  // namespace rota::top
