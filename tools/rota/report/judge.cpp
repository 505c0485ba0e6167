// See judge.h.
#include "tools/rota/report/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tools/rota/report/format.h"
#include "tools/rota/report/test_gpus.h"

namespace rota::report {
namespace {

constexpr const char* kNoTest = "(no test)";

// What rules are applied to.
struct Judged {
  std::string name;  // in the baseline
  std::optional<std::size_t> test;
  const Use* use;
  std::uint64_t time_ns;
  std::vector<std::size_t> processes;
};

std::string joined(const std::vector<std::string>& parts, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(parts.size(), most); ++i) text += (i == 0 ? "" : ", ") + parts[i];
  return parts.size() > most ? fmt::format("{} and {} more", text, parts.size() - most) : text;
}

class Judge {
 public:
  Judge(const Model& model, const Demands& demands) : model_(model), demands_(demands) {}

  Judgement run() {
    for (std::size_t i = 0; i < model_.processes.size(); ++i) add_misuse(i);
    add_growth();
    for (const HangRecord& hang : model_.hangs) add_hang(hang);
    for (std::size_t i = 0; i < model_.tests.size(); ++i) add_death(i);
    const std::vector<Judged> all = judged();
    for (const Rule& rule : demands_.rules) {
      // Rules for processes, since tests may share one; all other rules are for tests.
      if (rule.metric == Metric::kLive && !rule.needs_baseline()) {
        for (std::size_t i = 0; i < model_.processes.size(); ++i) apply_live(rule, i);
        continue;
      }
      for (const Judged& one : all) apply(rule, one);
    }
    if (!unknown_.empty()) {
      result_.notes.push_back(
          fmt::format("the baseline does not know {}: what compares with it was not judged there; --update adds it",
                      joined({unknown_.begin(), unknown_.end()}, 5)));
    }
    if (!shared_.empty()) {
      result_.notes.push_back(
          fmt::format("calls by function are not known of tests that share a process, as {}: not judged there",
                      joined({shared_.begin(), shared_.end()}, 3)));
    }
    return std::move(result_);
  }

  // The last attempt of each test, and the processes that belong to none; or the job if there are no tests.
  std::vector<Judged> judged() const {
    std::vector<Judged> all;
    if (model_.tests.empty()) {
      std::vector<std::size_t> processes(model_.processes.size());
      for (std::size_t i = 0; i < processes.size(); ++i) processes[i] = i;
      const JobRecord& job = model_.job;
      const bool over = job.end_ns > job.begin_ns && job.begin_ns > 0;
      all.push_back({printable(model_.job_title()), std::nullopt, &model_.total,
                     over ? static_cast<std::uint64_t>(job.end_ns - job.begin_ns) : 0, std::move(processes)});
      return all;
    }
    std::map<std::string, std::size_t> last;
    for (std::size_t i = 0; i < model_.tests.size(); ++i) {
      const auto [at, fresh] = last.emplace(printable(model_.tests[i].record.name), i);
      if (!fresh && model_.tests[i].record.attempt >= model_.tests[at->second].record.attempt) at->second = i;
    }
    for (const auto& [name, i] : last) {
      all.push_back({name, i, &model_.tests[i].use, model_.tests[i].duration_ns(), model_.tests[i].processes});
    }
    if (!model_.rest.empty()) all.push_back({kNoTest, std::nullopt, &model_.rest_use, 0, model_.rest});
    return all;
  }

 private:
  void add(std::string kind, const Judged& one, const std::string& text) {
    result_.findings.push_back({std::move(kind), one.test, std::nullopt, printable(text)});
  }

  void add_misuse(std::size_t index) {
    const ProcessReport& process = model_.processes[index];
    const std::optional<std::size_t> test = test_of(process);
    for (const FindingRecord& found : process.account.findings) {
      const bool twice = found.kind == account::FindingKind::kFreedTwice;
      const std::string caller = found.module.empty() ? "" : fmt::format(" by {}", file_name(found.module));
      const std::string text =
          twice ? fmt::format("{} was called{} with memory that {} had freed already (0x{:x}; {} in all)",
                              function_name(found.function), caller, function_name(found.ended_by), found.value,
                              found.calls == 1 ? "once" : fmt::format("{} times", found.calls))
                : fmt::format("{} was called{} with a handle that {} had ended (0x{:x}; {} in all)",
                              function_name(found.function), caller, function_name(found.ended_by), found.value,
                              found.calls == 1 ? "once" : fmt::format("{} times", found.calls));
      result_.findings.push_back({twice ? "freed-twice" : "ended-handle", test, index, printable(text)});
    }
  }

  // The first line says what hangs, the others where.
  void add_hang(const HangRecord& hang) {
    Finding finding{.kind = "hang", .test = std::nullopt, .process = std::nullopt, .text = {}};
    for (std::size_t i = 0; i < model_.processes.size(); ++i) {
      if (model_.processes[i].account.self.id() != hang.id) continue;
      finding.process = i;
      // For a process within which tests run, the test that it did not end.
      for (std::size_t test = 0; test < model_.tests.size(); ++test) {
        if (model_.tests[test].host == i && model_.tests[test].record.outcome == "died") finding.test = test;
      }
      if (!finding.test) finding.test = test_of(model_.processes[i]);
    }
    std::size_t begin = 0;
    for (bool first = true; begin < hang.text.size(); first = false) {
      const std::size_t end = std::min(hang.text.find('\n', begin), hang.text.size());
      const std::string line = printable(hang.text.substr(begin, end - begin));
      (first ? finding.text : finding.details) += first ? line : line + "\n";
      begin = end + 1;
    }
    result_.findings.push_back(std::move(finding));
  }

  // The runner may not have noticed: a process that ends with 0 seems to end well. Why a process hung is known.
  void add_death(std::size_t index) {
    const TestReport& test = model_.tests[index];
    if (test.record.within.empty() || test.record.outcome != "died") return;
    const auto hung = [&](const Finding& finding) { return finding.kind == "hang" && finding.test == index; };
    if (std::ranges::any_of(result_.findings, hung)) return;
    result_.findings.push_back({"died", index, test.host, printable(test.record.message)});
  }

  // For one test, the memory in use after each attempt within one process.
  void add_growth() {
    std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> repeats;
    for (std::size_t i = 0; i < model_.tests.size(); ++i) {
      const TestRecord& test = model_.tests[i].record;
      if (!test.within.empty() && test.after) repeats[{test.within, test.name}].push_back(i);
    }
    for (auto& [key, attempts] : repeats) {
      // The first attempt may fill caches; memory that grows in the second and again in the third will keep growing.
      constexpr std::size_t kNeeded = 3;
      if (attempts.size() < kNeeded) continue;
      std::ranges::stable_sort(attempts, {}, [&](std::size_t i) { return model_.tests[i].record.attempt; });
      const auto used = [&](std::size_t back) {
        return model_.tests[attempts[attempts.size() - back]].record.after->used_bytes;
      };
      if (!(used(3) < used(2) && used(2) < used(1))) continue;
      const TestReport& last = model_.tests[attempts.back()];
      std::string holder;
      if (last.host) holder = holder_of(model_.processes[*last.host]);
      result_.findings.push_back(
          {"growth", attempts.back(), last.host,
           printable(fmt::format("memory in use grows with each repeat: {}, then {}, then {}{}", bytes_text(used(3)),
                                 bytes_text(used(2)), bytes_text(used(1)), holder))});
    }
  }

  // The modules with most live memory; allocators that cache freed memory come last.
  std::string holder_of(const ProcessReport& process) const {
    const ModuleRecord* most = nullptr;
    bool most_suppressed = false;
    for (const ModuleRecord& module : process.account.modules) {
      if (module.live_bytes == 0) continue;
      const bool suppressed = demands_.suppressions.find(module.path) != nullptr;
      if (most == nullptr || (most_suppressed && !suppressed) ||
          (most_suppressed == suppressed && module.live_bytes > most->live_bytes)) {
        most = &module;
        most_suppressed = suppressed;
      }
    }
    if (most == nullptr) return "";
    return fmt::format("; at the end {} held most of it, {}", file_name(most->path), bytes_text(most->live_bytes));
  }

  void apply(const Rule& rule, const Judged& one) {
    const BaselineEntry* before = nullptr;
    if (demands_.baseline) {
      const auto found = demands_.baseline->find(one.name);
      if (found != demands_.baseline->end()) before = &found->second;
      if (before == nullptr && (rule.needs_baseline() || rule.limit == Rule::Limit::kKnown)) unknown_.insert(one.name);
    }
    if (rule.needs_baseline() && before == nullptr) return;
    if (rule.metric == Metric::kErrors && rule.limit == Rule::Limit::kKnown) return apply_errors(rule, one, before);
    if (!rule.detail.empty() && !one.use->has_functions) {
      shared_.insert(one.name);
      return;
    }
    const std::uint64_t value = measured(rule, *one.use, one.time_ns, one.processes);
    const std::uint64_t was = before == nullptr ? 0 : recorded(rule, *before);
    std::uint64_t limit = rule.value;
    if (rule.limit == Rule::Limit::kMore) limit = was + rule.value;
    if (rule.limit == Rule::Limit::kPercent) {
      const double most = static_cast<double>(was) * (1 + rule.percent / 100);
      limit = most >= 1.8e19 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(most);
    }
    if (value <= limit) return;
    const Unit unit = unit_of(rule.metric);
    const std::string name = rule.detail.empty() ? std::string(metric_name(rule.metric))
                                                 : fmt::format("{}:{}", metric_name(rule.metric), rule.detail);
    std::string text = fmt::format("{} is {}", name, value_text(unit, value));
    if (rule.needs_baseline()) text += fmt::format(", was {}", value_text(unit, was));
    add(std::string(metric_name(rule.metric)), one, fmt::format("{} ({})", text, rule.text));
  }

  std::uint64_t measured(const Rule& rule, const Use& use, std::uint64_t time_ns,
                         const std::vector<std::size_t>& processes) const {
    if (rule.metric == Metric::kTime) return time_ns;
    if (rule.metric != Metric::kLive) return value_of(rule, use);
    std::uint64_t bytes = 0;
    for (const std::size_t i : processes) bytes += live_bytes_of(model_.processes[i], demands_.suppressions);
    return bytes;
  }

  static std::uint64_t recorded(const Rule& rule, const BaselineEntry& before) {
    return rule.metric == Metric::kTime ? before.time_ns : value_of(rule, before.use);
  }

  static std::uint64_t value_of(const Rule& rule, const Use& use) {
    switch (rule.metric) {
      case Metric::kPeak:
        return use.peak_bytes;
      case Metric::kReserved:
        return use.reserved_peak_bytes;
      case Metric::kGpu:
        return use.gpu_ns;
      case Metric::kWaited:
        return use.waited_ns;
      case Metric::kLaunches:
        return use.launches;
      case Metric::kCopies:
        return use.copies;
      case Metric::kCopied:
        return use.copied_bytes;
      case Metric::kSynchronizations:
        return use.synchronizations;
      case Metric::kCalls: {
        if (rule.detail.empty()) return use.calls;
        const auto found = use.functions.find(rule.detail);
        return found == use.functions.end() ? 0 : found->second;
      }
      case Metric::kErrors: {
        if (rule.detail.empty()) return use.errors;
        std::uint64_t sum = 0;
        for (const auto& [key, calls] : use.failures) sum += key.second == rule.detail ? calls : 0;
        return sum;
      }
      case Metric::kTime:
        break;
      case Metric::kLive:
        return use.live_bytes;
    }
    return 0;
  }

  // Errors that the baseline does not have: in every run a framework may probe for functions that a driver does not
  // have.
  void apply_errors(const Rule& rule, const Judged& one, const BaselineEntry* before) {
    if (!one.use->has_functions) {
      const std::uint64_t known = before == nullptr ? 0 : before->use.errors;
      if (one.use->errors > known) add("errors", one, fmt::format("{} calls failed", one.use->errors));
      return;
    }
    std::vector<std::string> fresh;
    for (const auto& [key, calls] : one.use->failures) {
      if (!rule.detail.empty() && key.second != rule.detail) continue;
      if (before != nullptr && before->use.failures.contains(key)) continue;
      fresh.push_back(
          fmt::format("{} returned {}{}", key.first, key.second, calls == 1 ? "" : fmt::format(" ({} times)", calls)));
    }
    if (!fresh.empty()) add("errors", one, joined(fresh, 5));
  }

  void apply_live(const Rule& rule, std::size_t index) {
    const ProcessReport& process = model_.processes[index];
    if (live_bytes_of(process, demands_.suppressions) <= rule.value) return;
    std::vector<std::string> holders;
    for (const ModuleRecord& module : process.account.modules) {
      if (module.live_bytes == 0 || demands_.suppressions.find(module.path) != nullptr) continue;
      holders.push_back(fmt::format("{} of {}", bytes_text(module.live_bytes), file_name(module.path)));
    }
    result_.findings.push_back(
        {"live", test_of(process), index, printable("not freed at exit: " + joined(holders, 5))});
  }

  static std::optional<std::size_t> test_of(const ProcessReport& process) {
    return process.test.empty() ? std::nullopt : std::optional<std::size_t>(process.test.front());
  }

  const Model& model_;
  const Demands& demands_;
  Judgement result_;
  std::set<std::string> unknown_;
  std::set<std::string> shared_;
};

bool is_as_it_should_be(const std::string& outcome) {
  return outcome == "passed" || outcome == "unknown";
}

}  // namespace

std::uint64_t live_bytes_of(const ProcessReport& process, const Suppressions& suppressions) {
  // A process that a signal ended had no chance to free anything.
  if (!process.ended_by_itself) return 0;
  std::uint64_t bytes = 0;
  for (const ModuleRecord& module : process.account.modules) {
    if (suppressions.find(module.path) == nullptr) bytes += module.live_bytes;
  }
  return bytes;
}

Judgement judge(const Model& model, const Demands& demands) {
  return Judge(model, demands).run();
}

Baseline baseline_of(const Model& model, const Suppressions& suppressions) {
  Baseline baseline;
  const Demands none;
  for (const auto& one : Judge(model, none).judged()) {
    if (one.test && !is_as_it_should_be(model.tests[*one.test].record.outcome)) continue;
    if (!one.test && model.job.exit_code.value_or(0) != 0) continue;
    BaselineEntry& entry = baseline[one.name];
    entry.use = *one.use;
    entry.time_ns = one.time_ns;
    if (one.test) {
      const TestReport& test = model.tests[*one.test];
      entry.gpu_peak_bytes = peaks_by_gpu(model, test);
      if (test.host && entry.gpu_peak_bytes.empty())
        entry.added_bytes = one.use->peak_bytes - std::min(test.base_bytes, one.use->peak_bytes);
    }
    entry.use.live_bytes = 0;
    for (const std::size_t i : one.processes) entry.use.live_bytes += live_bytes_of(model.processes[i], suppressions);
  }
  return baseline;
}

}  // namespace rota::report
