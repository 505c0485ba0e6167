#include "tools/rota/ci/identify.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "tools/rota/ci/bazel.h"
#include "tools/rota/ci/tests.h"
#include "tools/rota/ci/thread.h"

namespace rota::ci {

namespace fs = std::filesystem;

namespace {

// Bytes at the end of a process's file of tests, in which the running one is searched for first: a process may run
// thousands.
constexpr std::streamoff kLatestEvents = 16 << 10;
constexpr auto kListing = std::chrono::seconds(2);

// On a separate thread, which ends by itself: a listing takes half a minute at most. If no thread can be started,
// nothing is known.
std::shared_future<std::optional<AskedCtest>> ask_beside(const CtestRun& run) {
  const auto promise = std::make_shared<std::promise<std::optional<AskedCtest>>>();
  auto started = without_signals([run, promise] {
    auto asked = ask_ctest(run, boot_time());
    promise->set_value(asked ? std::optional<AskedCtest>(std::move(*asked)) : std::nullopt);
  });
  if (started) {
    started->detach();
  } else {
    promise->set_value(std::nullopt);
  }
  return promise->get_future().share();
}

// A test that has begun and not ended in the rest of the file: it is running, since its process is.
std::optional<std::string> running_test(std::istream& file, const std::string& id) {
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string> problems;
  const auto tests = report::read_test_events(text, id, id, problems);
  for (auto test = tests.rbegin(); test != tests.rend(); ++test) {
    if (test->end_ns == 0) return test->name;
  }
  return std::nullopt;
}

// The process itself or the ancestor of it that this runner started.
std::string child_of(const std::string& runner, const report::ProcessAccount& account) {
  std::string child = account.self.id();
  for (const report::PersonRecord& ancestor : account.ancestors) {
    if (ancestor.id() == runner) break;
    child = ancestor.id();
  }
  return child;
}

}  // namespace

std::vector<Identify::Process> Identify::running() {
  std::map<std::string, Process> newest;  // by PID-START
  std::error_code error;
  const std::lock_guard lock(mutex_);
  for (const auto& entry : fs::directory_iterator(fs::path(folder_) / report::kProcessFolder, error)) {
    const std::string path = entry.path().string();
    if (ended_.contains(path)) continue;
    auto account = report::read_account(path);
    if (!account) continue;  // being made, or damaged: the report says so
    if (account->ending != report::Ending::kRunning) {
      ended_[path] = true;
      continue;
    }
    leave_to_rig(*account);
    const std::string id = account->self.id();
    const auto known = newest.find(id);
    if (known != newest.end() && known->second.account.began_ns > account->began_ns) continue;
    newest[id] = {std::move(*account), path};
  }
  std::vector<Process> all;
  for (auto& [id, process] : newest) all.push_back(std::move(process));
  return all;
}

std::optional<std::string> Identify::told_by(const std::string& id) const {
  const fs::path path = fs::path(folder_) / report::kTestFolder / (id + ".jsonl");
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  if (fs::file_size(path, error) > kLatestEvents) {
    file.seekg(-kLatestEvents, std::ios::end);
    std::string cut_off;
    std::getline(file, cut_off);
    if (auto test = running_test(file, id)) return test;
    file.clear();
    file.seekg(0);
  }
  return running_test(file, id);
}

std::optional<RunningTest> Identify::by_ctest(const report::ProcessAccount& account) {
  const std::vector<report::ProcessAccount> one{account};
  for (const CtestRun& run : ctest_runs(one)) {
    const std::string id = run.runner.id();
    Listing listing;
    {
      const std::lock_guard lock(mutex_);
      Listing& known = asked_[id];
      if (!known.answer.valid()) known = {ask_beside(run), std::chrono::steady_clock::now() + kListing};
      listing = known;
    }
    // The first test waits a moment for the listing. A build may take longer to list; until then nothing is known about
    // its tests.
    if (listing.answer.wait_until(listing.patience) != std::future_status::ready) continue;
    std::optional<AskedCtest> asked = listing.answer.get();
    if (!asked) continue;
    asked->logged.clear();  // of earlier runs
    for (const report::TestRecord& test : match_ctest(*asked, one, boot_time())) {
      if (test.processes.empty()) continue;
      RunningTest running{.names = {test.name}, .tree = child_of(run.runner.id(), account)};
      for (const ListedTest& listed : asked->listed) {
        const bool same = listed.command == test.command && listed.folder == test.folder;
        if (test.ambiguous && same && listed.name != test.name) running.names.push_back(listed.name);
      }
      return running;
    }
  }
  return std::nullopt;
}

bool Identify::is_listing() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(asked_, [](const auto& entry) {
    return entry.second.answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  });
}

RunningTest Identify::test_of(const report::ProcessAccount& account) {
  const std::string id = account.self.id();
  if (auto name = told_by(id)) return {{*name}, id};
  for (const report::PersonRecord& ancestor : account.ancestors) {
    if (auto name = told_by(ancestor.id())) return {{*name}, ancestor.id()};
  }
  const std::vector<report::ProcessAccount> one{account};
  if (const auto bazel = bazel_tests(one, boot_time()); !bazel.empty())
    return {{bazel.front().name}, bazel.front().name};
  if (auto test = by_ctest(account)) return std::move(*test);
  return {{}, id};
}

RunningTest Identify::test_of(pid_t process) {
  const std::string prefix = fmt::format("{}-{}", process, report::start_ticks_of(process));
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(folder_) / report::kProcessFolder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix + ".") && !name.starts_with(prefix + "-")) continue;
    // Its ancestors stay the same whatever program it executes.
    if (auto account = report::read_account(entry.path().string())) {
      leave_to_rig(*account);
      return test_of(*account);
    }
  }
  return {{}, prefix};
}

}  // namespace rota::ci
