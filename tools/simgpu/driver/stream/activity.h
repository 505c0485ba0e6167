// Records when the GPU ran what (ROTA_SIM_ACTIVITY names a folder; `rota trace` reads it): one file per process,
// simgpu-PID.activity, with a line for each completed kernel:
//
//   process  thread  launched  begin  simulated  stream  name
//
// The columns: the thread of the program that launched it and when, and when it began, in nanoseconds of
// CLOCK_MONOTONIC; its duration in modelled nanoseconds; the stream's handle as a number (0: the legacy default stream,
// 2: a thread's own); the mangled name. Lines that would make the file longer than ROTA_SIM_ACTIVITY_MAX_BYTES (64M)
// are omitted.
#pragma once

#include <cstdint>

namespace rota::sim {

class Stream;

// Whether activity is recorded.
bool activity_is_recorded();

// Where work on the GPU comes from: what a stream's thread submits has the origin of its current task.
struct Origin {
  uint32_t thread = 0;
  int64_t launched_ns = 0;
  uint64_t stream = 0;

  static Origin here();  // zeros unless activity is recorded
};

// The origin of the task that this thread runs; null: not a stream's thread.
const Origin*& running_origin();

// The running of one kernel, from its construction to ended().
class KernelActivity {
 public:
  KernelActivity();
  // `modelled`: its duration when nothing waits and the clock cannot tell.
  void ended(const char* name, int64_t modelled);

 private:
  int64_t begin_ns_ = 0;
  int64_t begin_ = 0;  // modelled
};

}  // namespace rota::sim
