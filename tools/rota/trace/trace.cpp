// See trace.h.
#include "tools/rota/trace/trace.h"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "runtime/trace/format.h"
#include "scheduler/base/byte_size.h"
#include "tools/rota/report/format.h"
#include "tools/rota/run/launch.h"
#include "tools/rota/run/output.h"
#include "tools/rota/run/wait.h"
#include "tools/rota/trace/output.h"

namespace rota::tool {
namespace {

namespace fs = std::filesystem;

int complain(const std::string& text) {
  write_message("rota trace: " + report::printable(text) + "\n");
  return 1;
}

void finish(int status) {
  if (status != 0) throw CLI::RuntimeError(status);
}

// Problems found while reading go to stderr, after the output; damage makes the status 1, an early end does not.
int report(const TraceFiles& files, const std::vector<std::string>& problems) {
  int status = 0;
  for (const std::string& problem : problems) status = complain(problem);
  for (const auto& file : files) {
    for (const std::string& problem : file->problems()) status = complain(problem);
    if (const std::string ending = file->ending(); !ending.empty()) complain("note: " + ending);
  }
  return status;
}

std::set<std::string> trace_paths(const std::string& directory) {
  std::set<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    paths.insert(entry->path().string());
  }
  return paths;
}

constexpr int kWrongUsage = 2;
constexpr int kNotRun = 125;  // for a run, where it cannot be mistaken for the program's own status

// Empty, or why a process's trace cannot be limited to that.
std::string cap_problem(const std::string& text) {
  const auto bytes = parse_bytes(text);
  if (bytes && *bytes >= trace::kMinimumBytes) return {};
  return fmt::format("'{}' is not a size for a trace: give {}K or more, with an optional K, M, G or T", text,
                     trace::kMinimumBytes >> 10);
}

bool holds_traces(const std::set<std::string>& paths) {
  return std::ranges::any_of(paths,
                             [](const std::string& path) { return fs::path(path).extension() == trace::kFileSuffix; });
}

struct RunCommand {
  std::string directory;
  std::string max_bytes;
  bool append = false;
  std::vector<std::string> command;

  int run() {
    if (command.empty()) {
      complain(
          "no command given: use `rota trace -- COMMAND ARGUMENTS`, `rota trace show DIR` or `rota trace export DIR`");
      return kNotRun;
    }
    if (command[0].starts_with('-')) {
      complain(fmt::format(
          "{} is not an option of rota trace: `rota trace --help` lists them; the program comes after --", command[0]));
      return kNotRun;
    }
    const char* const inherited = getenv("ROTA_TRACE_MAX_BYTES");
    if (max_bytes.empty() && inherited != nullptr && *inherited != '\0') {
      if (const std::string problem = cap_problem(inherited); !problem.empty()) {
        complain("ROTA_TRACE_MAX_BYTES: " + problem);
        return kNotRun;
      }
    }
    const std::time_t now = std::time(nullptr);
    if (directory.empty()) {
      directory = fmt::format("rota-trace-{:%Y%m%d-%H%M%S}-{}", fmt::localtime(now), getpid());
    }
    const std::set<std::string> before = trace_paths(directory);
    if (holds_traces(before) && !append) {
      complain(directory + " already holds another run: name another folder, or add to it with --append");
      return kNotRun;
    }
    std::error_code error;
    // The program may change its working directory before its first call.
    directory = fs::absolute(directory, error).lexically_normal().string();
    if (directory.ends_with('/')) directory.pop_back();
    std::vector<fs::path> made;
    for (fs::path path = directory; !path.empty() && !fs::exists(path, error); path = path.parent_path()) {
      made.push_back(path);
    }
    fs::create_directories(directory, error);
    if (error) {
      complain(fmt::format("cannot create the folder {}: {}; give another one with --dir", directory, error.message()));
      return kNotRun;
    }
    if (access(directory.c_str(), W_OK | X_OK) != 0) {
      complain(fmt::format("cannot write to {}: {}; give another folder with --dir", directory, std::strerror(errno)));
      return kNotRun;
    }
    LaunchOptions options;
    options.command = command;
    options.environment.emplace_back("ROTA_TRACE", directory);
    // simgpu records there what ran when; a real driver ignores it.
    options.environment.emplace_back("ROTA_SIM_ACTIVITY", directory);
    if (max_bytes.empty() && inherited != nullptr) max_bytes = inherited;
    if (!max_bytes.empty()) {
      options.environment.emplace_back("ROTA_TRACE_MAX_BYTES", max_bytes);
      options.environment.emplace_back("ROTA_SIM_ACTIVITY_MAX_BYTES", max_bytes);
    }
    options.preloads.push_back(shim_directory() + "/librota-cudart.so");
    const TakenSignals signals;
    const int status =
        run_and_wait(options, signals, {.ended = nullptr, .signalled = nullptr, .clean_up = nullptr, .in_place = [&] {
                                          complain("the program is traced without a summary: rota trace show has one");
                                          return options;
                                        }});
    summarize(before);
    for (const fs::path& path : made) {
      if (!fs::remove(path, error)) break;  // as long as nothing lies in it
    }
    return status;
  }

 private:
  // To stderr: stdout belongs to the program.
  void summarize(const std::set<std::string>& before) const {
    std::vector<std::string> problems;
    TraceFiles files;
    std::set<std::string> added;
    for (const std::string& path : trace_paths(directory)) {
      if (before.contains(path)) continue;
      added.insert(path);
      if (fs::path(path).extension() != trace::kFileSuffix) continue;
      std::string problem;
      if (auto file = TraceFile::open(path, problem)) {
        files.push_back(std::move(file));
      } else {
        problems.push_back(problem);
      }
    }
    std::ostringstream text;
    if (!print_summary(files, read_activity(directory), text) && problems.empty()) {
      // A process that is running may record more.
      const bool over =
          std::ranges::all_of(files, [](const auto& file) { return kill(static_cast<pid_t>(file->pid()), 0) != 0; });
      std::error_code ignored;
      for (const std::string& path : added) {
        if (over) fs::remove(path, ignored);
      }
      complain("no CUDA call was recorded");
      return;
    }
    write_message(fmt::format("rota trace: {0} (rota trace show {0})\n{1}", report::printable(directory), text.str()),
                  kReportPatience);
    for (const std::string& problem : problems) complain(problem);
    for (const auto& file : files) {
      for (const std::string& problem : file->problems()) complain(problem);
      // A child that ended by _exit() is nothing to report; the summary has the calls that did not return.
      if (file->state() == trace::State::kCapped || file->state() == trace::State::kOutOfSpace)
        complain(file->ending());
    }
  }
};

struct ShowCommand {
  std::string directory;
  std::string addresses = "stable";
  bool no_times = false;
  ShowOptions options;
  std::uint32_t pid = 0;

  int run(bool has_pid) {
    if (has_pid) options.selection.pid = pid;
    options.times = !no_times;
    options.render.raw_addresses = addresses == "raw";
    std::vector<std::string> problems;
    const TraceFiles files = open_traces(directory, problems);
    if (files.empty() && problems.empty())
      return complain(fmt::format("{} holds no *{} file", directory, trace::kFileSuffix));
    if (const std::string problem = selection_problem(options.selection, files, directory); !problem.empty()) {
      complain(problem);
      return kWrongUsage;
    }
    const std::size_t shown = show_calls(files, options, std::cout);
    if (!std::cout.flush()) return complain(fmt::format("cannot write the listing: {}", std::strerror(errno)));
    if (shown == 0 && !files.empty()) complain("note: no call matches");
    return report(files, problems);
  }
};

struct ExportCommand {
  std::string directory;
  std::string format = "chrome";
  std::string output;

  int run() const {
    std::vector<std::string> problems;
    const TraceFiles files = open_traces(directory, problems);
    if (files.empty() && problems.empty())
      return complain(fmt::format("{} holds no *{} file", directory, trace::kFileSuffix));
    const Activity activity = read_activity(directory);
    if (output.empty() || output == "-") {
      export_chrome(files, activity, std::cout);
      if (!std::cout.flush()) return complain(fmt::format("cannot write the timeline: {}", std::strerror(errno)));
      return report(files, problems);
    }
    std::ofstream file(output, std::ios::binary | std::ios::trunc);
    export_chrome(files, activity, file);
    file.close();
    if (!file) return complain(fmt::format("cannot write {}: {}", output, std::strerror(errno)));
    return report(files, problems);
  }
};

}  // namespace

void register_trace(CLI::App& app) {
  CLI::App* const trace = app.add_subcommand("trace", "record every CUDA call of a program, and read the record");
  auto run = std::make_shared<RunCommand>();
  trace->add_option("--dir", run->directory, "folder for the trace files (default: a new one here)");
  trace->add_flag("--append", run->append, "add to a folder that already holds other runs");
  trace
      ->add_option("--max-bytes", run->max_bytes,
                   "size limit of a process's trace, such as 64M (default: ROTA_TRACE_MAX_BYTES, else 1G)")
      ->check(cap_problem);
  // No positional option for the program: its own arguments ("show", "--dir") would be taken for ours.
  trace->prefix_command();
  trace->footer("Anything else is the program to run and its arguments: rota trace [OPTIONS] -- COMMAND ARGUMENTS…");
  trace->require_subcommand(0, 1);

  auto show = std::make_shared<ShowCommand>();
  CLI::App* const show_app = trace->add_subcommand("show", "list the calls of all processes in time order");
  show_app->add_option("dir", show->directory, "folder of a trace, or one file")->required();
  CLI::Option* const pid = show_app->add_option("--pid", show->pid, "only this process");
  show_app
      ->add_option("--function", show->options.selection.functions,
                   "only this function; cuMemAlloc matches all its versions, a final * any ending; may be repeated")
      ->allow_extra_args(false);
  show_app
      ->add_option("--exclude", show->options.selection.excluded,
                   "all functions but this one, matched in the same way; may be repeated")
      ->allow_extra_args(false);
  show_app->add_flag("--errors", show->options.selection.errors, "only calls that failed");
  show_app->add_flag("--lookups", show->options.lookups,
                     "list function look-ups (cuGetProcAddress) one by one instead of one line per series");
  show_app->add_flag("--json", show->options.json, "print a JSON array of objects, with addresses and their names");
  show_app
      ->add_option("--addresses", show->addresses,
                   "stable (default): handles and device memory as type and number (stream#2, dptr#3+0x100), the "
                   "program's own memory as &; raw: as the program saw them")
      ->check(CLI::IsMember({"stable", "raw"}));
  show_app->add_flag("--no-times", show->no_times,
                     "leave out times and process and thread ids, to compare two runs with diff");
  show_app->add_flag("--mangled", show->options.render.mangled,
                     "show kernels by their mangled names, as in the module");
  show_app->add_option("--elements", show->options.render.elements,
                       "show at most this many elements of an array (default 16; 0: all that were recorded)");

  auto exported = std::make_shared<ExportCommand>();
  CLI::App* const export_app = trace->add_subcommand("export", "write a timeline for a viewer such as Perfetto");
  export_app->add_option("dir", exported->directory, "folder of a trace, or one file")->required();
  export_app->add_option("--format", exported->format, "chrome: for ui.perfetto.dev and chrome://tracing")
      ->check(CLI::IsMember({"chrome"}));
  export_app->add_option("-o,--output", exported->output, "file to write (default: standard output)");

  show_app->callback([show, pid] { finish(show->run(pid->count() > 0)); });
  export_app->callback([exported] { finish(exported->run()); });
  trace->callback([trace, run] {
    if (!trace->get_subcommands().empty()) return;
    run->command = trace->remaining();  // main.cpp takes away a "--" in front of it
    finish(run->run());
  });
}

}  // namespace rota::tool
