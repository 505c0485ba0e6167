// See record.h.
#include "tools/rota/report/record.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/rota/report/files.h"
#include "tools/rota/report/format.h"
#include "tools/rota/report/report_folder.h"
#include "tools/rota/report/uncovered_watch.h"
#include "tools/rota/report/upkeep.h"
#include "tools/rota/run/output.h"
#include "tools/rota/run/wait.h"
#include "tools/rota/try/output_folder.h"
#include "tools/rota/try/processes.h"

namespace rota::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// How long processes may take to end after the command has ended, such as workers of a pool.
constexpr int kGraceMs = 1000;
constexpr int kStepMs = 20;

void say(const std::string& line) {
  tool::write_message("rota: " + printable(line) + "\n");
}

Realtime now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<Realtime>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// The description of this session, written before the job runs and again after its end.
class Description {
 public:
  Description(std::string folder, const tool::LaunchOptions& options, const std::string& name)
      : folder_(std::move(folder)) {
    char host[HOST_NAME_MAX + 1] = {};
    gethostname(host, sizeof host - 1);
    std::error_code error;
    object_ = {{"version", 1},
               {"rota", ROTA_VERSION},
               {"name", name},
               {"command", options.command},
               {"folder", fs::current_path(error).string()},
               {"host", host},
               {"boot", own_boot()},
               {"recorder", fmt::format("{}-{}", getpid(), start_ticks_of(getpid()))},
               {"begin_ns", now()},
               {"ended", ordered_json::array()},
               {"left_running", ordered_json::array()}};
  }

  // Called with each process that this one reaps; those with an account, or that ran tests, are recorded.
  void ended(const siginfo_t& info) {
    const std::string id = fmt::format("{}-{}", info.si_pid, start_ticks_of(info.si_pid));
    std::error_code error;
    const fs::path folder(folder_);
    if (!fs::exists(folder / kProcessFolder / (id + ".account"), error) &&
        !fs::exists(folder / kTestFolder / (id + ".jsonl"), error)) {
      return;
    }
    ordered_json end = {{"process", id}, {"time_ns", now()}};
    end[info.si_code == CLD_EXITED ? "exit_code" : "signal"] = info.si_status;
    object_["ended"].push_back(std::move(end));
  }

  void left_running(pid_t process) {
    const std::string name = attempt::process_name(process);
    object_["left_running"].push_back(
        {{"process", fmt::format("{}-{}", process, start_ticks_of(process))}, {"name", name}});
    say(fmt::format("still running after the command: {} (pid {})", printable(name), process));
  }

  // PID-START of this process.
  std::string recorder() const { return object_["recorder"].get<std::string>(); }

  // Reported to the session around this one.
  Result<bool> hand_out_ends(const std::string& outer) const {
    const fs::path folder = fs::path(outer) / kEndFolder;
    std::error_code error;
    fs::create_directories(folder, error);
    return replace_file((folder / (recorder() + ".json")).string(), object_["ended"].dump() + "\n");
  }

  void over(Realtime time, int exit_code) {
    object_["end_ns"] = time;
    object_["exit_code"] = exit_code;
  }

  Result<bool> write() const {
    const std::string text = object_.dump(2, ' ', false, ordered_json::error_handler_t::replace);
    return replace_file((fs::path(folder_) / kSessionFile).string(), text + "\n");
  }

 private:
  std::string folder_;
  ordered_json object_;
};

// The folder of the session that this process runs in; empty: none.
std::string outer_session() {
  const char* const folder = getenv("ROTA_REPORT");
  std::error_code error;
  if (folder == nullptr || *folder == '\0' || !fs::is_directory(fs::path(folder) / kProcessFolder, error)) return {};
  return fs::absolute(folder, error).string();
}

// Copies a process's account into another session, unless it has a name there already (File::share).
void hand_out_account(const fs::path& account, const fs::path& processes, std::error_code& error) {
  for (int number = 0;; ++number) {
    const std::string name =
        number == 0 ? account.stem().string() : fmt::format("{}-{}", account.stem().string(), number);
    const fs::path other = processes / (name + ".account");
    if (fs::exists(other, error)) {
      if (fs::equivalent(account, other, error)) return;
      continue;
    }
    if (!error) fs::copy_file(account, other, error);
    return;
  }
}

// What the processes of a session say belongs to the session around it as well.
void hand_out(const std::string& session, const std::string& outer) {
  std::error_code error;
  for (const char* inside : {kProcessFolder, kTestFolder, kLostFolder, kHangFolder, kEndFolder}) {
    std::error_code none;  // these exist only after hangs, or with sessions within this one
    for (const auto& entry : fs::directory_iterator(fs::path(session) / inside, none)) {
      const fs::path folder = fs::path(outer) / inside;
      fs::create_directories(folder, error);
      if (inside == std::string_view(kProcessFolder)) {
        hand_out_account(entry.path(), folder, error);
      } else {
        fs::copy_file(entry.path(), folder / entry.path().filename(), fs::copy_options::overwrite_existing, error);
      }
      if (error) break;
    }
  }
  if (error) say(fmt::format("the report around this one lacks some of its processes: {}", error.message()));
}

// Or one of its workers (scheduler/server/worker_process.h).
bool is_rotad(const std::string& name) {
  return name == "rotad" || name == "rotad-files";
}

// A rotad that `rota run` has started is not the job's.
std::vector<pid_t> job_processes(const std::function<bool(pid_t)>& own) {
  std::vector<pid_t> processes = attempt::descendants();
  std::erase_if(processes,
                [&](pid_t process) { return is_rotad(attempt::process_name(process)) || (own && own(process)); });
  return processes;
}

void wait_for_the_rest(Description& description, const std::function<bool(pid_t)>& own) {
  const auto ended = [&](const siginfo_t& info) { description.ended(info); };
  // A time limit, since each check takes a while on a busy machine.
  const Realtime until = now() + Realtime{kGraceMs} * 1'000'000;
  do {
    tool::reap(0, ended);
    if (job_processes(own).empty()) break;
    poll(nullptr, 0, kStepMs);
  } while (now() < until);
  tool::reap(0, ended);
  for (const pid_t process : job_processes(own)) description.left_running(process);
}

}  // namespace

bool write_report(const Report& report, const Target& target) {
  bool written = true;
  const auto write = [&](const std::string& path, Format format) {
    if (const auto done = write_file(path, render(report, format)); !done) {
      say(done.error().text);
      written = false;
    }
  };
  if (target.format) {
    write(target.path, *target.format);
  } else {
    for (const FolderFile& file : kFolderFiles) write((fs::path(target.path) / file.name).string(), file.format);
  }
  return written;
}

Result<bool> write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return Error{fmt::format("cannot write {}: {}", path, std::strerror(errno))};
  return true;
}

Result<bool> check_file(const std::string& path) {
  std::error_code error;
  const fs::path absolute = resolved(path);
  const fs::path folder = absolute.parent_path();
  const auto refuse = [&](const std::string& why) { return Error{fmt::format("{}: {}", path, why)}; };
  if (fs::is_directory(absolute, error)) return refuse("is a folder: name a file");
  if (!fs::is_directory(folder, error)) {
    return refuse(fmt::format("there is no folder {}: make it, or name another file", folder.string()));
  }
  const bool exists = fs::exists(absolute, error);
  if (access((exists ? absolute : folder).c_str(), exists ? W_OK : W_OK | X_OK) != 0) {
    return refuse(fmt::format("cannot be written: {}; name another file", std::strerror(errno)));
  }
  return true;
}

std::vector<NamedFile> files_of_folder(const std::string& option, const std::string& folder, bool reports) {
  std::vector<NamedFile> files;
  if (folder.empty()) return files;
  const auto add = [&](const char* name) {
    files.push_back({fmt::format("{} ({})", option, name), (fs::path(folder) / name).string()});
  };
  for (const char* name : {kSessionFile, kTestFile}) add(name);
  for (const FolderFile& file : kFolderFiles) {
    if (reports) add(file.name);
  }
  return files;
}

Result<Target> prepare_target(const std::string& path) {
  if (path.empty()) return Error{"--report needs the name of a file or of a folder"};
  std::error_code error;
  const fs::path absolute = resolved(path);
  std::optional<Format> format;
  if (!path.ends_with('/') && !fs::is_directory(absolute, error)) {
    format = format_by_file(path);
    const std::string ending = absolute.extension().string();
    if (!format && !ending.empty()) {
      return Error{
          fmt::format("--report {}: {} is no format of reports: use .txt, .json, .xml or .html, or end a folder's name "
                      "with a slash",
                      path, ending)};
    }
  }
  if (format) {
    if (const auto checked = check_file(path); !checked) return Error{"--report " + checked.error().text};
    return Target{.path = absolute.string(), .format = format, .lock = {}};
  }
  auto folder = prepare_folder(path);
  if (!folder) return Error{"--report " + folder.error().text};
  return Target{.path = std::move(folder->path), .format = std::nullopt, .lock = std::move(folder->lock)};
}

Result<Report> make_report(const std::string& folder, Demands demands, const std::function<void(Session&)>& complete) {
  auto session = read_session(folder);
  if (!session) return session.error();
  if (complete) complete(*session);
  Report report{.model = make_model(std::move(*session)), .suppressions = {}, .judgement = {}};
  report.judgement = judge(report.model, demands);
  report.suppressions = std::move(demands.suppressions);
  return report;
}

Result<int> run_session(tool::LaunchOptions options, const tool::TakenSignals& signals, const std::string& folder,
                        const std::string& name, const std::function<void(int)>& signalled,
                        const std::function<bool(pid_t)>& own, const std::function<tool::LaunchOptions()>& in_place) {
  Description description(folder, options, name);
  if (const auto written = description.write(); !written) return written.error();
  options.environment.emplace_back("ROTA_REPORT", folder);
  const std::string outer = outer_session();
  options.environment.emplace_back("ROTA_REPORT_OUTER", outer);
  const bool adopts = attempt::adopt_orphans();
  const UncoveredWatch uncovered;
  std::optional<UpkeepWhileRunning> upkeep(std::in_place, folder, description.recorder());
  const int ending = tool::run_and_wait(options, signals,
                                        {.ended = [&](const siginfo_t& info) { description.ended(info); },
                                         .signalled = signalled,
                                         .clean_up = nullptr,
                                         .in_place = in_place,
                                         .adopts = adopts});
  // From here on a file that may not grow any further is an error to report, and does not end this process.
  signal(SIGXFSZ, SIG_IGN);
  const Realtime end = now();
  wait_for_the_rest(description, own);
  upkeep.reset();
  description.over(end, tool::shell_code(ending));
  if (!outer.empty()) {
    hand_out(folder, outer);
    if (const auto handed = description.hand_out_ends(outer); !handed) say(handed.error().text);
  }
  if (const auto written = description.write(); !written) say(written.error().text);
  return ending;
}

int run_and_report(tool::LaunchOptions options, const Recording& recording) {
  const auto target = prepare_target(recording.target);
  if (!target) {
    say(target.error().text + "; the program is not started");
    return kNotRun;
  }
  std::optional<attempt::OutputFolder> temporary;
  std::string folder = target->path;
  if (target->format) {
    temporary.emplace("rota-report");
    std::string problem = temporary->problem();
    if (problem.empty()) {
      folder = temporary->path();
      if (const auto made = make_session_folders(folder, true); !made) problem = made.error().text;
    }
    if (!problem.empty()) {
      say(problem + "; the program runs without a report");
      temporary.reset();
      return tool::run_in_place(options);
    }
  }
  const tool::TakenSignals signals;
  const auto ran = run_session(options, signals, folder, recording.name, nullptr, nullptr, [&] {
    say("the program runs without a report");
    return options;
  });
  if (!ran) {
    say(ran.error().text + "; the program runs without a report");
    temporary.reset();
    signals.hand_on();
    return tool::run_in_place(options);
  }
  const int ending = *ran;
  const auto report = make_report(folder, {});
  if (!report) {
    say(report.error().text);
    return ending;
  }
  const bool written = write_report(*report, *target);
  const Model& model = report->model;
  say(fmt::format("{} called CUDA, {}{}", count_text(model.processes.size(), "process", "processes"),
                  count_text(report->judgement.findings.size(), "finding", "findings"),
                  written ? ": " + recording.target : ""));
  if (!written) {
    tool::write_message(text_report(*report), tool::kReportPatience);
    if (temporary) say(fmt::format("what it was made of is in {} (rota report {})", temporary->keep(), folder));
  }
  return ending;
}

}  // namespace rota::report
