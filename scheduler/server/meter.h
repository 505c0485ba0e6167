// A thread that asks NVML, since NVML may take its time and rotad's clients must not wait for it: one question at a
// time, asked by the server, answered when it is. A thread that NVML never lets go is left behind.
#pragma once

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
  // On the meter's thread. With no GPU: whatever is kept open may be closed.
  using Read = std::function<Answer(const std::vector<protocol::Uuid>&)>;
  // On the meter's thread, with each answer; not from the destructor on.
  using Answered = std::function<void(Answer)>;

  Meter(Read read, Answered answered);
  // Waits for an answer that is on its way, two seconds at most.
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  // The thread starts with the first question; false: it cannot be started. While one question is open, this one takes
  // the place of any other that waits behind it.
  bool ask(std::vector<protocol::Uuid> gpus);

  // By the machine's NVML, which is opened with the first question about a GPU and closed with one about none.
  static Read by_nvml();

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace rota::server
