// One program of the turn property test, as its machine and rotad see it: threads that call, a gate, a GPU that works
// through a queue, and its end of the connection.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>

#include "runtime/turn/machine.h"
#include "scheduler/core/core.h"
#include "scheduler/core/quota.h"

namespace rota::turns {

using turn::Machine;
using turn::Time;

constexpr Time kNever = Time::max();
constexpr scheduler::Bytes kTotal = 1000;
constexpr scheduler::Bytes kContext = 10;
constexpr unsigned kGpus = 2;  // that rotad serves
constexpr std::uint64_t kServed = (1u << kGpus) - 1;
constexpr std::uint64_t kUnservedGpu = 1u << kGpus;  // one that it does not

// Of a ballast, and what programs may have that are stopped for good. What is left of a GPU is for those that swap, as
// scheduler::Quota grants it: whoever it is then fits beside everybody's contexts and what stays there.
constexpr unsigned kMostBallast = 200;
constexpr unsigned kMostStopped = 190;
// At most so many programs and liars at a time; contexts are refused to nobody.
constexpr unsigned kMostClients = 8;
constexpr scheduler::Bytes kForSwap = kTotal - kMostBallast - kMostStopped - kMostClients * kContext;

enum class Manner {
  kHonest,
  kLate,         // its monitor is stuck for seconds at a time, while its threads go on
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
// By GPU that rotad serves.
using BytesOfGpus = std::array<scheduler::Bytes, kGpus>;

struct Program {
  unsigned pid = 0;
  bool asks = true;  // for room, before it takes it; an older one does not
  Manner manner = Manner::kHonest;
  std::unique_ptr<Machine> machine = std::make_unique<Machine>();
  std::deque<turn::Event> due;  // the one that the machine takes now, and the answers to what it asked for
  scheduler::Bytes memory = 0;  // taken, and about to be, on every GPU that it has touched
  scheduler::Bytes taken = 0;
  // What it knows of its promises: those of the page, while its machine holds a grant.
  BytesOfGpus allowed = unlimited();
  BytesOfGpus asked{};
  std::uint32_t asked_grant = 0;
  Time waits_for_room_since = kNever;
  // Of one that swaps. Others have Unified Memory, which the driver pushes out for whoever needs the room.
  bool swaps = false;
  scheduler::Bytes fixed = 0;  // the part of its memory that never leaves, on every GPU that it has touched
  BytesOfGpus there{};         // on the GPU, until it takes it away itself
  BytesOfGpus refused{};
  BytesOfGpus free_then{};
  Time pinned_until{0};       // its memory cannot leave
  std::uint64_t touched = 0;  // kUnservedGpu among them, perhaps
  // What its work is on. A GPU touched while the gate is open counts from the next opening on: until the monitor has
  // seen it, work may reach it without a lease.
  std::uint64_t uses = 0;
  bool resident = true;
  Time stopped_until{0};  // kNever: for good
  Time stuck_until{0};    // its monitor alone
  Time captures_until{0};
  Time measures_until{0};    // it times its work, and wants it left alone,
  bool wants_alone = false;  // by others as well
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
  Time lost_at = kNever;  // rotad has gone: when the program will notice
  std::uint64_t told = 0;
  std::uint64_t answered = 0;
  Time answer_at = kNever;
  std::uint64_t answers = 0;
  std::deque<Message> outbox;
  turn::Lease page;
  Time page_whole_at = kNever;
  turn::Lease page_then;
  BytesOfGpus promised{};  // of the page, as the next two
  BytesOfGpus clear{};
  BytesOfGpus clear_from{};

  // Its work runs with nobody's leave, as it may: revoked, without rotad, beside the others. Until it has come to rest.
  bool loose = false;
  // What the checks remember, from what happened and not from what the machine says.
  bool ran = false;                // its work ran, or was its to run, when rotad was lost
  Time alone_since = kNever;       // rotad was lost first since it last held a lease
  bool reclaims = false;           // has asked a new rotad for work that runs
  Time closed_at{0};               // the gate, last
  std::uint32_t draining = 0;      // the grant under which it was closed for a drain
  Time page_empty_since = kNever;  // as seen by its looks
  Time standing_since = kNever;
  Time opened_at{0};

  // What it says that it has on a GPU that it has touched.
  scheduler::Reservation reservation() const { return {memory, memory - fixed, fixed, memory - fixed}; }
  // What of it lies there, as the usage page says it.
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
