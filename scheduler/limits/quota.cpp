// The accounts, and what of each client's memory counts in which. Requests are in quota_asks.cpp.
#include "scheduler/limits/quota.h"

#include <algorithm>
#include <utility>

#include "scheduler/core/policy/clearing.h"
#include "scheduler/rules/largest_extent.h"

namespace rota::scheduler {

namespace {

void add(Reservation& sum, const Reservation& before, const Reservation& after) {
  sum.device += after.device - before.device;  // unsigned arithmetic is correct for decreases, too
  sum.movable += after.movable - before.movable;
  sum.swapped += after.swapped - before.swapped;
}

bool is_less(const Reservation& one, const Reservation& other) {
  return one.device < other.device || one.movable < other.movable || one.fixed < other.fixed ||
         one.swapped < other.swapped;
}

}  // namespace

bool Quota::join(ClientId client, const std::vector<Membership>& accounts) {
  Member& member = members_[client];
  shares_due_ = true;
  bool shared_fresh = false;
  for (const Membership& membership : accounts) {
    auto entry = accounts_.find(membership.key);
    const bool fresh = entry == accounts_.end();
    if (fresh) {
      // As a whole or not at all: there may be no memory for it.
      Account made;
      made.key = membership.key;
      made.name = membership.name;
      made.shared = membership.shared;
      entry = accounts_.emplace(membership.key, std::move(made)).first;
    }
    Account& account = entry->second;
    shared_fresh |= fresh && membership.shared;
    if (account.shared) shared_.insert(&*entry);
    if (fresh || membership.limits.device < account.limits.device) account.remedy.device = membership.remedy.device;
    if (fresh || membership.limits.host < account.limits.host) account.remedy.host = membership.remedy.host;
    if (std::ranges::find(member.accounts, &account) != member.accounts.end()) continue;
    account.limits.device = std::min(account.limits.device, membership.limits.device);
    account.limits.host = std::min(account.limits.host, membership.limits.host);
    account.host_budget = std::min(account.host_budget, membership.limits.host);
    member.accounts.reserve(member.accounts.size() + 1);  // first: there may be no memory for it
    account.clients.insert(client);
    member.accounts.push_back(&account);
    account.host.has += member.host_counted.has;
    account.host.spare += member.host_counted.spare;
    account.host.lacks += member.host_counted.lacks;
    // A client that is charged to a further account may already have memory.
    for (GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
      add(account.sums[gpu], {}, in(account, member, gpu));
      account.measured[gpu] += member.measured[gpu];
      account.contexts[gpu] += member.contexts[gpu];
    }
  }
  return shared_fresh;
}

void Quota::set_limits(const std::string& key, Limits limits) {
  if (const auto found = accounts_.find(key); found != accounts_.end()) found->second.limits = limits;
}

void Quota::configure(const Membership& membership) {
  const auto found = accounts_.find(membership.key);
  if (found == accounts_.end()) return;
  Account& account = found->second;
  const Bytes now = account.shared ? account.limits.host : kNoLimit;
  account.limits = membership.limits;
  account.limits.host = std::min(account.limits.host, now);
  account.host_budget = membership.limits.host;
  account.remedy = membership.remedy;
  shares_due_ = true;
}

void Quota::add_gpu(ClientId client, GpuIndex index, Bytes context, bool measurable) {
  const auto found = members_.find(client);
  if (found == members_.end()) return;
  Outcome ignored;  // the client is told its limits in any case
  count_context(found->second, index, context, measurable ? context : 0, ignored);
}

Quota::Outcome Quota::measured(ClientId client, GpuIndex index, Bytes context, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  const Bytes most = std::min(context, total(index));
  count_context(found->second, index, most, most, outcome);
  decide(outcome, now);
  return outcome;
}

Quota::Outcome Quota::not_measured(ClientId client, GpuIndex index, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end() || found->second.measured[index] == 0) return outcome;
  count_context(found->second, index, found->second.contexts[index], 0, outcome);
  decide(outcome, now);
  return outcome;
}

void Quota::count_context(Member& member, GpuIndex index, Bytes context, Bytes measured, Outcome& outcome) {
  shares_due_ = true;
  for (Account* account : member.accounts) {
    // Unsigned arithmetic is correct for decreases, too.
    account->contexts[index] += context - member.contexts[index];
    account->measured[index] += measured - member.measured[index];
    outcome.changed = outcome.changed || account->limits.device != kNoLimit;
  }
  member.contexts[index] = context;
  member.measured[index] = measured;
}

Quota::Outcome Quota::gpu_changed(GpuIndex index, Time now) {
  Outcome outcome;
  shares_due_ = true;
  const auto asks_there = [&](const auto& open) { return open.second.gpu == index; };
  if (std::ranges::any_of(open_, asks_there)) decide(outcome, now);
  return outcome;
}

// By how much the clients of a GPU exceed it, if they had `more` than they have reserved.
Bytes Quota::excess(GpuIndex index, Bytes more) const {
  const Bytes all = gpus_[index].reserved + taken(index) + more;
  return all > total(index) ? all - total(index) : 0;
}

// With a different excess and a different sum on one GPU.
Bytes Quota::host_need(const Account& account, GpuIndex index, Bytes excess_there, const Reservation& sum) const {
  // Extents are larger than what is allocated in them.
  const auto leaves = [](const Reservation& all) { return std::max(all.movable, all.swapped); };
  Bytes need = std::min(leaves(sum), excess_there);
  for (GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if (gpu != index) need += std::min(leaves(account.sums[gpu]), excess(gpu, 0));
  }
  return need;
}

Bytes Quota::host_bytes(const Account& account) const {
  return host_need(account, 0, excess(0, 0), account.sums[0]);
}

// The most that any one client must have there at once, if this one had `own`.
Bytes Quota::most_swapped(GpuIndex index, const Member& member, Bytes own) const {
  const std::multiset<Bytes>& all = gpus_[index].moves;
  auto most = all.rbegin();
  // Of equal ones, any may be its own.
  if (most != all.rend() && *most == member.there[index].moves) ++most;
  return most == all.rend() ? own : std::max(own, *most);
}

Bytes Quota::kept_free(const Member& member, GpuIndex index) const {
  const scheduler::Gpu& gpu = books_.gpu(index);
  // A GPU that is full but for 2 MiB has no memory for the last extent: the driver takes some for mapping the others
  // (H200, 580.159.04). 8 MiB were enough; less was not tried.
  constexpr Bytes kMapping = Bytes{8} << 20;
  const Bytes alone = margin(gpu) != 0 ? kMapping : 0;
  return gpu.contexts > member.contexts[index] ? std::max(margin(gpu), alone) : alone;
}

Bytes Quota::kept_free(ClientId client, GpuIndex gpu) const {
  const auto found = members_.find(client);
  return found == members_.end() ? 0 : kept_free(found->second, gpu);
}

// What the member would have there that cannot be evicted: what it is granted now may be pinned, too.
Bytes Quota::stays_with(const Member& member, GpuIndex index, const Reservation& wanted) {
  const Reservation& before = member.counted[index];
  return std::max(before.fixed, wanted.fixed) +
         std::min(member.pinned[index], std::max(before.swapped, wanted.swapped));
}

// Whether every client's memory could still be restored together with what would then stay there. A request that
// neither pins more nor swaps more is always allowed. The client may use what it has been granted in the meantime, even
// if it now asks for less.
bool Quota::fits(const Member& member, GpuIndex index, const Reservation& wanted) const {
  const Reservation& before = member.counted[index];
  const Bytes swapped = std::max(before.swapped, wanted.swapped);
  const Bytes pinned = std::min(member.pinned[index], swapped);
  const Bytes stays_then = stays_with(member, index, wanted);
  const bool more_stays = stays_then > member.there[index].stays;
  if (!more_stays && wanted.swapped <= before.swapped) return true;
  const Bytes own = swapped - pinned;
  const Bytes at_once = more_stays ? most_swapped(index, member, own) : own;
  const Bytes stays = gpus_[index].stays - member.there[index].stays + stays_then;
  // Pinned memory may be evicted again one day.
  const bool swaps = at_once != 0 || gpus_[index].pinned != 0;
  return !swaps || taken(index) + kept_free(member, index) + stays + at_once <= total(index);
}

// What the client merely claims to have is not granted to it beyond a limit either.
std::optional<Quota::Refusal> Quota::refusal(const Member& member, GpuIndex gpu, const Reservation& wanted) const {
  return fits(member, gpu, wanted) ? refusing_account(member, gpu, wanted) : Refusal{nullptr, false};
}

std::optional<Quota::Refusal> Quota::refusing_account(const Member& member, GpuIndex gpu,
                                                      const Reservation& wanted) const {
  const Reservation& granted = member.counted[gpu];
  for (const Account* account : member.accounts) {
    const Bytes before = in(*account, member, gpu).device;
    // Swap memory takes more there than has been allocated, but only up to a bound.
    const bool more = wanted.swapped > granted.swapped && wanted.swapped > protocol::kLargestExtent;
    if (more && wanted.swapped - protocol::kLargestExtent > account->limits.device) return Refusal{account, false};
    if (wanted.device <= granted.device) continue;
    if (account->device(gpu) - before + std::max(before, wanted.device) > account->limits.device) {
      return Refusal{account, false};
    }
  }
  const Bytes now = excess(gpu, 0);
  const Bytes then = excess(gpu, on_gpu(wanted) - on_gpu(granted));
  for (const Account* account : member.accounts) {
    if (account->limits.host == kNoLimit) continue;
    Reservation sum = account->sums[gpu];
    add(sum, in(*account, member, gpu), granted);
    const Bytes need_now = host_need(*account, gpu, now, sum);
    add(sum, granted, wanted);
    const Bytes need = host_need(*account, gpu, then, sum);
    // One extent in addition to what is there; on a small GPU extents are smaller. A judgment.
    const Bytes piece = std::min({sum.swapped, protocol::kLargestExtent, total(gpu) / 8});
    if (need > need_now && need > account->limits.host - std::min(account->limits.host, piece)) {
      return Refusal{account, true};
    }
  }
  return std::nullopt;
}

void Quota::book(ClientId client, Member& member, GpuIndex gpu, const Reservation& reservation, Outcome& outcome) {
  Reservation& booked = member.reserved[gpu];
  if (reservation != Reservation{}) gpus_[gpu].having.insert(client);  // first: there may be no memory for it
  for (Account* account : member.accounts) {
    if (!account->shared) add(account->sums[gpu], booked, reservation);
    outcome.changed = outcome.changed || account->limits.device != kNoLimit;
  }
  booked = reservation;
  if (booked == Reservation{}) gpus_[gpu].having.erase(client);
  recount(member, gpu, outcome);
}

// The part of it that counts for others, and in what the account's clients have on the host.
void Quota::count_host(Member& member) {
  const HostUse before = member.host_counted;
  member.host_counted = member.host;
  member.host_counted.spare = std::min(member.host.spare, member.counted_in_all);
  for (Account* account : member.accounts) {
    account->host.has += member.host_counted.has - before.has;
    account->host.spare += member.host_counted.spare - before.spare;
    account->host.lacks += member.host_counted.lacks - before.lacks;
  }
}

void Quota::recount(Member& member, GpuIndex gpu, Outcome& outcome) {
  shares_due_ = true;
  Reservation& counted = member.counted[gpu];
  const Reservation now = least_of(member.reserved[gpu], most_of(member.granted[gpu], member.confirmed[gpu]));
  const Bytes pinned = std::min(member.pinned[gpu], now.swapped);
  const There there{.stays = now.fixed + pinned, .moves = now.swapped - pinned, .pinned = pinned};
  There& before = member.there[gpu];
  if (there.moves != before.moves) {
    std::multiset<Bytes>& moves = gpus_[gpu].moves;
    if (there.moves != 0) moves.insert(there.moves);  // first: there may be no memory for it
    if (before.moves != 0) moves.erase(moves.find(before.moves));
  }
  member.swaps_on += (now.swapped != 0 ? 1U : 0U) - (counted.swapped != 0 ? 1U : 0U);
  for (Account* account : member.accounts) {
    if (account->shared) add(account->sums[gpu], counted, now);
  }
  gpus_[gpu].reserved += on_gpu(now) - on_gpu(counted);
  gpus_[gpu].stays += there.stays - before.stays;
  gpus_[gpu].pinned += there.pinned - before.pinned;
  outcome.changed = outcome.changed || there.stays != before.stays;
  before = there;
  member.counted_in_all += on_gpu(now) - on_gpu(counted);
  counted = now;
  count_host(member);
}

Quota::Outcome Quota::confirm(ClientId client, GpuIndex gpu, Bytes on_gpu, Bytes on_host, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  const Bytes all = on_gpu + on_host;
  const Reservation confirmed{all, all, on_gpu, all};
  if (std::exchange(found->second.confirmed[gpu], confirmed) == confirmed) return outcome;
  recount(found->second, gpu, outcome);
  decide(outcome, now);
  return outcome;
}

Quota::Outcome Quota::pin(ClientId client, GpuIndex gpu, Bytes bytes, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end() || std::exchange(found->second.pinned[gpu], bytes) == bytes) return outcome;
  recount(found->second, gpu, outcome);
  decide(outcome, now);
  return outcome;
}

bool Quota::claims(ClientId client, GpuIndex gpu) const {
  const auto found = members_.find(client);
  if (found == members_.end()) return false;
  const Member& member = found->second;
  return least_of(member.reserved[gpu], member.granted[gpu]) != member.reserved[gpu];
}

bool Quota::exceeds_gpu(ClientId client, GpuIndex gpu, Bytes device) const {
  const auto found = members_.find(client);
  const Reservation before = found == members_.end() ? Reservation{} : found->second.counted[gpu];
  return excess(gpu, std::max(device, before.swapped) - on_gpu(before)) != 0;
}

// The most that a client can have of a GPU: what the GPU holds, plus as much in host memory as each of its accounts
// allows. A larger claim is cut to that, or it would use up what others need.
Bytes Quota::most(const Member& member, GpuIndex gpu) const {
  Bytes host = kNoLimit;
  for (const Account* account : member.accounts) host = std::min(host, account->limits.host);
  return host > protocol::kMaxGpuBytes - total(gpu) ? protocol::kMaxGpuBytes : total(gpu) + host;
}

Quota::Outcome Quota::state(ClientId client, GpuIndex gpu, Reservation has, std::uint32_t answered, std::uint32_t round,
                            Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  if (answered != found->second.answered[gpu]) {
    outcome.tighten.insert(client);
    return outcome;
  }
  has.device = std::min(has.device, most(found->second, gpu));
  has.movable = std::min(has.movable, has.device);
  has.fixed = std::min(has.fixed, has.device);
  has.swapped = std::min(has.swapped, total(gpu));
  Reservation& granted = found->second.granted[gpu];
  granted = now < held_until_ ? has : least_of(granted, has);  // what an earlier daemon has granted is not known
  const bool freed = is_less(has, found->second.reserved[gpu]);
  book(client, found->second, gpu, has, outcome);
  const bool last = heard(client, gpu, round);
  if (freed || last) decide(outcome, now);
  if (freed && rooms_.awaited(gpu)) decide_rooms(outcome, now);
  return outcome;
}

Quota::Outcome Quota::leave(ClientId client, Time now, bool ended) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  Member& member = found->second;
  for (GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if (member.reserved[gpu] != Reservation{}) book(client, member, gpu, {}, outcome);
    if (member.contexts[gpu] != 0) count_context(member, gpu, 0, 0, outcome);
  }
  while (!member.asks.empty()) forget(member, member.asks.begin()->first);
  rooms_.leave(client, now, ended);
  member.host = {};
  shares_due_ = true;
  count_host(member);
  wait_no_longer(client);
  for (Account* account : member.accounts) account->clients.erase(client);
  decide(outcome, now);
  for (const Account* account : member.accounts) {
    if (!account->clients.empty()) continue;
    const auto entry = accounts_.find(account->key);
    shared_.erase(&*entry);
    accounts_.erase(entry);
  }
  members_.erase(found);
  decide_rooms(outcome, now);
  return outcome;
}

Quota::Outcome Quota::tick(Time now) {
  Outcome outcome;
  decide(outcome, now);
  decide_rooms(outcome, now);
  return outcome;
}

Bytes Quota::limit(ClientId client) const {
  Bytes lowest = kNoLimit;
  const auto found = members_.find(client);
  if (found == members_.end()) return lowest;
  for (const Account* account : found->second.accounts) lowest = std::min(lowest, account->limits.device);
  return lowest;
}

Bytes Quota::left(ClientId client, GpuIndex gpu) const {
  Bytes least = kNoLimit;
  const auto found = members_.find(client);
  if (found == members_.end()) return least;
  for (const Account* account : found->second.accounts) {
    if (account->limits.device == kNoLimit) continue;
    const Bytes used = account->sums[gpu].device + account->contexts[gpu];
    least = std::min(least, account->limits.device - std::min(account->limits.device, used));
  }
  return least;
}

Reservation Quota::reserved(ClientId client, GpuIndex gpu) const {
  const auto found = members_.find(client);
  return found == members_.end() ? Reservation{} : found->second.reserved[gpu];
}

Bytes Quota::fixed_of_others(ClientId client, GpuIndex gpu) const {
  const auto found = members_.find(client);
  return gpus_[gpu].stays - (found == members_.end() ? 0 : found->second.there[gpu].stays);
}

const Quota::Entry* Quota::account_after(const std::string& key) const {
  const auto next = accounts_.upper_bound(key);
  return next == accounts_.end() ? nullptr : &*next;
}

std::vector<const Quota::Entry*> Quota::shared_accounts() const {
  return {shared_.begin(), shared_.end()};
}

}  // namespace rota::scheduler
