// See output.h.
#include "tools/rota/trace/output.h"

#include <ctime>
#include <map>
#include <ostream>

#include <fmt/format.h>

namespace rota::tool {
namespace {

std::string clock_text(std::uint64_t realtime_ns) {
  const auto seconds = static_cast<std::time_t>(realtime_ns / 1'000'000'000);
  std::tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:02}:{:02}:{:02}.{:09}", local.tm_hour, local.tm_min, local.tm_sec, realtime_ns % 1'000'000'000);
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

// Since CUDA 12 a look-up that finds nothing succeeds, with a null address.
bool found_nothing(const TraceCall& call) {
  if (failed(call)) return true;
  const DecodedCall decoded(call);
  for (const Place place : {"*pfn", "*funcPtr", "*ppExportTable"}) {
    const auto address = decoded.at(place);
    if (address && load_unsigned(address->bytes) == 0) return true;
  }
  return false;
}

// Look-ups by one thread with no other line between them: a program's start has hundreds, which hide the rest.
struct Lookups {
  std::string begins;    // the line up to the thread
  std::string function;  // of the first
  std::string first;     // the line that a single one has
  std::string thread;
  std::size_t count = 0;
  std::size_t failures = 0;
  std::uint64_t nanoseconds = 0;

  void flush(bool times, std::ostream& out) {
    if (count == 1) out << first << '\n';
    if (count > 1) {
      out << fmt::format("{}{}: {} look-ups", begins, function, count);
      if (failures > 0) out << fmt::format(", {} found nothing", failures);
      out << " (--lookups lists them)" << (times ? " " + duration_text(nanoseconds) : "") << '\n';
    }
    *this = {};
  }
};

}  // namespace

std::string duration_text(std::uint64_t nanoseconds) {
  const auto value = static_cast<double>(nanoseconds);
  if (nanoseconds < 1'000) return fmt::format("{} ns", nanoseconds);
  if (nanoseconds < 1'000'000) return fmt::format("{:.3f} us", value / 1e3);
  if (nanoseconds < 1'000'000'000) return fmt::format("{:.3f} ms", value / 1e6);
  return fmt::format("{:.3f} s", value / 1e9);
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  auto value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.2f} {}", value, unit);
}

std::string_view api_name(const TraceCall& call) {
  return call.api == trace::kDriverApi ? "driver" : "runtime";
}

std::size_t show_calls(const TraceFiles& files, const ShowOptions& options, std::ostream& out) {
  RenderOptions render = options.render;
  render.syntax = options.json ? Syntax::kJson : Syntax::kText;
  Views views(files, render, !options.times);
  TraceMerge merge(files);
  TraceCall call;
  TraceFile* file = nullptr;
  std::size_t shown = 0;
  Lookups lookups;
  // Where functions are selected by name, each look-up has its line.
  const bool fold = !options.json && !options.lookups && options.selection.functions.empty();
  if (options.json) out << "[";
  while (merge.next(call, file)) {
    // Calls that are not shown also give names to what is shown.
    Views::View& view = views.of(file);
    const CallText text = view.process.show(call);
    const std::uint32_t thread = view.process.thread_number(call.thread);
    if (!options.selection.has(*file, call)) continue;
    ++shown;
    if (options.json) {
      std::string who = fmt::format(R"("process":{},"thread":{})", view.number, thread);
      if (options.times) {
        who += fmt::format(R"(,"pid":{},"tid":{},"time_ns":{},"duration_ns":{},"waited_ns":{})", file->pid(),
                           call.thread, file->realtime_ns(call.begin_ns),
                           call.returned ? std::to_string(call.end_ns - call.begin_ns) : "null", call.waited_ns);
      }
      out << (shown == 1 ? "\n" : ",\n") << json_object(*file, call, text, who);
      continue;
    }
    const std::string at = options.times ? clock_text(file->realtime_ns(call.begin_ns)) + " " : std::string();
    const std::string who =
        options.times ? fmt::format("{}/{}", file->pid(), call.thread) : fmt::format("{}/{}", view.number, thread);
    std::string line = at + text_line(*file, call, text, who);
    if (options.times && call.returned) line += " " + duration_text(call.end_ns - call.begin_ns);
    if (options.times && call.waited_ns > 0) {
      line += " (" + duration_text(call.waited_ns) + " of it waiting for a turn)";
    }
    if (!fold || !call.returned || !is_lookup(base_name(function_name(call)))) {
      lookups.flush(options.times, out);
      out << line << '\n';
      continue;
    }
    if (lookups.thread != who) lookups.flush(options.times, out);
    if (lookups.count++ == 0) {
      lookups.begins = fmt::format("{}{}[{}] {:{}}", at, file->program(), who, "", call.depth * 2);
      lookups.function = function_name(call);
      lookups.first = line;
      lookups.thread = who;
    }
    lookups.failures += found_nothing(call) ? 1 : 0;
    lookups.nanoseconds += call.end_ns - call.begin_ns;
  }
  lookups.flush(options.times, out);
  if (options.json) out << "\n]\n";
  return shown;
}

}  // namespace rota::tool
