#include "tools/rota/top/keys.h"

#include <map>

#include "scheduler/base/printable.h"

namespace rota::top {
namespace {

constexpr char kEscapeByte = '\x1b';
// Anything longer is not a sequence.
constexpr std::size_t kLongest = 32;

// What follows ESC: without modifiers.
const std::map<std::string, Pressed, std::less<>> kSequences = {
    {"[A", {Key::kUp}},
    {"[B", {Key::kDown}},
    {"OA", {Key::kUp}},
    {"OB", {Key::kDown}},
    {"[5~", {Key::kPageUp}},
    {"[6~", {Key::kPageDown}},
    {"[H", {Key::kHome}},
    {"[F", {Key::kEnd}},
    {"OH", {Key::kHome}},
    {"OF", {Key::kEnd}},
    {"[1~", {Key::kHome}},
    {"[4~", {Key::kEnd}},
    {"[7~", {Key::kHome}},
    {"[8~", {Key::kEnd}},
    {"OM", {Key::kEnter}},
    {"OP", {Key::kFunction, "", 1}},
    {"OQ", {Key::kFunction, "", 2}},
    {"OR", {Key::kFunction, "", 3}},
    {"OS", {Key::kFunction, "", 4}},
    {"[11~", {Key::kFunction, "", 1}},
    {"[12~", {Key::kFunction, "", 2}},
    {"[13~", {Key::kFunction, "", 3}},
    {"[14~", {Key::kFunction, "", 4}},
    {"[15~", {Key::kFunction, "", 5}},
    {"[17~", {Key::kFunction, "", 6}},
    {"[18~", {Key::kFunction, "", 7}},
    {"[19~", {Key::kFunction, "", 8}},
    {"[20~", {Key::kFunction, "", 9}},
    {"[21~", {Key::kFunction, "", 10}},
    {"[[A", {Key::kFunction, "", 1}},
    {"[[B", {Key::kFunction, "", 2}},
    {"[[C", {Key::kFunction, "", 3}},
    {"[[D", {Key::kFunction, "", 4}},
    {"[[E", {Key::kFunction, "", 5}},
};

// The length of the sequence after ESC; 0: it has not ended yet.
std::size_t length_of(std::string_view text) {
  if (text.empty()) return 0;
  if (text[0] == 'O') return text.size() < 2 ? 0 : 2;
  if (text[0] != '[') return 1;
  if (text.size() >= 2 && text[1] == '[') return text.size() < 3 ? 0 : 3;
  for (std::size_t i = 1; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x40 && byte <= 0x7e) return i + 1;
    if (byte < 0x20 || byte > 0x3f || i > kLongest) return i;
  }
  return 0;
}

// How many bytes the letter at the beginning has; 0: not all are there yet.
std::size_t letter_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t whole = first < 0xc2 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 1;
  return text.size() < whole ? 0 : whole;
}

std::optional<Pressed> control_key(char byte) {
  switch (byte) {
    case '\r':
    case '\n':
      return Pressed{Key::kEnter};
    case '\b':
    case '\x7f':
      return Pressed{Key::kBackspace};
    case '\x0c':  // Ctrl-L
      return Pressed{Key::kRedraw};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::vector<Pressed> KeyReader::read(std::string_view bytes) {
  std::vector<Pressed> keys;
  rest_ += bytes;
  while (!rest_.empty()) {
    if (rest_[0] == kEscapeByte) {
      // A second escape ends the first.
      if (rest_.size() > 1 && rest_[1] == kEscapeByte) {
        keys.push_back({Key::kEscape});
        rest_.erase(0, 1);
        continue;
      }
      const std::size_t length = length_of(std::string_view(rest_).substr(1));
      if (length == 0) break;
      const auto known = kSequences.find(std::string_view(rest_).substr(1, length));
      if (known != kSequences.end()) keys.push_back(known->second);
      rest_.erase(0, 1 + length);
      continue;
    }
    const std::size_t length = letter_length(rest_);
    if (length == 0) break;
    const std::string letter = rest_.substr(0, length);
    rest_.erase(0, length);
    std::size_t used = 0;
    if (const auto control = control_key(letter[0])) {
      keys.push_back(*control);
    } else if (printable_length(letter, used) == length) {
      keys.push_back({Key::kText, letter});
    }
  }
  return keys;
}

std::vector<Pressed> KeyReader::pause() {
  const bool escape = !rest_.empty() && rest_[0] == kEscapeByte;
  rest_.clear();
  return escape ? std::vector<Pressed>{{Key::kEscape}} : std::vector<Pressed>{};
}

}  // namespace rota::top
