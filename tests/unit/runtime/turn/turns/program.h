// One program of the turn property test, as its machine and rotad see it: threads that make calls, a gate, a GPU that
// works through a queue, and its end of the connection.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>

#include "runtime/turn/machine.h"
#include "scheduler/core/core.h"
#include "scheduler/limits/quota.h"

namespace rota::turns {

using turn::Machine;
using turn::Time;

constexpr Time kNever = Time::max();
constexpr scheduler::Bytes kTotal = 1000;
constexpr scheduler::Bytes kContext = 10;
constexpr unsigned kGpus = 2;  // that rotad serves
constexpr std::uint64_t kServed = (1u << kGpus) - 1;
constexpr std::uint64_t kUnservedGpu = 1u << kGpus;  // one that it does not

// The size of a ballast, and the most memory of programs that are stopped permanently. The rest of a GPU is for
// programs that swap, as scheduler::Quota grants it: each of them then fits in addition to all contexts and the memory
// that stays there.
constexpr unsigned kMostBallast = 200;
constexpr unsigned kMostStopped = 190;
// The maximum number of programs and liars at a time; contexts are never refused.
constexpr unsigned kMostClients = 8;
constexpr scheduler::Bytes kForSwap = kTotal - kMostBallast - kMostStopped - kMostClients * kContext;

enum class Manner {
  kHonest,
  kLate,         // its monitor hangs for seconds at a time, while its threads continue
  kUndrainable,  // its work waits for its own later calls
};

struct Work {
  Time takes;
  bool waits_for_next;  // for a later call of the same program
};

struct Thread {
  enum { kAway, kStanding, kInside, kWaitsForRoom } where = kAway;
  Time until{0};
};

struct Message {
  enum Kind { kAddGpu, kWant, kGiveBack, kRoom };
  Time at{0};
  Kind kind = kWant;
  std::uint64_t gpus = 0;
  bool running = false;
  bool urgent = false;
  bool alone = false;
  std::uint32_t grant = 0;
  scheduler::Bytes bytes = 0;
};

constexpr scheduler::Bytes kUnlimited = UINT64_MAX;
// Indexed by the GPUs that rotad serves.
using BytesOfGpus = std::array<scheduler::Bytes, kGpus>;

struct Program {
  unsigned pid = 0;
  Manner manner = Manner::kHonest;
  std::unique_ptr<Machine> machine = std::make_unique<Machine>();
  std::deque<turn::Event> due;  // the event that the machine takes now, and the answers to what it asked for
  scheduler::Bytes memory = 0;  // taken or about to be taken, on every GPU that it has touched
  scheduler::Bytes taken = 0;
  // The promises that it knows: those in the page, while its machine holds a grant.
  BytesOfGpus allowed = unlimited();
  BytesOfGpus asked{};
  std::uint32_t asked_grant = 0;
  Time waits_for_room_since = kNever;
  // For a program that swaps. Others have Unified Memory, which the driver evicts when room is needed.
  bool swaps = false;
  scheduler::Bytes fixed = 0;  // the part of its memory that is never evicted, on every GPU that it has touched
  BytesOfGpus there{};         // on the GPU, until the program moves it away itself
  BytesOfGpus refused{};
  BytesOfGpus free_then{};
  BytesOfGpus refusals{};
  Time pinned_until{0};       // its memory cannot be evicted
  std::uint64_t touched = 0;  // may include kUnservedGpu
  // The GPUs that its work uses. A GPU that is first touched while the gate is open counts only from the next opening:
  // until the monitor has seen it, work may reach it without a lease.
  std::uint64_t uses = 0;
  bool resident = true;
  Time stopped_until{0};  // kNever: permanently
  Time stuck_until{0};    // only its monitor
  Time captures_until{0};
  Time measures_until{0};    // it times its work, and wants to be undisturbed,
  bool wants_alone = false;  // also by other programs
  Time wake_at{0};
  Thread threads[2];

  // The gate and the GPU.
  bool open = false;
  std::uint64_t calls = 0;
  std::uint64_t submitted = 0;
  std::uint64_t finished = 0;
  std::deque<Work> queue;
  Time finishes_at = kNever;
  std::deque<std::uint64_t> marks;
  std::uint64_t reached = 0;

  // The connection.
  scheduler::ClientId client = 0;  // in the core; 0: none
  bool connected = false;
  Time lost_at = kNever;  // rotad is gone: when the program will notice
  std::uint64_t told = 0;
  std::uint64_t answered = 0;
  Time answer_at = kNever;
  std::uint64_t answers = 0;
  std::deque<Message> outbox;
  turn::Lease page;
  Time page_whole_at = kNever;
  turn::Lease page_then;
  BytesOfGpus promised{};  // from the page, like the next two
  BytesOfGpus clear{};
  BytesOfGpus clear_from{};

  // Its work runs without a lease, as it may after a revocation, without rotad, or while it runs concurrently with
  // others. True until its work has finished.
  bool loose = false;
  // What the checks remember, based on what happened and not on what the machine says.
  bool ran = false;                // its work was running, or it was its turn, when rotad was lost
  Time alone_since = kNever;       // when rotad was first lost since it last held a lease
  bool reclaims = false;           // it has asked a new rotad for work that is running
  Time closed_at{0};               // when the gate was last closed
  std::uint32_t draining = 0;      // the grant under which it was closed for a drain
  Time page_empty_since = kNever;  // as its checks have seen it
  Time standing_since = kNever;
  Time opened_at{0};

  // What it reports for each GPU that it has touched.
  scheduler::Reservation reservation() const { return {memory, memory - fixed, fixed, memory - fixed}; }
  // How much of that is on the GPU according to the usage page.
  scheduler::Bytes resident_on(unsigned gpu) const { return there[gpu] != 0 ? there[gpu] + fixed : 0; }
  bool works() const {
    return open || submitted != finished || threads[0].where == Thread::kInside || threads[1].where == Thread::kInside;
  }
  static BytesOfGpus unlimited() {
    BytesOfGpus all;
    all.fill(kUnlimited);
    return all;
  }
  std::uint32_t count(int where) const {
    return static_cast<std::uint32_t>((threads[0].where == where) + (threads[1].where == where));
  }
};

}  // namespace rota::turns
