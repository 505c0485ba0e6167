// Writing and reading the lines. Reading takes nothing for granted: a log is a file like any other.
#include "scheduler/core/event_log.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "scheduler/core/core.h"

namespace rota::scheduler {
namespace {

constexpr std::string_view kChanges[] = {"granted", "ended", "pressure", "revoked"};

std::string hexadecimal(GpuMask mask) {
  char text[16];
  const auto [end, error] = std::to_chars(text, text + sizeof text, mask, 16);
  return {text, end};
}

template <typename... Values>
std::string words(const char* name, Values... values) {
  std::string line = name;
  ((line += ' ' + std::to_string(values)), ...);
  return line;
}

std::string setting_words(const Settings& settings) {
  return std::string("mode=") + mode_name(settings.mode) + " quantum=" + std::to_string(settings.quantum.count()) +
         " grace=" + std::to_string(settings.grace.count()) +
         " window=" + std::to_string(settings.memory_window.count());
}

struct EventWords {
  std::string operator()(const event::Join& join) const { return words("join", join.client); }
  std::string operator()(const event::AddGpu& add) const {
    return words("add_gpu", add.client, add.gpu, add.total, add.context);
  }
  std::string operator()(const event::Want& want) const {
    return words("want", want.client) + ' ' + hexadecimal(want.gpus) + (want.running ? " 1" : " 0");
  }
  std::string operator()(const event::GiveBack& back) const { return words("give_back", back.client, back.grant); }
  std::string operator()(const event::Usage& usage) const {
    return words("usage", usage.client, usage.gpu, usage.used, usage.fixed);
  }
  std::string operator()(const event::Leave& leave) const { return words("leave", leave.client); }
  std::string operator()(const event::Tick&) const { return "tick"; }
  std::string operator()(const event::Configure& configure) const {
    return "configure " + setting_words(configure.settings);
  }
};

// The words of one line, taken one after the other. Once one is wrong, all that follow are.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}

  std::string_view next() {
    const std::size_t end = rest_.find(' ');
    const std::string_view word = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
    return word;
  }
  template <typename Number>
  Number number(int base = 10) {
    return parse<Number>(next(), base);
  }
  // "name=value"
  std::string_view value(std::string_view name) {
    const std::string_view word = next();
    sound_ = sound_ && word.size() > name.size() && word.substr(0, name.size()) == name && word[name.size()] == '=';
    return sound_ ? word.substr(name.size() + 1) : std::string_view();
  }
  std::chrono::nanoseconds duration(std::string_view name) {
    const auto count = parse<std::int64_t>(value(name), 10);
    // As settings are read from a command line: above 0, at most a day.
    sound_ = sound_ && count > 0 && count <= std::int64_t{86'400} * 1'000'000'000;
    return std::chrono::nanoseconds(count);
  }
  Settings settings() {
    Settings settings;
    const auto mode = parse_mode(value("mode"));
    sound_ = sound_ && mode;
    if (mode) settings.mode = *mode;
    settings.quantum = duration("quantum");
    settings.grace = duration("grace");
    settings.memory_window = duration("window");
    return settings;
  }
  bool complete() const { return sound_ && rest_.empty(); }

 private:
  template <typename Number>
  Number parse(std::string_view word, int base) {
    Number number{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number, base);
    sound_ = sound_ && error == std::errc{} && end == word.data() + word.size();
    return number;
  }

  std::string_view rest_;
  bool sound_ = true;
};

std::optional<Event> read_event(std::string_view name, Words& words) {
  if (name == "join") return event::Join{words.number<ClientId>()};
  if (name == "leave") return event::Leave{words.number<ClientId>()};
  if (name == "tick") return event::Tick{};
  if (name == "configure") return event::Configure{words.settings()};
  if (name == "give_back") {
    const auto client = words.number<ClientId>();
    return event::GiveBack{client, words.number<std::uint32_t>()};
  }
  if (name == "want") {
    event::Want want{.client = words.number<ClientId>(), .gpus = 0};
    want.gpus = words.number<GpuMask>(16);
    want.running = words.number<unsigned>() != 0;
    return want;
  }
  if (name == "usage") {
    event::Usage usage{.client = words.number<ClientId>(), .gpu = 0, .used = 0};
    usage.gpu = words.number<GpuIndex>();
    usage.used = words.number<Bytes>();
    usage.fixed = words.number<Bytes>();
    return usage;
  }
  if (name == "add_gpu") {
    event::AddGpu add{.client = words.number<ClientId>(), .gpu = 0, .total = 0, .context = 0};
    add.gpu = words.number<GpuIndex>();
    add.total = words.number<Bytes>();
    add.context = words.number<Bytes>();
    return add;
  }
  return std::nullopt;
}

std::string at_line(std::uint64_t number, const std::string& text) {
  return "line " + std::to_string(number) + ": " + text;
}

std::string without_newline(std::string line) {
  if (!line.empty()) line.pop_back();
  return line;
}

}  // namespace

std::string log_header(const Settings& settings) {
  return "rota-events 1 " + setting_words(settings) + '\n';
}

std::string log_line(const Event& event, Time now) {
  return std::to_string(now.count()) + ' ' + std::visit(EventWords(), event) + '\n';
}

std::string log_line(const Decision& decision) {
  return "> " + std::string(kChanges[static_cast<std::size_t>(decision.change)]) + ' ' +
         std::to_string(decision.client) + ' ' + std::to_string(decision.grant) + '\n';
}

Replay replay(std::istream& log) {
  Replay result;
  std::uint64_t number = 1;
  std::string line;
  if (!std::getline(log, line) || line.rfind("rota-events 1 ", 0) != 0) {
    result.problem = at_line(number, "that is no event log of rotad's (or one of another version)");
    return result;
  }
  Words header(std::string_view(line).substr(14));
  const Settings settings = header.settings();
  if (!header.complete()) {
    result.problem = at_line(number, "the settings cannot be read");
    return result;
  }
  Core core(settings);
  Time now{};
  std::vector<std::string> expected;  // of the last event, not yet seen in the log
  std::size_t seen = 0;
  while (std::getline(log, line)) {
    ++number;
    if (log.eof()) break;  // without its newline: the log broke off here
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '>') {
      if (seen == expected.size() || line != expected[seen]) {
        result.problem = at_line(number, "recorded '" + line + "', and now the core decides " +
                                             (seen == expected.size() ? "nothing" : "'" + expected[seen] + "'"));
        return result;
      }
      ++seen;
      ++result.decisions;
      continue;
    }
    if (seen != expected.size()) {
      result.problem = at_line(number, "now the core decides '" + expected[seen] + "', which is not recorded");
      return result;
    }
    Words words(line);
    const Time time(words.number<std::int64_t>());
    const auto event = read_event(words.next(), words);
    if (!event || !words.complete()) {
      result.problem = at_line(number, "that is no event");
      return result;
    }
    const auto* join = std::get_if<event::Join>(&*event);
    if (time < now || time > std::chrono::hours(24 * 365 * 100) ||
        (join != nullptr && core.client(join->client) != nullptr)) {
      result.problem = at_line(number, "that cannot happen: time runs backwards, or a client joins twice");
      return result;
    }
    now = time;
    ++result.events;
    expected.clear();
    seen = 0;
    for (const Decision& decision : core.step(*event, now)) expected.push_back(without_newline(log_line(decision)));
  }
  return result;
}

}  // namespace rota::scheduler
