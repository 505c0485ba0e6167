// Requests for memory: granted, refused, or kept open while others say what they do not need.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "scheduler/base/byte_text.h"
#include "scheduler/limits/quota.h"

namespace rota::scheduler {

using rota::bytes_text;

namespace {

// A client is granted up to the next step (event.h) if its limits are at least kFar steps away. Judgement.
constexpr Bytes kFar = 4;
// If only the GPU's end is nearer than that, a step is a half of it, a quarter, and so on down to kSmallest of it, at
// least kNear of which have to be left. Not near limits of accounts, where others are told that the reserve is
// taken. Judgments.
constexpr Bytes kNear = 2;
constexpr Bytes kSmallest = 64;

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

}  // namespace

protocol::RefusalReason Quota::reason_of(const Refusal& by) {
  using protocol::RefusalReason;
  if (by.account == nullptr) return RefusalReason::kGpuFull;
  const std::string& key = by.account->key;
  if (key.starts_with("process ")) return by.host ? RefusalReason::kProcessHostLimit : RefusalReason::kProcessGpuLimit;
  if (key.starts_with("session ")) return by.host ? RefusalReason::kSessionHostLimit : RefusalReason::kSessionGpuLimit;
  if (key.starts_with("user ")) return by.host ? RefusalReason::kUserHostLimit : RefusalReason::kUserGpuLimit;
  if (key.starts_with("cgroup ")) return by.host ? RefusalReason::kCgroupHostLimit : RefusalReason::kCgroupGpuLimit;
  return RefusalReason::kHostMemory;
}

// A question to clients: what do they not need on a GPU?
struct Quota::Call {
  std::uint32_t round = 0;
  GpuIndex gpu = 0;
  std::uint64_t after = 0;     // asks up to this one were made before it
  ClientId except = 0;         // whom it did not go to; 0: nobody
  std::set<ClientId> awaited;  // who has not answered
};

Quota::Answer Quota::grant(ClientId client, Member& member, GpuIndex gpu, const Ask& ask, Outcome& outcome) {
  Reservation granted = most_of(ask.wanted, member.counted[gpu]);
  const auto beyond = [&](Bytes more) {
    Reservation far = granted;
    for (Bytes* bytes : {&far.device, &far.movable, &far.fixed, &far.swapped}) *bytes += more;
    return far;
  };
  Bytes step = step_of(total(gpu));
  const Bytes smallest = std::max<Bytes>(step / kSmallest, 1);
  const Reservation far = beyond(kFar * step);
  if (!refusing_account(member, gpu, far)) {
    bool left = fits(member, gpu, far);
    while (!left && step / 2 >= smallest) left = fits(member, gpu, beyond(kNear * (step /= 2)));
    const auto more = [&](Bytes bytes) { return left ? (bytes + step - 1) / step * step - bytes : 0; };
    const Bytes reserve = more(granted.device);
    granted.device += reserve;
    if (granted.movable != 0) granted.movable += reserve;
    if (granted.fixed != 0) granted.fixed += reserve;
    granted.swapped += more(granted.swapped);
  }
  member.granted[gpu] = granted;
  book(client, member, gpu, most_of(granted, member.reserved[gpu]), outcome);
  return {client, gpu, ask.number, true, member.reserved[gpu], {}, {}};
}

Quota::Answer Quota::refuse(ClientId client, const Member& member, GpuIndex gpu, const Ask& ask,
                            const Refusal& by) const {
  const Reservation& before = member.reserved[gpu];
  const auto more_of = [&](Bytes Reservation::* bytes) {
    return ask.wanted.*bytes - std::min(ask.wanted.*bytes, before.*bytes);
  };
  // Swap memory that the GPU's bytes already include is asked for by itself, in extents.
  const Bytes allocated = more_of(&Reservation::device);
  const Bytes more =
      allocated != 0 ? allocated : std::max(more_of(&Reservation::fixed), more_of(&Reservation::swapped));
  if (by.account == nullptr) {
    const Bytes kept = kept_free(member, gpu);
    return {client,
            gpu,
            ask.number,
            false,
            before,
            fmt::format("of {}, {}contexts{} take {}, {} cannot be evicted, and one program needs {} at once; {} more "
                        "were requested",
                        bytes_text(total(gpu)),
                        outside(gpu) == 0 ? "" : fmt::format("{} are used without rota, ", bytes_text(outside(gpu))),
                        kept == 0 ? "" : " and a reserve", bytes_text(books_.gpu(gpu).contexts + kept),
                        bytes_text(gpus_[gpu].stays), bytes_text(most_swapped(gpu, member, member.there[gpu].moves)),
                        bytes_text(more)),
            reason_of(by)};
  }
  const Account& account = *by.account;
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
  return {client, gpu, ask.number, false, before, why, reason_of(by)};
}

// Asks others to report what they do not need: the clients of the account, or for the host all that use the GPU. For
// the GPU itself the asker is included: it may need less of one kind by now. False if the last call was too recent and
// before this ask: the next call is for all that have asked by then.
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
  ask.since = now;
  open_.emplace(ask.order, Asking{client, gpu});
  look_again(ask, ask.deadline);
  decide(ask.order, outcome, now);  // the others have no more than before
  return outcome;
}

void Quota::wait_no_longer(ClientId client) {
  for (const std::weak_ptr<Call>& each : calls_) {
    if (const std::shared_ptr<Call> call = each.lock()) call->awaited.erase(client);
  }
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
void Quota::decide(Outcome& outcome, Time now) {
  if (now >= held_until_) held_until_ = {};
  for (auto next = open_.begin(); next != open_.end();) {
    const std::uint64_t order = next->first;
    ++next;
    decide(order, outcome, now);
  }
}

// Decides nothing until clients of an earlier daemon have had the time to say what they have: it is not known yet whose
// memory is in the way.
void Quota::decide_rooms(Outcome& outcome, Time now) {
  if (now < held_until_) return;
  for (GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if (!rooms_.awaited(gpu)) continue;
    for (const auto& [client, member] : members_) rooms_.moves(client, gpu, member.there[gpu].moves, now);
  }
  outcome.rooms = rooms_.decide(now);
}

Quota::Outcome Quota::await_room(RoomQueue::Request request, Time now) {
  Outcome outcome;
  const auto found = members_.find(request.client);
  if (found == members_.end()) return outcome;
  request.since = std::min(request.since, now);
  request.tried = std::min(request.tried, now);
  using What = protocol::AwaitRoom::What;
  const Bytes all = total(request.gpu);
  const Member& member = found->second;
  const Bytes context = request.what == What::kContext ? 0 : member.contexts[request.gpu];  // not yet, or one more
  request.most = all - std::min(all, context);
  request.others = fixed_of_others(request.client, request.gpu) != 0;
  if (request.what != What::kContext) {
    Reservation wanted = member.counted[request.gpu];
    (request.what == What::kSwapped ? wanted.swapped : wanted.fixed) += request.bytes;
    const bool refused = !fits(member, request.gpu, wanted);
    const bool more_stays = stays_with(member, request.gpu, wanted) > member.there[request.gpu].stays;
    request.movable_too = refused && more_stays;
    const auto full = member.full_at.find(request.gpu);
    const bool was_full = full != member.full_at.end() && now < full->second + RoomQueue::kComesBack;
    request.others = request.others || was_full;
    if (refused || !more_stays) request.most -= std::min(request.most, kept_free(member, request.gpu));
  }
  rooms_.await(request);
  outcome.tighten.insert(request.client);  // what it was granted for the attempt is not in anybody's way
  decide_rooms(outcome, now);
  return outcome;
}

Quota::Outcome Quota::stays(ClientId client, GpuIndex gpu, const Stays& what, Time now) {
  Outcome outcome;
  if (!members_.contains(client)) return outcome;
  rooms_.has(client, gpu, what.gang, what.bytes, now);
  rooms_.blocks(client, what.blocks, what.began);
  decide_rooms(outcome, now);
  return outcome;
}

void Quota::decide(std::uint64_t order, Outcome& outcome, Time now) {
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
  const bool measures = refused && ask.readings < kReadings && by_contexts(member, gpu, ask.wanted, *refused);
  if (measures && now < ask.deadline && !std::exchange(ask.measures, true)) outcome.measure.insert(gpu);
  const auto waits = [](const std::shared_ptr<Call>& call) { return !call->awaited.empty(); };
  if (refused && now < ask.deadline && (measures || std::ranges::any_of(ask.calls, waits))) return;
  outcome.answers.push_back(refused ? refuse(id, member, gpu, ask, *refused) : grant(id, member, gpu, ask, outcome));
  if (outcome.answers.back().full() && others_in_way(id, member, gpu, ask.wanted)) member.full_at[gpu] = now;
  member.answered[gpu] = ask.number;
  forget(member, gpu);
}

// Whether others have memory there that may have made a request exceed the GPU.
bool Quota::others_in_way(ClientId client, const Member& member, GpuIndex gpu, const Reservation& wanted) const {
  if (fixed_of_others(client, gpu) != 0) return true;
  return stays_with(member, gpu, wanted) > member.there[gpu].stays && most_swapped(gpu, member, 0) != 0;
}

// Whether contexts and modules of clients that share a limit are in the way; they may have ended since they were
// measured.
bool Quota::by_contexts(const Member& member, GpuIndex gpu, const Reservation& wanted, const Refusal& by) const {
  if (by.host || by.account == nullptr) return false;
  const Bytes others = by.account->sums[gpu].device - in(*by.account, member, gpu).device;
  return by.account->measured[gpu] != 0 && others + wanted.device <= by.account->limits.device;
}

Quota::Outcome Quota::read(GpuIndex gpu, std::optional<Time> begun, Time now) {
  Outcome outcome;
  bool any = false;
  for (const auto& [order, asking] : open_) {
    if (asking.gpu != gpu) continue;
    Ask& ask = members_.at(asking.client).asks.at(gpu);
    if (!ask.measures || (begun && *begun < ask.since)) continue;
    any = true;
    ask.readings = begun ? ask.readings + 1 : kReadings;
    if (ask.readings < kReadings) outcome.measure.insert(gpu);
  }
  if (any) decide(outcome, now);
  return outcome;
}

void Quota::forget(Member& member, GpuIndex gpu) {
  const auto ask = member.asks.find(gpu);
  if (ask == member.asks.end()) return;
  open_.erase(ask->second.order);
  dues_.erase({ask->second.due, ask->second.order});
  member.asks.erase(ask);
}

std::optional<Time> Quota::next_deadline() const {
  std::optional<Time> due = rooms_.next_deadline();
  if (!dues_.empty()) due = std::min(due.value_or(Time::max()), dues_.begin()->first);
  return due && held_until_ != Time{} ? std::min(*due, held_until_) : due;
}

}  // namespace rota::scheduler
