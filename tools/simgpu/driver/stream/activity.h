// What the GPU ran when, for who wants to know (ROTA_SIM_ACTIVITY, a folder; `rota trace` reads it): a file per
// process, simgpu-PID.activity, with a line for each kernel that has ended:
//
//   process  thread  launched  begin  simulated  stream  name
//
// Which thread of the program launched it and when, and when it began, in nanoseconds of CLOCK_MONOTONIC; how long it
// took in modelled nanoseconds; the stream's handle as a number (0: the legacy default stream, 2: a thread's own); the
// mangled name. Lines that would make the file longer than ROTA_SIM_ACTIVITY_MAX_BYTES (64M) are left out.
#pragma once

#include <cstdint>

namespace rota::sim {

class Stream;

// Whether somebody wants to know.
bool activity_is_recorded();

// Where work on the GPU comes from: what a stream's thread submits comes from where its own task does.
struct Origin {
  uint32_t thread = 0;
  int64_t launched_ns = 0;
  uint64_t stream = 0;

  static Origin here();  // zeros unless activity is recorded
};

// The origin of the task that this thread runs; null: it is no stream's thread.
const Origin*& running_origin();

// The running of one kernel, from its construction to ended().
class KernelActivity {
 public:
  KernelActivity();
  // `modelled`: how long it took where nothing waits, and time does not tell.
  void ended(const char* name, int64_t modelled);

 private:
  int64_t begin_ns_ = 0;
  int64_t begin_ = 0;  // modelled
};

}  // namespace rota::sim
