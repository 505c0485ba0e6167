#include "tools/rota/ci/rig.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "tools/rota/ci/broker.h"
#include "tools/rota/ci/hang.h"
#include "tools/rota/ci/helper.h"
#include "tools/rota/ci/identify.h"
#include "tools/rota/ci/notes.h"
#include "tools/rota/ci/parallel.h"
#include "tools/rota/ci/room.h"
#include "tools/rota/ci/suggest.h"
#include "tools/rota/ci/tests.h"
#include "tools/rota/ci/thread.h"
#include "tools/rota/report/format.h"
#include "tools/rota/report/record.h"
#include "tools/rota/report/report_folder.h"
#include "tools/rota/run/output.h"
#include "tools/rota/run/wait.h"
#include "tools/rota/try/output_folder.h"

namespace rota::ci {

using namespace std::chrono_literals;
using report::Report;

namespace {

// A real-time signal that nothing else is known to use: makes the pytest plugin write its Python stacks.
int stack_signal() {
  return SIGRTMIN + 11;
}

// How often processes are checked for hangs, at least.
constexpr auto kCheckInterval = 1s;
// After a process was ended, those that may have waited for it have this long to continue, also on a busy machine.
constexpr auto kRecovery = 5s;
// The longest time for asking debuggers about all processes when a signal ends the job: whoever sent it will not wait
// long.
constexpr auto kWhileEnding = 8s;
// From being told to end to being killed.
constexpr auto kGrace = 5s;

constexpr const char* kWithoutRig = "the command runs without a rig, its tests are not judged";

// Folders of killed rigs are removed by the next one.
constexpr const char* kTemporary = "rota-ci";

void say_text(const std::string& text) {
  tool::write_message("rota ci: " + text + "\n");
}

void say(const std::string& line) {
  say_text(report::printable(line));
}

Time now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

// Watches for processes that have stopped making progress. Also notes where all processes are when the job is told to
// end.
class Watcher {
 public:
  Watcher(std::string folder, Identify& identify, Time after)
      : folder_(std::move(folder)), identify_(identify), watch_(after), after_(after) {
    if (after_ <= 0s) return;
    auto started = without_signals([this] { run(); });
    if (started) {
      thread_ = std::move(*started);
    } else {
      say("hangs are not noticed: " + started.error().text);
    }
  }
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // The job is about to be told to end by this signal.
  void signalled(int number) {
    if (number != SIGTERM || std::exchange(ended_, true)) return;
    const Time until = now() + kWhileEnding;
    for (const auto& process : identify_.running()) {
      if (process.account.inside.empty()) continue;
      record(process, identify_.test_of(process.account), "it was told to end (SIGTERM)", until);
    }
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    const Time most = std::min<Time>(kCheckInterval, after_ / 4);
    Time pause = most;
    while (!changed_.wait_for(lock, pause, [this] { return stops_; })) {
      lock.unlock();
      pause = check() ? kRecovery : most;
      lock.lock();
    }
  }

  // Ends a process that hangs. Returns whether there was one.
  bool check() {
    const auto running = identify_.running();
    std::vector<Glimpse> seen;
    for (const auto& process : running) {
      Glimpse glimpse{.id = process.account.self.id(),
                      .ancestors = {},
                      .progress = progress_of(process.account),
                      .waits = process.account.waiting};
      for (const auto& ancestor : process.account.ancestors) glimpse.ancestors.push_back(ancestor.id());
      seen.push_back(std::move(glimpse));
    }
    const auto stopped = watch_.look(seen, now());
    if (!stopped) return false;
    const auto process =
        std::ranges::find(running, stopped->id, [](const auto& each) { return each.account.self.id(); });
    if (process == running.end()) return false;
    RunningTest test = identify_.test_of(process->account);
    if (test.names.empty()) {  // a process that is no test may be idle on purpose
      if (identify_.is_listing()) {
        watch_.again(stopped->id);
        return false;
      }
      test = identify_.test_of(process->account);  // the list may have arrived in between
    }
    const auto so_long = std::chrono::duration_cast<std::chrono::seconds>(now() - stopped->since).count();
    record(*process, test, fmt::format("no CUDA call for {} s", so_long), now() + 60s);
    // A process that is no test and is not in a CUDA call may be there on purpose.
    if (test.names.empty() && process->account.inside.empty()) return false;
    end(process->account.self);
    return true;
  }

  void record(const Identify::Process& process, const RunningTest& test, const std::string& why, Time until) {
    const report::ProcessAccount& account = process.account;
    std::string text =
        fmt::format("{} (pid {}): {}\n", report::command_text(account.self.command, 60), account.self.pid, why);
    text += place(folder_, account, process.path, stack_signal(), until);
    const std::string name = test.names.empty() ? "" : report::printable(test.names.front()) + ", ";
    say_text("hangs: " + name + text.substr(0, text.size() - 1));
    std::error_code error;
    const std::string hangs = folder_ + "/" + report::kHangFolder;
    std::filesystem::create_directories(hangs, error);
    if (const auto written = report::write_file(fmt::format("{}/{}.txt", hangs, account.self.id()), text); !written) {
      say(written.error().text);
    }
  }

  // SIGTERM comes first, so that the program's own handler or a debugger can say more.
  void end(const report::PersonRecord& person) {
    const auto pid = static_cast<pid_t>(person.pid);
    if (!report::is_running(pid, person.start_ticks)) return;
    kill(pid, SIGTERM);
    const Time until = now() + kGrace;
    std::unique_lock lock(mutex_);
    while (report::is_running(pid, person.start_ticks) && now() < until && !stops_) changed_.wait_for(lock, 50ms);
    if (report::is_running(pid, person.start_ticks)) kill(pid, SIGKILL);
  }

  std::string folder_;
  Identify& identify_;
  HangWatch watch_;
  Time after_;
  bool ended_ = false;  // used by the main thread only
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stops_ = false;
  std::thread thread_;
};

// The files that may be in the report's folder in addition to the report.
std::vector<report::NamedFile> named_files(const RigOptions& options) {
  std::vector<report::NamedFile> files;
  for (const std::string& path : {options.junit, options.json, options.html, options.judging.baseline,
                                  options.judging.update, options.judging.suppressions}) {
    files.push_back({.option = "", .path = path});
  }
  return files;
}

struct Output {
  std::string path;
  report::Format format;
};

Result<std::vector<Output>> outputs_of(const RigOptions& options) {
  std::vector<Output> all;
  for (const auto& [option, path, format] : {std::tuple("--junit", options.junit, report::Format::kJunit),
                                             std::tuple("--json", options.json, report::Format::kJson),
                                             std::tuple("--html", options.html, report::Format::kHtml)}) {
    if (path.empty()) continue;
    if (const auto checked = report::check_file(path); !checked) {
      return Error{fmt::format("{} {}", option, checked.error().text)};
    }
    all.push_back({path, format});
  }
  auto files = report::files_of_folder("--report-dir", options.report_folder, true);
  for (const auto& [option, path] :
       {std::pair("--junit", options.junit), std::pair("--json", options.json), std::pair("--html", options.html)}) {
    files.push_back({.option = option, .path = path});
  }
  if (const auto checked = options.judging.check_files(std::move(files)); !checked) return checked.error();
  return all;
}

Knowledge knowledge_of(Identify& identify, Room& room, const report::Baseline& baseline) {
  // The test that a process belongs to does not change, so it is looked up once.
  const auto trees = std::make_shared<std::map<std::string, std::string>>();
  return {.test_of =
              [&identify, &baseline](pid_t process) {
                const RunningTest test = identify.test_of(process);
                Knowledge::Test known{
                    .name = test.names.empty() ? "" : test.names.front(), .tree = test.tree, .needs = std::nullopt};
                for (const std::string& name : test.names) {
                  const auto entry = baseline.find(name);
                  if (entry == baseline.end()) continue;
                  Needs needs = needs_of(entry->second);
                  if (known.needs && sum_of(needs) <= sum_of(*known.needs)) continue;
                  known.needs = std::move(needs);
                  known.added = entry->second.added_bytes.has_value();
                }
                return known;
              },
          .gpu_of = [&room](const std::string& uuid, std::uint64_t total) { room.gpu(uuid, total); },
          .room = [&room] { return room.bytes(); },
          .used =
              [&identify, &room, trees] {
                std::map<std::string, Knowledge::Used> used;
                for (const auto& process : identify.running()) {
                  std::string& tree = (*trees)[process.account.self.id()];
                  if (tree.empty()) tree = identify.test_of(process.account).tree;
                  Knowledge::Used& of_tree = used[tree];
                  add_used(of_tree.bytes, of_tree.staying, process.account, room.leaving(process.account.self.pid));
                }
                return used;
              }};
}

// Runs the job and returns how it ended. Nothing: its options cannot be met, and a message said so. The error: its
// session cannot be described; then the job was not started.
Result<std::optional<int>> run_job(const RigOptions& options, const tool::TakenSignals& signals, Spread spread,
                                   const std::string& folder, const report::Baseline& baseline,
                                   std::vector<std::string>& overcommitted) {
  Identify identify(folder);
  Room room(identify);
  tool::LaunchOptions launch = options.launch;
  // Without an option all tests usually use the first GPU.
  const auto gpus =
      static_cast<unsigned>(spread.each == 0 ? 1 : std::max<std::size_t>(1, spread.gpus.size() / spread.each));
  FittedCommand fitted = fit_to_timeouts(launch.command, std::getenv, baseline, gpus);
  if (!fitted.note.empty()) say(fitted.note);
  launch.command = std::move(fitted.run.command);
  for (auto& variable : fitted.run.changed) launch.environment.push_back(std::move(variable));
  launch.environment.emplace_back("ROTA_STACK_SIGNAL", std::to_string(stack_signal()));
  if (options.repeat > 1) {
    launch.environment.emplace_back("ROTA_CI_REPEAT", std::to_string(options.repeat));
    launch.environment.emplace_back("GTEST_REPEAT", std::to_string(options.repeat));
  }
  std::unique_ptr<Broker> broker;
  const bool spreads = spread.each != 0;
  // Without known needs no test would wait.
  if (spreads || !baseline.empty()) {
    for (const VisibleGpu& gpu : spread.gpus) room.gpu(gpu.uuid, gpu.bytes);
    auto started = Broker::start(knowledge_of(identify, room, baseline), std::move(spread));
    if (!started && spreads) {
      say(fmt::format("--gpus-per-test {}: {}; the command is not started", options.gpus_per_test,
                      started.error().text));
      return std::optional<int>();
    }
    if (started) {
      broker = std::move(*started);
      launch.environment.emplace_back("ROTA_ADMISSION", broker->socket());
      const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
      if (spreads) launch.environment.emplace_back("ROTA_CI_GPUS", visible != nullptr ? visible : "");
    } else {
      say("tests begin without waiting until they fit: " + started.error().text);
    }
  }
  Watcher watcher(folder, identify, options.hang_after);
  const auto ran = report::run_session(
      std::move(launch), signals, folder, options.name, [&](int number) { watcher.signalled(number); }, is_helper,
      [&] {
        say(kWithoutRig);
        return options.launch;
      });
  watcher.stop();
  if (broker) overcommitted = broker->finish();
  end_helpers();  // nobody waits for the listings any more
  if (!ran) return ran.error();
  return std::optional(*ran);
}

// Runs the job without a rig, for which there is no space here. The rig's rules were not checked, so the result is no
// success.
int run_without_rig(const RigOptions& options, const tool::TakenSignals& signals, const std::string& why) {
  say(why + "; " + kWithoutRig);
  tool::Waiting waiting;
  waiting.in_place = [&] { return options.launch; };
  const int ending = tool::run_and_wait(options.launch, signals, waiting);
  return ending != 0 ? ending : kRigFailed;
}

void match_tests(const std::string& folder) {
  auto session = report::read_session(folder);
  if (!session) return;  // the error was reported when the report was made
  for (report::ProcessAccount& process : session->processes) leave_to_rig(process);
  const FoundTests found = find_tests(session->processes, boot_time());
  for (const std::string& problem : found.problems) say(problem);
  if (found.tests.empty()) return;
  if (const auto written = write_test_list(folder, found.tests); !written) say(written.error().text);
}

}  // namespace

int run_rig(const RigOptions& options) {
  const auto refuse = [](const std::string& why) {
    say(why + "; the command is not started");
    return kRigFailed;
  };
  const auto outputs = outputs_of(options);
  if (!outputs) return refuse(outputs.error().text);
  auto demands = options.judging.demands();
  if (!demands) return refuse(demands.error().text);
  Spread spread;
  if (options.gpus_per_test != 0) {
    auto seen = gpus_for_tests(options.gpus_per_test);
    if (!seen) return refuse(seen.error().text);
    spread = {std::move(*seen), options.gpus_per_test};
  }
  std::optional<attempt::OutputFolder> temporary;
  std::string folder;
  Descriptor lock;  // of the report's folder
  if (!options.report_folder.empty()) {
    attempt::OutputFolder::remove_stale(kTemporary);
    auto prepared = report::prepare_folder(options.report_folder, named_files(options));
    if (!prepared) return refuse("--report-dir " + prepared.error().text);
    folder = prepared->path;
    lock = std::move(prepared->lock);
  } else {
    temporary.emplace(kTemporary);
    std::string problem = temporary->problem();
    if (problem.empty()) {
      folder = temporary->path();
      if (const auto made = report::make_session_folders(folder, true); !made) problem = made.error().text;
    }
    if (!problem.empty()) {
      temporary.reset();
      return run_without_rig(options, tool::TakenSignals(), problem);
    }
  }
  const report::Baseline baseline = demands->baseline.value_or(report::Baseline{});
  std::vector<std::string> overcommitted;
  const tool::TakenSignals signals;
  const auto ran = run_job(options, signals, std::move(spread), folder, baseline, overcommitted);
  if (!ran) {
    temporary.reset();
    return run_without_rig(options, signals, ran.error().text);
  }
  const std::optional<int> code = *ran;
  if (!code) return kRigFailed;
  signal(SIGPIPE, SIG_IGN);  // the reader of the output may have ended
  match_tests(folder);
  auto made = report::make_report(folder, std::move(*demands));
  if (!made) {
    say(made.error().text);
    return *code != 0 ? *code : kRigFailed;
  }
  std::ranges::move(rig_notes(made->model), std::back_inserter(made->judgement.notes));
  for (const std::string& test : overcommitted) {
    made->judgement.notes.push_back(
        fmt::format("{} began although what it needs did not fit next to the others", report::printable(test)));
  }
  bool written = true;
  const auto write = [&](const Result<bool>& result) {
    if (!result) say(result.error().text);
    written &= static_cast<bool>(result);
  };
  for (const Output& output : *outputs) write(report::write_file(output.path, render(*made, output.format)));
  if (!options.report_folder.empty())
    written &= report::write_report(*made, {.path = folder, .format = std::nullopt, .lock = {}});
  write(options.judging.write_update(*made));
  tool::write_message(report::text_report(*made), tool::kReportPatience);
  if (options.suggest) written &= tool::print("rota ci", suggestions(made->model));
  if (options.github) written &= tool::print("rota ci", render(*made, report::Format::kGithub));
  if (!written) {
    if (temporary) say(fmt::format("what the report was made of is in {} (rota report DIR)", temporary->keep()));
    return *code != 0 ? *code : kRigFailed;
  }
  const std::size_t findings = made->judgement.findings.size();
  // A rule cannot be checked against what is not known.
  const bool blind = !made->model.problems.empty() && !options.judging.fail_on.empty();
  if (*code == 0 && findings == 0 && blind) {
    say("the rules of --fail-on cannot be judged: " + made->model.problems.front());
    return kRigFailed;
  }
  say(fmt::format("{}{}", report::count_text(findings, "finding", "findings"),
                  options.report_folder.empty() ? "" : "; the report is in " + options.report_folder));
  return *code != 0 ? *code : findings != 0 ? kFindings : 0;
}

}  // namespace rota::ci
