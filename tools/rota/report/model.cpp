// See model.h.
#include "tools/rota/report/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "tools/rota/report/ending.h"
#include "tools/rota/report/format.h"
#include "tools/rota/report/gpu_time.h"

namespace rota::report {
namespace {

// Over all GPUs together.
std::uint64_t peak_of(const ProcessAccount& process) {
  std::uint64_t largest = 0;
  for (const GpuRecord& gpu : process.gpus) largest = std::max(largest, gpu.peak_bytes);
  if (process.gpus.size() > 1) {
    for (const LevelRecord& level : process.levels) largest = std::max(largest, level.most);
  }
  return largest;
}

// Including waits that are in progress, or were when the process ended.
std::uint64_t waited_by(const ProcessAccount& process, const std::optional<EndRecord>& end) {
  std::uint64_t waited = process.waited_ns;
  const Realtime until = process.ended_ns == 0 && end ? end->time_ns : process.alive_ns;
  for (const Realtime since : process.waits_since) {
    if (until > since) waited += static_cast<std::uint64_t>(until) - static_cast<std::uint64_t>(since);
  }
  return waited;
}

Use use_of(const ProcessAccount& process, const std::optional<EndRecord>& end) {
  Use use;
  use.peak_bytes = use.peak_at_most_bytes = peak_of(process);
  for (const GpuRecord& gpu : process.gpus) use.reserved_peak_bytes += gpu.reserved_peak_bytes;
  use.gpu_ns = process.busy_ns;
  use.waited_ns = waited_by(process, end);
  for (std::size_t i = 0; i < process.calls.size(); ++i) {
    if (process.calls[i] == 0) continue;
    const std::string name = function_name(static_cast<std::uint32_t>(i));
    use.functions[name] += process.calls[i];
    use.calls += process.calls[i];
    const Group group = group_of(name);
    if (group == Group::kLaunch) use.launches += process.calls[i];
    if (group == Group::kCopy) use.copies += process.calls[i];
    if (group == Group::kSynchronize) use.synchronizations += process.calls[i];
  }
  for (const CopyCount& copies : {process.to_device, process.to_host, process.on_device, process.by_address}) {
    use.copied_bytes += copies.bytes;
  }
  for (const ErrorRecord& error : process.errors) {
    if (!is_error(error.code)) continue;
    use.errors += error.calls;
    use.failures[{function_name(error.function), error_name(error.code)}] += error.calls;
  }
  for (const ModuleRecord& module : process.modules) {
    use.live += module.live;
    use.live_bytes += module.live_bytes;
  }
  return use;
}

void add(Use& sum, const Use& part) {
  sum.gpu_ns += part.gpu_ns;
  sum.waited_ns += part.waited_ns;
  sum.launches += part.launches;
  sum.copies += part.copies;
  sum.copied_bytes += part.copied_bytes;
  sum.synchronizations += part.synchronizations;
  sum.calls += part.calls;
  sum.errors += part.errors;
  sum.live += part.live;
  sum.live_bytes += part.live_bytes;
  for (const auto& [name, calls] : part.functions) sum.functions[name] += calls;
  for (const auto& [key, calls] : part.failures) sum.failures[key] += calls;
}

// How long the process had its memory: at least until exit() was called or its last sign of life; at most until it was
// seen to have ended, which may be a little after its end.
Realtime last_moment(const ProcessReport& process, Bound bound) {
  const ProcessAccount& account = process.account;
  const Realtime seen = process.end ? process.end->time_ns : 0;
  if (account.ended_ns != 0) return bound == Bound::kMost ? std::max(account.ended_ns, seen) : account.ended_ns;
  if (seen != 0) return seen;
  if (account.ending == Ending::kRunning) return std::numeric_limits<Realtime>::max();
  std::uint64_t steps = account.timeline.steps.size();
  if (bound == Bound::kLeast && steps != 0) --steps;
  const auto timed =
      static_cast<Realtime>(static_cast<std::uint64_t>(account.began_ns) + account.timeline.step_ns * steps);
  const Realtime lived = std::max(timed, account.alive_ns);
  return account.levels.empty() ? lived : std::max(lived, account.levels.back().since);
}

// Memory that is freed at some moment is available for allocations at that moment.
void sort_changes(std::vector<MemoryChange>& changes) {
  std::ranges::sort(changes, [](const MemoryChange& a, const MemoryChange& b) {
    return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
  });
}

std::uint64_t most(const std::vector<MemoryChange>& changes) {
  // Unsigned: hostile files may hold anything.
  std::uint64_t now = 0;
  std::uint64_t peak = 0;
  for (const MemoryChange& change : changes) {
    now += static_cast<std::uint64_t>(change.bytes);
    if (static_cast<std::int64_t>(now) > 0) peak = std::max(peak, now);
  }
  return peak;
}

std::uint64_t reserved_together(const std::vector<const ProcessReport*>& processes) {
  std::vector<MemoryChange> changes;
  for (const ProcessReport* process : processes) {
    const auto bytes = static_cast<std::int64_t>(process->use.reserved_peak_bytes & (~std::uint64_t{0} >> 1));
    if (bytes == 0) continue;
    changes.push_back({process->account.began_ns, bytes});
    changes.push_back({std::max(process->account.began_ns, last_moment(*process, Bound::kLeast)), -bytes});
  }
  sort_changes(changes);
  return most(changes);
}

Use sum_of(const std::vector<const ProcessReport*>& processes) {
  if (processes.size() == 1) return processes.front()->use;
  Use sum;
  for (const ProcessReport* process : processes) add(sum, process->use);
  const Peak peak = peak_together(processes);
  sum.peak_bytes = peak.bytes;
  sum.peak_at_most_bytes = peak.at_most_bytes;
  sum.reserved_peak_bytes = reserved_together(processes);
  return sum;
}

std::uint64_t less(std::uint64_t after, std::uint64_t before) {
  return after > before ? after - before : 0;
}

// For a test that shares its process with others.
void measure_within(TestReport& test, const ProcessReport* host, bool alone) {
  const TestRecord& record = test.record;
  const RotaTestAccount before = record.before.value_or(RotaTestAccount{});
  std::optional<RotaTestAccount> after = record.after;
  if (!after && host != nullptr &&
      (record.outcome == "died" || record.outcome == "running" || record.outcome == "timeout")) {
    // The process's account shows its end.
    const ProcessAccount& account = host->account;
    RotaTestAccount last{};
    for (const GpuRecord& gpu : account.gpus) {
      last.used_bytes += gpu.used_bytes;
      last.peak_bytes += gpu.lap_peak_bytes;
    }
    last.live = host->use.live;
    last.launches = host->use.launches;
    last.copies = host->use.copies;
    last.copied_bytes = host->use.copied_bytes;
    last.synchronizations = host->use.synchronizations;
    last.calls = host->use.calls;
    last.errors = host->use.errors;
    last.waited_ns = host->use.waited_ns;
    last.busy_ns = account.busy_ns;
    after = last;
  }
  Use& use = test.use;
  use.has_functions = alone || !after;
  if (!after) return;
  if (alone && host != nullptr) {
    use.functions = host->use.functions;
    use.failures = host->use.failures;
  }
  test.base_bytes = before.used_bytes;
  test.growth_bytes = static_cast<std::int64_t>(after->used_bytes - before.used_bytes);
  use.peak_bytes = use.peak_at_most_bytes = after->peak_bytes;
  use.gpu_ns = less(after->busy_ns, before.busy_ns);
  if (host != nullptr) {
    const Realtime end = record.end_ns != 0 ? record.end_ns : last_moment(*host, Bound::kMost);
    use.gpu_ns = static_cast<std::uint64_t>(static_cast<double>(use.gpu_ns) * gpu_share(*host, record.begin_ns, end));
  }
  use.waited_ns = less(after->waited_ns, before.waited_ns);
  use.launches = less(after->launches, before.launches);
  use.copies = less(after->copies, before.copies);
  use.copied_bytes = less(after->copied_bytes, before.copied_bytes);
  use.synchronizations = less(after->synchronizations, before.synchronizations);
  use.calls = less(after->calls, before.calls);
  use.errors = less(after->errors, before.errors);
  use.live = less(after->live, before.live);
  use.live_bytes = less(after->used_bytes, before.used_bytes);
}

// The tests that a process's environment names: a line for each runner, the outer one first (RotaAttachment::test).
struct NamedTest {
  std::string runner;
  std::string name;
  std::uint64_t attempt = 1;
};

std::vector<NamedTest> named_tests(std::string_view text) {
  std::vector<NamedTest> tests;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || blank + 1 == line.size()) continue;
    NamedTest test{.runner = std::string(line.substr(0, blank)), .name = ""};
    line.remove_prefix(blank + 1);
    constexpr std::string_view kAttempt = " attempt ";
    const std::size_t attempt = test.runner == "bazel" ? line.rfind(kAttempt) : std::string_view::npos;
    if (attempt != std::string_view::npos) {
      const std::string_view number = line.substr(attempt + kAttempt.size());
      std::from_chars(number.data(), number.data() + number.size(), test.attempt);
    }
    test.name = line.substr(0, attempt);
    tests.push_back(std::move(test));
  }
  return tests;
}

// How the process ended within which the test ran.
std::string death_text(const TestReport& test, const Model& model, const std::map<std::string, EndRecord>& ends) {
  const std::string& id = test.record.within;
  const std::string pid = id.substr(0, id.find('-'));
  if (test.host) {
    const ProcessReport& host = model.processes[*test.host];
    return fmt::format("its process, {} (pid {}), {} during the test", command_text(host.account.self.command, 60), pid,
                       host.ending);
  }
  const auto end = ends.find(id);
  return fmt::format("its process (pid {}) {} during the test", pid,
                     end != ends.end() ? end_text(end->second) : "ended");
}

// When pytest-timeout's thread method ended the process within which the test ran, if it did: then the process exited
// with 1 once the test's time was over. If nobody saw the end, the process's last sign of life counts.
std::optional<Realtime> ended_by_limit(const TestReport& test, const Model& model,
                                       const std::map<std::string, EndRecord>& ends) {
  constexpr int kItsExitCode = 1;
  if (test.record.limit_ns == 0) return std::nullopt;
  const Realtime over = test.record.begin_ns + test.record.limit_ns / 10 * 9;
  if (const auto end = ends.find(test.record.within); end != ends.end()) {
    const bool so = end->second.signal == 0 && end->second.exit_code == kItsExitCode && end->second.time_ns >= over;
    return so ? std::optional(end->second.time_ns) : std::nullopt;
  }
  if (!test.host) return std::nullopt;
  const ProcessAccount& account = model.processes[*test.host].account;
  return account.ending == Ending::kKilled && account.alive_ns >= over ? std::optional(account.alive_ns) : std::nullopt;
}

// Which tests each process belongs to: by the runner's list, else by its environment, else by the test that an ancestor
// was running when it began.
class Assignment {
 public:
  explicit Assignment(Model& model) : model_(model) {
    for (std::size_t i = 0; i < model.processes.size(); ++i) processes_[id(i)].push_back(i);
    for (std::size_t i = 0; i < model.tests.size(); ++i) {
      const TestRecord& test = model.tests[i].record;
      if (test.within.empty()) continue;
      within_[test.within].push_back(i);
      if (const auto host = processes_.find(test.within); host != processes_.end()) {
        model.tests[i].host = host->second.back();
        for (const std::size_t process : host->second) model.processes[process].hosts_tests = true;
      }
    }
  }

  void assign() {
    for (std::size_t i = 0; i < model_.tests.size(); ++i) {
      for (const std::string& process : model_.tests[i].record.processes) {
        for (const std::size_t member : members(process)) join(member, i);
      }
    }
    for (std::size_t i = 0; i < model_.processes.size(); ++i) {
      if (!model_.processes[i].test.empty() || model_.processes[i].hosts_tests) continue;
      if (!assign_by_name(i)) assign_by_ancestor(i);
    }
  }

 private:
  // exec keeps pid and start time, so several accounts may have the same.
  std::string id(std::size_t process) const { return model_.processes[process].account.self.id(); }

  std::vector<std::size_t> members(const std::string& process) const {
    const auto found = processes_.find(process);
    if (found != processes_.end()) return found->second;
    for (std::size_t i = 0; i < model_.processes.size(); ++i) {
      if (model_.processes[i].account.id == process) return {i};
    }
    return {};
  }

  void join(std::size_t process, std::size_t test) {
    std::vector<std::size_t>& members = model_.tests[test].processes;
    if (std::ranges::find(members, process) != members.end()) return;
    members.push_back(process);
    model_.processes[process].test.push_back(test);
  }

  static bool covers(const TestRecord& test, Realtime time) {
    return test.begin_ns <= time && (test.end_ns == 0 || time <= test.end_ns);
  }

  // The attempt that was running at that time, if there are several.
  std::optional<std::size_t> find(const NamedTest& named, Realtime time) const {
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < model_.tests.size(); ++i) {
      const TestRecord& test = model_.tests[i].record;
      if (test.name == named.name && (!found || covers(test, time))) found = i;
    }
    return found;
  }

  bool assign_by_name(std::size_t process) {
    const ProcessAccount& account = model_.processes[process].account;
    if (account.test.empty()) return false;
    const std::vector<NamedTest> named = named_tests(account.test);
    if (named.empty()) return false;
    std::optional<std::size_t> chosen;
    // The innermost runner knows best.
    for (std::size_t n = named.size(); n-- > 0 && !chosen;) chosen = find(named[n], account.began_ns);
    if (!chosen) {
      const NamedTest& inner = named.back();
      TestReport test;
      test.record.name = inner.name;
      test.record.runner = inner.runner;
      test.record.attempt = inner.attempt;
      test.record.outcome = "unknown";
      model_.tests.push_back(std::move(test));
      chosen = model_.tests.size() - 1;
    }
    join(process, *chosen);
    return true;
  }

  void assign_by_ancestor(std::size_t process) {
    const ProcessAccount& account = model_.processes[process].account;
    for (const PersonRecord& ancestor : account.ancestors) {
      const auto tests = within_.find(ancestor.id());
      if (tests == within_.end()) continue;
      for (const std::size_t test : tests->second) {
        if (covers(model_.tests[test].record, account.began_ns)) return join(process, test);
      }
    }
  }

  Model& model_;
  std::map<std::string, std::vector<std::size_t>> processes_;
  std::map<std::string, std::vector<std::size_t>> within_;
};

void measure(Model& model) {
  std::map<std::string, std::size_t> tests_within;
  for (const TestReport& test : model.tests) ++tests_within[test.record.within];
  for (TestReport& test : model.tests) {
    std::vector<const ProcessReport*> own;
    for (const std::size_t process : test.processes) own.push_back(&model.processes[process]);
    const Use children = sum_of(own);
    if (test.record.within.empty()) {
      test.use = children;
      continue;
    }
    measure_within(test, test.host ? &model.processes[*test.host] : nullptr, tests_within[test.record.within] == 1);
    add(test.use, children);
    // When the children's peak was, relative to the host's, is not known.
    test.use.peak_bytes += children.peak_bytes;
    test.use.peak_at_most_bytes += children.peak_at_most_bytes;
    test.use.reserved_peak_bytes = children.reserved_peak_bytes;
  }
  std::vector<const ProcessReport*> all, rest;
  for (std::size_t i = 0; i < model.processes.size(); ++i) {
    const ProcessReport& process = model.processes[i];
    all.push_back(&process);
    if (model.tests.empty() || process.hosts_tests || !process.test.empty()) continue;
    model.rest.push_back(i);
    rest.push_back(&process);
  }
  model.total = sum_of(all);
  model.rest_use = sum_of(rest);
}

}  // namespace

std::uint64_t TestReport::duration_ns() const {
  return record.end_ns > record.begin_ns && record.begin_ns > 0
             ? static_cast<std::uint64_t>(record.end_ns - record.begin_ns)
             : 0;
}

std::string TestReport::title() const {
  return record.attempt > 1 ? fmt::format("{} (attempt {})", record.name, record.attempt) : record.name;
}

std::string Model::job_title() const {
  if (!job.name.empty()) return job.name;
  if (job.command.empty()) return "job";
  const std::string& program = job.command.front();
  return program.substr(program.rfind('/') + 1);
}

std::vector<MemoryChange> memory_changes(const std::vector<const ProcessReport*>& processes, Bound bound) {
  std::vector<MemoryChange> changes;
  for (const ProcessReport* process : processes) {
    const Realtime last = last_moment(*process, bound);
    std::int64_t now = 0;
    for (const LevelRecord& level : process->account.levels) {
      // More than any GPU has means a damaged file; halved, sums cannot overflow.
      const auto bytes =
          static_cast<std::int64_t>((bound == Bound::kMost ? level.most : level.least) & (~std::uint64_t{0} >> 16));
      if (bytes != now) changes.push_back({std::min(level.since, last), bytes - now});
      now = bytes;
    }
    if (now != 0) changes.push_back({last, -now});
  }
  sort_changes(changes);
  return changes;
}

Peak peak_together(const std::vector<const ProcessReport*>& processes) {
  Peak peak;
  std::uint64_t sum = 0;
  // Each process's own peak is known for certain.
  for (const ProcessReport* process : processes) {
    peak.bytes = std::max(peak.bytes, process->use.peak_bytes);
    sum += process->use.peak_bytes;
  }
  peak.bytes = std::max(peak.bytes, most(memory_changes(processes, Bound::kLeast)));
  peak.at_most_bytes = std::max(peak.bytes, std::min(sum, most(memory_changes(processes, Bound::kMost))));
  return peak;
}

std::string command_text(const std::vector<std::string>& command, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < command.size(); ++i) {
    // Where the program lies says less than its options.
    const std::string argument(i == 0 ? file_name(command[i]) : command[i]);
    const bool plain = !argument.empty() && argument.find_first_of(" \t\n'\"\\$&|;<>()*?`#~!") == std::string::npos;
    std::string quoted = "'";
    for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += (text.empty() ? "" : " ") + (plain ? argument : quoted + "'");
  }
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not within a character
  return text.substr(0, end) + "…";
}

Model make_model(Session session) {
  Model model;
  model.job = std::move(session.job);
  model.path = std::move(session.path);
  model.left = std::move(session.left);
  model.hangs = std::move(session.hangs);
  model.problems = std::move(session.problems);
  // Of several programs that one process ran (exec), only the last one ended with it.
  std::map<std::string, const ProcessAccount*> last_programs;
  for (const ProcessAccount& account : session.processes) last_programs[account.self.id()] = &account;
  for (ProcessAccount& account : session.processes) {
    ProcessReport process;
    process.objects = objects_left(account);
    const bool last = last_programs[account.self.id()] == &account;
    if (const auto end = session.ends.find(account.self.id()); end != session.ends.end() && last) {
      process.end = end->second;
    }
    process.use = use_of(account, process.end);
    process.ending = ending_text(account, process.end);
    if (!last && account.ending == Ending::kKilled) process.ending = "became another program by exec";
    process.ended_by_itself = process.end ? process.end->signal == 0 : account.ending == Ending::kExited;
    process.account = std::move(account);
    model.processes.push_back(std::move(process));
  }
  for (TestRecord& record : session.tests) {
    TestReport test;
    test.record = std::move(record);
    model.tests.push_back(std::move(test));
  }
  divide_gpu_time(model.processes);
  Assignment(model).assign();
  for (TestReport& test : model.tests) {
    if (test.record.outcome != "died" || test.record.within.empty()) continue;
    if (const auto end = ended_by_limit(test, model, session.ends)) {
      test.record.outcome = "timeout";
      test.record.end_ns = *end;
      test.record.message = fmt::format("pytest-timeout ended the process after {:.1f} s, by its thread method",
                                        static_cast<double>(test.record.limit_ns) / 1e9);
    } else {
      test.record.message = death_text(test, model, session.ends);
    }
  }
  measure(model);
  return model;
}

}  // namespace rota::report
