// The timeline of `rota trace export --format chrome`.
#include <algorithm>
#include <map>
#include <ostream>

#include <fmt/format.h>

#include "tools/rota/trace/output.h"

namespace rota::tool {
namespace {

// Row numbers of streams, beyond all thread ids: those on Linux are below 4 million.
constexpr std::uint64_t kFirstStreamRow = 1'000'000'000;

// Microseconds with three decimals, as the format wants its times; no rounding on the way.
std::string microseconds(std::uint64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

class Timeline {
 public:
  Timeline(const TraceFiles& files, const Activity& activity, std::ostream& out) : activity_(activity), out_(out) {
    // Times count from the first process's start: Perfetto keeps them as doubles, and 1970 is far away.
    origin_ = files.empty() ? 0 : files.front()->begin_ns();
    out_ << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
    for (const auto& file : files) {
      Process& process = processes_.try_emplace(file.get()).first->second;
      process.pid = file->pid();
      process.simulated = activity.contains(file->pid());
      metadata(process.pid, process.pid, "process_name", "name", file->program());
      metadata(process.pid, process.pid, "process_labels", "labels", file->command());
      for (const auto& [thread, name] : file->threads()) metadata(process.pid, thread, "thread_name", "name", name);
    }
  }

  void take(TraceFile& file, const TraceCall& call) {
    Process& process = processes_.at(&file);
    const CallText text = process.view.show(call);
    std::string arguments = "{\"arguments\":" + text.arguments;
    if (!text.launch.empty()) arguments += ",\"launch\":" + text.launch;
    if (call.returned) {
      arguments += ",\"result\":" + text.result + ",\"outputs\":" + text.outputs;
    } else {
      arguments += ",\"returned\":false";
    }
    complete(function_name(call), api_name(call), process.pid, call.thread, call.begin_ns, call.end_ns - call.begin_ns,
             arguments + "}");
    // When it waited within the call is not recorded: a call waits before it does anything else. Of nested calls the
    // innermost waits.
    if (call.waited_ns > 0 && call.api == trace::kDriverApi) {
      complete("waiting for a turn", "rota", process.pid, call.thread, call.begin_ns, call.waited_ns, "{}");
    }
    show_memory(process, call);
    if (const auto launched = process.view.launched(call)) show_launch(process, call, *launched);
    if (call.api == trace::kDriverApi && base_name(function_name(call)) == "cuGraphLaunch") remember(process, call);
  }

  void finish() {
    for (auto& [file, process] : processes_) {
      const auto runs = activity_.find(process.pid);
      if (runs != activity_.end()) show_runs(process, runs->second);
    }
    out_ << "\n]}\n";
  }

 private:
  struct Row {
    std::uint64_t number = 0;
    std::uint64_t free_ns = 0;
  };
  struct Process {
    std::uint32_t pid = 0;
    bool simulated = false;
    ProcessView view{{.syntax = Syntax::kJson}};
    std::map<std::uint64_t, Row> rows;  // by stream
    // The begins and ends of calls that launch, by thread: the origins of the arrows.
    std::map<std::uint32_t, std::map<std::uint64_t, std::uint64_t>> launches;
    std::uint64_t device_bytes = 0;
  };

  void emit(const std::string& event) {
    out_ << (first_ ? "\n" : ",\n") << event;
    first_ = false;
  }
  std::uint64_t since_origin(std::uint64_t time_ns) const { return time_ns > origin_ ? time_ns - origin_ : 0; }

  void metadata(std::uint64_t pid, std::uint64_t row, std::string_view what, std::string_view key,
                const std::string& value) {
    emit(fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"{}":{}}}}})", what, pid, row, key,
                     quote(value)));
  }
  void complete(std::string_view name, std::string_view category, std::uint64_t pid, std::uint64_t row,
                std::uint64_t begin_ns, std::uint64_t nanoseconds, const std::string& arguments) {
    emit(fmt::format(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{}}})", quote(name),
                     category, pid, row, microseconds(since_origin(begin_ns)), microseconds(nanoseconds), arguments));
  }
  void arrow(const Process& process, std::uint32_t thread, std::uint64_t from_ns, std::uint64_t row,
             std::uint64_t to_ns) {
    ++arrows_;
    emit(fmt::format(R"({{"ph":"s","name":"launch","cat":"launch","id":{},"pid":{},"tid":{},"ts":{}}})", arrows_,
                     process.pid, thread, microseconds(since_origin(from_ns))));
    emit(fmt::format(R"({{"ph":"f","bp":"e","name":"launch","cat":"launch","id":{},"pid":{},"tid":{},"ts":{}}})",
                     arrows_, process.pid, row, microseconds(since_origin(to_ns))));
  }

  Row& row_of(Process& process, std::uint64_t stream, const Moment& moment) {
    const auto [found, is_new] = process.rows.try_emplace(stream);
    Row& row = found->second;
    if (is_new) {
      row.number = kFirstStreamRow + process.rows.size();
      metadata(process.pid, row.number, "thread_name", "name",
               process.view.stream_name(stream, moment) +
                   (process.simulated ? "" : " (launches; it is not known when they ran)"));
    }
    return row;
  }

  void show_memory(Process& process, const TraceCall& call) {
    const std::uint64_t bytes = process.view.objects().device_bytes();
    if (bytes == process.device_bytes) return;
    process.device_bytes = bytes;
    emit(fmt::format(R"({{"ph":"C","name":"device memory","pid":{},"ts":{},"args":{{"bytes":{}}}}})", process.pid,
                     microseconds(since_origin(call.end_ns)), bytes));
  }

  static void remember(Process& process, const TraceCall& call) {
    process.launches[call.thread][call.begin_ns] = call.end_ns;
  }

  void show_launch(Process& process, const TraceCall& call, const Launched& launched) {
    remember(process, call);
    if (process.simulated || failed(call)) return;
    const Row& row = row_of(process, launched.stream, {call.begin_ns, call.end_ns, call.thread});
    complete(launched.kernel.empty() ? "kernel" : launched.kernel, "launch", process.pid, row.number, call.begin_ns,
             call.end_ns - call.begin_ns, R"({"duration":"of the launching call"})");
    arrow(process, call.thread, call.begin_ns, row.number, call.begin_ns);
  }

  void show_runs(Process& process, const std::vector<KernelRun>& runs) {
    for (const KernelRun& run : runs) {
      Row& row = row_of(process, run.stream, {run.launched_ns, run.launched_ns, run.thread});
      // If nothing waits (time scale 0, virtual clock), real time is shorter than the kernels' time.
      const std::uint64_t begin = std::max(run.begin_ns, row.free_ns);
      row.free_ns = begin + run.simulated_ns;
      complete(run.kernel, "kernel", process.pid, row.number, begin, run.simulated_ns,
               R"({"duration":"as simulated"})");
      const auto thread = process.launches.find(run.thread);
      if (thread == process.launches.end()) continue;
      auto call = thread->second.upper_bound(run.launched_ns);
      if (call == thread->second.begin() || (--call)->second < run.launched_ns) continue;
      arrow(process, run.thread, call->first, row.number, begin);
    }
  }

  const Activity& activity_;
  std::ostream& out_;
  std::uint64_t origin_ = 0;
  std::uint64_t arrows_ = 0;
  bool first_ = true;
  std::map<const TraceFile*, Process> processes_;
};

}  // namespace

void export_chrome(const TraceFiles& files, const Activity& activity, std::ostream& out) {
  Timeline timeline(files, activity, out);
  TraceMerge merge(files);
  TraceCall call;
  TraceFile* file = nullptr;
  while (merge.next(call, file)) timeline.take(*file, call);
  timeline.finish();
}

}  // namespace rota::tool
