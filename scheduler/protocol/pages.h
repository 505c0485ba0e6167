// The two pages that rotad and each client share: what rotad tells the client, and what the client says about itself.
// protocol.h has the rules for writing and reading them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "scheduler/protocol/protocol.h"

namespace rota::protocol {

// The version of the pages' layout, independent of the protocol's version.
inline constexpr std::uint32_t kPageVersion = 1;
inline constexpr std::size_t kPageBytes = 4096;

// Written by rotad, read by the client. Single writer; times are CLOCK_MONOTONIC nanoseconds.
//
// `grant` and `held_gpus` belong together: rotad first sets `grant` to 0, then `held_gpus`, then the new `grant`. A
// reader loads grant, held_gpus, grant again, and starts over if the two differ. All accesses are sequentially
// consistent.
struct LeasePage {
  std::uint32_t magic;
  std::uint32_t version;
  // Futex word: changes after every change of this page. Waiters use the shared (not the private) futex operations.
  std::atomic<std::uint32_t> event;
  // The grant in force, never 0 while a lease is held and never the same number twice in a row; 0 means none.
  // After a give_back the page still shows the old grant for a moment: the client remembers what it gave back. A grant
  // that disappears without a give_back was revoked: the client did not drain in time, and others run. It may also be
  // replaced by another grant (the set grew).
  std::atomic<std::uint32_t> grant;
  std::atomic<std::uint64_t> held_gpus;  // mask of the grant in force
  // Not 0 while another client needs a GPU of this grant: the number of waiters when that began, or when drain_at_ns
  // last changed. Clients give nothing back while this is 0.
  std::atomic<std::uint32_t> waiters;
  // When the holder begins to drain although it is busy, perhaps in the past; 0 while nobody waits.
  std::atomic<std::uint64_t> drain_at_ns;
  // By GPU index: the most that the client may have there under this grant. Set with `held_gpus`, raised at any time. A
  // rotad of before version 3 leaves them 0 and promises nothing.
  std::atomic<std::uint64_t> promised_bytes[kMaxGpus];
  // From version 4 on. The lowest limit on what the client and those that it shares it with have on each GPU, and by
  // GPU index how much is left of that, beyond what this client has been granted. kUnlimited: no limit.
  std::atomic<std::uint64_t> limit_bytes;
  std::atomic<std::uint64_t> left_bytes[kMaxGpus];
  // By GPU index: how much of the client's memory there has to go; 0: none. Of what it had when this was written, and
  // never more than can leave the GPU. A holder is told while another client waits, and makes room before it gives the
  // lease back; a client that swaps is told only where it does not hold the GPU, and makes room as soon as none of its
  // work runs.
  std::atomic<std::uint64_t> clear_bytes[kMaxGpus];
  // When the grant is taken away if it has not been given back; 0 while nobody waits.
  std::atomic<std::uint64_t> give_back_by_ns;
  // From version 5 on, by GPU index: the client's resident_bytes that clear_bytes is a part of. What has left since
  // then counts as cleared. rotad sets clear_bytes to 0, then this, then the new clear_bytes; a reader loads
  // clear_bytes, this, and clear_bytes again, and starts over if they differ.
  std::atomic<std::uint64_t> clear_from_bytes[kMaxGpus];
  // By GPU index: what rotad counts there for this client besides its allocations (contexts, modules, heaps), measured
  // if NVML reports it and otherwise assumed. 0 from a rotad older than this field.
  std::atomic<std::uint64_t> context_bytes[kMaxGpus];
  // From version 6 on: mask of the GPUs on which what the client clears can be handed over. It can change while the
  // client clears, without an event.
  std::atomic<std::uint64_t> hand_over_gpus;
  // Mask of the GPUs where others have been asked to make room and are doing so: promised memory there is on its way.
  std::atomic<std::uint64_t> clearing_gpus;
  // By GPU index: what context_bytes says, of all clients together, and what is outside (scheduler/core/outside.h):
  // what nobody can have of the GPU. 0 from a rotad older than this field.
  std::atomic<std::uint64_t> all_context_bytes[kMaxGpus];
  // By GPU index: what all other clients have reserved there that cannot leave the GPU (fixed_bytes). 0 from a rotad of
  // before version 7.
  std::atomic<std::uint64_t> fixed_of_others_bytes[kMaxGpus];
  // By GPU index, in MiB: by how much more than the GPU has all clients, their contexts and what is outside take
  // together, so that some of it cannot be there. 0: nothing, or a rotad older than this field.
  std::atomic<std::uint32_t> too_much_mib[kMaxGpus];
  // Mask of the GPUs where clients that do not hold them have memory that can leave, whether or not they are at it (one
  // may be stopped): what the driver has no room for there may have some later. 0 from a rotad older than this field.
  std::atomic<std::uint64_t> movable_gpus;
  // What rotad wants to know of the client's activity (UsagePage::calls and what follows): kWatch..., or-ed. 0:
  // nothing, or a rotad older than this field.
  std::atomic<std::uint32_t> watch;
  // Of a waiter that is next: when those in its way begin to drain, perhaps in the past; 0: not known, or a rotad older
  // than this field. A client that is awake by then loses no time.
  std::atomic<std::uint64_t> next_turn_ns;
  // The client has asked to have its GPUs to itself (Want::alone) and has them until this time, unless it says earlier
  // that it is done. 0: others may run there.
  std::atomic<std::uint64_t> alone_until_ns;
  // Mask of the GPUs where clients that do not hold them have memory that cannot leave for now
  // (UsagePage::fixed_for_now_bytes): what the driver has no room for there may have some before long. 0 from a rotad
  // older than this field.
  std::atomic<std::uint64_t> fixed_for_now_gpus;
  // Not 0: a limit on host memory applies to this client, and the two that follow say what it leaves: the most that
  // UsagePage::host_bytes may become, and how much of it may be host_spare_bytes. A client adds what it is about to
  // take to host_bytes first, then reads host_most_bytes, and subtracts it again if that is exceeded; rotad lowers
  // host_most_bytes first and then reads host_bytes. So two clients never have the same byte. What a client has beyond
  // either it gives back as soon as it can, as far as it is spare. 0: no limit, or a rotad older than this field.
  std::atomic<std::uint32_t> host_limited;
  std::atomic<std::uint64_t> host_most_bytes;
  std::atomic<std::uint64_t> host_spare_most_bytes;
};
// How long rotad and the waiter spin from then on: a drain takes a few milliseconds if little is in flight.
inline constexpr std::uint64_t kAwakeNs = 6'000'000;
inline constexpr std::uint32_t kWatchCalls = 1;    // others touch its GPUs: its calls, about every 50 ms
inline constexpr std::uint32_t kWatchSamples = 2;  // while it holds its GPUs: whether they are busy, once a millisecond
inline constexpr std::uint32_t kWatchMeter = 4;    // programs take turns: little of it may be in flight at any time
inline constexpr std::uint32_t kWatchTimings = 8;  // others touch its GPUs: what it times must be left alone
inline constexpr std::uint32_t kWatchAlone = 16;   // and may run at the same time: it may ask to have them to itself
inline constexpr std::uint32_t kWatchSharers = 32;  // it shares memory or events, and so does somebody who waits for it

// Written by the client, read by rotad, which trusts it only in what concerns that client. (What a client could give
// back, host_spare_bytes, counts as left for others, but for no more than the kernel says that its process has.)
struct UsagePage {
  std::uint32_t magic;
  std::uint32_t version;
  std::atomic<std::uint64_t> device_bytes[kMaxGpus];  // live allocations by GPU index
  std::atomic<std::uint64_t> fixed_bytes[kMaxGpus];   // the part that cannot leave the GPU (native, exported)
  std::uint64_t older_space[2];                       // written by older programs, no longer read
  // MemoryMode by GPU index; 0 from an older program, which does not report it.
  std::atomic<std::uint8_t> memory_modes[kMaxGpus];
  // From version 5 on, by GPU index, and 0 from clients that do not swap. The memory that is on the GPU now and that
  // only the client can remove, including fixed memory: raised when the client asks the driver for memory, or, while
  // the driver may refuse it again and again, once it has it; lowered once the driver has it back.
  std::atomic<std::uint64_t> resident_bytes[kMaxGpus];
  // How much of its memory the client still lacks there although it holds the GPU, because the driver refused it; 0:
  // nothing, or it does not hold the GPU.
  std::atomic<std::uint64_t> short_bytes[kMaxGpus];
  // What the driver reported as free when it refused that.
  std::atomic<std::uint64_t> free_bytes[kMaxGpus];
  // Shown by `rota status` as Moves. 0 from clients that do not swap, and from older ones.
  std::atomic<std::uint64_t> out_bytes;
  std::atomic<std::uint64_t> out_ns;
  std::atomic<std::uint64_t> in_bytes;
  std::atomic<std::uint64_t> in_ns;
  std::atomic<std::uint64_t> spared_bytes;
  // The client's activity since it started, as far as rotad has asked for it (LeasePage::watch): calls that submit
  // work; samples of its GPUs while it held them, and how many of those found work in progress; its turns, and the
  // total time from their grants until it ran.
  std::atomic<std::uint64_t> calls;
  std::atomic<std::uint64_t> open_ns;     // for how long it has held its GPUs and could call, when it counted them,
  std::atomic<std::uint64_t> counted_ns;  // and when that was (CLOCK_MONOTONIC)
  std::atomic<std::uint64_t> samples;
  std::atomic<std::uint64_t> busy_samples;
  std::atomic<std::uint64_t> switches;
  std::atomic<std::uint64_t> switch_ns;
  // Not 0: it has shared memory or events with other processes, which may have to run concurrently with it, or opened
  // theirs.
  std::atomic<std::uint32_t> shares;
  // Those of busy_samples that came five or more in a row.
  std::atomic<std::uint64_t> spell_samples;
  // By GPU index: how often the client has written short_bytes and free_bytes, in this order after them, so that a
  // reader that begins with this knows whether they are news. 0 from an older client.
  std::atomic<std::uint32_t> refusals[kMaxGpus];
  // By GPU index: the part of fixed_bytes that will be able to leave the GPU by itself, once work that may use it has
  // finished, or it is tried again. 0 from clients older than this field.
  std::atomic<std::uint64_t> fixed_for_now_bytes[kMaxGpus];
  // Of clients that swap, 0 from all others and from older ones: the host memory that they copy GPU memory to; the part
  // of it without which nothing would be lost (what is kept or prepared for later, and copies of what is on the GPU as
  // well); and how much more the client needs at once than host_most_bytes allows.
  std::atomic<std::uint64_t> host_bytes;
  std::atomic<std::uint64_t> host_spare_bytes;
  std::atomic<std::uint64_t> host_lacking_bytes;
};
static_assert(
    std::atomic<std::uint64_t>::is_always_lock_free && sizeof(LeasePage) <= 4096 && sizeof(UsagePage) <= 4096 &&
    offsetof(LeasePage, drain_at_ns) == 32 && offsetof(LeasePage, promised_bytes) == 40 &&
    offsetof(LeasePage, clear_bytes) == 48 + 16 * kMaxGpus &&
    offsetof(LeasePage, give_back_by_ns) == 48 + 24 * kMaxGpus &&
    offsetof(LeasePage, clear_from_bytes) == 56 + 24 * kMaxGpus &&
    offsetof(LeasePage, context_bytes) == 56 + 32 * kMaxGpus &&
    offsetof(LeasePage, hand_over_gpus) == 56 + 40 * kMaxGpus &&
    offsetof(LeasePage, all_context_bytes) == 72 + 40 * kMaxGpus &&
    offsetof(LeasePage, fixed_of_others_bytes) == 72 + 48 * kMaxGpus &&
    offsetof(LeasePage, too_much_mib) == 72 + 56 * kMaxGpus &&
    offsetof(LeasePage, movable_gpus) == 72 + 60 * kMaxGpus && offsetof(LeasePage, watch) == 80 + 60 * kMaxGpus &&
    offsetof(LeasePage, alone_until_ns) == 96 + 60 * kMaxGpus &&
    offsetof(LeasePage, fixed_for_now_gpus) == 104 + 60 * kMaxGpus &&
    offsetof(LeasePage, host_most_bytes) == 120 + 60 * kMaxGpus && offsetof(UsagePage, device_bytes) == 8 &&
    offsetof(UsagePage, fixed_bytes) == 8 + 8 * kMaxGpus && offsetof(UsagePage, memory_modes) == 24 + 16 * kMaxGpus &&
    offsetof(UsagePage, resident_bytes) == 24 + 17 * kMaxGpus &&
    offsetof(UsagePage, free_bytes) == 24 + 33 * kMaxGpus && offsetof(UsagePage, out_bytes) == 24 + 41 * kMaxGpus &&
    offsetof(UsagePage, calls) == 64 + 41 * kMaxGpus && offsetof(UsagePage, refusals) == 136 + 41 * kMaxGpus &&
    offsetof(UsagePage, fixed_for_now_bytes) == 136 + 45 * kMaxGpus &&
    offsetof(UsagePage, host_bytes) == 136 + 53 * kMaxGpus);

}  // namespace rota::protocol
