// A thread that queries NVML, since NVML may be slow and rotad's clients must not wait for it: one query at a time,
// started by the server and answered asynchronously. A thread that never returns from NVML is left behind.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/server/nvml.h"

namespace rota::server {

class Meter {
 public:
  struct Answer {
    std::vector<GpuReading> gpus;  // those that could be read
    std::string problem;           // why none can be; one line
  };
  // Called on the meter's thread. With no GPU: what is open may be closed.
  using Read = std::function<Answer(const std::vector<Uuid>&)>;
  // Called on the meter's thread with each answer; not after the destructor has begun.
  using Answered = std::function<void(Answer)>;

  Meter(Read read, Answered answered);
  // Waits for a pending answer, two seconds at most.
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  // The thread starts with the first query; false: it cannot be started. While a query is pending, this one replaces
  // any other that waits behind it.
  bool ask(std::vector<Uuid> gpus);

  // Closes what is open, and cancels a query that waits. Waits for `patience` at most; false: it is still open, since
  // the driver takes longer, and will be closed.
  bool close(std::chrono::milliseconds patience);

  // Reads by the machine's NVML, which is opened by the first query of a GPU and closed by a query of none.
  static Read by_nvml();
  // Which GPUs the machine has, whatever is asked: their UUIDs alone. NVML is closed again at once.
  static Read gpus_by_nvml();

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace rota::server
