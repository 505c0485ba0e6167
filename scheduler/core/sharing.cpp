// Evidence, and what is made of it.
#include "scheduler/core/sharing.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rota::scheduler {
namespace {

// Sets of programs whose answers are kept for each GPU.
constexpr std::size_t kMostAnswers = 64;

double seconds(Time time) {
  return std::chrono::duration<double>(time).count();
}

bool contains(const std::vector<ClientId>& sorted, ClientId id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

}  // namespace

Sharing::Sharing(const Settings& settings, Bookkeeping& books)
    : settings_(settings), books_(books), laws_(protocol::kMaxGpus) {}

void Sharing::heard(Client& client, const event::Activity& activity, Time now) {
  Evidence& evidence = client.evidence;
  const event::Activity before = std::exchange(evidence.last, activity);
  const bool called = activity.calls != before.calls;
  if (called) evidence.called_at = now;
  if (called || activity.shares != before.shares) may_join(client);
  const bool held = activity.open - before.open >= kWithoutCalls;
  if (held && before.calls != 0 && activity.counted - before.counted >= kWithoutCalls) evidence.rested_at = now;
  if (activity.switches > before.switches && activity.switching >= before.switching) {
    const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(activity.switches - before.switches, 1 << 20));
    const Time each = std::min<Time>((activity.switching - before.switching) / count, kLongestTurn);
    // A quarter of the newest: a single slow one is no rule.
    for_each_gpu(client.state.touched, [&](GpuIndex index) {
      Time& switching = laws_[index].switching;
      switching = switching == Time{} ? each : (switching * 3 + each) / 4;
    });
  }
  books_.mark_changed(client.state.touched);
}

void Sharing::wants(Client& client, Time now) {
  client.evidence.called_at = now;
  may_join(client);
  if (client.woke && client.state.wanted == 0) {
    ++client.evidence.wakes;
    if (client.last_held != Time{} && now - client.last_held >= kLongPause) client.evidence.rested_at = now;
  }
  books_.mark_changed(client.state.touched);
}

// It is active, or shares what it has: sets may be others by now.
void Sharing::may_join(const Client& client) {
  for_each_gpu(client.state.touched, [&](GpuIndex index) {
    Law& law = laws_[index];
    if (contains(law.set, client.id) == client.evidence.last.shares) law.stale = true;
  });
}

void Sharing::left(ClientId client) {
  for (Law& law : laws_) {
    law.stale = true;
    std::erase_if(law.answers, [&](const Answer& answer) { return contains(answer.set, client); });
  }
}

void Sharing::configured() {
  for (Law& law : laws_) law.stale = true;
}

bool Sharing::applies(GpuIndex index) const {
  return settings_.measured_turns && settings_.mode == Mode::kAutomatic && !books_.gpu(index).crowded;
}

// Who has called lately, or waits, in order. Whether that is news.
bool Sharing::renew_set(Law& law, GpuIndex index, Time now) {
  if (!law.stale && now < law.until) return false;
  law.stale = false;
  law.until = Time::max();
  std::vector<ClientId> set;
  const Gpu& gpu = books_.gpu(index);
  for (const Client* client : gpu.all) {
    if (gpu.all.size() < 2 || !settings_.measured_turns || client->evidence.last.shares) continue;
    const Time called_at = client->evidence.called_at;
    const bool waits = (client->state.wanted & bit(index)) != 0;
    if (!waits && (called_at == Time{} || now - called_at >= kActive)) continue;
    // Who waits is looked at again when it does no more.
    law.until = std::min(law.until, std::max(called_at + kActive, now + kActive / 10));
    set.push_back(client->id);
  }
  std::sort(set.begin(), set.end());
  if (set == law.set) return false;
  law.set = std::move(set);
  return true;
}

void Sharing::judge(GpuIndex index, Time now) {
  Law& law = laws_[index];
  const bool other = renew_set(law, index, now);
  Time next = law.until;
  const bool several = law.set.size() > 1;
  if (!several || !applies(index)) {
    law.phase = Phase::kUndecided;
    law.candidate = Candidate::kTogether;
  } else if (other || law.phase == Phase::kUndecided) {
    if (const Answer* known = answer(law)) {
      law.candidate = known->candidate;
      law.light = known->light;
      law.phase = Phase::kSettled;
      law.since = now;
    } else {
      begin(law, Phase::kProbing, Candidate::kTurns, now);
    }
  }
  Answer* known = law.phase == Phase::kSettled ? answer(law) : nullptr;
  Time at_least = Time::max();
  if (known != nullptr && law.candidate != Candidate::kTurns) {
    // Each time only after twice as long as the last.
    const Time from = law.since + kDoubted * (1 << std::min(known->doubts, kMostDoubts));
    if (now < from) {
      at_least = from;
    } else if (now < known->again_at && doubtful(law, now)) {
      known->again_at = now;
      ++known->doubts;
    }
  }
  if (law.phase == Phase::kSettled && (known == nullptr || now >= known->again_at)) {
    begin(law, Phase::kProbing, Candidate::kTurns, now);
  }
  const bool looks = law.phase == Phase::kProbing || law.phase == Phase::kTrying;
  if (looks && !law.measuring && now >= law.since + kSettling) {
    law.measuring = true;
    law.since = now;
    for (const ClientId id : law.set) {
      Client& client = *books_.find(id);
      client.evidence.from = client.evidence.last;
      client.evidence.held_from = Bookkeeping::held_time(client, now);
      client.evidence.waited_from = Bookkeeping::waited_time(client, now);
      client.evidence.wakes_from = client.evidence.wakes;
    }
  }
  if (looks && law.measuring) {
    const bool probing = law.phase == Phase::kProbing;
    if (probing && (now >= law.since + kProbe || has_samples(law))) {
      choose(law, now);
    } else if (!probing && now >= law.since + kTrial) {
      compare(law, now);
    }
  }
  if (law.phase == Phase::kProbing) next = std::min(next, law.since + (law.measuring ? kProbe : kSettling));
  if (law.phase == Phase::kTrying) next = std::min(next, law.since + (law.measuring ? kTrial : kSettling));
  if (law.phase == Phase::kSettled) next = std::min({next, answer(law)->again_at, at_least});
  law.look_at = next;
  const auto set_bit = [&](GpuMask& mask, bool value) { mask = value ? mask | bit(index) : mask & ~bit(index); };
  set_bit(timed_, next != Time::max());
  set_bit(sampling_, law.phase == Phase::kProbing);
  set_bit(looking_, law.phase == Phase::kProbing || law.phase == Phase::kTrying);
  // While a candidate is tried as well: calls are compared, and what is submitted has to be what is done.
  set_bit(metered_, several && settings_.mode != Mode::kConcurrent &&
                        (law.phase == Phase::kTrying || law.candidate != Candidate::kTogether || !applies(index)));
}

bool Sharing::doubtful(const Law& law, Time now) const {
  std::size_t contenders = 0;
  for (const ClientId id : law.set) {
    const Evidence& evidence = books_.find(id)->evidence;
    if (!in_bursts(evidence, now)) ++contenders;
    // Since its trial began.
    const double passed = seconds(evidence.last.counted - evidence.from.counted);
    const auto calls = static_cast<double>(evidence.last.calls - evidence.from.calls);
    if (passed > 0 && calls / passed > kFaster * evidence.own_rate + kFewCalls) return true;
  }
  return law.ratio != 0 && contenders < 2;
}

bool Sharing::in_bursts(const Evidence& evidence, Time now) {
  return evidence.rested_at != Time{} && now - evidence.rested_at < kLately;
}

Sharing::Answer* Sharing::answer(Law& law) {
  const auto found =
      std::find_if(law.answers.begin(), law.answers.end(), [&](const Answer& each) { return each.set == law.set; });
  return found == law.answers.end() ? nullptr : &*found;
}

void Sharing::begin(Law& law, Phase phase, Candidate candidate, Time now) {
  law.phase = phase;
  law.candidate = candidate;
  law.since = now;
  law.measuring = false;
}

bool Sharing::has_samples(const Law& law) const {
  return std::all_of(law.set.begin(), law.set.end(), [&](ClientId id) {
    const Evidence& evidence = books_.find(id)->evidence;
    return evidence.last.samples - evidence.from.samples >= kEnough;
  });
}

std::vector<double> Sharing::all_u(const Law& law) const {
  std::vector<double> all;
  for (const ClientId id : law.set) all.push_back(books_.find(id)->evidence.u);
  return all;
}

// What turns have shown of a client in `passed`: u, and how fast it is by itself. Whether it contends.
bool Sharing::weigh(Client& client, Time passed, Time now) {
  Evidence& evidence = client.evidence;
  const Time held = Bookkeeping::held_time(client, now) - evidence.held_from;
  const Time waited = Bookkeeping::waited_time(client, now) - evidence.waited_from;
  const Time open = evidence.last.open - evidence.from.open;
  // Without the hand-overs.
  const Time own = open + std::max(passed - held - waited, Time{});
  const bool often = evidence.wakes - evidence.wakes_from >= kComesOften;
  const std::uint64_t samples = evidence.last.samples - evidence.from.samples;
  if (samples >= kFew && own > Time{}) {
    const double busy = static_cast<double>(evidence.last.busy - evidence.from.busy) / static_cast<double>(samples);
    // Of whoever comes in bursts the bursts are looked at: it is in them that somebody is in its way.
    evidence.u = often ? busy * seconds(open) / seconds(own) : busy;
  }
  const bool all_the_time = seconds(held + waited) >= kContends * seconds(passed);
  const std::uint64_t calls = evidence.last.calls - evidence.from.calls;
  const bool contends = (all_the_time || often) && !in_bursts(evidence, now) && calls != 0 && own > Time{};
  evidence.own_rate = own > Time{} ? static_cast<double>(calls) / seconds(own) : 0;
  evidence.alone = contends ? evidence.own_rate : 0;
  return contends;
}

void Sharing::choose(Law& law, Time now) {
  law.light.clear();
  law.in_turns = 0;
  law.ratio = 0;
  const Time passed = now - law.since;
  std::size_t contenders = 0;
  for (const ClientId id : law.set) {
    Client& client = *books_.find(id);
    const Evidence& evidence = client.evidence;
    if (weigh(client, passed, now)) {
      ++contenders;
      law.in_turns += static_cast<double>(evidence.last.calls - evidence.from.calls) / seconds(passed) / evidence.alone;
    }
    if (evidence.u >= 0 && evidence.u < kLight) law.light.push_back(id);
  }
  if (contenders < 2) {
    if (law.light.empty()) return settle(law, Candidate::kTurns, kSoonAgain, kFirstAgain, now);
    // To look again costs turns, where nobody takes any.
    const bool all_open = law.light.size() + 1 >= law.set.size();
    return settle(law, Candidate::kLightOpen, all_open ? kFirstAgain * kClearlyLater : kSoonAgain,
                  all_open ? kLastAgain : kFirstAgain, now);
  }
  // Turns are longer later, and lose less by hand-overs.
  if (law.in_turns < 1) {
    law.in_turns = 1 - (1 - law.in_turns) * seconds(kProbeTurn) / seconds(std::max(kShortestTurn, kProbeTurn));
  }
  const std::vector<double> u = all_u(law);
  if (const Answer* known = answer(law); known != nullptr && known->ratio != 0 && known->ratio < kByFar) {
    const bool same = std::equal(u.begin(), u.end(), known->u.begin(),
                                 [](double one, double other) { return std::abs(one - other) <= kSameU; });
    if (same) return settle(law, Candidate::kTurns, kFirstAgain, kLastAgain, now);
  }
  const auto saturating = std::count_if(u.begin(), u.end(), [](double each) { return each >= kSaturating; });
  begin(law, Phase::kTrying, saturating > 1 && !law.light.empty() ? Candidate::kLightOpen : Candidate::kTogether, now);
}

void Sharing::compare(Law& law, Time now) {
  double sum = 0;
  for (const ClientId id : law.set) {
    const Evidence& evidence = books_.find(id)->evidence;
    const double passed = seconds(evidence.last.counted - evidence.from.counted);
    if (evidence.alone == 0 || passed <= 0) continue;
    sum += static_cast<double>(evidence.last.calls - evidence.from.calls) / passed / evidence.alone;
  }
  law.ratio = law.in_turns > 0 ? sum / law.in_turns : 1;
  const Time first = law.ratio >= kClearly ? kFirstAgain * kClearlyLater : kFirstAgain;
  settle(law, law.ratio >= 1 ? law.candidate : Candidate::kTurns, first, kLastAgain, now);
}

// To be asked again after `first`, and each time that it is the same after twice as long, up to `last`.
void Sharing::settle(Law& law, Candidate candidate, Time first, Time last, Time now) {
  law.candidate = candidate;
  law.phase = Phase::kSettled;
  law.since = now;
  Answer* known = answer(law);
  if (known == nullptr) {
    if (law.answers.size() == kMostAnswers) law.answers.erase(law.answers.begin());
    law.answers.push_back({.set = law.set, .candidate = candidate, .light = {}, .again_at = {}, .pause = {}, .u = {}});
    known = &law.answers.back();
  }
  const bool same = known->pause != Time{} && known->candidate == candidate;
  known->pause = same ? std::clamp(known->pause * 2, first, last) : first;
  known->candidate = candidate;
  known->light = law.light;
  known->again_at = now + known->pause;
  if (law.ratio != 0) {
    known->ratio = law.ratio;
    known->u = all_u(law);
  }
}

bool Sharing::open_to(const Client& client, GpuIndex index) const {
  const Law& law = laws_[index];
  const bool light = law.candidate == Candidate::kLightOpen && contains(law.light, client.id);
  return (light || client.evidence.last.shares) && applies(index) && !books_.gpu(index).lacks_room;
}

bool Sharing::conflicts(const Client& client, GpuIndex index) const {
  if (laws_[index].candidate == Candidate::kTogether || !applies(index) || open_to(client, index)) return false;
  const std::vector<Client*>& holders = books_.gpu(index).holders;
  return std::any_of(holders.begin(), holders.end(),
                     [&](const Client* holder) { return holder != &client && !open_to(*holder, index); });
}

Time Sharing::turn(GpuIndex index) const {
  if (!settings_.measured_turns) return settings_.quantum;
  const Law& law = laws_[index];
  if (law.phase == Phase::kProbing) return kProbeTurn;
  if (law.switching == Time{}) return books_.gpu(index).crowded ? settings_.quantum : kShortestTurn;
  return std::clamp(law.switching * kTurnPerSwitch, kShortestTurn, kLongestTurn);
}

Time Sharing::rank(const Client& client, GpuMask gpus, const Order& order, Time now) const {
  if (!settings_.measured_turns) return {};
  Time least = Time::max();  // of the others that run or wait
  Time most{};
  Time credit = kCredit;
  const auto look_at = [&](const Client* other, Time served) {
    if (other == &client) return;
    least = std::min(least, served);
    most = std::max(most, served);
  };
  for_each_gpu(gpus, [&](GpuIndex index) {
    for (const Client* holder : books_.gpu(index).holders) look_at(holder, books_.served(*holder, now));
    for (const Client* waiter : {order.first(index), order.last(index)}) {
      if (waiter != nullptr) look_at(waiter, waiter->rank);
    }
    credit = std::max(credit, 3 * laws_[index].switching);
  });
  if (least == Time::max()) return client.served;
  // Nor is what it had in the absence of others, or beside them, held against it for longer.
  return std::clamp(client.served, least - credit, most + credit);
}

double Sharing::trial(GpuIndex index) const {
  const Law& law = laws_[index];
  const auto known = std::ranges::find(law.answers, law.set, &Answer::set);
  return known == law.answers.end() ? 0 : known->ratio;
}

std::optional<Time> Sharing::next_deadline() const {
  std::optional<Time> next;
  for_each_gpu(timed_,
               [&](GpuIndex index) { next = next ? std::min(*next, laws_[index].look_at) : laws_[index].look_at; });
  return next;
}

GpuMask Sharing::due(Time now) const {
  GpuMask due = 0;
  for_each_gpu(timed_, [&](GpuIndex index) {
    if (laws_[index].look_at <= now) due |= bit(index);
  });
  return due;
}

}  // namespace rota::scheduler
