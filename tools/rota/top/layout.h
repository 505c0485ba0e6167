// The screen of `rota top`, as a function of what is known and what was pressed.
#pragma once

#include <string>
#include <vector>

#include "tools/rota/top/keys.h"
#include "tools/rota/top/text.h"
#include "tools/rota/top/view.h"

namespace rota::top {

enum class Sort { kGpu, kHeld, kMemory, kTime, kWait, kMoved, kPid };
inline constexpr int kSorts = 7;

// What keys have set.
struct Choices {
  Sort sort = Sort::kGpu;
  bool inverted = false;
  std::string filter{};  // rows that have this in their text, whatever the case of ASCII letters
  bool typing = false;   // the filter
  bool help = false;
  bool paused = false;
  std::size_t chosen = 0;  // row, among those that the filter leaves
  std::size_t first = 0;   // that is shown
  std::size_t page = 1;    // rows that fit, as they were shown last
};

enum class Style { kPlain, kTitle, kHeading, kChosen, kHolds, kWaits, kProblem, kKeys };
struct Line {
  std::string text;  // of exactly the screen's columns
  Style style = Style::kPlain;
};

struct Frame {
  std::vector<Line> lines;  // exactly the screen's rows
  Choices choices;          // with the chosen row and the first one within what there is
};

Frame lay_out(const View& view, const Choices& choices, const Screen& screen);

enum class After { kGoOn, kRedraw, kEnd };
// What a key changes.
After press(Choices& choices, const Pressed& pressed);

}  // namespace rota::top
