// See trace_output.h.
#include "tools/rota/trace/output.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <ostream>
#include <set>

#include <fmt/format.h>

namespace rota::tool {
namespace {

std::string clock_text(std::uint64_t realtime_ns) {
  const auto seconds = static_cast<std::time_t>(realtime_ns / 1'000'000'000);
  std::tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:02}:{:02}:{:02}.{:09}", local.tm_hour, local.tm_min, local.tm_sec, realtime_ns % 1'000'000'000);
}

bool selected(const ShowOptions& options, const TraceFile& file, std::string_view function) {
  if (options.pid && *options.pid != file.pid()) return false;
  if (options.function.empty()) return true;
  if (options.function.back() == '*') {
    return function.starts_with(std::string_view(options.function).substr(0, options.function.size() - 1));
  }
  return function == options.function;
}

std::string_view api_name(const TraceCall& call) {
  return call.api == trace::kDriverApi ? "driver" : "runtime";
}

std::string text_line(const TraceFile& file, const TraceCall& call, const CallText& text, const std::string& who) {
  std::string line =
      fmt::format("{}[{}] {:{}}{}({})", file.program(), who, "", call.depth * 2, function_name(call), text.arguments);
  if (!call.returned) return line + " = ? did not return";
  line += " = " + text.result;
  if (!text.outputs.empty()) line += " [" + text.outputs + "]";
  return line;
}

std::string json_object(const TraceFile& file, const TraceCall& call, const CallText& text, const std::string& who) {
  std::string object = fmt::format(
      R"({{{},"returned":{},"program":{},"api":"{}","depth":{},"function":{},"arguments":{})", who, call.returned,
      quote(file.program()), api_name(call), call.depth, quote(function_name(call)), text.arguments);
  if (!text.launch.empty()) object += ",\"launch\":" + text.launch;
  if (call.returned) object += ",\"result\":" + text.result + ",\"outputs\":" + text.outputs;
  return object + "}";
}

// The processes of a trace, numbered by their start, with what is known of each so far.
class Views {
 public:
  Views(const TraceFiles& files, const RenderOptions& options, bool hide_measurements) {
    std::uint32_t number = 0;
    for (const auto& file : files)
      views_.try_emplace(file.get(), View{++number, ProcessView(options, hide_measurements)});
  }
  struct View {
    std::uint32_t number;
    ProcessView process;
  };
  View& of(const TraceFile* file) { return views_.at(file); }

 private:
  std::map<const TraceFile*, View> views_;
};

// Microseconds with three decimals, as the format wants its times; no rounding on the way.
std::string microseconds(std::uint64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

}  // namespace

std::string duration_text(std::uint64_t nanoseconds) {
  const auto value = static_cast<double>(nanoseconds);
  if (nanoseconds < 1'000) return fmt::format("{} ns", nanoseconds);
  if (nanoseconds < 1'000'000) return fmt::format("{:.3f} us", value / 1e3);
  if (nanoseconds < 1'000'000'000) return fmt::format("{:.3f} ms", value / 1e6);
  return fmt::format("{:.3f} s", value / 1e9);
}

void show_calls(const TraceFiles& files, const ShowOptions& options, std::ostream& out) {
  RenderOptions render = options.render;
  render.syntax = options.json ? Syntax::kJson : Syntax::kText;
  Views views(files, render, !options.times);
  TraceMerge merge(files);
  TraceCall call;
  TraceFile* file = nullptr;
  bool first = true;
  if (options.json) out << "[";
  while (merge.next(call, file)) {
    // Also what is not shown gives names to what is.
    Views::View& view = views.of(file);
    const CallText text = view.process.show(call);
    const std::uint32_t thread = view.process.thread_number(call.thread);
    if (!selected(options, *file, function_name(call))) continue;
    if (options.json) {
      std::string who = fmt::format(R"("process":{},"thread":{})", view.number, thread);
      if (options.times) {
        who += fmt::format(R"(,"pid":{},"tid":{},"time_ns":{},"duration_ns":{})", file->pid(), call.thread,
                           file->realtime_ns(call.begin_ns),
                           call.returned ? std::to_string(call.end_ns - call.begin_ns) : "null");
      }
      out << (first ? "\n" : ",\n") << json_object(*file, call, text, who);
    } else if (options.times) {
      out << clock_text(file->realtime_ns(call.begin_ns)) << ' '
          << text_line(*file, call, text, fmt::format("{}/{}", file->pid(), call.thread));
      if (call.returned) out << ' ' << duration_text(call.end_ns - call.begin_ns);
      out << '\n';
    } else {
      out << text_line(*file, call, text, fmt::format("{}/{}", view.number, thread)) << '\n';
    }
    first = false;
  }
  if (options.json) out << "\n]\n";
}

void print_summary(const TraceFiles& files, std::ostream& out) {
  struct Row {
    std::uint64_t calls = 0;
    std::uint64_t total_ns = 0;
    std::uint64_t errors = 0;
    std::uint64_t unfinished = 0;
  };
  std::map<std::pair<std::uint32_t, std::string_view>, Row> rows;
  std::set<const TraceFile*> with_calls;
  std::uint64_t calls = 0;
  std::uint64_t unfinished = 0;
  TraceMerge merge(files);
  TraceCall call;
  TraceFile* file = nullptr;
  while (merge.next(call, file)) {
    Row& row = rows[{call.api, function_name(call)}];
    ++row.calls;
    ++calls;
    with_calls.insert(file);
    if (!call.returned) {
      ++row.unfinished;
      ++unfinished;
      continue;
    }
    row.total_ns += call.end_ns - call.begin_ns;
    if (failed(call)) ++row.errors;
  }
  out << fmt::format("{} calls in {} process{}", calls, with_calls.size(), with_calls.size() == 1 ? "" : "es");
  if (unfinished > 0) out << fmt::format(", {} of them did not return", unfinished);
  out << '\n';
  for (const std::uint32_t api : {trace::kRuntimeApi, trace::kDriverApi}) {
    std::vector<std::pair<std::string_view, Row>> sorted;
    for (const auto& [key, row] : rows) {
      if (key.first == api) sorted.emplace_back(key.second, row);
    }
    if (sorted.empty()) continue;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& left, const auto& right) { return left.second.total_ns > right.second.total_ns; });
    out << fmt::format("{:>10} {:>12} {:>12} {:>8}  {}\n", "calls", "total", "mean", "errors",
                       api == trace::kDriverApi ? "driver API" : "runtime API (the driver calls inside included)");
    for (const auto& [name, row] : sorted) {
      const std::uint64_t returned = row.calls - row.unfinished;
      out << fmt::format("{:>10} {:>12} {:>12} {:>8}  {}{}\n", row.calls, duration_text(row.total_ns),
                         returned == 0 ? "-" : duration_text(row.total_ns / returned), row.errors, name,
                         row.unfinished == 0 ? "" : fmt::format(" ({} did not return)", row.unfinished));
    }
  }
}

void export_chrome(const TraceFiles& files, std::ostream& out) {
  out << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  bool first = true;
  const auto emit = [&](const std::string& event) {
    out << (first ? "\n" : ",\n") << event;
    first = false;
  };
  // Times count from the first process's start: Perfetto keeps them as doubles, and 1970 is far away.
  const std::uint64_t origin = files.empty() ? 0 : files.front()->begin_ns();
  for (const auto& file : files) {
    emit(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"tid":{},"args":{{"name":{}}}}})", file->pid(),
                     file->pid(), quote(file->program())));
    emit(fmt::format(R"({{"ph":"M","name":"process_labels","pid":{},"tid":{},"args":{{"labels":{}}}}})", file->pid(),
                     file->pid(), quote(file->command())));
    for (const auto& [thread, name] : file->threads()) {
      emit(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", file->pid(),
                       thread, quote(name)));
    }
  }
  Views views(files, {.syntax = Syntax::kJson}, false);
  TraceMerge merge(files);
  TraceCall call;
  TraceFile* file = nullptr;
  while (merge.next(call, file)) {
    const std::uint64_t begin = call.begin_ns > origin ? call.begin_ns - origin : 0;
    const CallText text = views.of(file).process.show(call);
    std::string arguments = "{\"arguments\":" + text.arguments;
    if (!text.launch.empty()) arguments += ",\"launch\":" + text.launch;
    if (call.returned) {
      arguments += ",\"result\":" + text.result + ",\"outputs\":" + text.outputs;
    } else {
      arguments += ",\"returned\":false";
    }
    emit(fmt::format(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{}}}}})",
                     quote(function_name(call)), api_name(call), file->pid(), call.thread, microseconds(begin),
                     microseconds(call.end_ns - call.begin_ns), arguments));
  }
  out << "\n]}\n";
}

}  // namespace rota::tool
