// See trace_output.h.
#include "tools/rota/trace_output.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <ostream>
#include <set>

#include <fmt/format.h>

#include "tools/rota/trace_decode.h"

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

std::string text_line(const TraceFile& file, const TraceCall& call) {
  std::string line =
      fmt::format("{} {}[{}/{}] {:{}}{}({})", clock_text(file.realtime_ns(call.begin_ns)), file.program(), file.pid(),
                  call.thread, "", call.depth * 2, function_name(call), render_arguments(call, Syntax::kText));
  if (!call.returned) return line + " = ? did not return";
  line += " = " + render_result(call, Syntax::kText);
  const std::string outputs = render_outputs(call, Syntax::kText);
  if (!outputs.empty()) line += " [" + outputs + "]";
  return line + " " + duration_text(call.end_ns - call.begin_ns);
}

std::string json_object(const TraceFile& file, const TraceCall& call) {
  std::string text = fmt::format(
      R"({{"time_ns":{},"duration_ns":{},"returned":{},"pid":{},"tid":{},"program":{},"api":"{}","depth":{},"function":{},"arguments":{})",
      file.realtime_ns(call.begin_ns), call.returned ? std::to_string(call.end_ns - call.begin_ns) : "null",
      call.returned, file.pid(), call.thread, quote(file.program()), api_name(call), call.depth,
      quote(function_name(call)), render_arguments(call, Syntax::kJson));
  if (call.returned) {
    text += ",\"result\":" + render_result(call, Syntax::kJson) + ",\"outputs\":" + render_outputs(call, Syntax::kJson);
  }
  return text + "}";
}

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
  TraceMerge merge(files);
  TraceCall call;
  TraceFile* file = nullptr;
  bool first = true;
  if (options.json) out << "[";
  while (merge.next(call, file)) {
    if (!selected(options, *file, function_name(call))) continue;
    if (options.json) {
      out << (first ? "\n" : ",\n") << json_object(*file, call);
    } else {
      out << text_line(*file, call) << '\n';
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
  TraceMerge merge(files);
  TraceCall call;
  TraceFile* file = nullptr;
  while (merge.next(call, file)) {
    const std::uint64_t begin = call.begin_ns > origin ? call.begin_ns - origin : 0;
    std::string arguments = fmt::format("{{\"arguments\":{}", render_arguments(call, Syntax::kJson));
    if (call.returned) {
      arguments +=
          ",\"result\":" + render_result(call, Syntax::kJson) + ",\"outputs\":" + render_outputs(call, Syntax::kJson);
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
