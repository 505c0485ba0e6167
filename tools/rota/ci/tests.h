// Which tests a session's processes belonged to, where the runner starts a process for each test: ctest and bazel. The
// processes' accounts say who their ancestors were; nobody is asked while the tests run.
#pragma once

#include <string>
#include <vector>

#include "scheduler/base/result.h"
#include "tools/rota/report/session.h"

namespace rota::ci {

// Removes this process (the rig) and its own ancestors from the account's ancestors: a runner among them runs the rig,
// not its tests.
void leave_to_rig(report::ProcessAccount& account);

struct FoundTests {
  std::vector<report::TestRecord> tests;
  std::vector<std::string> problems;  // one line each; the rest was found nevertheless
};

// When the machine was started, by the wall clock. Start times of processes are relative to it.
report::Realtime boot_time();

// The tests of all runners in the session. Runs each of the session's ctests once more to list its tests, for at most
// half a minute each.
FoundTests find_tests(const std::vector<report::ProcessAccount>& processes, report::Realtime boot_ns);

// Finds the tests of a session whose list has not been written, since its rig was killed or still runs. Only on the
// machine where its accounts were written, and for the user who ran it, since the ctests that they name are run.
// Otherwise a problem says so.
void match_unfinished(report::Session& session);

// What tests.json holds: {"tests": […]}.
std::string test_list(const std::vector<report::TestRecord>& tests);
// Writes it into the session's folder, whole or not at all. The error names the file.
Result<bool> write_test_list(const std::string& session, const std::vector<report::TestRecord>& tests);

}  // namespace rota::ci
