// The report as text: one screen.
#include <fmt/format.h>

#include <algorithm>

#include "tools/rota/report/format.h"
#include "tools/rota/report/outputs.h"
#include "tools/rota/report/test_gpus.h"

namespace rota::report {
namespace {

constexpr std::size_t kMostRows = 20;
constexpr std::size_t kWidest = 70;

// Columns as wide as they need; all but the last are aligned to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const {
    std::vector<std::size_t> widths(rows_.front().size());
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows_) {
      text += "  ";
      for (std::size_t i = 0; i + 1 < row.size(); ++i) text += fmt::format("{:>{}}  ", row[i], widths[i]);
      text += row.back() + "\n";
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::vector<std::string> columns(const Use& use, std::string name) {
  return {bytes_text(use.peak_bytes),
          use.reserved_peak_bytes == 0 ? "-" : bytes_text(use.reserved_peak_bytes),
          duration_text(use.gpu_ns),
          duration_text(use.waited_ns),
          std::to_string(use.launches),
          bytes_text(use.copied_bytes),
          std::to_string(use.calls),
          std::to_string(use.errors),
          std::move(name)};
}

struct Row {
  const Use* use;
  std::string name;
};

std::string table(std::vector<Row> rows, const std::string& what) {
  std::ranges::stable_sort(rows, std::greater(), [](const Row& row) { return row.use->peak_bytes; });
  Table table({"peak", "reserved", "GPU time", "waited", "launches", "copied", "calls", "errors", what});
  for (std::size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) table.add(columns(*rows[i].use, rows[i].name));
  std::string text = table.text();
  if (rows.size() > kMostRows) text += fmt::format("  … and {} more\n", rows.size() - kMostRows);
  return text;
}

std::string head(const Model& model) {
  const JobRecord& job = model.job;
  std::string text = printable(command_text(job.command, kWidest));
  if (!job.name.empty()) text = printable(job.name) + (text.empty() ? "" : ": " + text);
  if (text.empty()) text = "a job";
  if (job.exit_code) {
    text += fmt::format(", ended with {}", *job.exit_code);
  } else {
    text += ", whose end was not recorded";
  }
  if (job.end_ns > job.begin_ns && job.begin_ns > 0) {
    text += fmt::format(" after {}", duration_text(static_cast<std::uint64_t>(job.end_ns - job.begin_ns)));
  }
  return text + "\n";
}

std::string counts(const Model& model) {
  std::string text;
  if (!model.tests.empty()) {
    std::map<std::string, std::size_t> outcomes;
    for (const TestReport& test : model.tests) ++outcomes[printable(test.record.outcome)];
    text = fmt::format("{} test{}", model.tests.size(), model.tests.size() == 1 ? "" : "s");
    const char* separator = ": ";
    for (const auto& [outcome, count] : outcomes) {
      text += fmt::format("{}{} {}", separator, count, outcome);
      separator = ", ";
    }
    text += "; ";
  }
  const std::size_t processes = model.processes.size();
  return text + fmt::format("{} process{} called CUDA\n", processes, processes == 1 ? "" : "es");
}

std::string gpus(const Model& model) {
  struct Sum {
    std::string name;
    std::uint64_t largest = 0;
    std::uint64_t kinds[account::kMemoryKinds] = {};
  };
  std::map<std::string, Sum> sums;
  for (const ProcessReport& process : model.processes) {
    for (const GpuRecord& gpu : process.account.gpus) {
      Sum& sum = sums[gpu.uuid];
      sum.name = gpu.name;
      sum.largest = std::max(sum.largest, gpu.peak_bytes);
      for (std::size_t i = 0; i < account::kMemoryKinds; ++i) {
        sum.kinds[i] = std::max(sum.kinds[i], gpu.kind_peak_bytes[i]);
      }
    }
  }
  std::string text;
  for (const auto& [uuid, sum] : sums) {
    text += fmt::format("  {}{}: a process at most {}", printable(sum.name),
                        sums.size() > 1 ? " " + short_uuid(uuid) : "", bytes_text(sum.largest));
    const char* separator = " (";
    for (std::size_t i = 0; i < account::kMemoryKinds; ++i) {
      if (sum.kinds[i] == 0) continue;
      text += fmt::format("{}{} {}", separator, account::kMemoryKindNames[i], bytes_text(sum.kinds[i]));
      separator = ", ";
    }
    text += *separator == ',' ? ")\n" : "\n";
  }
  return text;
}

std::string name_of(const ProcessReport& process) {
  std::string text =
      fmt::format("{} {}", process.account.self.pid, printable(command_text(process.account.self.command, kWidest)));
  if (process.ending != "ended with 0" && process.ending != "ended by exit()")
    text += fmt::format(" ({})", process.ending);
  return text;
}

std::string errors(const Model& model) {
  if (model.total.failures.empty()) return {};
  std::vector<std::pair<std::uint64_t, ErrorKey>> rows;
  for (const auto& [key, calls] : model.total.failures) rows.emplace_back(calls, key);
  std::ranges::stable_sort(rows, std::greater(), [](const auto& row) { return row.first; });
  std::string text = "\nErrors\n";
  for (std::size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) {
    text += fmt::format("  {:>7}  {} {}\n", rows[i].first, rows[i].second.first, rows[i].second.second);
  }
  if (rows.size() > kMostRows) text += fmt::format("  … and {} more\n", rows.size() - kMostRows);
  for (const ProcessReport& process : model.processes) {
    const std::string_view reason = out_of_memory_text(process.account.out_of_memory);
    if (!reason.empty()) text += fmt::format("  out of memory in {}: {}\n", process.account.self.pid, reason);
  }
  return text;
}

// The plural of the name of a kind of object.
std::string plural_of(const std::string& kind) {
  return kind.ends_with('y') ? kind.substr(0, kind.size() - 1) + "ies" : kind + "s";
}

std::string live(const Report& report) {
  struct Sum {
    std::uint64_t bytes = 0, allocations = 0, processes = 0;
  };
  std::map<std::string, Sum> modules;
  std::map<std::string, ObjectCount> objects;
  for (const ProcessReport& process : report.model.processes) {
    if (!process.ended_by_itself) continue;
    for (const ModuleRecord& module : process.account.modules) {
      if (module.live_bytes == 0 && module.live == 0) continue;
      Sum& sum = modules[module.path];
      sum.bytes += module.live_bytes;
      sum.allocations += module.live;
      ++sum.processes;
    }
    for (const auto& [kind, count] : process.objects) {
      objects[kind].created += count.created;
      objects[kind].ended += count.ended;
    }
  }
  std::vector<std::pair<std::string, Sum>> largest(modules.begin(), modules.end());
  std::ranges::stable_sort(largest, std::greater(), [](const auto& module) { return module.second.bytes; });
  std::string text;
  for (const auto& [path, sum] : largest) {
    const Suppression* const known = report.suppressions.find(path);
    text += fmt::format("  {:>9}  {} allocation{} of {}{}{}\n", bytes_text(sum.bytes), sum.allocations,
                        sum.allocations == 1 ? "" : "s", printable(file_name(path)),
                        sum.processes > 1 ? fmt::format(", {} processes", sum.processes) : "",
                        known == nullptr ? "" : fmt::format(" (expected: {})", printable(known->reason)));
  }
  for (const auto& [kind, count] : objects) {
    text +=
        fmt::format("  {:>9}  of {} {} not destroyed\n", count.created - count.ended, count.created, plural_of(kind));
  }
  return text.empty() ? text : "\nLive at exit\n" + text;
}

// The calls in which processes were ended, or wait.
std::string interrupted(const Model& model) {
  std::string text;
  std::size_t rows = 0;
  for (const ProcessReport& process : model.processes) {
    if (process.ended_by_itself) continue;
    for (const ThreadRecord& thread : process.account.inside) {
      if (++rows > kMostRows) continue;
      text += fmt::format("  process {}, thread {}: {} in {}{}\n", process.account.self.pid, thread.tid,
                          process.account.ending == Ending::kRunning ? "is" : "was", thread.function,
                          waits_for_room(thread) ? ", waiting for memory"
                          : thread.at_gate       ? ", waiting for its turn"
                                                 : "");
    }
  }
  if (rows > kMostRows) text += fmt::format("  … and {} more threads\n", rows - kMostRows);
  return text;
}

std::string findings(const Report& report) {
  if (report.judgement.findings.empty()) return {};
  std::string text = "\nFindings\n";
  for (const Finding& finding : report.judgement.findings) {
    std::string where;
    if (finding.test) where = printable(report.model.tests[*finding.test].title()) + ": ";
    if (!finding.test && finding.process) where = name_of(report.model.processes[*finding.process]) + ": ";
    text += fmt::format("  {}: {}{}\n", finding.kind, where, finding.text);
    for (std::size_t begin = 0; begin < finding.details.size();) {
      const std::size_t end = std::min(finding.details.find('\n', begin), finding.details.size());
      text += "    " + finding.details.substr(begin, end - begin) + "\n";
      begin = end + 1;
    }
  }
  return text;
}

}  // namespace

std::string_view out_of_memory_text(account::OutOfMemory reason) {
  switch (reason) {
    case account::OutOfMemory::kDriver:
      return "the driver refused, though rota knew of free memory on the GPU (fragmentation, or memory that rota does "
             "not see)";
    case account::OutOfMemory::kFull:
      return "the GPU was full of other programs' memory that cannot be evicted";
    case account::OutOfMemory::kLimit:
      return "a limit of the process, its session or its user was reached";
    case account::OutOfMemory::kTooLarge:
      return "it asked for more than the GPU has";
    case account::OutOfMemory::kNone:
      break;
  }
  return "";
}

std::string text_report(const Report& report) {
  const Model& model = report.model;
  const Use& total = model.total;
  std::string text = head(model) + counts(model);
  text += fmt::format(
      "\n  memory in use at most {}{}{}; GPU time {}, waited {}\n"
      "  {} launches; {} copies of {} in all; {} synchronizations; {} calls, {} failed\n",
      bytes_text(total.peak_bytes),
      total.peak_at_most_bytes > total.peak_bytes
          ? fmt::format(" for certain, {} perhaps", bytes_text(total.peak_at_most_bytes))
          : "",
      total.reserved_peak_bytes == 0 ? "" : fmt::format(", {} with contexts", bytes_text(total.reserved_peak_bytes)),
      duration_text(total.gpu_ns), duration_text(total.waited_ns), total.launches, total.copies,
      bytes_text(total.copied_bytes), total.synchronizations, total.calls, total.errors);
  text += gpus(model);
  std::vector<Row> rows;
  const bool several = has_several_gpus(model);
  for (const TestReport& test : model.tests) {
    std::string name = printable(test.title());
    if (several) name += short_uuids(gpus_of(model, test));
    if (test.record.outcome != "passed") name += fmt::format(" ({})", printable(test.record.outcome));
    if (test.record.ambiguous) name += " (ambiguous)";
    rows.push_back({&test.use, std::move(name)});
  }
  if (!rows.empty()) text += "\n" + table(std::move(rows), "test");
  rows.clear();
  const auto add_process = [&](const ProcessReport& process) {
    rows.push_back({&process.use, name_of(process) + (several ? short_uuids(gpus_of(process)) : "")});
  };
  if (model.tests.empty()) {
    for (const ProcessReport& process : model.processes) add_process(process);
  }
  for (const std::size_t i : model.rest) add_process(model.processes[i]);
  if (!rows.empty()) text += "\n" + table(std::move(rows), model.tests.empty() ? "process" : "process of no test");
  text += errors(model) + findings(report) + live(report);
  std::string notes;
  for (const LeftRecord& left : model.left) {
    notes += fmt::format("  still running after the command: {} ({})\n",
                         printable(left.id.substr(0, left.id.find('-'))), printable(left.name));
  }
  notes += interrupted(model);
  for (const ProcessReport& process : model.processes) {
    for (const std::string& note : process.account.notes) {
      notes += fmt::format("  process {}: {}\n", process.account.self.pid, note);
    }
  }
  for (const std::string& note : report.judgement.notes) notes += fmt::format("  {}\n", printable(note));
  for (std::size_t i = 0; i < std::min(model.problems.size(), kMostRows); ++i) {
    notes += fmt::format("  {}\n", printable(model.problems[i]));
  }
  if (model.problems.size() > kMostRows) notes += fmt::format("  … and {} more\n", model.problems.size() - kMostRows);
  return text + (notes.empty() ? "" : "\nNotes\n" + notes);
}

}  // namespace rota::report
