// Evidence, and the decisions based on it.
#include "scheduler/core/sharing.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rota::scheduler {
namespace {

// How many sets of programs have their answers kept, for each GPU.
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
  if (called) evidence.goes_on(before.open, kWithoutCalls);
  if (called || activity.shares != before.shares) may_join(client);
  if (activity.shares != before.shares) {
    for_each_gpu(client.state.touched, [&](GpuIndex index) { laws_[index].news_beside = true; });
  }
  const bool held = activity.open - before.open >= kWithoutCalls;
  if (held && before.calls != 0 && activity.counted - before.counted >= kWithoutCalls) evidence.rested_at = now;
  if (activity.switches > before.switches && activity.switching >= before.switching) {
    const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(activity.switches - before.switches, 1 << 20));
    // At most the time that it has held its GPUs since: others' turns depend on this value.
    const Time held = Bookkeeping::held_time(client, now);
    const Time most = std::min(held - std::exchange(evidence.held_when_heard, held), kLongestTurn);
    const Time each = std::min((activity.switching - before.switching) / count, most);
    // The newest value counts a quarter: a single slow hand-over proves little.
    for_each_gpu(client.state.touched, [&](GpuIndex index) {
      Time& switching = client.share(index)->switching;
      switching = switching == Time{} ? each : (switching * 3 + each) / 4;
      renew_switching(index, now);
    });
  }
  books_.mark_changed(client.state.touched);
}

// The mean over programs that have made calls lately: each has its turn, whether it comes often or not.
void Sharing::renew_switching(GpuIndex index, Time now) {
  Gpu& gpu = books_.gpu(index);
  Time sum{};
  std::int64_t count = 0;
  for (const Client* client : gpu.all) {
    const Time switching = client->share(index)->switching;
    if (switching == Time{} || now - client->evidence.called_at >= kActive) continue;
    sum += switching;
    ++count;
  }
  if (count == 0) return;
  laws_[index].switching = sum / count;
  gpu.credit = std::max(kCredit, 3 * laws_[index].switching);
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

// The client is active, or shares memory or events: sets may have changed.
void Sharing::may_join(const Client& client) {
  for_each_gpu(client.state.touched, [&](GpuIndex index) {
    Law& law = laws_[index];
    if (contains(law.set, client.id) == client.evidence.last.shares) law.stale = true;
  });
}

void Sharing::came(GpuIndex index) {
  laws_[index].news_beside = true;
  if (books_.gpu(index).credit == Time{}) books_.gpu(index).credit = kCredit;
}

void Sharing::left(ClientId client) {
  for (Law& law : laws_) {
    law.stale = true;
    if (contains(law.set, client)) law.crowded_at = {};
    std::erase_if(law.answers, [&](const Answer& answer) { return contains(answer.set, client); });
  }
}

void Sharing::configured() {
  for (Law& law : laws_) law.stale = true;
}

// Between two turns of programs that do not fit together, a GPU looks as if they did.
void Sharing::renew_decides(Law& law, GpuIndex index, Time now) {
  if (books_.gpu(index).crowded) {
    law.crowded_at = now;
  } else if (now - law.crowded_at >= kActive) {
    law.crowded_at = {};
  }
  const bool decides = settings_.measured_turns && settings_.mode == Mode::kAutomatic && law.crowded_at == Time{};
  if (decides != law.decides) law.news_beside = true;
  law.decides = decides;
}

// Called after its candidate has been settled.
void Sharing::renew_beside(Law& law, GpuIndex index, Time now) {
  if (!std::exchange(law.news_beside, false)) return;
  bool any = false;
  for (Client* client : books_.gpu(index).all) {
    const bool light = law.candidate == Candidate::kLightOpen && contains(law.light, client->id);
    const bool beside = law.decides && (light || client->evidence.last.shares);
    books_.set_beside(*client, *client->share(index), beside, now);
    any |= beside;
  }
  beside_ = any ? beside_ | bit(index) : beside_ & ~bit(index);
}

// Collects the clients that have made calls lately, or wait, sorted. Returns whether the set has changed.
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
    // A client that waits is checked again later, since it may have stopped waiting.
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
  renew_decides(law, index, now);
  const bool several = law.set.size() > 1;
  if (!several || !law.decides) {
    begin(law, Phase::kUndecided, Candidate::kTogether, now);
  } else if (other || law.phase == Phase::kUndecided) {
    if (const Answer* known = answer(law)) {
      law.light = known->light;
      begin(law, Phase::kSettled, known->candidate, now);
    } else {
      begin(law, Phase::kWatching, Candidate::kTogether, now);
    }
    if (all_run(law)) begin_window(law, index, now);
  }
  if ((due_ & bit(index)) != 0) go_on(law, index, now);
  due_ &= ~bit(index);
  Time next = std::min(law.until, next_look(law));
  if (law.crowded_at != Time{} && several) next = std::min(next, law.crowded_at + kActive);
  renew_beside(law, index, now);
  law.look_at = next;
  const auto set_bit = [&](GpuMask& mask, bool value) { mask = value ? mask | bit(index) : mask & ~bit(index); };
  const bool looks = law.phase == Phase::kProbing || law.phase == Phase::kTrying;
  const bool watches = law.phase == Phase::kWatching || (law.phase == Phase::kSettled && all_run(law));
  set_bit(timed_, next != Time::max());
  set_bit(sampling_, law.phase == Phase::kProbing || watches);
  set_bit(looking_, looks);
  // Also at first and while a candidate is tried: programs about to take turns then have little in flight, and where
  // calls are compared, the work submitted has to match the work done.
  const bool at_first = law.phase == Phase::kWatching && law.window_since == law.since;
  set_bit(metered_, several && settings_.mode != Mode::kConcurrent && (!watches || at_first));
}

// When to check again even if nothing happens.
Time Sharing::next_look(Law& law) {
  switch (law.phase) {
    case Phase::kUndecided:
      break;
    case Phase::kWatching:
      return law.window_since + (law.window_since == law.since ? kFirstWindow : kWindow);
    case Phase::kSettled:
      return all_run(law) ? law.window_since + kWindow : answer(law)->again_at;
    case Phase::kProbing:
      return law.measuring ? law.samples_at : std::max(law.since + kSettling, law.samples_at);
    case Phase::kTrying:
      return law.since + (!law.measuring ? kSettling : law.tries_both ? kTrialOfTwo : kTrial);
  }
  return Time::max();
}

// The phase's time is up: evaluates the result.
void Sharing::go_on(Law& law, GpuIndex index, Time now) {
  if (now < next_look(law)) return;
  switch (law.phase) {
    case Phase::kUndecided:
      break;
    case Phase::kWatching:
    case Phase::kSettled:
      look_again(law, index, now);
      break;
    case Phase::kProbing:
      law.samples_at = now + kProbeTurn;
      if (!law.measuring) {
        if (now - law.since >= kLongestSettling || !drains(law, index, now)) begin_measuring(law, index, now);
      } else if (now >= law.since + kProbe || has_samples(law, index)) {
        choose(law, index, now);
      }
      break;
    case Phase::kTrying:
      if (law.measuring) {
        compare(law, index, now);
      } else {
        begin_measuring(law, index, now);
      }
      break;
  }
}

// For a set that is settled, or about which nothing is known: decides whether to take turns for samples.
void Sharing::look_again(Law& law, GpuIndex index, Time now) {
  Answer* const known = law.phase == Phase::kSettled ? answer(law) : nullptr;
  if (!all_run(law)) return begin(law, Phase::kProbing, Candidate::kTurns, now);
  if (!collide(law, index)) return begin_window(law, index, now);
  if (known != nullptr && now < known->again_at) {
    // Each doubt waits twice as long as the one before.
    const Time from = law.since + kDoubted * (1 << std::min(known->doubts, kMostDoubts));
    if (now < from || !doubtful(law, *known, index, now)) return begin_window(law, index, now);
    ++known->doubts;
  }
  begin(law, Phase::kProbing, Candidate::kTurns, now);
}

// Whether nobody has to wait for a turn.
bool Sharing::all_run(const Law& law) {
  const bool one_takes_turns = law.candidate == Candidate::kLightOpen && law.light.size() + 1 >= law.set.size();
  return law.candidate == Candidate::kTogether || one_takes_turns;
}

void Sharing::begin_window(Law& law, GpuIndex index, Time now) {
  law.window_since = now;
  for (const ClientId id : law.set) measurement(id, index).window_from = books_.find(id)->evidence.last;
}

// Whether a client is still draining work that it had queued before turns began.
bool Sharing::drains(const Law& law, GpuIndex index, Time now) const {
  const std::vector<Client*>& holders = books_.gpu(index).holders;
  return std::any_of(holders.begin(), holders.end(), [&](const Client* holder) {
    const ClientState& state = holder->state;
    return state.held_since <= law.since && state.waiters != 0 && state.drain_at <= now;
  });
}

// Whether several programs have kept the GPU busy for long spells in the same window, or may have.
bool Sharing::collide(const Law& law, GpuIndex index) const {
  const auto busy = std::count_if(law.set.begin(), law.set.end(), [&](ClientId id) {
    const event::Activity& activity = books_.find(id)->evidence.last;
    const event::Activity& from = measurement(id, index).window_from;
    const bool unknown = activity.samples - from.samples < kCollides && activity.calls != from.calls;
    return unknown || activity.in_spells - from.in_spells >= kCollides;
  });
  return busy > 1;
}

void Sharing::begin_measuring(Law& law, GpuIndex index, Time now) {
  law.measuring = true;
  law.since = now;
  for (const ClientId id : law.set) {
    const Client& client = *books_.find(id);
    Measurement& measurement = this->measurement(id, index);
    measurement.from = client.evidence.last;
    measurement.held_from = Bookkeeping::held_time(client, now);
    measurement.waited_from = Bookkeeping::waited_time(client, now);
    measurement.wakes_from = client.evidence.wakes;
  }
}

// Whether the programs that were measured turn out to come in bursts, or to be faster than they were alone.
bool Sharing::doubtful(const Law& law, const Answer& known, GpuIndex index, Time now) const {
  std::size_t contenders = 0;
  for (const ClientId id : law.set) {
    const Evidence& evidence = books_.find(id)->evidence;
    const Measurement& measurement = this->measurement(id, index);
    if (!in_bursts(evidence, now)) ++contenders;
    // Since its trial began.
    const double passed = seconds(evidence.last.counted - measurement.from.counted);
    const auto calls = static_cast<double>(evidence.last.calls - measurement.from.calls);
    if (passed > 0 && calls / passed > kFaster * measurement.own_rate + kFewCalls) return true;
  }
  return known.ratio != 0 && contenders < 2;
}

bool Sharing::in_bursts(const Evidence& evidence, Time now) {
  return evidence.rested_at != Time{} && now - evidence.rested_at < kLately;
}

Measurement& Sharing::measurement(ClientId client, GpuIndex index) const {
  return books_.find(client)->share(index)->measurement;
}

Sharing::Answer* Sharing::answer(Law& law) {
  const auto found =
      std::find_if(law.answers.begin(), law.answers.end(), [&](const Answer& each) { return each.set == law.set; });
  return found == law.answers.end() ? nullptr : &*found;
}

void Sharing::begin(Law& law, Phase phase, Candidate candidate, Time now) {
  if (law.candidate != candidate || law.phase != phase) law.news_beside = true;
  law.phase = phase;
  law.candidate = candidate;
  law.since = now;
  law.measuring = false;
  law.samples_at = {};
}

bool Sharing::has_samples(const Law& law, GpuIndex index) const {
  return std::all_of(law.set.begin(), law.set.end(), [&](ClientId id) {
    return books_.find(id)->evidence.last.samples - measurement(id, index).from.samples >= kEnough;
  });
}

std::vector<double> Sharing::all_u(const Law& law, GpuIndex index) const {
  std::vector<double> all;
  for (const ClientId id : law.set) all.push_back(measurement(id, index).u);
  return all;
}

// Evaluates what turns have shown of a client in `passed`: u, and its rate by itself. Returns whether it contends.
bool Sharing::weigh(Client& client, Measurement& measurement, Time passed, Time now) {
  const Evidence& evidence = client.evidence;
  const event::Activity& from = measurement.from;
  const Time held = Bookkeeping::held_time(client, now) - measurement.held_from;
  const Time waited = Bookkeeping::waited_time(client, now) - measurement.waited_from;
  const Time open = evidence.last.open - from.open;
  // Before its turns began it did nothing; while they drained, the GPU did the work of its earlier calls.
  const Time own = passed - waited - (evidence.last.switching - from.switching);
  const bool often = evidence.wakes - measurement.wakes_from >= kComesOften;
  const std::uint64_t samples = evidence.last.samples - from.samples;
  if (samples >= kFew && own > Time{}) {
    const double busy = static_cast<double>(evidence.last.busy - from.busy) / static_cast<double>(samples);
    // For a program that comes in bursts, u is that of its bursts: that is when others are in its way.
    measurement.u = often ? busy * seconds(open) / seconds(own) : busy;
  }
  const bool all_the_time = seconds(held + waited) >= kContends * seconds(passed);
  const std::uint64_t calls = evidence.last.calls - from.calls;
  const bool contends = (all_the_time || often) && !in_bursts(evidence, now) && calls != 0 && own > Time{};
  measurement.own_rate = own > Time{} ? static_cast<double>(calls) / seconds(own) : 0;
  measurement.alone = contends ? measurement.own_rate : 0;
  return contends;
}

void Sharing::choose(Law& law, GpuIndex index, Time now) {
  law.light.clear();
  law.in_turns = 0;
  law.ratio = 0;
  const Time passed = now - law.since;
  std::size_t contenders = 0;
  for (const ClientId id : law.set) {
    Client& client = *books_.find(id);
    Measurement& measurement = this->measurement(id, index);
    if (weigh(client, measurement, passed, now)) {
      ++contenders;
      const auto calls = static_cast<double>(client.evidence.last.calls - measurement.from.calls);
      law.in_turns += calls / seconds(passed) / measurement.alone;
    }
    if (measurement.u >= 0 && measurement.u < kLight) law.light.push_back(id);
  }
  if (contenders < 2) {
    return settle(law, index, law.light.empty() ? Candidate::kTurns : Candidate::kLightOpen, kSoonAgain, kFirstAgain,
                  now);
  }
  // Later turns are longer, and lose less to hand-overs.
  if (law.in_turns < 1) {
    law.in_turns = 1 - (1 - law.in_turns) * seconds(kProbeTurn) / seconds(std::max(kShortestTurn, kProbeTurn));
  }
  const std::vector<double> u = all_u(law, index);
  if (const Answer* known = answer(law); known != nullptr && known->ratio != 0 && known->ratio < kByFar) {
    const bool same = std::equal(u.begin(), u.end(), known->u.begin(),
                                 [](double one, double other) { return std::abs(one - other) <= kSameU; });
    if (same) return settle(law, index, Candidate::kTurns, kFirstAgain, kLastAgain, now);
  }
  if (law.light.empty() || law.set.size() < law.light.size() + 2) {
    law.tries_both = false;
    return begin(law, Phase::kTrying, Candidate::kTogether, now);
  }
  // With several heavy programs and light ones either may be best: which one is found out at first, and again if that
  // is doubted.
  const Answer* const known = answer(law);
  law.tries_both = known == nullptr || known->ratio < 1 || now < known->again_at;
  begin(law, Phase::kTrying, law.tries_both ? Candidate::kTogether : known->candidate, now);
}

void Sharing::compare(Law& law, GpuIndex index, Time now) {
  double sum = 0;
  for (const ClientId id : law.set) {
    const Evidence& evidence = books_.find(id)->evidence;
    const Measurement& measurement = this->measurement(id, index);
    const double passed = seconds(evidence.last.counted - measurement.from.counted);
    if (measurement.alone == 0 || passed <= 0) continue;
    sum += static_cast<double>(evidence.last.calls - measurement.from.calls) / passed / measurement.alone;
  }
  const double together = std::exchange(law.ratio, law.in_turns > 0 ? sum / law.in_turns : 1);
  if (law.tries_both && law.candidate == Candidate::kTogether) {
    return begin(law, Phase::kTrying, Candidate::kLightOpen, now);
  }
  if (law.tries_both && together > law.ratio) {
    law.ratio = together;
    law.candidate = Candidate::kTogether;
  }
  const Time first = law.ratio >= kClearly ? kFirstAgain * kClearlyLater : kFirstAgain;
  settle(law, index, law.ratio >= 1 ? law.candidate : Candidate::kTurns, first, kLastAgain, now);
}

// The question is asked again after `first`, then after twice as long each time that the answer is the same, up to
// `last`.
void Sharing::settle(Law& law, GpuIndex index, Candidate candidate, Time first, Time last, Time now) {
  begin(law, Phase::kSettled, candidate, now);
  begin_window(law, index, now);
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
    known->u = all_u(law, index);
  }
}

bool Sharing::open_to(const Client& client, GpuIndex index) const {
  return client.share(index)->beside && decides(index) && !books_.gpu(index).lacks_room;
}

bool Sharing::conflicts(const Client& client, GpuIndex index) const {
  if (laws_[index].candidate == Candidate::kTogether || !decides(index) || open_to(client, index)) return false;
  const std::vector<Client*>& holders = books_.gpu(index).holders;
  return std::any_of(holders.begin(), holders.end(),
                     [&](const Client* holder) { return holder != &client && !open_to(*holder, index); });
}

bool Sharing::pages_in(GpuIndex index) const {
  const Gpu& gpu = books_.gpu(index);
  if (gpu.used + gpu.contexts + gpu.taken_outside() <= gpu.total) return false;
  Bytes paged = gpu.used - gpu.fixed;
  for (const Client* client : gpu.swappers) paged -= client->share(index)->used - client->share(index)->fixed;
  return paged > step_of(gpu.total);
}

Time Sharing::turn(GpuIndex index) const {
  if (!settings_.measured_turns || pages_in(index)) return settings_.quantum;
  const Law& law = laws_[index];
  if (law.phase == Phase::kProbing) return kProbeTurn;
  const bool moves = books_.gpu(index).crowded;
  if (law.switching == Time{}) return moves ? settings_.quantum : kShortestTurn;
  return moves ? std::clamp(law.switching * kTurnPerMove, kShortestTurn, kLongestWithMoves)
               : std::clamp(law.switching * kTurnPerSwitch, kShortestTurn, kLongestTurn);
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

GpuMask Sharing::due(Time now) {
  for_each_gpu(timed_, [&](GpuIndex index) {
    if (laws_[index].look_at <= now) due_ |= bit(index);
  });
  return due_;
}

}  // namespace rota::scheduler
