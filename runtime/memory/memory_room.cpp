// Whether an allocation may be made: checks the ledger, limits that processes share, and the GPU's free memory.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/core/one_allocation.h"
#include "runtime/driver/freed.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/memory/memory.h"
#include "scheduler/base/byte_text.h"
#include "scheduler/protocol/session_list.h"

namespace rota::memory {

namespace {

// How often an allocation waits for the answer to another thread's request before it is refused. A judgment.
constexpr int kMostOthers = 64;

// Who has set this limit, and how to get more.
std::pair<const char*, const char*> origin_of(std::uint64_t limit) {
  const char* const text = std::getenv("ROTA_SESSION");  // NOLINT(concurrency-mt-unsafe)
  const auto sessions = protocol::parse_sessions(text == nullptr ? "" : text);
  const bool slurm = sessions && std::ranges::any_of(*sessions, [&](const protocol::SessionEntry& session) {
                       return protocol::is_of_slurm(session.id) && session.device_bytes == limit;
                     });
  if (slurm) return {"the Slurm job's shards allow", protocol::kMoreFromSlurm};
  return {"ROTA_GPU_MEM_LIMIT or `rota run --gpu-mem` allows", "raise it"};
}

}  // namespace

Charge Memory::reserve(int ordinal, std::uint64_t bytes, Kind kind, const void* frame) {
  RefusedBy by = RefusedBy::kNobody;
  Charge charge = reserve_or_wait(ordinal, bytes, kind, by, frame);
  if (by == RefusedBy::kRotad) say_refused(ordinal, by);
  return charge;
}

Charge Memory::reserve_or_wait(int ordinal, std::uint64_t bytes, Kind kind, RefusedBy& by, const void* frame) {
  const OneAllocation one;
  Charge charge(ledger_, ordinal, bytes, kind, frame);
  if (ordinal < 0 || ordinal >= kMaxDevices) {
    charge.begin();
    return charge;
  }
  const std::uint64_t limit = settings_.limit_bytes;
  const std::uint64_t most = capacity(ordinal);
  if (ledger_.limit(ordinal) != limit) ledger_.set_limit(ordinal, limit);
  if (ledger_.capacity(ordinal) != most) ledger_.set_capacity(ordinal, most);
  if (graphs_.any()) graphs_.poll(ordinal);
  // Memory that was freed in a stream is in use until the stream reaches the free: the driver refuses then, too, and
  // does not wait (measured on an H200 for cuMemAlloc and cuMemAllocAsync after a cuMemFreeAsync of plain memory). And
  // requests of other threads that are still pending may be refused.
  bool swept = false;
  bool none_pending = false;  // no request is pending, so the memory in the way is in use
  for (int tries = 0; tries < kMostOthers; ++tries) {
    const bool fits = ledger_.reserve(ordinal, bytes, kind);
    bool for_others = false;
    const bool sweeps = !swept && has_unused();
    if (fits) {
      std::optional<OneAllocation::FirstWay> again_is_next;
      if (sweeps) again_is_next.emplace();
      charge.begin();
      if (turns_->may_take(ordinal, bytes, kind, [&] { charge.cancel(); }, for_others)) return charge;
    }
    if (!std::exchange(swept, true) && (sweep_deferred() || sweeps)) continue;
    if (fits) {
      if (for_others) {
        by = RefusedBy::kRotad;
      } else {
        say_refused(ordinal, RefusedBy::kRotad);
      }
      return charge;
    }
    if (none_pending) break;
    none_pending = !turns_->wait_for_others(ordinal);
  }
  account::refused(limit <= most ? account::OutOfMemory::kLimit : account::OutOfMemory::kTooLarge);
  static log::Once once;
  if (limit == 0 || !once.first()) return charge;
  const auto text = [](std::uint64_t amount) { return bytes_text(amount); };
  const std::string more = text(bytes);
  const std::string live = text(ledger_.live_bytes(ordinal));
  if (limit <= most) {
    const auto [origin, remedy] = origin_of(limit);
    log::warn("{} on GPU {} refused: this process has {} of the {} that {}: {}, or let the program need less", more,
              driver::gpu_number(ordinal), live, text(limit), origin, remedy);
  } else if (backend(ordinal).backing() == Backing::kSwapped) {
    log::warn(
        "{} on GPU {} refused: this process has {} of the {} that the GPU has for it, and swapped memory must all "
        "fit there at once; `rota run {}--oversubscribe` allows more",
        more, driver::gpu_number(ordinal), live, text(most),
        settings_.backend == Choice::kSwap ? "--memory managed " : "");
  } else if (settings_.oversubscribe) {
    log::warn(
        "{} on GPU {} refused: {} of {} are in use, which is the GPU's memory plus nine tenths of what the host "
        "had left: let the program need less",
        more, driver::gpu_number(ordinal), live, text(most));
  } else {
    log::warn(
        "{} on GPU {} refused: this process has {} of the GPU's {}, its contexts {}. `rota run "
        "--oversubscribe` (or ROTA_OVERSUBSCRIBE=1) lets a process have more than the GPU; it is slow if all of it is "
        "used at once",
        more, driver::gpu_number(ordinal), live, text(device(ordinal).total_bytes), text(contexts(ordinal)));
  }
  return charge;
}

void Memory::tell_account(int ordinal) {
  if (ordinal < 0) return;
  static constexpr account::MemoryKind kKinds[kRoutes] = {
      account::MemoryKind::kPlain,          // kPlain
      account::MemoryKind::kPlain,          // kSmall
      account::MemoryKind::kManaged,        // kManaged
      account::MemoryKind::kStreamOrdered,  // kPool
      account::MemoryKind::kStreamOrdered,  // kServed
      account::MemoryKind::kPlain,          // kShared
      account::MemoryKind::kArray,          // kArray
      account::MemoryKind::kPhysical,       // kPhysical
      account::MemoryKind::kPhysical,       // kMapping
      account::MemoryKind::kGraph,          // kGraph
  };
  account::Memory memory{};
  do {
    memory = {};
    memory.used_bytes = ledger_.live_bytes(ordinal);
    for (std::size_t route = 0; route < kRoutes; ++route) {
      memory.by_kind[static_cast<std::size_t>(kKinds[route])] += ledger_.bytes_by(ordinal, static_cast<Route>(route));
    }
    memory.reserved_bytes = memory.used_bytes + contexts(ordinal);
    account::memory_changed(ordinal, memory);
    // The thread that writes last checks again: another thread may have written newer sums before these.
  } while (memory.used_bytes != ledger_.live_bytes(ordinal));
}

// Limits shared with others are known once rotad has sent them.
std::uint64_t Memory::limit(int ordinal) const {
  return std::min(settings_.limit_bytes, turns_->shared_limit(ordinal).total);
}

// Tries again if others have freed memory, or if rotad says that they are about to: it has promised what this process
// may have.
api::CUresult Memory::with_room(int ordinal, std::uint64_t pending, const RealCall& call) {
  api::CUresult result = call();
  if (result != api::CUDA_ERROR_OUT_OF_MEMORY) return result;
  const auto again = [&] {
    result = call();
    return result != api::CUDA_ERROR_OUT_OF_MEMORY;
  };
  const bool freed = free_unused(ordinal);
  if ((swap_.drop_kept(ordinal) != 0 || freed) && again()) return result;
  const bool others_evict =
      device(ordinal).served.load(std::memory_order_relaxed) && backend(ordinal).backing() == Backing::kSwapped;
  const auto coming = [&] { return turns_->others_leave(ordinal); };
  if (others_evict && driver::retry_while_freed(again, coming)) return result;
  turns_->make_room(ordinal, pending, again);
  return result;
}

api::CUresult Memory::with_waiting(int ordinal, std::uint64_t bytes, Backing backing, Attempt attempt) {
  const OneAllocation one;
  const bool waits = turns_->may_wait(ordinal, bytes);
  const OneAllocation::MayWait may_wait(waits);
  RefusedBy by = RefusedBy::kNobody;
  api::CUresult result = attempt(true, by);
  if (by == RefusedBy::kNobody) [[likely]]
    return result;
  changed(ordinal);  // what was charged meanwhile is not in anybody's way
  Refused what{.bytes = bytes, .in_extents = backing == Backing::kSwapped, .by_rotad = by == RefusedBy::kRotad};
  turns_->await_room(ordinal, what, [&] {
    by = RefusedBy::kNobody;
    result = attempt(false, by);
    what.by_rotad = by == RefusedBy::kRotad;
    if (by != RefusedBy::kNobody) changed(ordinal);
    return by == RefusedBy::kNobody;
  });
  if (by == RefusedBy::kNobody) return result;
  if (waits) OneAllocation::refused();  // rotad has counted it when the wait ended, if there was one
  say_refused(ordinal, by);
  return result;
}

// The refusal is final.
void Memory::say_refused(int ordinal, RefusedBy by) {
  if (by == RefusedBy::kRotad) {
    account::refused(account::OutOfMemory::kLimit);
    turns_->explain_refusal(ordinal);
    return;
  }
  // What other processes have that cannot be evicted; 0 without a rotad.
  const bool full = turns_->fixed_of_others_bytes(ordinal) != 0;
  account::refused(full ? account::OutOfMemory::kFull : account::OutOfMemory::kDriver);
  turns_->say_full(ordinal);
}

}  // namespace rota::memory
