// The summary at the end of `rota trace`.
#include <algorithm>
#include <map>
#include <ostream>
#include <set>

#include <fmt/format.h>

#include "tools/rota/trace/output.h"

namespace rota::tool {
namespace {

std::string counted(std::uint64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string plural(std::string_view kind) {
  if (kind.ends_with('y')) return std::string(kind.substr(0, kind.size() - 1)) + "ies";
  return std::string(kind) + (kind.ends_with('s') ? "" : "s");
}

class Summary {
 public:
  void take(const TraceFile& file, const TraceCall& call) {
    Row& row = rows_[{call.api, function_name(call)}];
    ++row.calls;
    ++calls_;
    processes_.insert(&file);
    ProcessView& view = views_.try_emplace(&file, RenderOptions{}).first->second;
    view.learn(call);
    if (const auto launched = view.launched(call)) {
      ++kernels_[launched->kernel.empty() ? "(name not known)" : launched->kernel].launches;
    }
    if (!call.returned) {
      ++row.unfinished;
      ++unfinished_;
      return;
    }
    row.total_ns += call.end_ns - call.begin_ns - call.waited_ns;
    row.waited_ns += call.waited_ns;
    // Counted once for a runtime's call and the driver's call inside it.
    if (call.waited_ns > 0 && call.api == trace::kDriverApi) {
      ++waits_;
      waited_ns_ += call.waited_ns;
    }
    if (failed(call)) {
      ++row.errors;
      Error& error = errors_[render_result(call, Syntax::kText)];
      ++error.calls;
      error.functions.insert(function_name(call));
    }
    if (const auto copied = ProcessView::copied(call)) {
      Copies& copies = copies_[copied->direction];
      ++copies.count;
      copies.bytes += copied->bytes;
    }
  }

  void take(const Activity& activity) {
    for (const auto& [process, runs] : activity) {
      if (std::ranges::none_of(processes_, [&, id = process](const TraceFile* file) { return file->pid() == id; })) {
        continue;
      }
      simulated_ = true;
      for (const KernelRun& run : runs) {
        Kernel& kernel = kernels_[run.kernel];
        ++kernel.runs;
        kernel.total_ns += run.simulated_ns;
      }
    }
  }

  void print(std::ostream& out) const {
    out << counted(calls_, "call", "calls") << " in " << counted(processes_.size(), "process", "processes");
    if (unfinished_ > 0) out << fmt::format(", {} of them did not return", unfinished_);
    out << '\n';
    for (const std::uint32_t api : {trace::kRuntimeApi, trace::kDriverApi}) print_functions(api, out);
    if (waits_ > 0) {
      out << fmt::format("waited {} for a turn in {}\n", duration_text(waited_ns_), counted(waits_, "call", "calls"));
    }
    print_errors(out);
    print_kernels(out);
    print_copies(out);
    print_kept(out);
  }

  std::uint64_t calls() const { return calls_; }

 private:
  struct Row {
    std::uint64_t calls = 0;
    std::uint64_t total_ns = 0;  // without what it waited
    std::uint64_t waited_ns = 0;
    std::uint64_t errors = 0;
    std::uint64_t unfinished = 0;
  };
  struct Error {
    std::uint64_t calls = 0;
    std::set<std::string_view> functions;
  };
  struct Kernel {
    std::uint64_t launches = 0;
    std::uint64_t runs = 0;
    std::uint64_t total_ns = 0;
  };
  struct Copies {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };

  void print_functions(std::uint32_t api, std::ostream& out) const {
    std::vector<std::pair<std::string_view, Row>> sorted;
    for (const auto& [key, row] : rows_) {
      if (key.first == api) sorted.emplace_back(key.second, row);
    }
    if (sorted.empty()) return;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& left, const auto& right) { return left.second.total_ns > right.second.total_ns; });
    const auto waited = [&](const std::string& text) {
      return waits_ > 0 ? fmt::format("{:>12} ", text) : std::string();
    };
    out << fmt::format("{:>10} {:>12} {:>12} {:>8} {} {}\n", "calls", "total", "mean", "errors", waited("waited"),
                       api == trace::kDriverApi ? "driver API" : "runtime API (the driver calls inside included)");
    for (const auto& [name, row] : sorted) {
      const std::uint64_t returned = row.calls - row.unfinished;
      out << fmt::format("{:>10} {:>12} {:>12} {:>8} {} {}{}\n", row.calls, duration_text(row.total_ns),
                         returned == 0 ? "-" : duration_text(row.total_ns / returned), row.errors,
                         waited(duration_text(row.waited_ns)), name,
                         row.unfinished == 0 ? "" : fmt::format(" ({} did not return)", row.unfinished));
    }
  }

  void print_errors(std::ostream& out) const {
    if (errors_.empty()) return;
    out << "errors:\n";
    for (const auto& [name, error] : errors_) {
      out << fmt::format("{:>10}  {}: {}\n", error.calls, name, fmt::join(error.functions, ", "));
    }
  }

  void print_kernels(std::ostream& out) const {
    if (kernels_.empty()) return;
    std::vector<std::pair<std::string, Kernel>> sorted(kernels_.begin(), kernels_.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& left, const auto& right) {
      return std::pair(left.second.total_ns, left.second.launches) >
             std::pair(right.second.total_ns, right.second.launches);
    });
    out << (simulated_ ? "kernels: launches, runs (including those in graphs), total simulated time\n"
                       : "kernels: launches (the driver does not say how long they ran)\n");
    for (const auto& [name, kernel] : sorted) {
      out << fmt::format("{:>10} ", kernel.launches);
      if (simulated_) out << fmt::format("{:>12} {:>12} ", kernel.runs, duration_text(kernel.total_ns));
      out << ' ' << name << '\n';
    }
  }

  void print_copies(std::ostream& out) const {
    static constexpr std::pair<Direction, const char*> kDirections[] = {
        {Direction::kHostToDevice, "host to device"},
        {Direction::kDeviceToHost, "device to host"},
        {Direction::kDeviceToDevice, "device to device"},
        {Direction::kByAddress, "by address, either way"}};
    std::string list;
    for (const auto& [direction, name] : kDirections) {
      const auto copies = copies_.find(direction);
      if (copies == copies_.end()) continue;
      list += fmt::format("{}{} {} ({})", list.empty() ? "" : ", ", name, bytes_text(copies->second.bytes),
                          counted(copies->second.count, "copy", "copies"));
    }
    if (!list.empty()) out << "copied: " << list << '\n';
  }

  void print_kept(std::ostream& out) const {
    ObjectNames::Live all;
    for (const auto& [file, view] : views_) {
      const ObjectNames::Live live = view.objects().live();
      for (const auto& [kind, count] : live.objects) all.objects[kind] += count;
      all.device_allocations += live.device_allocations;
      all.device_bytes += live.device_bytes;
      all.host_allocations += live.host_allocations;
      all.host_bytes += live.host_bytes;
    }
    std::vector<std::string> parts;
    const auto memory = [&](std::uint64_t count, std::uint64_t bytes, std::string_view which) {
      if (count == 0) return;
      parts.push_back(
          fmt::format("{} of {} memory ({})", counted(count, "allocation", "allocations"), which, bytes_text(bytes)));
    };
    memory(all.device_allocations, all.device_bytes, "device");
    memory(all.host_allocations, all.host_bytes, "pinned host");
    for (const auto& [kind, count] : all.objects) {
      parts.push_back(counted(count, kind, plural(kind)));
    }
    if (parts.empty()) return;
    out << fmt::format("not released at the end: {}\n", fmt::join(parts, ", "));
  }

  std::map<std::pair<std::uint32_t, std::string_view>, Row> rows_;
  std::map<std::string, Error> errors_;
  std::map<std::string, Kernel> kernels_;
  std::map<Direction, Copies> copies_;
  std::map<const TraceFile*, ProcessView> views_;
  std::set<const TraceFile*> processes_;
  bool simulated_ = false;
  std::uint64_t waits_ = 0;
  std::uint64_t waited_ns_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t unfinished_ = 0;
};

}  // namespace

bool print_summary(const TraceFiles& files, const Activity& activity, std::ostream& out) {
  Summary summary;
  TraceMerge merge(files);
  TraceCall call;
  TraceFile* file = nullptr;
  while (merge.next(call, file)) summary.take(*file, call);
  if (summary.calls() == 0) return false;
  summary.take(activity);
  summary.print(out);
  return true;
}

}  // namespace rota::tool
