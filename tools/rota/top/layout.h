// The screen of `rota top`, as a function of the view and of the keys that were pressed.
#pragma once

#include <string>
#include <vector>

#include "tools/rota/top/keys.h"
#include "tools/rota/top/text.h"
#include "tools/rota/top/view.h"

namespace rota::top {

enum class Sort { kGpu, kHeld, kMemory, kTime, kWait, kMoved, kPid };
inline constexpr int kSorts = 7;

// What the user has chosen with keys.
struct Choices {
  Sort sort = Sort::kGpu;
  bool inverted = false;
  std::string filter{};  // only rows with this text are shown; the case of ASCII letters does not matter
  bool typing = false;   // the filter is being typed
  bool help = false;
  bool paused = false;
  std::size_t chosen = 0;  // index of the selected row among those that pass the filter
  std::size_t first = 0;   // index of the uppermost row on the screen
  std::size_t page = 1;    // how many rows fitted on the screen when it was last laid out
};

enum class Style { kPlain, kTitle, kHeading, kChosen, kHolds, kWaits, kProblem, kKeys };
struct Line {
  std::string text;  // exactly as wide as the screen
  Style style = Style::kPlain;
};

struct Frame {
  std::vector<Line> lines;  // exactly as many as the screen has rows
  Choices choices;          // as given, with `chosen` and `first` limited to rows that exist
};

Frame lay_out(const View& view, const Choices& choices, const Screen& screen);

enum class After { kGoOn, kRedraw, kEnd };
// Changes the choices as the key says, and returns what to do next.
After press(Choices& choices, const Pressed& pressed);

}  // namespace rota::top
