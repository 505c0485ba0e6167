// What the core was told and what it decided, as text: one line per event, with its time, followed by one line per
// decision that it led to. Since the core is a pure function of these lines, a log that rotad wrote on some machine can
// be played to the core of today, which has to decide the same.
//
//   rota-events 1 mode=automatic quantum=2000000000 grace=10000000000 window=2000000000
//   81230000000 join 1 asks                             client, and whether it asks for room before it takes it
//   81230000000 session 1 1                             client, number of its session
//   81230100000 add_gpu 1 0 150323855360 524288000      client, GPU, bytes in all, bytes of the context
//   81230200000 want 1 1 0                              client, mask of GPUs in hexadecimal, whether it runs already
//   > granted 1 1                                       client, grant
//   > promised 1 1 0 0                                  client, grant, GPU, bytes
//   81230300000 want 1 1 0 alone                        it measures, and has its GPUs to itself until it wants them
//                                                       without this word
//   > alone 1 1 250000000                               client, grant, for how long at most; 0: no more
//   81231000000 ask 1 0 33554432                        client, GPU, bytes
//   > promised 1 1 0 33554432
//   81231000100 usage 1 0 33554432 0                    client, GPU, bytes, fixed bytes
//   81231000200 usage 2 0 4096 0 4096 0 0               the same, and resident, lacking and free bytes: one that swaps
//   > clear 2 0 0 4096                                  client, grant (0: it has none), GPU, bytes
//   81231001000 measured 0 149276459008 0               GPU, free bytes, and, if the driver tells, those of processes
//                                                       that are no clients
//   81242001000 unmeasured 0                            GPU
//
// Times and durations are nanoseconds. Lines that begin with # say nothing to the core; with them rotad says what
// clients have moved, by their own count, a moment after it has stopped, or once a second (the first line of one that
// has come back from another rotad says what it has moved since it began):
//
//   # 81242001000 moved 2 pid 4711: out 8388608 bytes at 50.1 GB/s, 4194304 without a copy; back 0 bytes
#pragma once

#include <cstdint>
#include <istream>
#include <string>

#include "scheduler/core/event.h"

namespace rota::scheduler {

// Each ends with its newline.
std::string log_header(const Settings& settings);
std::string log_line(const Event& event, Time now);
std::string log_line(const Decision& decision);

struct Replay {
  std::uint64_t events = 0;
  std::uint64_t decisions = 0;
  // One line of printable text, with the line number of the log: where the core decided otherwise, or what cannot be
  // read and what to do about it. Empty: the core decided all of it as recorded.
  std::string problem;
  // The line in the middle of which the log ends, or 0. It is not played.
  std::uint64_t broken_off = 0;
};

// Plays a log to a core of its own. Whatever the log holds, this ends with its end. A log may break off: the decisions
// after its last event are not missed.
Replay replay(std::istream& log);

}  // namespace rota::scheduler
