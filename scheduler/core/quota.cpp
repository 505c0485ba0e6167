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

bool is_less(const Reservation& one, const Reservation& other) {
  return one.device < other.device || one.movable < other.movable || one.fixed < other.fixed ||
         one.swapped < other.swapped;
}

}  // namespace

// A question to clients what they do not need on a GPU.
struct Quota::Call {
  std::uint32_t round = 0;
  GpuIndex gpu = 0;
  std::uint64_t after = 0;     // asks up to this one were made before it
  ClientId except = 0;         // whom it did not go to; 0: nobody
  std::set<ClientId> awaited;  // who has not answered
};

bool Quota::join(ClientId client, const std::vector<Membership>& accounts) {
  Member& member = members_[client];
  bool any_fresh = false;
  for (const Membership& membership : accounts) {
    const auto [entry, fresh] = accounts_.try_emplace(membership.key);
    Account& account = entry->second;
    any_fresh |= fresh;
    if (fresh) account.key = membership.key;
    if (fresh) account.name = membership.name;
    if (fresh) account.shared = membership.shared;
    if (fresh && account.shared) shared_.insert(&*entry);
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
  return any_fresh;
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
  const std::multiset<Bytes>& all = gpus_[index].swapped;
  auto most = all.rbegin();
  // Of equal ones, any may be its own.
  if (most != all.rend() && *most == member.counted[index].swapped) ++most;
  return most == all.rend() ? own : std::max(own, *most);
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
    // What swap memory takes there is more than what has been allocated, but not by any amount.
    const bool more = wanted.swapped > in(*account, member, gpu).swapped && wanted.swapped > protocol::kLargestExtent;
    if (more && wanted.swapped - protocol::kLargestExtent > account->limits.device) return Refusal{account, false};
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

// What of it counts for others, and in what the account's clients have on the host.
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
  Reservation& counted = member.counted[gpu];
  const Reservation now = least_of(member.reserved[gpu], most_of(member.granted[gpu], member.confirmed[gpu]));
  if (now.swapped != counted.swapped) {
    std::multiset<Bytes>& swapped = gpus_[gpu].swapped;
    if (now.swapped != 0) swapped.insert(now.swapped);  // first: there may be no memory for it
    if (counted.swapped != 0) swapped.erase(swapped.find(counted.swapped));
    if (counted.swapped == 0) ++member.swaps_on;
    if (now.swapped == 0) --member.swaps_on;
  }
  for (Account* account : member.accounts) {
    if (account->shared) add(account->sums[gpu], counted, now);
  }
  gpus_[gpu].reserved += on_gpu(now) - on_gpu(counted);
  gpus_[gpu].fixed += now.fixed - counted.fixed;
  outcome.changed = outcome.changed || now.fixed != counted.fixed;
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
  book(client, member, gpu, most_of(granted, member.reserved[gpu]), outcome);
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
  const Bytes allocated = more_of(&Reservation::device);
  const Bytes more = by.host || allocated == 0 ? std::max(allocated, more_of(&Reservation::swapped)) : allocated;
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
// the GPU itself the asker is included: it may need less of one kind by now. False if the last call is too recent, and
// from before this ask: the next one is for all that have asked by then.
bool Quota::call_back(ClientId client, GpuIndex gpu, Ask& ask, const Refusal& by, Outcome& outcome, Time now) {
  const bool of_gpu = by.account == nullptr || by.host;
  Calls& calls = of_gpu ? gpus_[gpu].calls : accounts_.at(by.account->key).calls[gpu];
  const ClientId except = by.account != nullptr ? client : 0;
  std::shared_ptr<Call> call = calls.latest.lock();
  if (call != nullptr && call->after >= ask.order) {
    if (call->except != except && call->except != 0) {
      call->awaited.insert(call->except);
      outcome.tighten.insert(call->except);
      call->except = 0;
    }
    ask.calls.push_back(std::move(call));
    return true;
  }
  if (now < calls.next) {
    ask.deadline = std::max(ask.deadline, calls.next + kPatience);
    look_again(ask, calls.next);
    return false;
  }
  call = std::make_shared<Call>(Call{.round = ++round_, .gpu = gpu, .after = asks_, .except = except, .awaited = {}});
  for (const ClientId id : of_gpu ? gpus_[gpu].having : by.account->clients) {
    if (id != except && gpus_[gpu].having.contains(id)) call->awaited.insert(id);
  }
  outcome.tighten.insert(call->awaited.begin(), call->awaited.end());
  calls.next = now + kBetweenCalls * static_cast<std::int64_t>(call->awaited.size());
  calls.latest = call;
  std::erase_if(calls_, [](const std::weak_ptr<Call>& each) { return each.expired(); });
  calls_.push_back(call);
  ask.calls.push_back(std::move(call));
  return true;
}

// A client has answered this round and all before. Returns whether it was the last that a call waited for.
bool Quota::heard(ClientId client, GpuIndex gpu, std::uint32_t round) {
  bool last = false;
  std::erase_if(calls_, [&](const std::weak_ptr<Call>& each) {
    const std::shared_ptr<Call> call = each.lock();
    if (call == nullptr) return true;
    // Round numbers may wrap around.
    if (call->gpu != gpu || static_cast<std::int32_t>(round - call->round) < 0) return false;
    last |= call->awaited.erase(client) != 0 && call->awaited.empty();
    return false;
  });
  return last;
}

void Quota::look_again(Ask& ask, Time due) {
  dues_.erase({ask.due, ask.order});
  ask.due = due;
  dues_.emplace(due, ask.order);
}

bool Quota::asks(ClientId client, GpuIndex gpu) const {
  const auto found = members_.find(client);
  return found != members_.end() && found->second.asks.contains(gpu);
}

Quota::Outcome Quota::reserve(ClientId client, GpuIndex gpu, std::uint32_t number, Reservation wanted, Time now,
                              Time patience) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  wanted.device = std::min(wanted.device, protocol::kMaxGpuBytes);
  wanted.movable = std::min(wanted.movable, wanted.device);
  wanted.fixed = std::min(wanted.fixed, wanted.device);
  wanted.swapped = std::min(wanted.swapped, protocol::kMaxGpuBytes);
  // A client asks for one thing at a time on a GPU; a later ask replaces one that has not been answered.
  forget(found->second, gpu);
  Ask& ask = found->second.asks[gpu];
  ask.number = number;
  ask.wanted = wanted;
  ask.deadline = std::max(now, held_until_) + patience;
  ask.order = ++asks_;
  open_.emplace(ask.order, Asking{client, gpu});
  look_again(ask, ask.deadline);
  settle(ask.order, outcome, now);  // the others have no more than before
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
  const bool freed = is_less(has, found->second.reserved[gpu]);
  book(client, found->second, gpu, has, outcome);
  const bool last = heard(client, gpu, round);
  if (freed || last) settle(outcome, now);
  return outcome;
}

Quota::Outcome Quota::leave(ClientId client, Time now) {
  Outcome outcome;
  const auto found = members_.find(client);
  if (found == members_.end()) return outcome;
  Member& member = found->second;
  for (GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if (member.reserved[gpu] != Reservation{}) book(client, member, gpu, {}, outcome);
    if (member.contexts[gpu] != 0) count_context(member, gpu, 0, 0, outcome);
  }
  while (!member.asks.empty()) forget(member, member.asks.begin()->first);
  member.host = {};
  count_host(member);
  for (const std::weak_ptr<Call>& each : calls_) {
    if (const std::shared_ptr<Call> call = each.lock()) call->awaited.erase(client);
  }
  for (Account* account : member.accounts) account->clients.erase(client);
  settle(outcome, now);
  for (const Account* account : member.accounts) {
    if (!account->clients.empty()) continue;
    const auto entry = accounts_.find(account->key);
    shared_.erase(&*entry);
    accounts_.erase(entry);
  }
  members_.erase(found);
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
  for (auto next = open_.begin(); next != open_.end();) {
    const std::uint64_t order = next->first;
    ++next;
    settle(order, outcome, now);
  }
}

void Quota::settle(std::uint64_t order, Outcome& outcome, Time now) {
  if (now >= held_until_) held_until_ = {};
  const auto [id, gpu] = open_.at(order);
  Member& member = members_.at(id);
  Ask& ask = member.asks.at(gpu);
  if (now < held_until_ && limited(member, gpu, ask.wanted)) return;
  const auto refused = refusal(member, gpu, ask.wanted);
  // An account that has only now become the obstacle has not been asked about yet.
  if (refused && !ask.tried.contains(refused->account) && now < ask.deadline) {
    if (!call_back(id, gpu, ask, *refused, outcome, now)) return;
    ask.tried.insert(refused->account);
    look_again(ask, ask.deadline);
  }
  const auto waits = [](const std::shared_ptr<Call>& call) { return !call->awaited.empty(); };
  if (refused && now < ask.deadline && std::ranges::any_of(ask.calls, waits)) return;
  outcome.answers.push_back(refused ? refuse(id, member, gpu, ask, *refused) : grant(id, member, gpu, ask, outcome));
  member.answered[gpu] = ask.number;
  forget(member, gpu);
}

void Quota::forget(Member& member, GpuIndex gpu) {
  const auto ask = member.asks.find(gpu);
  if (ask == member.asks.end()) return;
  open_.erase(ask->second.order);
  dues_.erase({ask->second.due, ask->second.order});
  member.asks.erase(ask);
}

std::optional<Time> Quota::next_deadline() const {
  if (dues_.empty()) return std::nullopt;
  const Time due = dues_.begin()->first;
  return held_until_ != Time{} ? std::min(due, held_until_) : due;
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

const Quota::Entry* Quota::account_after(const std::string& key) const {
  const auto next = accounts_.upper_bound(key);
  return next == accounts_.end() ? nullptr : &*next;
}

std::vector<const Quota::Entry*> Quota::shared_accounts() const {
  return {shared_.begin(), shared_.end()};
}

}  // namespace rota::scheduler
