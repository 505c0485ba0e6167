// What goes into the scheduler's core and what comes out: events, decisions, and the state that they are about.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "scheduler/core/settings.h"
#include "scheduler/protocol/context_cost.h"

namespace rota::scheduler {

using ClientId = std::uint32_t;
using GpuIndex = std::uint32_t;  // below protocol::kMaxGpus
using GpuMask = std::uint64_t;
using Bytes = std::uint64_t;
using SessionId = std::uint32_t;  // 0: none

namespace event {
// A new client. The number must not be in use.
struct Join {
  ClientId client;
  // It asks for room before it takes it, and so counts with what it has been promised while it holds a GPU. Any other
  // counts with what it says that it has taken.
  bool asks = false;
};
// The client belongs to a session: those of one have one part of a GPU together (virtual_time.h), as the clients
// without a session have each.
struct Session {
  ClientId client;
  SessionId session;
};
// The client touched a GPU. The first client to name a GPU says how large it is, until nobody touches it any more. Once
// more with another figure when what the client has there beside its allocations has been measured.
struct AddGpu {
  ClientId client;
  GpuIndex gpu;
  Bytes total;
  Bytes context;  // with modules and heaps; 0: unknown, see assumed_context()
};
// Queue the client for a set. A later want replaces the set and keeps the place in the queue; the empty set withdraws.
struct Want {
  ClientId client;
  GpuMask gpus;
  // The client's work already runs there, by a grant of a daemon that died: granted at once, whoever waits.
  bool running = false;
  // A signal handler has run in a thread that waits: what it was told to do, it does once its call returns. Goes before
  // others, at most once in Order::kBetweenUrgent and in twenty hand-overs; beyond that it is a want like any other.
  bool urgent = false;
  // The client measures on GPUs that it holds, and needs them alone until it sends a want without this (alone.h).
  bool alone = false;
};
// The grant's work has drained. Ignored unless `grant` is the one in force.
struct GiveBack {
  ClientId client;
  std::uint32_t grant;
};
// What the client's live allocations on a GPU sum to; `fixed` of it cannot leave the GPU. The rest is about clients
// that swap (protocol.h), and 0 from any other: what lies on the GPU now, what is fixed included; what a holder lacks
// there since the driver refused it, and what the driver called free then.
struct Usage {
  ClientId client;
  GpuIndex gpu;
  Bytes used;
  Bytes fixed = 0;
  Bytes resident = 0;
  Bytes shortage = 0;
  Bytes free = 0;
};
// What the client has on a GPU that it holds and is about to take there, in all. A later one replaces it; what is
// promised already withdraws it. Gone with the grant: the next one covers what the client has by then.
struct Ask {
  ClientId client;
  GpuIndex gpu;
  Bytes bytes;
};
// The client's process is dead: everything that it held or wanted is gone.
struct Leave {
  ClientId client;
};
// What the driver says of a GPU's memory, whoever has it (outside.h): about once a second, where it can be asked.
struct Measured {
  GpuIndex gpu;
  Bytes free;
  // Of processes that are no clients; nothing: the driver does not tell whose memory it is.
  std::optional<Bytes> others;
};
// The driver has not said anything of it for so long that what it said no longer counts.
struct Unmeasured {
  GpuIndex gpu;
};
// What a client has done since it began, as it says.
struct Activity {
  ClientId client;
  std::uint64_t calls = 0;      // that submit work
  Time open{};                  // how long it has held its GPUs and could call,
  Time counted{};               // and when it counted, by its clock
  std::uint64_t samples = 0;    // looks at the GPU while it held it, with calls under way or none,
  std::uint64_t busy = 0;       // and how many of them found it busy,
  std::uint64_t in_spells = 0;  // and of those the ones of spells: of five or more in a row
  std::uint64_t switches = 0;   // turns that it began
  Time switching{};             // and how long it took from their grants until it ran
  bool shares = false;          // it and others have handed each other memory or events: they may have to run beside it
};
// Time has passed: due at next_deadline().
struct Tick {};
// Other settings from now on: holders that must yield by them are asked to, times to drain are counted anew.
struct Configure {
  Settings settings;
};
}  // namespace event

using Event =
    std::variant<event::Join, event::AddGpu, event::Want, event::GiveBack, event::Usage, event::Ask, event::Leave,
                 event::Tick, event::Configure, event::Measured, event::Unmeasured, event::Activity, event::Session>;

enum class Change {
  kGranted,   // the client holds a new grant (replacing the one it may have held)
  kEnded,     // the client gave back
  kPressure,  // waiters or drain_at changed
  kRevoked,   // the client did not give back in time
  kPromised,  // the client may have `bytes` on `gpu` from now on: with each grant, and as it asks for more
  kClear,     // the client, which does not hold `gpu`, is to clear `bytes` there from now on
  kAlone,     // the client has its GPUs alone from now on, or, if `bytes` is 0, no more
};

// One client whose lease changed in this step; read the outcome with client() (null after a Leave).
struct Decision {
  Change change;
  ClientId client;
  std::uint32_t grant;  // the grant concerned
  GpuIndex gpu = 0;     // kPromised, kClear
  Bytes bytes = 0;      // kPromised, kClear; kAlone: for how long at most, in nanoseconds
};

// What a client's lease page shows, and what `rota status` needs.
struct ClientState {
  GpuMask touched = 0;
  GpuMask held = 0;
  GpuMask wanted = 0;       // waiting for these; 0: not waiting
  std::uint32_t grant = 0;  // in force; 0: none
  Time held_since{};
  Time wanted_since{};
  std::uint32_t waiters = 0;  // not 0 while somebody needs what this client holds
  Time drain_at{};            // when it has to begin to drain; 0 while nobody waits
  Time alone_until{};         // it measures, and has what it holds alone until then; 0: it has not
  bool overrun = false;       // its last grant was revoked: it may be working still, beside the others
};

// How programs whose memory fits a GPU together share it.
enum class Candidate {
  kTogether,   // all at once, as the driver interleaves them
  kTurns,      // one at a time
  kLightOpen,  // those that leave the GPU idle most of the time at any time, the others in turns
};

struct GpuState {
  Bytes total = 0;
  Bytes used = 0;      // by all clients that touch it
  Bytes contexts = 0;  // what they have there beside that
  std::uint32_t clients = 0;
  std::uint32_t holders = 0;
  std::uint32_t waiters = 0;
  bool crowded = false;  // automatic mode: the memory of those who wanted it did not fit
  Bytes outside = 0;     // that nobody has whom rotad knows, as measured or as refusals show (outside.h, clearing.h)
  Bytes too_much = 0;    // by which all of that together exceeds the GPU
  Candidate candidate = Candidate::kTogether;
  bool looking = false;      // it is being found out which is best
  std::uint32_t active = 0;  // clients that have called lately
  Time turn{};               // how long a turn is while others wait
  Time switching{};          // what a hand-over costs: from a grant until its holder runs
};

// Why programs share a GPU as they do.
struct SharingWhy {
  protocol::SharingReason reason = protocol::SharingReason::kUnknown;
  double trial = 0;  // what was tried last gave so much of what turns gave; 0: nothing was tried with these programs
};

// How a client uses a GPU, as far as it is known.
struct ClientUse {
  std::optional<double> busy;   // the part of its own time in which the GPU works for it (sharing.h: u)
  std::optional<double> calls;  // a second of its own time (r)
  bool light = false;           // it runs at any time beside those that take turns
  Time held{};                  // for how long it has held any GPU since it began,
  Time waited{};                // and waited for some without holding any
};

// What clients are promised and granted grows by a 64th of a GPU, as programs report what they use. Judgement.
constexpr Bytes step_of(Bytes total) {
  return total < 64 ? 1 : total / 64;
}
constexpr Bytes up_to_step(Bytes bytes, Bytes total) {
  return (bytes + step_of(total) - 1) / step_of(total) * step_of(total);
}

using protocol::assumed_context;

}  // namespace rota::scheduler
