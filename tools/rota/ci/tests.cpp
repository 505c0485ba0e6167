#include "tools/rota/ci/tests.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/rota/ci/bazel.h"
#include "tools/rota/ci/ctest.h"

namespace rota::ci {

report::Realtime boot_time() {
  const auto now = [](clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<report::Realtime>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  };
  return now(CLOCK_REALTIME) - now(CLOCK_BOOTTIME);
}

namespace {

void leave_to(const std::string& rig, report::ProcessAccount& account) {
  account.ancestors.erase(std::ranges::find(account.ancestors, rig, &report::PersonRecord::id),
                          account.ancestors.end());
}

bool is_own(const std::string& file) {
  struct stat info{};
  return stat(file.c_str(), &info) == 0 && info.st_uid == geteuid();
}

}  // namespace

void leave_to_rig(report::ProcessAccount& account) {
  static const std::string own = fmt::format("{}-{}", getpid(), report::start_ticks_of(getpid()));
  leave_to(own, account);
}

void match_unfinished(report::Session& session) {
  const std::string folder = session.path + "/";
  std::error_code error;
  if (session.job.end_ns != 0 || std::filesystem::exists(folder + report::kTestFile, error)) return;
  std::vector<report::ProcessAccount> processes = session.processes;
  for (report::ProcessAccount& process : processes) leave_to(session.job.recorder, process);
  if (ctest_runs(processes).empty()) return;
  const std::string boot = report::own_boot();
  const bool here = !boot.empty() && session.job.boot == boot;
  if (!here || !is_own(folder + report::kSessionFile)) {
    session.problems.push_back(fmt::format(
        "the tests of ctest are not known: the rota that ran this job was killed, or still runs, {}; use rota report "
        "there, as that user",
        here ? "as another user" : "on another machine or before this one was restarted"));
    return;
  }
  FoundTests found = find_tests(processes, boot_time());
  std::ranges::move(found.problems, std::back_inserter(session.problems));
  std::ranges::move(found.tests, std::back_inserter(session.tests));
  std::ranges::stable_sort(session.tests, {}, &report::TestRecord::begin_ns);
}

FoundTests find_tests(const std::vector<report::ProcessAccount>& processes, report::Realtime boot_ns) {
  FoundTests found;
  found.tests = bazel_tests(processes, boot_ns);
  for (const CtestRun& run : ctest_runs(processes)) {
    auto asked = ask_ctest(run, boot_ns);
    if (!asked) {
      found.problems.push_back(asked.error().text);
      continue;
    }
    std::ranges::move(match_ctest(*asked, processes, boot_ns), std::back_inserter(found.tests));
  }
  return found;
}

std::string test_list(const std::vector<report::TestRecord>& tests) {
  auto list = nlohmann::json::array();
  for (const report::TestRecord& test : tests) {
    auto entry = nlohmann::json{{"name", test.name},           {"runner", test.runner},   {"attempt", test.attempt},
                                {"ambiguous", test.ambiguous}, {"outcome", test.outcome}, {"begin_ns", test.begin_ns},
                                {"end_ns", test.end_ns},       {"command", test.command}, {"folder", test.folder},
                                {"processes", test.processes}};
    if (!test.message.empty()) entry["message"] = test.message;
    list.push_back(std::move(entry));
  }
  // Names and arguments may have any bytes; what is not UTF-8 is replaced.
  return nlohmann::json{{"tests", std::move(list)}}.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

Result<bool> write_test_list(const std::string& session, const std::vector<report::TestRecord>& tests) {
  return report::replace_file(session + "/" + report::kTestFile, test_list(tests));
}

}  // namespace rota::ci
