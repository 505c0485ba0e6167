// What rotad's own work takes: not the time for which others had the processor.
#pragma once

#include <chrono>
#include <ctime>

namespace rota::server {

// Of what can be done in parts, one takes no longer than that: others have their turn in between.
inline constexpr std::chrono::milliseconds kAtOnce{2};

// Of this thread, since it began.
inline std::chrono::nanoseconds processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace rota::server
