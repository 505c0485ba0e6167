// Shares of the host's memory, for clients that swap. Memory in use is served first, then clients that need more, in
// the order in which they said so; what remains is for reclaimable memory.
#include <algorithm>

#include "scheduler/limits/quota.h"

namespace rota::scheduler {

namespace {

Bytes less(Bytes bytes, Bytes part) {
  return bytes - std::min(bytes, part);
}

Bytes sum_of(Bytes one, Bytes other) {
  return one > kNoLimit - other ? kNoLimit : one + other;
}

}  // namespace

// What is left in each account while it is given out.
struct Quota::Sharing {
  struct Left {
    Bytes bytes = 0;
    std::size_t clients = 0;
  };
  std::map<const Account*, Left> accounts;

  bool concerns(const Member& member) const {
    return std::ranges::any_of(member.accounts, [this](const Account* each) { return accounts.contains(each); });
  }
  // The minimum of what `of` returns for the accounts of a client.
  template <typename Of>
  Bytes least(const Member& member, const Of& of) const {
    Bytes least = kNoLimit;
    for (const Account* each : member.accounts) {
      if (const auto found = accounts.find(each); found != accounts.end()) least = std::min(least, of(found->second));
    }
    return least;
  }
  Bytes left(const Member& member) const {
    return least(member, [](const Left& here) { return here.bytes; });
  }
  Bytes part(const Member& member) const {
    return least(member, [](const Left& here) { return here.bytes / std::max<std::size_t>(here.clients, 1); });
  }
  void take(const Member& member, Bytes bytes) {
    for (const Account* each : member.accounts) {
      if (const auto found = accounts.find(each); found != accounts.end()) {
        found->second.bytes = less(found->second.bytes, bytes);
      }
    }
  }
  // One client more (1) or less (-1) is to get a part.
  void count(const Member& member, int clients) {
    for (const Account* each : member.accounts) {
      if (const auto found = accounts.find(each); found != accounts.end()) {
        found->second.clients += static_cast<std::size_t>(clients);
      }
    }
  }
};

// Whether it may soon take host memory.
bool Quota::uses_host(const Member& member) {
  return member.host.has != 0 || member.swaps_on != 0;
}

// What Unified Memory leaves of an account's limit: it may be in the host's memory whenever it does not fit a GPU, and
// nobody knows how much of it is.
Bytes Quota::budget(const Account& account) const {
  Bytes others = 0;
  for (GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    const Reservation& sum = account.sums[gpu];
    if (sum.movable > sum.swapped) others += std::min(sum.movable - sum.swapped, excess(gpu, 0));
  }
  return less(account.host_budget, others);
}

void Quota::use_host(ClientId client, HostUse use) {
  const auto found = members_.find(client);
  if (found == members_.end()) return;
  Member& member = found->second;
  shares_due_ = true;
  const Bytes reserved = member.counted_in_all;
  // Without a limit nobody else has less because of what it says.
  use.has = std::min(use.has, std::max(member.host_bound, reserved));
  use.spare = std::min(use.spare, use.has);
  use.lacks = std::min(use.lacks, less(reserved, use.has));
  if (use.lacks != 0 && member.host.lacks == 0) member.lacks_since = ++host_asks_;
  member.host = use;
  member.host_bound = std::max(member.share.most, use.has);
  count_host(member);
}

bool Quota::bound_host(ClientId client) {
  const auto found = members_.find(client);
  if (found == members_.end() || found->second.share.most != kNoLimit) return false;
  Member& member = found->second;
  const auto limited = [](const Account* account) { return account->host_budget != kNoLimit; };
  if (!std::ranges::any_of(member.accounts, limited)) return false;
  member.host_bound = member.host.has;
  member.share = {.most = member.host.has, .spare = member.host.spare};
  shares_due_ = true;
  return true;
}

std::vector<ClientId> Quota::share_host(Time now) {
  if (!shares_due_) return {};
  Sharing all;
  for (const auto& [key, account] : accounts_) {
    if (account.host_budget != kNoLimit) all.accounts[&account].bytes = budget(account);
  }
  std::vector<ClientId> changed;
  // Clients that had a limit which no longer exists.
  for (auto& [id, member] : members_) {
    if (member.share == HostShare{} || all.concerns(member)) continue;
    member.share = {};
    member.host_bound = kNoLimit;
    changed.push_back(id);
  }
  if (all.accounts.empty()) {
    shares_due_ = false;
    return changed;
  }
  Sharing free = all;  // of what no share covers yet
  struct Sharer {
    ClientId client;
    Member* member;
    HostShare share;
  };
  std::vector<Sharer> sharers;
  for (auto& [id, member] : members_) {
    if (!all.concerns(member)) continue;
    if (member.share.most == kNoLimit) member.host_bound = member.host.has;  // it has not been limited before
    // A client that needs more than it has keeps its reclaimable memory: it evicts to that.
    const bool keeps_all = member.host.lacks != 0 || now < held_until_;
    const Bytes stays = keeps_all ? member.host.has : member.host.has - member.host.spare;
    all.take(member, stays);
    free.take(member, member.host_bound);
    sharers.push_back({id, &member, {.most = stays, .spare = keeps_all ? member.host.spare : 0}});
  }
  // Clients of an earlier daemon may have some, too, and have not said so.
  if (now < held_until_) {
    for (auto& [account, left] : all.accounts) left.bytes = 0;
  }
  std::ranges::sort(sharers, {}, [](const Sharer& each) { return each.member->lacks_since; });
  for (Sharer& each : sharers) {
    const Bytes more = std::min(each.member->host.lacks, all.left(*each.member));
    all.take(*each.member, more);
    each.share.most += more;
  }
  // In equal parts, up to what each client has; then the rest in equal parts, up to what each may get.
  const auto spare = [](const Sharer& each) { return each.member->host.spare - each.share.spare; };
  std::ranges::sort(sharers, {}, spare);
  for (const Sharer& each : sharers) all.count(*each.member, 1);
  for (Sharer& each : sharers) {
    const Bytes keeps = std::min(spare(each), all.part(*each.member));
    all.take(*each.member, keeps);
    all.count(*each.member, -1);
    each.share.most += keeps;
    each.share.spare += keeps;
  }
  for (const Sharer& each : sharers) all.count(*each.member, uses_host(*each.member) ? 1 : 0);
  for (Sharer& each : sharers) {
    if (!uses_host(*each.member)) continue;
    const Bytes more = std::min(all.part(*each.member), less(each.member->counted_in_all, each.share.most));
    each.share.most += more;
    each.share.spare += more;
  }
  for (Sharer& each : sharers) {
    Member& member = *each.member;
    const Bytes most = std::min(each.share.most, sum_of(member.host_bound, free.left(member)));
    if (most > member.host_bound) {
      free.take(member, most - member.host_bound);
      member.host_bound = most;
    }
    each.share.most = most;
    if (member.share == each.share) continue;
    member.share = each.share;
    changed.push_back(each.client);
  }
  // What these give back goes to the next ones, and clients of an earlier daemon report with time what they have.
  shares_due_ = !changed.empty() || now < held_until_;
  return changed;
}

Quota::HostShare Quota::host_share(ClientId client) const {
  const auto found = members_.find(client);
  return found == members_.end() ? HostShare{} : found->second.share;
}

}  // namespace rota::scheduler
