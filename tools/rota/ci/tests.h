// Which tests a session's processes belonged to, where the runner starts a process for each test: ctest and bazel. The
// processes' accounts say who their ancestors were; nobody is asked while the tests run.
#pragma once

#include <string>
#include <vector>

#include "scheduler/base/result.h"
#include "tools/rota/report/session.h"

namespace rota::ci {

// Takes this process, which is the rig, and those that it was started by from the account's ancestors: a runner among
// them runs the rig, not its tests.
void leave_to_rig(report::ProcessAccount& account);

struct FoundTests {
  std::vector<report::TestRecord> tests;
  std::vector<std::string> problems;  // a line each; the rest was found all the same
};

// When the machine was started, by the clock on the wall: what start times of processes count from.
report::Realtime boot_time();

// Of all runners in the session. Runs the session's ctests once more each, to list tests, at most half a minute each.
FoundTests find_tests(const std::vector<report::ProcessAccount>& processes, report::Realtime boot_ns);

// Of a session whose rota has not come to its end, so that nobody has written the list: the rig was killed, or runs.
// Only where its accounts were written, and for the user who ran it: a ctest that they name is run. Otherwise a problem
// says so.
void match_unfinished(report::Session& session);

// What tests.json holds: {"tests": […]}.
std::string test_list(const std::vector<report::TestRecord>& tests);
// Writes it into the session's folder, whole or not at all. The error names the file.
Result<bool> write_test_list(const std::string& session, const std::vector<report::TestRecord>& tests);

}  // namespace rota::ci
