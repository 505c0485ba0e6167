// Says which of the programs that a job has started run without rota (tools/rota/status/uncovered.h), each once, while
// they run. A program that runs for less than kPause may be missed.
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

  // Watches this process's descendants on a thread that takes no signals; if it cannot be started, nothing is reported.
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
