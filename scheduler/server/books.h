// What a rotad that is ended with SIGTERM leaves to the next one at its place: what that one cannot learn from the
// programs. A file next to the socket, which the next one reads once and removes.
//
//   rota-books 1
//   boot 0b6a...                                    of the machine; books of an earlier one mean nothing
//   written 81242001000                             CLOCK_MONOTONIC, nanoseconds
//   had GPU-... 12000000 0 1000                     GPU, how far above the level and how far below it
//   (event::HadBefore),
//                                                   and who: TrustDomain::payer
//   task 4711 918273 7 held 0                       pid, start time in clock ticks, latest grant, held or waits or
//   rests,
//                                                   place in the queue
//   on GPU-... 0 0 12000000 0 90000000 1000         one of its GPUs, with event::Returned's times
//   gang 1 90000000 2 1000 torchrun-...             a gang that does not take its turns together for now, or may soon
//                                                   not: why (protocol::GangApart), for how long, turns in a row that
//                                                   were revoked; and its key: TrustDomain::key and name
//   end 6                                           lines before this one
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
  // Older books are not read: programs that have been without a rotad for so long count it as dead, and run without
  // turns (turn::Machine::kGrace).
  static constexpr std::chrono::seconds kLast{10};

  struct Had {
    std::string gpu;
    std::chrono::nanoseconds ahead{};
    std::chrono::nanoseconds owed{};
    std::string payer;
  };
  struct OnGpu {
    std::string gpu;
    scheduler::event::Returned returned{};  // without client and GPU
  };
  enum class Did { kRested, kWaited, kHeld };
  struct Task {
    pid_t pid = 0;
    std::uint64_t started = 0;
    std::uint32_t grant = 0;
    Did did = Did::kRested;
    std::uint64_t place = 0;
    std::vector<OnGpu> gpus{};
  };
  struct Gang {
    std::string key;  // of two lines, as Leases has it
    GangVerdict verdict{};
  };

  std::string boot;
  std::chrono::nanoseconds written{};
  std::vector<Had> had{};
  std::vector<Task> tasks{};
  std::vector<Gang> gangs{};

  bool empty() const { return had.empty() && tasks.empty() && gangs.empty(); }
};

std::string text_of(const Books& books);
// The error says what is wrong with the text. It may be any text.
Result<Books> parse_books(std::string_view text);

// In a file of this name, which appears complete or not at all, and is this user's alone.
Result<bool> leave_books(const std::string& path, const Books& books);
// Reads and removes it. Nothing if there is none; the error says why it is not read: it is somebody else's, broken, of
// another version, of another boot, or too old.
Result<Books> take_books(const std::string& path);

// The machine's current boot; empty: not known.
std::string boot_id();
// When the process started, in clock ticks since the boot; 0: there is none, or only its parent has not noticed yet.
std::uint64_t start_time(pid_t pid);

}  // namespace rota::server
