// Which processes of a session run now, and which test each of them is or runs, by the session's files.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tools/rota/ci/ctest.h"
#include "tools/rota/report/session.h"

namespace rota::ci {

// A running test, and which processes belong to it.
struct RunningTest {
  // Its name as in a baseline; several if it may be any of them (they have the same command); none if it is not known.
  std::vector<std::string> names;
  std::string tree;  // never empty
};

class Identify {
 public:
  explicit Identify(std::string folder) : folder_(std::move(folder)) {}

  struct Process {
    report::ProcessAccount account;
    std::string path;  // of its account
  };
  // The accounts of running processes, of each the newest program. Any thread.
  std::vector<Process> running();
  // For a process of this session; it may have no account yet.
  RunningTest test_of(pid_t process);
  RunningTest test_of(const report::ProcessAccount& account);
  // Whether a list of ctest's tests is still being made, so that more may be known later.
  bool is_listing();

 private:
  // The test that the plugin in this process says it is running.
  std::optional<std::string> told_by(const std::string& id) const;
  std::optional<RunningTest> by_ctest(const report::ProcessAccount& account);

  std::string folder_;
  std::mutex mutex_;
  std::map<std::string, bool> ended_;  // account files that need not be read again
  // By the ctest's id: the request or its answer; nothing: it could not be asked.
  struct Listing {
    std::shared_future<std::optional<AskedCtest>> answer;
    std::chrono::steady_clock::time_point patience;
  };
  std::map<std::string, Listing> asked_;
};

}  // namespace rota::ci
