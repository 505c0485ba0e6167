// Tests that ctest runs: which of them a process belonged to. Nothing in a test's environment names it, so the child of
// ctest that is the process, or its ancestor, is compared with the list of tests: command and folder. Where that is not
// enough (tests with the same command, attempts, scripts that became another program by exec), the log decides: it says
// how long each attempt took and in which order they ended. Where several assignments fit, tests are marked ambiguous.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/base/result.h"
#include "tools/rota/ci/ctest_files.h"
#include "tools/rota/ci/groups.h"
#include "tools/rota/report/session.h"

namespace rota::ci {

// A ctest among the processes' ancestors, however deep below `make check` or a script.
struct CtestRun {
  report::PersonRecord runner;
  std::string child_folder;  // of one of its children: tests run in the build folder or below, mostly
  bool last = true;          // no later ctest of the session ran in that folder, so the log there is of this one
  std::vector<std::string> selection{};  // options by which ctest lists only some of its tests
};

std::vector<CtestRun> ctest_runs(const std::vector<report::ProcessAccount>& processes);

// What is known about it from its files and by asking ctest.
struct AskedCtest {
  report::PersonRecord runner;
  std::vector<ListedTest> listed;
  std::vector<LoggedTest> logged;
  std::set<std::string> disabled;  // or skipped
  double timeout_s = 1500;         // of tests that have none of their own
};

// The tests are listed from a folder of rota's own that refers to the build folder: ctest would overwrite the log
// there.
Result<AskedCtest> ask_ctest(const CtestRun& run, report::Realtime boot_ns);

// Tests without CUDA have no processes, and no begin. A test that had not ended when ctest was killed is unknown.
std::vector<report::TestRecord> match_ctest(AskedCtest ctest, const std::vector<report::ProcessAccount>& processes,
                                            report::Realtime boot_ns);

// One of the rows that groups are assigned to: what the log says of the ends.
struct Slot {
  std::size_t test;
  double seconds;
};
struct Assignment {
  std::vector<std::optional<std::size_t>> slots;  // by group
  bool unique = false;
};
// Which slot each group took. Slots are in the order of their ends. A group has one slot, and takes no longer than the
// slot. Groups without a slot had not ended when ctest was killed. `allowed[group]` are the tests that it may belong
// to.
Assignment assign_slots(const std::vector<Group>& groups, const std::vector<std::vector<std::size_t>>& allowed,
                        const std::vector<Slot>& slots);

}  // namespace rota::ci
