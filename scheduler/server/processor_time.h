// The processor time of rotad's own work, without the time for which other processes had the processor.
#pragma once

#include <chrono>
#include <ctime>

namespace rota::server {

// No part of work that can be done in parts takes longer than this: other work is done in between.
inline constexpr std::chrono::milliseconds kAtOnce{2};

// Of this thread, since its start.
inline std::chrono::nanoseconds processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace rota::server
