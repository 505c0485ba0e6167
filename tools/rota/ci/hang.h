// Finds processes of a session that make no progress, and says where they wait.
//
// A process makes progress when it begins a CUDA call other than a query. Its ancestors make progress then as well: a
// process that waits for its workers does not hang while they continue. A process that waits for its turn does not hang
// either; the one that it waits for may.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/rota/report/account_file.h"

namespace rota::ci {

using Time = std::chrono::nanoseconds;  // of a monotonic clock

// What was seen of a running process.
struct Glimpse {
  std::string id;                           // PID-START of the process (a program that it executed later has the same)
  std::vector<std::string> ancestors = {};  // their ids
  std::uint64_t progress = 0;               // grows while it makes some
  bool waits = false;                       // some thread waits in front of the gate
};

class HangWatch {
 public:
  explicit HangWatch(Time after) : after_(after) {}

  // Returns a running process that has made no progress for that long, and since when; each process once. Only the one
  // that stopped first is returned: when it is ended, others that waited for it may continue.
  struct Stopped {
    std::string id;
    Time since{0};
  };
  std::optional<Stopped> look(const std::vector<Glimpse>& running, Time now);
  // The process was not reported: it may be returned again.
  void again(const std::string& id) { seen_.at(id).told = false; }

 private:
  struct Seen {
    std::uint64_t progress;
    Time since;
    bool told = false;
  };
  Time after_;
  std::map<std::string, Seen> seen_;
};

// Calls that are progress: all but queries.
std::uint64_t progress_of(const report::ProcessAccount& process);

// Where a process waits: its threads with their calls and since when, its streams, and the stacks that can be obtained.
// Several lines. Takes seconds. `account` is the path of its account. `stack_signal` makes the pytest plugin write its
// stacks to FOLDER/stacks/PID.txt. What is not available by `until` is left out, and the text says so.
std::string place(const std::string& folder, const report::ProcessAccount& process, const std::string& account,
                  int stack_signal, Time until);

}  // namespace rota::ci
