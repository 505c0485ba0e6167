#include "scheduler/core/claims.h"

#include <utility>

namespace rota::scheduler {

void Claims::try_lock(const Gpu& gpu, Claim& claim, Actions& actions) {
  if (claim.has || claim.tries || phase_ != Phase::kServing) return;
  claim.tries = true;
  actions.push_back({.act = Act::kTry, .gpu = gpu});
}

void Claims::refuse_all(const Gpu& gpu, Claim& claim, Actions& actions) {
  claim.refuse_at.reset();
  for (auto& [client, waiter] : claim.clients) {
    if (waiter.refused) continue;
    waiter.refused = true;
    actions.push_back({.act = Act::kRefuse, .gpu = gpu, .client = client});
  }
}

void Claims::serve_if_ready(const Gpu& gpu, Claim& claim, Actions& actions, Time now) {
  if (!claim.has || phase_ != Phase::kServing) return;
  if (claim.serve_at && !movers_.empty() && now < *claim.serve_at) return;
  claim.serve_at.reset();
  if (!claim.clients.empty()) claim.keep_until.reset();
  const auto serve = [&](Client client) { actions.push_back({.act = Act::kServe, .gpu = gpu, .client = client}); };
  bool others = false;
  for (auto each = claim.clients.begin(); each != claim.clients.end();) {
    if (moved_.contains(each->second.pid)) {
      ++each;
      continue;
    }
    serve(each->first);
    others = true;
    each = claim.clients.erase(each);
  }
  if (!claim.clients.empty() && others && !claim.first_until) claim.first_until = now + kHeadStart;
  if (claim.first_until && now < *claim.first_until) return;
  claim.first_until.reset();
  for (const auto& [client, waiter] : claim.clients) serve(client);
  claim.clients.clear();
}

Claims::Actions Claims::named(Client client, Pid pid, const Gpu& gpu, Time now) {
  Actions actions;
  Claim& claim = claims_[gpu];
  claim.clients[client] = {.pid = pid};
  movers_.erase(pid);
  for (auto& [each, waited] : claims_) serve_if_ready(each, waited, actions, now);
  if (claim.has || phase_ != Phase::kServing) return actions;
  // It is answered like those before it, or with the answer of the attempt that is under way.
  if (claim.tries || claim.refuse_at) return actions;
  // What is known of the holder may have changed; a lock that is free is found free.
  try_lock(gpu, claim, actions);
  return actions;
}

Claims::Actions Claims::left(Client client) {
  Actions actions;
  for (auto each = claims_.begin(); each != claims_.end();) {
    Claim& claim = each->second;
    const bool waited = claim.clients.erase(client) != 0;
    const bool nobody = claim.clients.empty() && !claim.keep_until;
    if (waited && nobody && claim.has) actions.push_back({.act = Act::kDrop, .gpu = each->first});
    each = nobody && !claim.has ? claims_.erase(each) : std::next(each);
  }
  return actions;
}

Claims::Actions Claims::released(const Gpu& gpu) {
  Actions actions;
  const auto found = claims_.find(gpu);
  if (found == claims_.end()) return actions;
  found->second.has = false;
  if (found->second.clients.empty()) {
    claims_.erase(found);
  } else {
    try_lock(gpu, found->second, actions);
  }
  return actions;
}

Claims::Actions Claims::taken(const Gpu& gpu, Time now) {
  Actions actions;
  const auto found = claims_.find(gpu);
  if (found == claims_.end() || phase_ != Phase::kServing) return {{.act = Act::kDrop, .gpu = gpu}};
  Claim& claim = found->second;
  claim.has = true;
  claim.tries = claim.asked = false;
  claim.refuse_at.reset();
  if (claim.clients.empty() && !claim.keep_until) actions.push_back({.act = Act::kDrop, .gpu = gpu});
  serve_if_ready(gpu, claim, actions, now);
  return actions;
}

Claims::Actions Claims::held_by(const Gpu& gpu, const Holder& holder, Time now) {
  Actions actions;
  const auto found = claims_.find(gpu);
  if (found == claims_.end()) return actions;
  Claim& claim = found->second;
  claim.tries = false;
  if (phase_ != Phase::kServing) return actions;
  if (((machine_ && !holder.machine) || holder.former) && holder.answers) {
    if (!std::exchange(claim.asked, true)) actions.push_back({.act = Act::kAsk, .gpu = gpu});
    if (!claim.refuse_at) claim.refuse_at = now + kAsking;
    return actions;
  }
  if (holder.machine) send_away_all(gpu, claim, actions);
  refuse_all(gpu, claim, actions);
  return actions;
}

void Claims::send_away_all(const Gpu& gpu, Claim& claim, Actions& actions) {
  if (machine_) return;
  for (auto waiting = claim.clients.begin(); waiting != claim.clients.end();) {
    const Pid pid = waiting->second.pid;
    if (pid == 0 || !sent_away_.insert(pid).second) {
      ++waiting;
      continue;
    }
    actions.push_back({.act = Act::kSendAway, .gpu = gpu, .client = waiting->first});
    waiting = claim.clients.erase(waiting);
  }
}

Claims::Actions Claims::machine_is_there(bool there) {
  Actions actions;
  if (!there) sent_away_.clear();
  if (!there || phase_ != Phase::kServing) return actions;
  for (auto& [gpu, claim] : claims_) {
    if (!claim.has && !claim.tries) send_away_all(gpu, claim, actions);
  }
  return actions;
}

Claims::Actions Claims::gone(const Gpu& gpu) {
  Actions actions;
  const auto found = claims_.find(gpu);
  if (found == claims_.end()) return actions;
  found->second.asked = false;
  found->second.tries = false;  // also one that ends while it is being asked who it is: no answer will come
  // A program that was sent to a rotad which has ended may be sent to the next one.
  sent_away_.clear();
  try_lock(gpu, found->second, actions);
  return actions;
}

Claims::Actions Claims::again(const Gpu& gpu) {
  Actions actions;
  const auto found = claims_.find(gpu);
  if (found == claims_.end()) return actions;
  found->second.tries = false;
  try_lock(gpu, found->second, actions);
  return actions;
}

Claims::Actions Claims::given(const Gpu& gpu, const std::vector<Gpu>& others, const std::vector<Pid>& movers,
                              Time now) {
  Actions actions;
  const auto asked_for = claims_.find(gpu);
  if (!machine_ && (asked_for == claims_.end() || !asked_for->second.asked)) return actions;
  // Processes that have already connected count as arrived.
  std::set<Pid> here;
  for (const auto& [each, claim] : claims_) {
    for (const auto& [client, waiter] : claim.clients) here.insert(waiter.pid);
  }
  if (movers_.empty()) moved_.clear();
  moved_.insert(movers.begin(), movers.end());
  moved_.erase(0);
  for (const Pid pid : movers) {
    if (pid != 0 && !here.contains(pid)) movers_.insert(pid);
  }
  const auto expect = [&](const Gpu& each) {
    Claim& claim = claims_[each];
    claim.serve_at = now + kArriving;
    if (claim.clients.empty()) claim.keep_until = now + kKept;
  };
  expect(gpu);  // tried once the other rotad has released it
  for (const Gpu& other : others) {
    if (other == gpu || claims_[other].has) continue;
    expect(other);
    try_lock(other, claims_[other], actions);
  }
  return actions;
}

Claims::Actions Claims::asked(Time now) {
  return machine_ ? Actions() : give_up(now);
}

Claims::Actions Claims::give_up(Time now) {
  if (phase_ != Phase::kServing) return {};
  phase_ = Phase::kWithdrawing;
  withdraw_by_ = now + kWithdrawing;
  overdue_ = false;
  return {{.act = Act::kWithdraw}};
}

Claims::Actions Claims::quiet() {
  if (phase_ != Phase::kWithdrawing) return {};
  phase_ = Phase::kLettingGo;
  return {{.act = Act::kLetGo}};
}

void Claims::let_go() {
  phase_ = Phase::kServing;
  claims_.clear();
  movers_.clear();
  moved_.clear();
}

Claims::Actions Claims::tick(Time now) {
  Actions actions;
  if (phase_ == Phase::kWithdrawing && now >= withdraw_by_ && !std::exchange(overdue_, true)) {
    actions.push_back({.act = Act::kOverdue});
  }
  std::vector<Gpu> unused;
  for (auto& [gpu, claim] : claims_) {
    if (claim.refuse_at && now >= *claim.refuse_at) refuse_all(gpu, claim, actions);
    if (claim.serve_at && now >= *claim.serve_at) {
      claim.serve_at.reset();
      movers_.clear();
      serve_if_ready(gpu, claim, actions, now);
    }
    if (claim.first_until && now >= *claim.first_until) {
      serve_if_ready(gpu, claim, actions, now);
      claim.first_until.reset();
    }
    if (claim.keep_until && now >= *claim.keep_until) {
      claim.keep_until.reset();
      if (claim.clients.empty()) unused.push_back(gpu);
    }
  }
  for (const Gpu& gpu : unused) {
    if (claims_[gpu].has) {
      actions.push_back({.act = Act::kDrop, .gpu = gpu});
    } else {
      claims_.erase(gpu);
    }
  }
  return actions;
}

std::optional<Claims::Time> Claims::next_deadline() const {
  std::optional<Time> next;
  const auto also = [&next](const std::optional<Time>& time) {
    if (time && (!next || *time < *next)) next = time;
  };
  if (phase_ == Phase::kWithdrawing && !overdue_) also(withdraw_by_);
  for (const auto& [gpu, claim] : claims_) {
    also(claim.refuse_at);
    also(claim.serve_at);
    also(claim.keep_until);
    also(claim.first_until);
  }
  return next;
}

bool Claims::waits_for(const Gpu& gpu) const {
  const auto found = claims_.find(gpu);
  return found != claims_.end() && !found->second.has;
}

}  // namespace rota::scheduler
