// The two pages that rotad and each client share: what rotad tells the client, and what the client says about itself.
// Each has a record for every GPU, by rotad's index of it (GpuAdded::index). protocol.h has the rules for writing and
// reading them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "scheduler/protocol/pins.h"
#include "scheduler/protocol/types.h"

namespace rota::protocol {

// The version of the pages' layout, independent of the protocol's version.
inline constexpr std::uint32_t kPageVersion = 3;
// A record reserves space for later fields: they are 0 until a later version writes them, and a field is never moved.
inline constexpr std::size_t kRecordBytes = 256;
inline constexpr std::size_t kPageBytes = 5 * 4096;  // memory pages of GPUs that are not used are never touched

// What rotad says of one GPU. Times are CLOCK_MONOTONIC nanoseconds.
struct alignas(kRecordBytes) GpuLease {
  // The grant in force, never 0 while a lease is held and never the same number twice in a row on one GPU; 0 means
  // none. What is said here of grants, waiters, turns and activity is the task's (Want::task), and the same on all of
  // its GPUs that it holds. Tasks number their grants by themselves. After a give_back the page still shows the old
  // grant for a moment: the client remembers what it gave back. A grant that disappears without a give_back was
  // revoked: the client did not drain in time, and others run. It may also be replaced by another grant (the set grew).
  std::atomic<std::uint32_t> grant;
  // Not 0 while another client needs a GPU of this grant: the number of waiters when that began, or when drain_at_ns
  // last changed. Clients give nothing back while this is 0.
  std::atomic<std::uint32_t> waiters;
  // When the holder begins to drain although it is busy, perhaps in the past; 0 while nobody waits.
  std::atomic<std::uint64_t> drain_at_ns;
  // When the grant is revoked if it has not been given back; 0 while nobody waits.
  std::atomic<std::uint64_t> give_back_by_ns;
  // For the waiter that is next: when the holders in its way begin to drain, perhaps in the past; 0: not known. A
  // client that is awake by then loses no time.
  std::atomic<std::uint64_t> next_turn_ns;
  // The client has asked for exclusive use of its GPUs (Want::alone) and has it until this time, unless it says earlier
  // that it is done. 0: others may run there.
  std::atomic<std::uint64_t> alone_until_ns;
  // What rotad wants to know of the client's activity (GpuUsage::calls and what follows): kWatch..., or-ed.
  std::atomic<std::uint32_t> watch;
  // Not 0: what the client evicts can be handed over. It can change during an eviction, without an event.
  std::atomic<std::uint8_t> hands_over;
  // Not 0: others have been asked to evict memory and are doing so: promised memory is on its way.
  std::atomic<std::uint8_t> clearing;
  // Not 0: clients that do not hold the GPU have memory that can be evicted, whether or not they evict it now (one may
  // be stopped): an allocation that the driver refuses now may succeed later.
  std::atomic<std::uint8_t> movable;
  // Not 0: clients that do not hold it have memory that is pinned temporarily (GpuUsage::fixed_for_now_bytes): an
  // allocation that the driver refuses now may succeed before long.
  std::atomic<std::uint8_t> fixed_for_now;
  // The most that the client may have under this grant. Set with the grant, raised at any time.
  std::atomic<std::uint64_t> promised_bytes;
  // How much is left of LeasePage::limit_bytes there, beyond what this client has been granted. kUnlimited: no limit.
  std::atomic<std::uint64_t> left_bytes;
  // How much of the client's memory has to be evicted; 0: none. It refers to what the client had when this was written,
  // and is never more than can be evicted. A holder is told while another client waits, and evicts before it gives the
  // lease back; a client that swaps is told only where it does not hold the GPU, and evicts as soon as none of its work
  // runs.
  std::atomic<std::uint64_t> clear_bytes;
  // The client's resident_bytes that clear_bytes is a part of. What has been evicted since then counts as done. rotad
  // sets clear_bytes to 0, then this, then the new clear_bytes; a reader loads clear_bytes, this, and clear_bytes
  // again, and starts over if they differ.
  std::atomic<std::uint64_t> clear_from_bytes;
  // What rotad counts for this client in addition to its allocations (contexts, modules, heaps), measured if NVML
  // reports it and otherwise assumed.
  std::atomic<std::uint64_t> context_bytes;
  // The same for all clients, unmanaged memory (core/outside.h), and what rotad keeps free: what no allocation can use.
  std::atomic<std::uint64_t> all_context_bytes;
  // What all other clients have reserved there that cannot be evicted (fixed_bytes).
  std::atomic<std::uint64_t> fixed_of_others_bytes;
  // By how much the memory of all clients, their contexts and unmanaged memory together exceed the GPU: so much of it
  // cannot be there.
  std::atomic<std::uint64_t> too_much_bytes;
  // Not 0: the task is one of a gang (protocol.h), by rotad's number of it, and its grant is the gang's: the same for
  // all members, also for those that have asked for nothing. Such a member keeps it and may use it until the gang's
  // end.
  std::atomic<std::uint32_t> gang;
  // Not 0: the gang drains, and no gate of a member opens. It grows by at least 1 with each drain, and whenever one
  // more call may be made at each member that rests with calls waiting (GpuUsage::gang_rest).
  std::atomic<std::uint32_t> gang_step;
  // The gang's grant with which it is over: all members rest, and each gives back.
  std::atomic<std::uint32_t> gang_ends;
};

// Written by rotad, read by the client. Single writer.
//
// Grants belong together: `grants_change` is odd while rotad changes any. A reader loads it before and after the
// grants, and starts over if it was odd or has changed; not for ever, since rotad may have died meanwhile. All accesses
// are sequentially consistent.
struct LeasePage {
  std::uint32_t magic;
  std::uint32_t version;
  // Futex word: changes after every change of this page. Waiters use the shared (not the private) futex operations.
  std::atomic<std::uint32_t> event;
  std::atomic<std::uint32_t> grants_change;
  // Not 0: a limit on host memory applies to this client, and the two that follow say what it leaves: the most that
  // UsagePage::host_bytes may become, and how much of it may be host_spare_bytes. A client adds what it is about to
  // take to host_bytes first, then reads host_most_bytes, and subtracts it again if that is exceeded; rotad lowers
  // host_most_bytes first and then reads host_bytes. So two clients never have the same byte. What a client has beyond
  // either it gives back as soon as it can, as far as it is reclaimable.
  std::atomic<std::uint32_t> host_limited;
  std::atomic<std::uint64_t> host_most_bytes;
  std::atomic<std::uint64_t> host_spare_most_bytes;
  // The lowest limit that applies to the client on each GPU, shared with others or not. kUnlimited: no limit.
  std::atomic<std::uint64_t> limit_bytes;
  GpuLease gpus[kMaxGpus];
};

// How long rotad and the waiter spin from then on: a drain takes a few milliseconds if little is in flight.
inline constexpr std::uint64_t kAwakeNs = 6'000'000;
inline constexpr std::uint32_t kWatchCalls = 1;    // others touch its GPUs: its calls, about every 50 ms
inline constexpr std::uint32_t kWatchSamples = 2;  // while it holds its GPUs: whether they are busy, once a millisecond
inline constexpr std::uint32_t kWatchMeter = 4;    // programs take turns: little of it may be in flight at any time
inline constexpr std::uint32_t kWatchTimings = 8;  // others touch its GPUs: what it times must not be disturbed
inline constexpr std::uint32_t kWatchAlone = 16;   // and may run at the same time: it may ask for exclusive use
inline constexpr std::uint32_t kWatchSharers = 32;  // a client waits that may share memory or events with it

inline constexpr std::uint32_t kSharesOwn = 1;       // others can open memory or events of its own
inline constexpr std::uint32_t kSharesOfOthers = 2;  // it has opened memory or events of others

// What a client says of its memory on one GPU.
struct alignas(kRecordBytes) GpuUsage {
  std::atomic<std::uint64_t> device_bytes;  // live allocations
  std::atomic<std::uint64_t> fixed_bytes;   // the part that cannot be evicted (native, exported)
  // The part of fixed_bytes that is pinned temporarily: it can be evicted once work that may use it has finished, or
  // when that is tried again.
  std::atomic<std::uint64_t> fixed_for_now_bytes;
  // The part of fixed_bytes that is memory of extents and is never evicted: what others can reach by handles, or all of
  // it.
  std::atomic<std::uint64_t> pinned_bytes;
  // 0 from clients that do not swap. The memory that is on the GPU now and that only the client can evict, including
  // what it cannot evict now: raised when the client asks the driver for memory, or, while the driver may refuse it
  // again and again, once it has it; lowered once the driver has it back.
  std::atomic<std::uint64_t> resident_bytes;
  // The client's deficit there: how much of its memory the driver has refused although the client holds the GPU; 0:
  // none, or it does not hold the GPU.
  std::atomic<std::uint64_t> short_bytes;
  // What the driver reported as free when it refused that.
  std::atomic<std::uint64_t> free_bytes;
  // How often the client has written short_bytes and free_bytes, in this order after them, so that a reader that begins
  // with this knows whether they are new.
  std::atomic<std::uint32_t> refusals;
  std::atomic<std::uint8_t> memory_mode;  // MemoryMode
  // Allocations that wait there for memory of others (AwaitRoom), or that are tried again after such a wait.
  std::atomic<std::uint16_t> awaited;
  // The task's activity since the client started, as far as rotad has asked for it (GpuLease::watch), the same on all
  // GPUs of a task: calls that submit work; samples of its GPUs while it held them, and how many of those found work in
  // progress; its turns, and the total time from their grants until it ran.
  std::atomic<std::uint64_t> calls;
  std::atomic<std::uint64_t> open_ns;     // for how long it has held its GPUs and could call, when it counted them,
  std::atomic<std::uint64_t> counted_ns;  // and when that was (CLOCK_MONOTONIC)
  std::atomic<std::uint64_t> samples;
  std::atomic<std::uint64_t> busy_samples;
  std::atomic<std::uint64_t> spell_samples;  // those of busy_samples that came five or more in a row
  std::atomic<std::uint64_t> switches;
  std::atomic<std::uint64_t> switch_ns;
  // Of a member of a gang that holds a grant: kGang..., or-ed, and shifted by 32 bits the GpuLease::gang_step that it
  // says this about. A member that says that it rests makes no call before the step has changed and it has said
  // otherwise.
  std::atomic<std::uint64_t> gang_rest;
  // The part of pinned_bytes that single allocations are pinned for, by reason (Pin). The rest of pinned_bytes is all
  // that the process has there, and this says why (PinAll).
  std::atomic<std::uint64_t> pinned_by[kPins];
  std::atomic<std::uint8_t> pinned_all;
  // What has moved there since rotad has served the client, as in UsagePage, and written before that. 0 from clients
  // that do not swap, and of earlier versions.
  std::atomic<std::uint64_t> out_bytes;
  std::atomic<std::uint64_t> out_ns;
  std::atomic<std::uint64_t> in_bytes;
  std::atomic<std::uint64_t> in_ns;
};
inline constexpr std::uint32_t kGangRests = 1;   // the gate is closed, and all work is proven to have finished
inline constexpr std::uint32_t kGangStands = 2;  // calls wait at the gate
// Before the gang drains: its own time is over, or it has had nothing to do for a while, or not begun.
inline constexpr std::uint32_t kGangMayEnd = 4;

// Written by the client, read by rotad, which trusts it only in what concerns that client. (Reclaimable memory,
// host_spare_bytes, counts as available to others, up to what the kernel says that the process has.)
struct UsagePage {
  std::uint32_t magic;
  std::uint32_t version;
  // Shown by `rota status` as Moves. 0 from clients that do not swap.
  std::atomic<std::uint64_t> out_bytes;
  std::atomic<std::uint64_t> out_ns;
  std::atomic<std::uint64_t> in_bytes;
  std::atomic<std::uint64_t> in_ns;
  std::atomic<std::uint64_t> spared_bytes;
  // Of clients that swap, 0 from all others: the host memory that they copy GPU memory to; the reclaimable part (what
  // is cached or prepared for later, and copies of what is on the GPU as well); and how much more the client needs at
  // once than host_most_bytes allows.
  std::atomic<std::uint64_t> host_bytes;
  std::atomic<std::uint64_t> host_spare_bytes;
  std::atomic<std::uint64_t> host_lacking_bytes;
  // Not 0: work of other processes may have to run concurrently with its own, since they share memory or events:
  // kSharesOwn, kSharesOfOthers. Two processes of which neither has opened anything share nothing.
  std::atomic<std::uint32_t> shares;
  // Not 0: each thread of the process that has used a GPU waits in an allocation (GpuUsage::awaited) and the others
  // sleep, so the process frees nothing meanwhile. 0 from clients that do not say so.
  std::atomic<std::uint32_t> all_threads_wait;
  // CLOCK_MONOTONIC: when the process met its first rotad. Read only by a rotad that has just begun.
  std::atomic<std::uint64_t> began_ns;
  GpuUsage gpus[kMaxGpus];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(GpuLease) == kRecordBytes &&
              sizeof(GpuUsage) == kRecordBytes && sizeof(LeasePage) <= kPageBytes && sizeof(UsagePage) <= kPageBytes &&
              offsetof(LeasePage, gpus) == kRecordBytes && offsetof(UsagePage, gpus) == kRecordBytes);

}  // namespace rota::protocol
