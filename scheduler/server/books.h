// What a rotad that is ended with SIGTERM leaves to the next rotad at the same socket, since the next one cannot learn
// it from the programs: a file next to the socket, which the next rotad reads once and removes.
//
//   rota-books 1
//   boot 0b6a...                                    the machine's boot id; a file of an earlier boot is ignored
//   written 81242001000                             CLOCK_MONOTONIC, nanoseconds
//   had GPU-... 12000000 0 1000                     GPU; a domain's `ahead` and `owed` there (event::HadBefore), and
//                                                   the domain's TrustDomain::payer
//   task 4711 918273 7 held 0 0                     pid, start time in clock ticks, latest grant; "held", "waits" or
//                                                   "rests"; place in the queue if it waits, otherwise 0; 1 if the
//                                                   times are those of its gang, otherwise 0
//   on GPU-... 0 0 12000000 0 90000000 1000         one of this task's GPUs, with the times of event::Returned
//   measured GPU-... 4711 918273 0 2 1 0 950000 0 8000000000 10000000000 0
//                                                   what was measured of a set of programs there, for one of them: pid,
//                                                   start time, and event::MeasuredBefore from `set` on
//   gang 1 90000000 2 0 1000 torchrun-...           a gang whose members take turns by themselves for now, whose last
//                                                   turns were revoked, or that has a size and was complete: why
//                                                   (protocol::GangApart), for how much longer, how many turns in a
//                                                   row were revoked, how many programs it had left if it was complete;
//                                                   TrustDomain::key and name of the gang
//   chosen GPU-... 4711 918273 42000000000 1000 1000 DOMAIN ID
//                                                   a GPU that is reserved for a program which has not
//                                                   used it yet: of which
//                                                   pid (0: not visible), its start time, for how much longer, its
//                                                   user, TrustDomain::payer, and Chooser::session
//   end 7                                           number of lines before this one
//
// Lines that begin with another word, and what follows the last known field of a line (but for texts at its end), are
// of a later version of rotad and are ignored.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/result.h"
#include "scheduler/core/event.h"
#include "scheduler/server/leases.h"

namespace rota::server {

struct Books {
  static constexpr int kVersion = 1;
  // An older file is ignored: a program that has been without a rotad for this long counts rotad as dead, and runs
  // without turns (turn::Machine::kGrace).
  static constexpr std::chrono::seconds kLast{10};

  struct Had {
    std::string gpu;
    std::chrono::nanoseconds ahead{};
    std::chrono::nanoseconds owed{};
    std::string payer;
  };
  struct OnGpu {
    std::string gpu;
    scheduler::event::Returned returned{};  // its client and GPU are not set
  };
  enum class Did { kRested, kWaited, kHeld };
  struct Task {
    pid_t pid = 0;
    std::uint64_t started = 0;
    std::uint32_t grant = 0;
    Did did = Did::kRested;
    std::uint64_t place = 0;
    bool gang = false;
    std::vector<OnGpu> gpus{};
  };
  struct Gang {
    std::string key;  // domain and name, separated by a newline, as in Leases
    GangVerdict verdict{};
  };

  struct Measured {
    std::string gpu;
    pid_t pid = 0;
    std::uint64_t started = 0;
    scheduler::event::MeasuredBefore measured{};  // its client is not set
  };
  struct Chosen {
    std::string gpu;
    pid_t pid = 0;
    std::uint64_t started = 0;
    std::chrono::nanoseconds left{};
    uid_t uid = 0;
    std::string payer;
    std::string session;
  };

  std::string boot;
  std::chrono::nanoseconds written{};
  std::vector<Had> had{};
  std::vector<Task> tasks{};
  std::vector<Gang> gangs{};
  std::vector<Measured> measured{};
  std::vector<Chosen> chosen{};

  bool empty() const { return had.empty() && tasks.empty() && gangs.empty() && measured.empty() && chosen.empty(); }
};

std::string text_of(const Books& books);
// The text may be anything; the error says what is wrong with it.
Result<Books> parse_books(std::string_view text);

// Writes a file of this name, which appears complete or not at all, and which only this user can read.
Result<bool> leave_books(const std::string& path, const Books& books);
// Reads and removes that file. The result is empty if there is none. The error says why the file is ignored: it belongs
// to another user, others can access it, it is malformed, of another version or another boot, or too old.
Result<Books> take_books(const std::string& path);

// The id of the machine's current boot; empty: not known.
std::string boot_id();
// When the process started, in clock ticks since the boot; 0: there is no such process, or it is a zombie.
std::uint64_t start_time(pid_t pid);
// Now, as start_time() counts.
std::uint64_t ticks_since_boot();

}  // namespace rota::server
