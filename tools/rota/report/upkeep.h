// Maintains a session's accounts while it runs.
//
// Disk space: a process reserves its whole account (account::File::reserve), since a page for which a full disk has no
// space would end it by SIGBUS. Most of that stays zero: a small test uses 44 of 180 KiB. Once the process has ended,
// pages of zeros become holes, which read the same.
//
// Signs of life: a process whose monitor does not run, such as one that waits for `rota ci` to let it in, gives none
// itself. If it is killed, its account gets the moment at which it was last seen here.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace rota::report {

class Upkeep {
 public:
  // For the session in `folder`, whose processes descend from the process `recorder` (PID-START).
  Upkeep(std::string folder, std::string recorder) : folder_(std::move(folder)), recorder_(std::move(recorder)) {}

  // Accounts of processes that have ended since the last time.
  void sweep();

 private:
  std::string folder_;
  std::string recorder_;
  // By file name.
  std::map<std::string, std::int64_t> seen_;  // processes that ran, and when that was last seen (CLOCK_MONOTONIC)
  std::set<std::string> done_;                // or must not be touched
};

// Sweeps once a second, and at the end, on a thread that takes no signals. Where no thread can be started there is only
// the last sweep.
class UpkeepWhileRunning {
 public:
  UpkeepWhileRunning(std::string folder, std::string recorder);
  ~UpkeepWhileRunning();
  UpkeepWhileRunning(const UpkeepWhileRunning&) = delete;
  UpkeepWhileRunning& operator=(const UpkeepWhileRunning&) = delete;

 private:
  Upkeep upkeep_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace rota::report
