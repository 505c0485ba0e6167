// Writes and reads the lines. The reader takes nothing for granted: a log is a file like any other.
#include "scheduler/log/event_log.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "scheduler/core/core.h"
#include "scheduler/core/quoted.h"
#include "scheduler/log/limit_log.h"
#include "scheduler/log/log_words.h"

namespace rota::scheduler {
namespace {

constexpr const char* kChanges[] = {"granted",  "ended", "pressure", "revoked",
                                    "promised", "clear", "alone",    "passed_over"};

std::string hexadecimal(GpuMask mask) {
  char text[16];
  const auto [end, error] = std::to_chars(text, text + sizeof text, mask, 16);
  return {text, end};
}

std::string setting_words(const Settings& settings) {
  return std::string("mode=") + mode_name(settings.mode) + " quantum=" + std::to_string(settings.quantum.count()) +
         " grace=" + std::to_string(settings.grace.count()) +
         " window=" + std::to_string(settings.memory_window.count()) +
         (settings.measured_turns ? " turns=measured" : "");
}

struct EventWords {
  std::string operator()(const event::Join& join) const {
    return words("join", join.client) + (join.domain != 0 ? words(" domain", join.domain) : std::string()) +
           (join.last_grant != 0 ? words(" grants", join.last_grant) : std::string());
  }
  std::string operator()(const event::Session& session) const {
    return words("session", session.client, session.session);
  }
  std::string operator()(const event::AddGpu& add) const {
    return words("add_gpu", add.client, add.gpu, add.total, add.context);
  }
  std::string operator()(const event::Want& want) const {
    return words("want", want.client) + ' ' + hexadecimal(want.gpus) + (want.running ? " 1" : " 0") +
           (want.urgent ? " urgent" : "") + (want.alone ? " alone" : "");
  }
  std::string operator()(const event::Withdraw& withdraw) const {
    return words("withdraw", withdraw.client, withdraw.within.count());
  }
  std::string operator()(const event::GiveBack& back) const { return words("give_back", back.client, back.grant); }
  std::string operator()(const event::Usage& usage) const {
    const std::string line = words("usage", usage.client, usage.gpu, usage.used, usage.fixed);
    if ((usage.resident | usage.shortage | usage.free | usage.refusals | usage.fixed_for_now) == 0) return line;
    return line + words("", usage.resident, usage.shortage, usage.free) +
           ((usage.refusals | usage.fixed_for_now) != 0 ? words("", usage.refusals) : std::string()) +
           (usage.fixed_for_now != 0 ? words("", usage.fixed_for_now) : std::string());
  }
  std::string operator()(const event::Ask& ask) const { return words("ask", ask.client, ask.gpu, ask.bytes); }
  std::string operator()(const event::Leave& leave) const { return words("leave", leave.client); }
  std::string operator()(const event::Tick&) const { return "tick"; }
  std::string operator()(const event::Configure& configure) const {
    return "configure " + setting_words(configure.settings);
  }
  std::string operator()(const event::Measured& measured) const {
    return words("measured", measured.gpu, measured.free) + (measured.others ? words("", *measured.others) : "");
  }
  std::string operator()(const event::Activity& activity) const {
    return words("activity", activity.client, activity.calls, activity.open.count(), activity.counted.count(),
                 activity.samples, activity.busy, activity.in_spells, activity.switches, activity.switching.count()) +
           (activity.shares ? " shares" : "");
  }
  std::string operator()(const event::HadBefore& had) const {
    return words("had_before", had.gpu, had.domain, had.ahead.count(), had.owed.count());
  }
  std::string operator()(const event::Returned& returned) const {
    return words("returned", returned.client, returned.gpu, returned.party.count(), returned.party_owed.count(),
                 returned.member.count(), returned.member_owed.count(), returned.held.count(), returned.waited.count());
  }
  std::string operator()(const event::MeasuredBefore& before) const {
    return words("measured_before", before.client) + ' ' + measured_words(before);
  }
  std::string operator()(const event::Unmeasured& unmeasured) const { return words("unmeasured", unmeasured.gpu); }
};

std::optional<Event> read_event(std::string_view name, Words& words) {
  const auto client = [&] { return words.number<ClientId>("client number"); };
  const auto bytes = [&] { return words.number<Bytes>("number of bytes"); };
  if (name == "join") {
    event::Join join{.client = client()};
    if (words.may_have("domain")) join.domain = words.number<DomainId>("domain number");
    if (words.may_have("grants")) join.last_grant = words.number<std::uint32_t>("grant number");
    return join;
  }
  if (name == "session") {
    const ClientId id = client();
    return event::Session{id, words.number<SessionId>("session number")};
  }
  if (name == "leave") return event::Leave{client()};
  if (name == "tick") return event::Tick{};
  if (name == "configure") return event::Configure{words.settings()};
  if (name == "unmeasured") return event::Unmeasured{words.gpu()};
  if (name == "measured") {
    event::Measured measured{.gpu = words.gpu(), .free = 0, .others = std::nullopt};
    measured.free = bytes();
    if (!words.at_end()) measured.others = bytes();
    return measured;
  }
  if (name == "activity") {
    event::Activity activity{.client = client()};
    const auto time = [&] { return Time(words.number<std::int64_t>("time in nanoseconds", kLatest.count())); };
    activity.calls = bytes();
    activity.open = time();
    activity.counted = time();
    activity.samples = bytes();
    activity.busy = bytes();
    activity.in_spells = bytes();
    activity.switches = bytes();
    activity.switching = time();
    activity.shares = words.may_end_with("shares");
    return activity;
  }
  const auto duration = [&] { return Time(words.number<std::int64_t>("time in nanoseconds", kLatest.count())); };
  if (name == "had_before") {
    event::HadBefore had{.gpu = words.gpu(), .domain = 0, .ahead = {}, .owed = {}};
    had.domain = words.number<DomainId>("domain number");
    had.ahead = duration();
    had.owed = duration();
    return had;
  }
  if (name == "returned") {
    event::Returned returned{.client = client(), .gpu = 0};
    returned.gpu = words.gpu();
    for (Time* time : {&returned.party, &returned.party_owed, &returned.member, &returned.member_owed, &returned.held,
                       &returned.waited}) {
      *time = duration();
    }
    return returned;
  }
  if (name == "measured_before") {
    event::MeasuredBefore before{.client = client()};
    before.set = words.number<std::uint32_t>("number of the set");
    read_measured(words, before);
    return before;
  }
  if (name == "withdraw") {
    const ClientId id = client();
    return event::Withdraw{id, Time(words.number<std::int64_t>("time in nanoseconds", kLatest.count()))};
  }
  if (name == "give_back") {
    const ClientId id = client();
    return event::GiveBack{id, words.number<std::uint32_t>("grant number")};
  }
  if (name == "want") {
    event::Want want{.client = client(), .gpus = 0};
    want.gpus = words.gpus();
    want.running = words.number<unsigned>("running flag", 1) != 0;
    want.urgent = words.may_have("urgent");
    want.alone = words.may_end_with("alone");
    return want;
  }
  if (name == "usage") {
    event::Usage usage{.client = client(), .gpu = 0, .used = 0};
    usage.gpu = words.gpu();
    usage.used = bytes();
    usage.fixed = bytes();
    if (words.at_end()) return usage;
    usage.resident = bytes();
    usage.shortage = bytes();
    usage.free = bytes();
    if (!words.at_end()) usage.refusals = static_cast<std::uint32_t>(bytes());
    if (!words.at_end()) usage.fixed_for_now = bytes();
    return usage;
  }
  if (name == "ask") {
    event::Ask ask{.client = client(), .gpu = 0, .bytes = 0};
    ask.gpu = words.gpu();
    ask.bytes = bytes();
    return ask;
  }
  if (name == "add_gpu") {
    event::AddGpu add{.client = client(), .gpu = 0, .total = 0, .context = 0};
    add.gpu = words.gpu();
    add.total = bytes();
    add.context = bytes();
    return add;
  }
  return std::nullopt;
}

std::string at_line(std::uint64_t number, const std::string& text) {
  return "line " + std::to_string(number) + ": " + text;
}

// What cannot be read, and the remedy.
std::string unreadable(std::uint64_t number, const std::string& text) {
  return at_line(number, text + (number == 1 ? "; record a log with rotad --event-log"
                                             : "; record the log again, or replay only the lines before it: head -n " +
                                                   std::to_string(number - 1)));
}

std::string other_header(std::string_view line) {
  constexpr std::string_view kName = "rota-events ";
  if (line.empty()) return "the log is empty";
  if (line.substr(0, kName.size()) != kName) return quoted(line) + " is not the first line of a rotad event log";
  const std::string_view version = line.substr(kName.size(), line.find(' ', kName.size()) - kName.size());
  return "the log has version " + quoted(version) +
         ", but this rotad reads version 1: replay it with the rotad that wrote it";
}

// The lines of a log, each limited to kMost characters, since the file may contain anything.
class Lines {
 public:
  explicit Lines(std::istream& log) : log_(log) {}

  enum class Read { kLine, kCutOff, kTooLong, kUnreadable, kEnd };
  Read next() {
    char text[kMost + 1];
    log_.getline(text, sizeof text);
    const auto length = static_cast<std::size_t>(log_.gcount());
    if (log_.bad()) return Read::kUnreadable;
    ++number;
    line.assign(text, log_.good() ? length - 1 : length);
    if (log_.good()) return Read::kLine;
    if (log_.eof()) return length == 0 ? Read::kEnd : Read::kCutOff;
    return Read::kTooLong;
  }

  static constexpr std::size_t kMost = 1024;
  std::string line;
  std::uint64_t number = 0;

 private:
  std::istream& log_;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
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
  const std::string line = words(kChanges[static_cast<std::size_t>(decision.change)], decision.client, decision.grant);
  if (decision.change == Change::kAlone) return "> " + line + words("", decision.bytes) + '\n';
  const bool with_bytes = decision.change == Change::kPromised || decision.change == Change::kClear ||
                          decision.change == Change::kPassedOver;
  return "> " + line + (with_bytes ? words("", decision.gpu, decision.bytes) : std::string()) + '\n';
}

Replay replay(std::istream& log, const Watch& watch) {
  Replay result;
  Lines lines(log);
  const auto fail = [&](std::string problem) {
    result.problem = std::move(problem);
    return result;
  };
  constexpr std::string_view kHeader = "rota-events 1 ";
  Lines::Read read = lines.next();
  if (read == Lines::Read::kUnreadable) return fail("cannot read the file");
  if (lines.line.rfind(kHeader, 0) != 0) return fail(unreadable(1, other_header(lines.line)));
  Words header(std::string_view(lines.line).substr(kHeader.size()));
  const Settings settings = header.settings();
  if (const std::string wrong = header.problem(); !wrong.empty()) {
    return fail(unreadable(1, "cannot read the settings: " + wrong));
  }
  Core core(settings);
  Quota quota(core.books());
  Time now{};
  Time limits_now{};
  std::vector<std::string> expected;  // decisions of the last event
  std::size_t seen = 0;
  while (read == Lines::Read::kLine && (read = lines.next()) == Lines::Read::kLine) {
    const std::string& line = lines.line;
    if (line.empty()) continue;
    if (line[0] == '#') {
      if (watch.comment) watch.comment(core, line);
      continue;
    }
    if (line[0] == '>') {
      if (!watch.compares) continue;
      if (seen == expected.size() || line != expected[seen]) {
        return fail(at_line(lines.number, "the log records " + quoted(line) + ", but the core now decides " +
                                              (seen == expected.size() ? "nothing" : quoted(expected[seen]))));
      }
      ++seen;
      ++result.decisions;
      continue;
    }
    if (watch.compares && seen != expected.size()) {
      return fail(
          at_line(lines.number, "the core now decides " + quoted(expected[seen]) + ", which the log does not record"));
    }
    Words words(line);
    const Time time(words.number<std::int64_t>("time in nanoseconds", kLatest.count()));
    const std::string_view name = words.next("event");
    const bool limits = name == "limits";
    const Time at = limits ? Time(words.number<std::int64_t>("time in nanoseconds", kLatest.count())) : limits_now;
    const std::string_view of_limits = limits ? words.next("event") : "";
    const auto event = limits ? std::nullopt : read_event(name, words);
    const auto limit_event = limits ? read_limit_event(of_limits, words) : std::nullopt;
    std::string wrong = words.problem();
    if (!event && !limit_event && (wrong.empty() || !name.empty())) {
      wrong = "unknown event " + quoted(limits ? of_limits : name);
    }
    if (!wrong.empty()) return fail(unreadable(lines.number, wrong));
    if (time < now || at < limits_now) {
      return fail(unreadable(lines.number, "the time is earlier than that of the event before it"));
    }
    now = time;
    limits_now = at;
    if (limit_event) {
      ++result.events;
      seen = 0;
      expected = lines_of(log_lines(quota, apply(quota, *limit_event, limits_now)));
      if (watch.event) watch.event({*limit_event, now, limits_now});
      continue;
    }
    if (const auto* join = std::get_if<event::Join>(&*event); join != nullptr && core.client(join->client) != nullptr) {
      return fail(unreadable(lines.number, "client " + std::to_string(join->client) + " has already joined"));
    }
    ++result.events;
    expected.clear();
    seen = 0;
    for (const Decision& decision : core.step(*event, now)) expected.push_back(without_newline(log_line(decision)));
    if (watch.event) watch.event({*event, now, limits_now});
  }
  if (read == Lines::Read::kTooLong) {
    return fail(unreadable(lines.number, "the line is longer than " + std::to_string(Lines::kMost) + " characters"));
  }
  if (read == Lines::Read::kUnreadable) return fail(unreadable(lines.number + 1, "cannot read the rest of the file"));
  if (read == Lines::Read::kCutOff) result.broken_off = lines.number;
  return result;
}

}  // namespace rota::scheduler
