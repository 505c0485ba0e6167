#include "runtime/memory/peers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/driver/capture_mode.h"
#include "runtime/driver/context.h"
#include "runtime/memory/unified.h"

namespace rota::memory {

// Includes allocations that are being freed: they may be reused without a driver call.
void Peers::advise(const Place& owner, api::CUmem_advise advice, int device) const {
  const driver::RelaxedCapture relaxed;
  for (const Kind& kind : {Kind::kConverted, Kind::kShared}) {
    for (const Allocation& range : ledger_.list(owner.device, kind, Ledger::Listed::kAll)) {
      if (range.owner == Owner::of(owner.context)) unified::advise(range.address, range.bytes, advice, device);
    }
  }
}

bool Peers::reaches(int device, api::CUcontext owner) const {
  return std::any_of(accesses_.begin(), accesses_.end(), [&](const Access& access) {
    return access.accessing.device == device && access.owner.context == owner;
  });
}

bool Peers::reaches(int device, int owner) const {
  return std::any_of(accesses_.begin(), accesses_.end(), [&](const Access& access) {
    return access.accessing.device == device && access.owner.device == owner;
  });
}

// The access is added to the list before the ledger is read, and a new allocation to the ledger before the list is
// read: so at least one of the two threads advises.
void Peers::enabled(const Place& accessing, const Place& owner) {
  if (accessing.device == owner.device) return;
  const std::lock_guard lock(mutex_);
  const bool known = reaches(accessing.device, owner.context);
  accesses_.push_back({accessing, owner});
  any_.store(true);
  mapped_(accessing.device, owner.device, true);
  if (!known) advise(owner, api::CU_MEM_ADVISE_SET_ACCESSED_BY, accessing.device);
}

void Peers::placed(const Place& owner, std::uint64_t address, std::uint64_t bytes) {
  if (!any_.load()) return;
  const std::lock_guard lock(mutex_);
  std::set<int> advised;
  for (const Access& access : accesses_) {
    if (access.owner.context != owner.context || !advised.insert(access.accessing.device).second) continue;
    const driver::RelaxedCapture relaxed;
    unified::advise(address, bytes, api::CU_MEM_ADVISE_SET_ACCESSED_BY, access.accessing.device);
  }
}

template <typename Which>
void Peers::end(const Which& which) {
  std::vector<Access> ended;
  std::erase_if(accesses_, [&](const Access& access) {
    if (!which(access)) return false;
    ended.push_back(access);
    return true;
  });
  any_.store(!accesses_.empty());
  for (const auto& [accessing, owner] : ended) {
    if (!reaches(accessing.device, owner.device)) mapped_(accessing.device, owner.device, false);
  }
  for (const Access& access : ended) {
    if (reaches(access.accessing.device, access.owner.context)) continue;
    advise(access.owner, api::CU_MEM_ADVISE_UNSET_ACCESSED_BY, access.accessing.device);
  }
}

void Peers::disabled(const Place& accessing, api::CUcontext owner) {
  if (!any_.load()) return;
  const std::lock_guard lock(mutex_);
  end([&](const Access& access) {
    return access.accessing.context == accessing.context && access.owner.context == owner;
  });
}

void Peers::context_ended(api::CUcontext context) {
  if (!any_.load()) return;
  const std::lock_guard lock(mutex_);
  std::set<std::pair<int, int>> unreached;
  std::erase_if(accesses_, [&](const Access& access) {
    const bool gone = access.owner.context == context;
    if (gone) unreached.emplace(access.accessing.device, access.owner.device);
    return gone;
  });
  for (const auto& [accessing, owner] : unreached) {
    if (!reaches(accessing, owner)) mapped_(accessing, owner, false);
  }
  // There may be no current context any more. The owner's context exists as long as the access is on the list: its end
  // is reported here, too, and contexts end one after the other.
  for (;;) {
    const auto next = std::find_if(accesses_.begin(), accesses_.end(),
                                   [&](const Access& access) { return access.accessing.context == context; });
    if (next == accesses_.end()) break;
    const Access gone = *next;
    const driver::PushedContext pushed(gone.owner.context);
    end([&](const Access& access) {
      return access.accessing.context == context && access.owner.context == gone.owner.context;
    });
  }
  any_.store(!accesses_.empty());
}

}  // namespace rota::memory
