// The lines of an event log, word by word. The reader takes nothing for granted: a log is a file like any other.
#pragma once

#include <charconv>
#include <limits>
#include <string>
#include <string_view>

#include "scheduler/core/event.h"
#include "scheduler/core/quoted.h"

namespace rota::scheduler {

// A hundred years in nanoseconds: the core can add durations to it without overflow.
inline constexpr std::chrono::nanoseconds kLatest = std::chrono::hours(24 * 365 * 100);

// A name, and numbers.
template <typename... Values>
std::string words(const char* name, Values... values) {
  std::string line = name;
  ((line += ' ' + std::to_string(values)), ...);
  return line;
}

// The words of one line, read one after the other. The first error is kept for the message.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line), ended_(line.empty()) {}

  // `what`: the name of the expected word, for messages.
  std::string_view next(const char* what) {
    if (ended_) {
      wrong(std::string("the line ends before the ") + what);
      return {};
    }
    const std::size_t end = rest_.find(' ');
    const std::string_view word = rest_.substr(0, end);
    ended_ = end == std::string_view::npos;
    rest_ = ended_ ? std::string_view() : rest_.substr(end + 1);
    return word;
  }
  template <typename Number>
  Number number(const char* what, Number most = std::numeric_limits<Number>::max()) {
    return parse(next(what), what, most, 10);
  }
  // Takes an optional last word. Returns whether it is the rest of the line.
  bool may_end_with(std::string_view expected) {
    if (ended_ || rest_ != expected) return false;
    ended_ = true;
    return true;
  }
  // Takes an optional word. Returns whether it comes next.
  bool may_have(std::string_view expected) {
    const std::size_t end = rest_.find(' ');
    if (ended_ || rest_.substr(0, end) != expected) return false;
    next("");
    return true;
  }
  bool at_end() const { return ended_; }
  // The rest of the line is for a later version.
  void ignore_rest() { ended_ = true; }
  GpuMask gpus() { return parse(next("GPU mask"), "GPU mask", ~GpuMask{0}, 16); }
  GpuIndex gpu() { return number<GpuIndex>("GPU number", protocol::kMaxGpus - 1); }
  Settings settings() {
    Settings settings;
    const std::string_view word = value("mode");
    const auto mode = parse_mode(word);
    if (!mode) wrong("unknown mode " + quoted(word));
    settings.mode = mode.value_or(Mode::kAutomatic);
    settings.quantum = duration("quantum");
    settings.grace = duration("grace");
    settings.memory_window = duration("window");
    settings.measured_turns = may_end_with("turns=measured");
    return settings;
  }
  // What is wrong with the line; empty if nothing is.
  std::string problem() {
    if (!ended_) wrong("unexpected " + quoted(rest_) + " at the end of the line");
    return problem_;
  }

 private:
  void wrong(const std::string& text) {
    if (problem_.empty()) problem_ = text;
  }
  // "name=value"
  std::string_view value(const char* name) {
    const std::string_view word = next(name);
    const std::string wanted = std::string(name) + '=';
    if (word.substr(0, wanted.size()) == wanted) return word.substr(wanted.size());
    wrong("expected " + wanted + "..., found " + quoted(word));
    return {};
  }
  std::chrono::nanoseconds duration(const char* name) {
    // The same range as on a command line: above 0, at most a day.
    constexpr std::int64_t kDay = std::int64_t{86'400} * 1'000'000'000;
    const std::string_view word = value(name);
    const auto count = parse(word, "number of nanoseconds", kDay, 10);
    if (count <= 0) wrong(quoted(word) + " is not a number of nanoseconds above 0");
    return std::chrono::nanoseconds(count);
  }
  template <typename Number>
  Number parse(std::string_view word, const char* what, Number most, int base) {
    Number number{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number, base);
    const bool sound = error == std::errc{} && end == word.data() + word.size() && number <= most;
    if (sound) return number;
    wrong(quoted(word) + " is not a valid " + what +
          (base == 10 ? " (maximum " + std::to_string(most) + ")" : std::string()));
    return {};
  }

  std::string_view rest_;
  bool ended_;
  std::string problem_;
};

// The words of the event, from the set's number on.
inline std::string measured_words(const event::MeasuredBefore& before) {
  const std::string line =
      words("", before.set, before.size, static_cast<unsigned>(before.candidate), before.light ? 1 : 0, before.busy,
            before.ratio, before.again_in.count(), before.pause.count(), before.doubts);
  return line.substr(1);
}

// Reads what follows that number.
inline void read_measured(Words& words, event::MeasuredBefore& before) {
  constexpr std::int64_t kMost = 1'000'000'000'000;
  before.size = words.number<std::uint32_t>("number of clients");
  before.candidate =
      static_cast<Candidate>(words.number<unsigned>("candidate", static_cast<unsigned>(Candidate::kLightOpen)));
  before.light = words.number<unsigned>("flag", 1) != 0;
  before.busy = words.number<std::int64_t>("fraction", kMost);
  before.ratio = words.number<std::int64_t>("fraction", kMost);
  before.again_in = Time(words.number<std::int64_t>("time in nanoseconds", kLatest.count()));
  before.pause = Time(words.number<std::int64_t>("time in nanoseconds", kLatest.count()));
  before.doubts = words.number<std::uint32_t>("number of doubts");
}

}  // namespace rota::scheduler
