// Finds processes of a session that make no progress, and says where they wait.
//
// A process makes progress when a CUDA call of it begins, other than a query, and so do its ancestors: who waits for
// its workers does not hang while they go on. Nor does a process that waits for its turn: whoever is in its way may.
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

// What was seen of a process that runs.
struct Glimpse {
  std::string id;                           // PID-START of the process (a program that it executed later has the same)
  std::vector<std::string> ancestors = {};  // their ids
  std::uint64_t progress = 0;               // grows while it makes some
  bool waits = false;                       // some thread waits in front of the gate
};

class HangWatch {
 public:
  explicit HangWatch(Time after) : after_(after) {}

  // Of those that run now, who has made no progress for that long, each once: with since when. One at a time, the one
  // that has stopped first: when it is ended, others that it was in the way of may go on.
  struct Stopped {
    std::string id;
    Time since{0};
  };
  std::optional<Stopped> look(const std::vector<Glimpse>& running, Time now);
  // Nothing has come of that: it may be answered again.
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

// Where a process waits: threads by call and since when, streams, and the stacks that can be had. Several lines. Takes
// seconds. `account` is the path of its account. `stack_signal` makes the pytest plugin write its stacks to
// FOLDER/stacks/PID.txt. What is not there by `until` is left out, which is said.
std::string place(const std::string& folder, const report::ProcessAccount& process, const std::string& account,
                  int stack_signal, Time until);

}  // namespace rota::ci
