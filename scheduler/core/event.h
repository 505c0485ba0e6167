// The input and output of the scheduler's core: events, decisions, and the state that they refer to.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "scheduler/core/settings.h"
#include "scheduler/rules/context_cost.h"

namespace rota::scheduler {

using ClientId = std::uint32_t;
using GpuIndex = std::uint32_t;  // below protocol::kMaxGpus
using GpuMask = std::uint64_t;
using Bytes = std::uint64_t;
using SessionId = std::uint32_t;  // 0: none
using DomainId = std::uint64_t;   // opaque

// How programs whose memory fits a GPU together share it.
enum class Candidate {
  kTogether,   // all at once, interleaved by the driver
  kTurns,      // one at a time
  kLightOpen,  // those that leave the GPU mostly idle at any time, the others in turns
};

namespace event {
// A new client. The number must not be in use.
struct Join {
  ClientId client;
  // Whose it is (a trust domain: a user). Domains have equal shares of a GPU, however many clients and sessions each
  // has (virtual_time.h). Clients of which it is not known are one domain, 0.
  DomainId domain = 0;
  // The number of the latest grant of clients whose place it takes; its own follow that.
  std::uint32_t last_grant = 0;
};
// The client belongs to a session, which is of its domain: a number names another session in each domain. The clients
// of one session together have one share of what their domain has of a GPU, as large as that of a client without a
// session.
struct Session {
  ClientId client;
  SessionId session;
};
// The client touched a GPU, which is as large as the latest of these says. Sent again when what the client has there in
// addition to its allocations has been measured, or when it is known better how large the GPU is.
struct AddGpu {
  ClientId client;
  GpuIndex gpu;
  Bytes total;
  Bytes context;  // including modules and heaps; 0: unknown, see assumed_context()
};
// Queues the client for a set of GPUs. A later want replaces the set and keeps the place in the queue; the empty set
// withdraws it.
struct Want {
  ClientId client;
  GpuMask gpus;
  // The client's work already runs there, under a grant of a daemon that died: granted at once, whoever waits.
  bool running = false;
  // A signal handler has run in a thread that waits, and takes effect only once the thread's call returns. Goes before
  // others, at most once in Order::kBetweenUrgent and in twenty hand-overs; beyond that it is a want like any other.
  bool urgent = false;
  // The client measures on GPUs that it holds, and needs exclusive use of them until it sends a want without this
  // (policy/alone.h).
  bool alone = false;
};
// What the client holds it has to give back at once, and it is revoked once `within` has passed: it is to be granted
// together with others, whose work its own may wait for. Ends with the grant, or with one within 0: there are no others
// any more. The first one counts.
struct Withdraw {
  ClientId client;
  Time within;
};
// The grant's work has drained. Ignored unless `grant` is the current one.
struct GiveBack {
  ClientId client;
  std::uint32_t grant;
};
// The sum of the client's live allocations on a GPU; `fixed` of it cannot be evicted. The other fields are for clients
// that swap (protocol.h), and 0 for all others: what is on the GPU now, including what is fixed; a holder's deficit
// there, which the driver refused it; what the driver reported as free then; a number that changes with each refusal
// (0: not known), since the other fields may be newer than the refusal; and the part of `fixed` that is pinned
// temporarily: it can be evicted once work that may use it has finished.
struct Usage {
  ClientId client;
  GpuIndex gpu;
  Bytes used;
  Bytes fixed = 0;
  Bytes resident = 0;
  Bytes shortage = 0;
  Bytes free = 0;
  std::uint32_t refusals = 0;
  Bytes fixed_for_now = 0;
};
// The total of what the client has on a GPU that it holds and what it is about to take there. A later ask replaces it;
// an amount that is already promised withdraws it. It ends with the grant: the next grant covers what the client has by
// then.
struct Ask {
  ClientId client;
  GpuIndex gpu;
  Bytes bytes;
};
// The client's process is dead: everything that it held or wanted is released.
struct Leave {
  ClientId client;
};
// What the driver reports about a GPU's memory, whoever uses it (outside.h): about once a second, if the driver can be
// queried.
struct Measured {
  GpuIndex gpu;
  Bytes free;
  // In use by processes that are not clients; nothing if the driver does not say whose memory it is.
  std::optional<Bytes> others;
};
// The driver has not reported anything for so long that its last report no longer counts.
struct Unmeasured {
  GpuIndex gpu;
};
// What a client reports that it has done since it started.
struct Activity {
  ClientId client;
  std::uint64_t calls = 0;      // that submit work
  Time open{};                  // how long it has held its GPUs and could make calls,
  Time counted{};               // and when it counted that, by its clock
  std::uint64_t samples = 0;    // samples taken while it held the GPU, whether or not calls were in progress,
  std::uint64_t busy = 0;       // how many of them found the GPU busy,
  std::uint64_t in_spells = 0;  // and how many of those belong to busy periods: five or more in a row
  std::uint64_t switches = 0;   // turns that it began,
  Time switching{};             // and how long it took in all from their grants until it ran
  bool shares = false;          // it and other processes share memory or events, so these may have to run with it
};
// What an earlier rotad knew of a domain on a GPU (VirtualTime::Earlier), told before any client of the domain wants or
// holds the GPU. Ignored where the domain is known there.
struct HadBefore {
  GpuIndex gpu;
  DomainId domain;
  Time ahead;
  Time owed;
};
// What an earlier rotad knew of a client that is here again: of its session, or of the client where it is in none, and
// of the client within its session on a GPU that it has touched; and how long it had held GPUs and waited for them.
// Ignored once the client wants or holds something.
struct Returned {
  ClientId client;
  GpuIndex gpu;
  Time party{};
  Time party_owed{};
  Time member{};
  Time member_owed{};
  Time held{};
  Time waited{};
};
// What an earlier rotad had measured of a set of `size` clients that share GPUs (policy/sharing.h): told for each of
// them, with the same number, once it has touched them, and applied once all have been told. Fractions are in
// millionths.
struct MeasuredBefore {
  ClientId client;
  std::uint32_t set = 0;  // its number
  std::uint32_t size = 0;
  Candidate candidate{};
  bool light = false;        // the client
  std::int64_t busy = -1;    // the client's u when a candidate was last tried; negative: not known
  std::int64_t ratio = 0;    // what that trial gave relative to turns; 0: there was none
  Time again_in{};           // when it is to be measured again,
  Time pause{};              // how long after the last time that is,
  std::uint32_t doubts = 0;  // and how often the answer has been doubted
};
// Time has passed; due at next_deadline().
struct Tick {};
// New settings: holders that must yield under them are asked to, and times to drain are computed again.
struct Configure {
  Settings settings;
};
}  // namespace event

using Event =
    std::variant<event::Join, event::AddGpu, event::Want, event::GiveBack, event::Usage, event::Ask, event::Leave,
                 event::Tick, event::Configure, event::Measured, event::Unmeasured, event::Activity, event::Session,
                 event::Withdraw, event::HadBefore, event::Returned, event::MeasuredBefore>;

enum class Change {
  kGranted,   // the client holds a new grant, which replaces any earlier one
  kEnded,     // the client gave back
  kPressure,  // waiters or drain_at changed
  kRevoked,   // the client did not give back in time
  kPromised,  // the client may now have `bytes` on `gpu`: with each grant, and when it asks for more
  kClear,     // the client, which does not hold `gpu`, is to evict `bytes` there
  kAlone,     // the client has exclusive use of its GPUs from now on, or, if `bytes` is 0, no longer
  // A client that waits is passed over, since `bytes` of its memory do not fit on the GPU; if that is 0, no longer.
  kPassedOver,
};

// A client whose lease changed in this step. Read the result with client() (null after a Leave).
struct Decision {
  Change change;
  ClientId client;
  std::uint32_t grant;  // the grant that this is about
  GpuIndex gpu = 0;     // kPromised, kClear, kPassedOver
  Bytes bytes = 0;      // the same; kAlone: for how long at most, in nanoseconds
};

// What a client's lease page shows, and what `rota status` needs.
struct ClientState {
  GpuMask touched = 0;
  GpuMask held = 0;
  GpuMask wanted = 0;       // waiting for these; 0: not waiting
  std::uint32_t grant = 0;  // current; 0: none
  Time held_since{};
  Time wanted_since{};
  std::uint32_t waiters = 0;  // nonzero while another client needs what this one holds
  Time drain_at{};            // when it must begin to drain; 0 while nobody waits
  Time alone_until{};         // it measures, and has exclusive use of its GPUs until then; 0: it does not
  bool overrun = false;       // its last grant was revoked: its work may be running concurrently with the others'
};

struct GpuState {
  Bytes total = 0;
  Bytes used = 0;      // by all clients that touch it
  Bytes contexts = 0;  // what they have there beyond that
  std::uint32_t clients = 0;
  std::uint32_t holders = 0;
  std::uint32_t waiters = 0;
  bool crowded = false;        // automatic mode: the memory of the clients that wanted it did not fit
  Bytes outside = 0;           // unmanaged, as measured or as refusals show (outside.h, policy/clearing.h)
  Bytes measured_outside = 0;  // the same, as measured
  Bytes too_much = 0;          // by how much all of that exceeds the GPU
  Candidate candidate = Candidate::kTogether;
  bool looking = false;      // a measurement of which way is best is under way
  std::uint32_t active = 0;  // clients that have made calls lately
  Time turn{};               // how long a turn lasts while others wait
  Time switching{};          // how long a hand-over takes: from a grant until its holder runs
};

// Why programs share a GPU as they do.
struct SharingWhy {
  protocol::SharingReason reason = protocol::SharingReason::kUnknown;
  double trial = 0;  // throughput of the last trial relative to that of turns; 0: nothing was tried with these programs
};

// How a client uses a GPU, as far as is known.
struct ClientUse {
  std::optional<double> busy;   // fraction of its own time in which the GPU works for it (sharing.h: u)
  std::optional<double> calls;  // per second of its own time (r)
  bool light = false;           // it may run at any time, concurrently with those that take turns
  Time held{};                  // how long it has held any GPU since it started,
  Time waited{};                // and waited for GPUs without holding any
  Bytes fixed = 0;              // of its memory there, what cannot be evicted,
  Bytes fixed_for_now = 0;      // and the part of that which is pinned temporarily
  // It is passed over, or cannot run although it holds the GPU, since this much of its memory does not fit (0:
  // neither); and how much of that would fit without memory that is only pinned temporarily.
  Bytes lacks = 0;
  Bytes lacks_for_now = 0;
};

constexpr bool has(GpuMask gpus, GpuIndex gpu) {
  return (gpus >> gpu & 1) != 0;
}

// Promises and grants grow in such steps, a 64th of a GPU, or in parts of them (limits/quota_asks.cpp). Judgement.
constexpr Bytes step_of(Bytes total) {
  return total < 64 ? 1 : total / 64;
}
constexpr Bytes up_to_step(Bytes bytes, Bytes total) {
  return (bytes + step_of(total) - 1) / step_of(total) * step_of(total);
}

using protocol::assumed_context;

}  // namespace rota::scheduler
