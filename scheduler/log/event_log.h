// The events that the core received and the decisions that it made, as text: one line per event, with its time,
// followed by one line per resulting decision. Since the core is a pure function of these lines, a log that rotad wrote
// on any machine can be replayed with today's core, which must make the same decisions.
//
//   rota-events 1 mode=automatic quantum=2000000000 grace=10000000000 window=2000000000
//   81230000000 join 1 domain 1000 grants 4             client, the number of its trust domain unless that is 0 or
//                                                       not known, and the number of the latest grant of clients
//                                                       whose place it takes, unless there was none
//   81230000000 session 1 1                             client, session number
//   81230100000 add_gpu 1 0 150323855360 524288000      client, GPU, total bytes, bytes of the context
//   81230200000 want 1 1 0                              client, hexadecimal GPU mask, whether it already runs
//   > granted 1 1                                       client, grant
//   > promised 1 1 0 0                                  client, grant, GPU, bytes
//   81230300000 want 1 1 0 alone                        it measures, and has its GPUs to itself until a want without
//                                                       this word
//   > alone 1 1 250000000                               client, grant, maximum duration; 0: no longer alone
//   81230400000 withdraw 1 500000000                    client, time within which it has to give back; 0: no longer
//   81231000000 ask 1 0 33554432                        client, GPU, bytes
//   > promised 1 1 0 33554432
//   81231000100 usage 1 0 33554432 0                    client, GPU, bytes, fixed bytes
//   81231000200 usage 2 0 4096 0 4096 0 0               the same for one that swaps, with resident, lacking and free
//                                                       bytes, and, unless it is 0, the part of the fixed bytes that is
//                                                       pinned temporarily
//   > clear 2 0 0 4096                                  client, grant (0: it has none), GPU, bytes
//   > passed_over 1 0 0 4096                            client, 0, GPU, bytes that do not fit there; 0: no longer
//   81231001000 measured 0 149276459008 0               GPU, free bytes, and, if the driver reports them, those of
//                                                       processes that are not clients
//   81242001000 unmeasured 0                            GPU
//   81242001000 had_before 0 1000 -2000000 0            GPU, domain, and what an earlier rotad knew of it there: by how
//                                                       much it was above the level, and how far below it may come back
//   81242001000 returned 1 0 -2000000 0 0 0 90000 800   client, GPU, the same of its session and of the client in
//                                                       it, and how long it had held GPUs and waited for them
//   81242001000 measured_before 1 0 2 1 0 950000 970000 8000000000 10000000000 0
//                                                       client, and what an earlier rotad had measured of a set that
//                                                       it is in (event::MeasuredBefore)
//
//   81242001000 limits 81242001000 reserve 1 0 7 4096 4096 0 0 250000000
//                                                       what happens to limits (limit_event.h), with the limits' own
//                                                       time, which is not stretched: client, GPU, number, the four
//                                                       amounts (protocol.h), patience
//   > reserved 1 0 7 8192 8192 0 0                      client, GPU, number, what it may have; or refused
//
// Times and durations are nanoseconds. The core's client is a task of a program (protocol.h), that of the limits is the
// program. The core ignores lines that begin with #. In them rotad records, just before a task joins, whose it is; and
// what programs report that they have moved, a moment after the movement has stopped, or once a second (the first line
// of a program that comes from another rotad counts from the program's start):
//
//   # 81230000000 task 1 client 2 pid 4711
//   # 81242001000 moved 2 pid 4711: out 8388608 bytes at 50.1 GB/s, 4194304 without a copy; back 0 bytes
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <string>
#include <string_view>
#include <variant>

#include "scheduler/core/event.h"
#include "scheduler/limits/limit_event.h"

namespace rota::scheduler {

class Core;

// Each ends with its newline.
std::string log_header(const Settings& settings);
std::string log_line(const Event& event, Time now);
std::string log_line(const Decision& decision);

struct Replay {
  std::uint64_t events = 0;
  std::uint64_t decisions = 0;
  // One line of printable text, with the line number of the log: where the core decided otherwise, or what cannot be
  // read and the remedy. Empty if the core made all decisions as recorded.
  std::string problem;
  // The line in the middle of which the log ends, or 0. That line is not replayed.
  std::uint64_t broken_off = 0;
};

// An event of a log: one of the core's or one of the limits', at the time of either.
struct Logged {
  std::variant<Event, LimitEvent> event;
  Time now;         // the core's
  Time limits_now;  // the limits'
};

// Called while a log is replayed; each may be empty.
struct Watch {
  // With each line that begins with #, and the core as it is after the lines before.
  std::function<void(const Core& core, std::string_view line)> comment{};
  std::function<void(const Logged&)> event{};  // after each event
  bool compares = true;                        // what the core decides with what the log records
};

// Replays a log with a core of its own. Reaches the end of the log whatever it contains. A log may be cut off:
// decisions missing after its last event are not an error.
Replay replay(std::istream& log, const Watch& watch = {});

}  // namespace rota::scheduler
