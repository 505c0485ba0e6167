// Says which of the programs that a job has started run without rota (tools/rota/status/uncovered.h), each once, while
// they run. What runs for less than kPause may be missed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace rota::report {

class UncoveredWatch {
 public:
  static constexpr std::chrono::milliseconds kPause{250};

  // Of this process's descendants, with a thread that takes no signals; where none can be started nothing is said.
  UncoveredWatch();
  ~UncoveredWatch();
  UncoveredWatch(const UncoveredWatch&) = delete;
  UncoveredWatch& operator=(const UncoveredWatch&) = delete;

 private:
  void look();

  std::set<std::string> said_;  // process and command: exec makes another program of a process
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace rota::report
