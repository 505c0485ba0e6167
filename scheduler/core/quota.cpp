#include "scheduler/core/quota.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "scheduler/protocol/byte_text.h"
#include "scheduler/protocol/host_memory.h"

namespace rota::scheduler {

using protocol::bytes_text;

namespace {

// A client is granted up to the next step (event.h) if its limits are at least this many steps away. Judgement.
constexpr Bytes kFar = 4;

// A sentence about an account that fits into a message: a long name (a cgroup's path) loses its middle. The longest
// rest leaves it `kLeast`, so that no number and no remedy is cut.
std::string fitting(const std::string& name, const std::string& rest) {
  constexpr std::size_t kMost = protocol::kTextLength - 1;
  constexpr std::string_view kLeftOut = "...";
  constexpr std::size_t kLeast = 24;
  const std::size_t room = std::max(kMost - std::min(kMost, rest.size()), kLeast);
  if (name.size() <= room) return name + rest;
  const std::size_t begin = std::min(name.find(' ') + 1, kLeast / 2);
  return fmt::format("{}{}{}{}", name.substr(0, begin), kLeftOut,
                     name.substr(name.size() - (room - begin - kLeftOut.size())), rest);
}

void add(Reservation& sum, const Reservation& before, const Reservation& after) {
  sum.device += after.device - before.device;  // unsigned arithmetic is correct for decreases, too
  sum.movable += after.movable - before.movable;
  sum.swapped += after.swapped - before.swapped;
}

template <typename Choose>
Reservation each_of(const Reservation& one, const Reservation& other, const Choose& choose) {
  return {choose(one.device, other.device), choose(one.movable, other.movable), choose(one.fixed, other.fixed),
          choose(one.swapped, other.swapped)};
}

Reservation least_of(const Reservation& one, const Reservation& other) {
  return each_of(one, other, [](Bytes a, Bytes b) { return std::min(a, b); });
}

Reservation most_of(const Reservation& one, const Reservation& other) {
  return each_of(one, other, [](Bytes a, Bytes b) { return std::max(a, b); });
}

}  // namespace

void Quota::join(ClientId client, const std::vector<Membership>& accounts) {
  Member& member = members_[client];
  for (const Membership& membership : accounts) {
    const auto [entry, fresh] = accounts_.try_emplace(membership.key);
    Account& account = entry->second;
    if (fresh) account.name = membership.name;
    if (fresh) account.shared = membership.shared;
    if (fresh || membership.limits.device < account.limits.device) account.remedy.device = membership.remedy.device;
    if (fresh || membership.limits.host < account.limits.host) account.remedy.host = membership.remedy.host;
    if (std::ranges::find(member.accounts, &account) != member.accounts.end()) continue;
    account.limits.device = std::min(account.limits.device, membership.limits.device);
    account.limits.host = std::min(account.limits.host, membership.limits.host);
    account.host_budget = std::min(account.host_budget, membership.limits.host);
    ++account.clients;
    member.accounts.push_back(&account);
    // A client that is charged to a further account may already have memory.
    for (GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
      add(account.sums[gpu], {}, in(account, member, gpu));
      account.measured[gpu] += member.measured[gpu];
      account.contexts[gpu] += member.contexts[gpu];
    }
  }
}

void Quota::set_limits(const std::string& key, Limits limits) {
  if (const auto found = accounts_.find(key); found != accounts_.end()) found->second.limits = limits;
}

void Quota::add_gpu(ClientId client, GpuIndex index, Bytes total, Bytes context, bool measurable) {
  const auto found = members_.find(client);
  if (found == members_.end()) return;
  gpus_[index].total = total;  // an unused index may be reused for another GPU
  Outcome ignored;             // the client is told its limits in any case
  count_context(found->second, index, context, measurable ? context : 0, ignored);
}

Quota::Outcome Quota::measured(ClientId client, GpuIndex index, Bytes context, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  const Bytes most = std::min(context, gpus_[index].total);
  count_context(found->second, index, most, most, outcome);
  settle(outcome, now);
  return outcome;
}

Quota::Outcome Quota::not_measured(ClientId client, GpuIndex index, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end() || found->second.measured[index] == 0) return outcome;
  count_context(found->second, index, found->second.contexts[index], 0, outcome);
  settle(outcome, now);
  return outcome;
}

void Quota::count_context(Member& member, GpuIndex index, Bytes context, Bytes measured, Outcome& outcome) {
  gpus_[index].contexts += context - member.contexts[index];  // unsigned arithmetic is correct for decreases, too
  for (Account* account : member.accounts) {
    account->contexts[index] += context - member.contexts[index];
    account->measured[index] += measured - member.measured[index];
    outcome.changed = outcome.changed || account->limits.device != kNoLimit;
  }
  member.contexts[index] = context;
  member.measured[index] = measured;
}

Quota::Outcome Quota::set_outside(GpuIndex index, Bytes bytes, Time now) {
  Outcome outcome;
  if (std::exchange(gpus_[index].outside, bytes) > bytes) settle(outcome, now);  // an ask may fit now
  return outcome;
}

// By how much the clients of a GPU exceed it, if they had `more` than they have reserved.
Bytes Quota::excess(GpuIndex index, Bytes more) const {
  const Gpu& gpu = gpus_[index];
  const Bytes all = gpu.reserved + gpu.contexts + gpu.outside + more;
  return all > gpu.total ? all - gpu.total : 0;
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
  Bytes most = own;
  for (const auto& [id, other] : members_) {
    if (&other != &member) most = std::max(most, other.counted[index].swapped);
  }
  return most;
}

// Whether every client could still come back beside what would then stay there. A client that takes nothing that stays
// is in nobody's way. It may use what it has been granted in the meantime, even if it now asks for less.
bool Quota::fits(const Member& member, GpuIndex index, const Reservation& wanted) const {
  const Reservation& before = member.counted[index];
  const bool more_stays = wanted.fixed > before.fixed;
  if (!more_stays && wanted.swapped <= before.swapped) return true;
  const Bytes own = std::max(before.swapped, wanted.swapped);
  const Bytes at_once = more_stays ? most_swapped(index, member, own) : own;
  const Gpu& gpu = gpus_[index];
  const Bytes fixed = gpu.fixed - before.fixed + std::max(before.fixed, wanted.fixed);
  return at_once == 0 || gpu.contexts + gpu.outside + fixed + at_once <= gpu.total;
}

std::optional<Quota::Refusal> Quota::refusal(const Member& member, GpuIndex gpu, const Reservation& wanted) const {
  if (!fits(member, gpu, wanted)) return Refusal{nullptr, false};
  for (const Account* account : member.accounts) {
    const Bytes before = in(*account, member, gpu).device;
    if (wanted.device <= before) continue;
    if (account->device(gpu) - before + wanted.device > account->limits.device) return Refusal{account, false};
  }
  const Bytes now = excess(gpu, 0);
  const Bytes then = excess(gpu, on_gpu(wanted) - on_gpu(member.counted[gpu]));
  for (const Account* account : member.accounts) {
    if (account->limits.host == kNoLimit) continue;
    Reservation sum = account->sums[gpu];
    const Bytes need_now = host_need(*account, gpu, now, sum);
    add(sum, in(*account, member, gpu), wanted);
    const Bytes need = host_need(*account, gpu, then, sum);
    // Beside what is there, one piece that moves; on a small GPU they are smaller. A judgment.
    const Bytes piece = std::min({sum.swapped, protocol::kLargestExtent, gpus_[gpu].total / 8});
    if (need > need_now && need > account->limits.host - std::min(account->limits.host, piece)) {
      return Refusal{account, true};
    }
  }
  return std::nullopt;
}

void Quota::book(Member& member, GpuIndex gpu, const Reservation& reservation, Outcome& outcome) {
  Reservation& booked = member.reserved[gpu];
  for (Account* account : member.accounts) {
    if (!account->shared) add(account->sums[gpu], booked, reservation);
    outcome.changed = outcome.changed || account->limits.device != kNoLimit;
  }
  booked = reservation;
  recount(member, gpu, outcome);
}

void Quota::recount(Member& member, GpuIndex gpu, Outcome& outcome) {
  Reservation& counted = member.counted[gpu];
  const Reservation now = least_of(member.reserved[gpu], most_of(member.granted[gpu], member.confirmed[gpu]));
  for (Account* account : member.accounts) {
    if (account->shared) add(account->sums[gpu], counted, now);
  }
  gpus_[gpu].reserved += on_gpu(now) - on_gpu(counted);
  gpus_[gpu].fixed += now.fixed - counted.fixed;
  outcome.changed = outcome.changed || now.fixed != counted.fixed;
  counted = now;
}

Quota::Outcome Quota::confirm(ClientId client, GpuIndex gpu, Bytes on_gpu, Bytes on_host, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  const Bytes all = on_gpu + on_host;
  const Reservation confirmed{all, all, on_gpu, all};
  if (std::exchange(found->second.confirmed[gpu], confirmed) == confirmed) return outcome;
  recount(found->second, gpu, outcome);
  settle(outcome, now);
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

Quota::Answer Quota::grant(ClientId client, Member& member, GpuIndex gpu, const Ask& ask, Outcome& outcome) {
  Reservation granted = most_of(ask.wanted, member.counted[gpu]);
  const Bytes total = gpus_[gpu].total;
  Reservation far = granted;
  for (Bytes* bytes : {&far.device, &far.movable, &far.fixed, &far.swapped}) *bytes += kFar * step_of(total);
  if (!refusal(member, gpu, far)) {
    const Bytes more = up_to_step(granted.device, total) - granted.device;
    granted.device += more;
    if (granted.movable != 0) granted.movable += more;
    if (granted.fixed != 0) granted.fixed += more;
    granted.swapped = up_to_step(granted.swapped, total);
  }
  member.granted[gpu] = granted;
  book(member, gpu, most_of(granted, member.reserved[gpu]), outcome);
  return {client, gpu, ask.number, true, member.reserved[gpu], {}};
}

Quota::Answer Quota::refuse(ClientId client, const Member& member, GpuIndex gpu, const Ask& ask,
                            const Refusal& by) const {
  if (by.account == nullptr) {
    const Reservation& before = member.reserved[gpu];
    const Bytes more = std::max(ask.wanted.fixed - std::min(ask.wanted.fixed, before.fixed),
                                ask.wanted.swapped - std::min(ask.wanted.swapped, before.swapped));
    const Gpu& where = gpus_[gpu];
    return {
        client,
        gpu,
        ask.number,
        false,
        before,
        fmt::format("of {}, {}contexts take {}, {} cannot leave the GPU, and one program needs {} at once; {} more "
                    "were requested",
                    bytes_text(where.total),
                    where.outside == 0 ? "" : fmt::format("programs without rota have {}, ", bytes_text(where.outside)),
                    bytes_text(where.contexts), bytes_text(where.fixed),
                    bytes_text(most_swapped(gpu, member, before.swapped)), bytes_text(more))};
  }
  const Account& account = *by.account;
  // Memory that moves out as a whole is asked for by itself, in extents, when it is among the GPU's bytes already.
  const auto more_of = [&](Bytes Reservation::* bytes) {
    return ask.wanted.*bytes - std::min(ask.wanted.*bytes, member.reserved[gpu].*bytes);
  };
  const Bytes more =
      by.host ? std::max(more_of(&Reservation::device), more_of(&Reservation::swapped)) : more_of(&Reservation::device);
  std::string why;
  if (by.host) {
    why = fmt::format(" may have {} of GPU memory in host memory, too little for {} more on this GPU",
                      bytes_text(account.limits.host), bytes_text(more));
  } else {
    const Bytes measured = account.measured[gpu];
    why = fmt::format(" may have {} on each GPU; {} are in use{}; {} more were requested",
                      bytes_text(account.limits.device), bytes_text(account.device(gpu)),
                      measured == 0 ? "" : fmt::format(", {} by contexts and modules", bytes_text(measured)),
                      bytes_text(more));
  }
  const std::string& remedy = by.host ? account.remedy.host : account.remedy.device;
  if (!remedy.empty()) why += ": " + remedy;
  why = fitting(account.name, why);
  return {client, gpu, ask.number, false, member.reserved[gpu], why};
}

// Asks others to report what they do not need: the clients of the account, or for the host all that use the GPU. For
// the GPU itself the asker is included: it may need less of one kind by now.
void Quota::call_back(ClientId client, GpuIndex gpu, Ask& ask, const Refusal& by, Outcome& outcome) {
  ask.round = ++round_;
  for (const auto& [id, other] : members_) {
    if ((id == client && by.account != nullptr) || other.reserved[gpu] == Reservation{}) continue;
    const bool concerned =
        by.account == nullptr || by.host || std::ranges::find(other.accounts, by.account) != other.accounts.end();
    if (concerned) ask.awaited.insert(id);
  }
  outcome.tighten.insert(ask.awaited.begin(), ask.awaited.end());
}

Quota::Outcome Quota::reserve(ClientId client, GpuIndex gpu, std::uint32_t number, Reservation wanted, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  wanted.device = std::min(wanted.device, protocol::kMaxGpuBytes);
  wanted.movable = std::min(wanted.movable, wanted.device);
  wanted.fixed = std::min(wanted.fixed, wanted.device);
  wanted.swapped = std::min(wanted.swapped, protocol::kMaxGpuBytes);
  // A client asks for one thing at a time on a GPU; a later ask replaces one that has not been answered.
  Ask& ask = found->second.asks[gpu] = {};
  ask.number = number;
  ask.wanted = wanted;
  ask.deadline = std::max(now, held_until_) + kPatience;
  ask.order = ++asks_;
  settle(outcome, now);
  return outcome;
}

// The most that a client can have of a GPU: what the GPU holds, plus as much in host memory as each of its accounts
// allows. A larger claim is cut to that, or it would use up what others need.
Bytes Quota::most(const Member& member, GpuIndex gpu) const {
  Bytes host = kNoLimit;
  for (const Account* account : member.accounts) host = std::min(host, account->limits.host);
  const Bytes total = gpus_[gpu].total;
  return host > protocol::kMaxGpuBytes - total ? protocol::kMaxGpuBytes : total + host;
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
  has.swapped = std::min(has.swapped, gpus_[gpu].total);
  Reservation& granted = found->second.granted[gpu];
  granted = now < held_until_ ? has : least_of(granted, has);  // what an earlier daemon has granted is not known
  book(found->second, gpu, has, outcome);
  for (auto& [id, other] : members_) {
    const auto ask = other.asks.find(gpu);
    // Round numbers may wrap around.
    if (ask != other.asks.end() && static_cast<std::int32_t>(round - ask->second.round) >= 0) {
      ask->second.awaited.erase(client);
    }
  }
  settle(outcome, now);
  return outcome;
}

Quota::Outcome Quota::leave(ClientId client, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  Member& member = found->second;
  for (GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if (member.reserved[gpu] != Reservation{}) book(member, gpu, {}, outcome);
    if (member.contexts[gpu] != 0) count_context(member, gpu, 0, 0, outcome);
  }
  for (Account* account : member.accounts) --account->clients;
  members_.erase(found);
  for (auto& [id, other] : members_) {
    for (auto& [gpu, ask] : other.asks) ask.awaited.erase(client);
  }
  settle(outcome, now);
  std::erase_if(accounts_, [](const auto& entry) { return entry.second.clients == 0; });
  return outcome;
}

Quota::Outcome Quota::tick(Time now) {
  Outcome outcome;
  settle(outcome, now);
  return outcome;
}

// Whether any limit, near or far, applies to what this request would increase.
bool Quota::limited(const Member& member, GpuIndex gpu, const Reservation& wanted) const {
  const Reservation& counted = member.counted[gpu];
  const bool more = wanted.fixed > counted.fixed || wanted.swapped > counted.swapped;
  if (more && most_swapped(gpu, member, wanted.swapped) != 0) return true;
  const Bytes before = counted.device;
  if (wanted.device <= before) return false;
  const bool outside = excess(gpu, wanted.device - before) != 0;
  return std::ranges::any_of(member.accounts, [&](const Account* account) {
    return account->limits.device != kNoLimit || (outside && account->limits.host != kNoLimit);
  });
}

// In the order in which they asked: a grant may leave too little for the next one.
void Quota::settle(Outcome& outcome, Time now) {
  if (now >= held_until_) held_until_ = {};
  struct Asking {
    ClientId client;
    Member* member;
    GpuIndex gpu;
    std::uint64_t order;
  };
  std::vector<Asking> asking;
  for (auto& [id, member] : members_) {
    for (const auto& [gpu, ask] : member.asks) asking.push_back({id, &member, gpu, ask.order});
  }
  std::ranges::sort(asking, {}, &Asking::order);
  for (const auto& [id, member, gpu, order] : asking) {
    Ask& ask = member->asks.at(gpu);
    if (now < held_until_ && limited(*member, gpu, ask.wanted)) continue;
    const auto refused = refusal(*member, gpu, ask.wanted);
    // An account that has only now become the obstacle has not been asked about yet.
    if (refused && ask.tried.insert(refused->account).second) call_back(id, gpu, ask, *refused, outcome);
    if (refused && !ask.awaited.empty() && now < ask.deadline) continue;
    outcome.answers.push_back(refused ? refuse(id, *member, gpu, ask, *refused)
                                      : grant(id, *member, gpu, ask, outcome));
    member->answered[gpu] = ask.number;
    member->asks.erase(gpu);
  }
}

std::optional<Time> Quota::next_deadline() const {
  std::optional<Time> next;
  for (const auto& [id, member] : members_) {
    for (const auto& [gpu, ask] : member.asks) {
      const Time due = held_until_ != Time{} ? std::min(ask.deadline, held_until_) : ask.deadline;
      if (!next || due < *next) next = due;
    }
  }
  return next;
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
  return gpus_[gpu].fixed - (found == members_.end() ? 0 : found->second.counted[gpu].fixed);
}

void Quota::for_each_account(const std::function<void(const std::string& key, const Account&)>& visit) const {
  for (const auto& [key, account] : accounts_) visit(key, account);
}

}  // namespace rota::scheduler
