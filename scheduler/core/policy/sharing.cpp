// The decisions, based on what sharing_evidence.cpp makes of the evidence.
#include "scheduler/core/policy/sharing.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rota::scheduler {
namespace {

// The number of sets of programs whose answers are remembered, for each GPU.
constexpr std::size_t kMostAnswers = 64;
constexpr double kMillionths = 1e6;

bool contains(const std::vector<ClientId>& sorted, ClientId id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

}  // namespace

Sharing::Sharing(const Settings& settings, Bookkeeping& books)
    : settings_(settings),
      books_(books),
      active_(settings, books),
      gpus_(protocol::kMaxGpus),
      laws_(protocol::kMaxGpus) {
  for (GpuIndex index = 0; index < laws_.size(); ++index) laws_[index].gpus = bit(index);
}

// The client is active, or shares memory or events: sets may have changed.
void Sharing::may_join(const Client& client) {
  for_each_gpu(client.state.touched, [&](GpuIndex index) {
    if (contains(active_.on(index), client.id) == client.evidence.last.shares) active_.mark_stale(bit(index));
  });
}

void Sharing::came(GpuIndex index) {
  gpus_[index].news_beside = true;
  active_.mark_stale(bit(index));
  if (books_.gpu(index).credit == Time{}) books_.gpu(index).credit = kCredit;
}

void Sharing::left(ClientId client) {
  active_.mark_all_stale();
  for (GpuIndex index = 0; index < gpus_.size(); ++index) {
    if (contains(active_.on(index), client)) gpus_[index].crowded_at = {};
  }
  for (Law& law : laws_) {
    std::erase_if(law.answers, [&](const Answer& answer) { return contains(answer.set, client); });
  }
  std::erase_if(told_, [&](const auto& each) { return each.second.contains(client); });
}

void Sharing::measured_before(const Client& client, const event::MeasuredBefore& before, Time now) {
  if (client.state.touched == 0) return;
  auto& told = told_[before.set];
  told[client.id] = before;
  if (told.size() < before.size) return;
  Answer known{.set = {},
               .candidate = before.candidate,
               .light = {},
               .again_at = now + before.again_in,
               .pause = before.pause,
               .u = {},
               .ratio = static_cast<double>(before.ratio) / kMillionths,
               .doubts = static_cast<int>(std::min<std::uint32_t>(before.doubts, kMostDoubts))};
  GpuMask gpus = 0;
  for (const auto& [id, each] : told) {
    known.set.push_back(id);
    if (each.light) known.light.push_back(id);
    known.u.push_back(each.busy < 0 ? -1 : static_cast<double>(each.busy) / kMillionths);
    gpus |= books_.find(id)->state.touched;
  }
  told_.erase(before.set);
  Law& law = laws_[first_of(gpus)];
  if (std::ranges::find(law.answers, known.set, &Answer::set) == law.answers.end()) add_answer(law, std::move(known));
}

std::vector<event::MeasuredBefore> Sharing::measured(Time now) const {
  std::vector<event::MeasuredBefore> all;
  std::uint32_t number = 0;
  for (const Law& law : laws_) {
    for (const Answer& known : law.answers) {
      for (std::size_t i = 0; i < known.set.size(); ++i) {
        const double u = known.u.empty() ? -1 : known.u[i];
        all.push_back({.client = known.set[i],
                       .set = number,
                       .size = static_cast<std::uint32_t>(known.set.size()),
                       .candidate = known.candidate,
                       .light = contains(known.light, known.set[i]),
                       .busy = u < 0 ? -1 : std::llround(u * kMillionths),
                       .ratio = std::llround(known.ratio * kMillionths),
                       .again_in = std::max(known.again_at - now, Time{}),
                       .pause = known.pause,
                       .doubts = static_cast<std::uint32_t>(known.doubts)});
      }
      ++number;
    }
  }
  return all;
}

void Sharing::configured() {
  active_.mark_all_stale();
}

// Between two turns of programs that do not fit together, a GPU looks as if they did.
void Sharing::renew_crowded(GpuIndex index, Time now) {
  OnGpu& here = gpus_[index];
  if (books_.gpu(index).crowded) {
    here.crowded_at = now;
  } else if (now - here.crowded_at >= Active::kActive) {
    here.crowded_at = {};
  }
  crowded_ = here.crowded_at != Time{} ? crowded_ | bit(index) : crowded_ & ~bit(index);
}

// Called once its candidate is decided.
void Sharing::renew_beside(const Law& law, GpuIndex index, Time now) {
  if (!std::exchange(gpus_[index].news_beside, false)) return;
  bool any = false;
  for (Client* client : books_.gpu(index).all) {
    const bool light = law.candidate == Candidate::kLightOpen && contains(law.light, client->id);
    const bool beside = law.decides && (light || client->evidence.last.shares);
    books_.set_beside(*client, *client->share(index), beside, now);
    any |= beside;
  }
  beside_ = any ? beside_ | bit(index) : beside_ & ~bit(index);
}

void Sharing::judge(GpuMask gpus, Time now) {
  for_each_gpu(gpus, [&](GpuIndex index) { renew_crowded(index, now); });
  const GpuMask others = active_.renew(gpus, crowded_, now);
  GpuMask left = gpus | others;
  while (left != 0) {
    const GpuMask group = active_.group(first_of(left));
    Law& law = this->law(first_of(left));
    const bool other = (others & group) != 0;
    if (other) {
      for_each_gpu(group, [&](GpuIndex index) { laws_[index].gpus = 0; });
      law.gpus = group;
      law.set = active_.on_any(group);
    }
    judge(law, other, now);
    left &= ~group;
  }
}

// `other`: other programs are active there, or other GPUs are decided on together.
void Sharing::judge(Law& law, bool other, Time now) {
  const GpuMask gpus = law.gpus;
  const bool decides = settings_.measured_turns && settings_.mode == Mode::kAutomatic && (crowded_ & gpus) == 0;
  law.news |= std::exchange(law.decides, decides) != decides;
  const bool several = law.set.size() > 1;
  if (!several || !decides) {
    begin(law, Phase::kUndecided, Candidate::kTogether, now);
  } else if (other || law.phase == Phase::kUndecided) {
    if (const Answer* known = answer(law)) {
      law.light = known->light;
      begin(law, Phase::kSettled, known->candidate, now);
    } else {
      begin(law, Phase::kWatching, Candidate::kTogether, now);
    }
    if (all_run(law)) begin_window(law, now);
  }
  if ((due_ & gpus) != 0) go_on(law, now);
  due_ &= ~gpus;
  const bool news = std::exchange(law.news, false);
  if (news) books_.mark_changed(gpus);
  for_each_gpu(gpus, [&](GpuIndex index) {
    OnGpu& here = gpus_[index];
    here.news_beside |= news;
    renew_beside(law, index, now);
    here.look_at = std::min(active_.until(index), next_look(law));
    if (here.crowded_at != Time{} && several) {
      here.look_at = std::min(here.look_at, here.crowded_at + Active::kActive);
    }
    const bool timed = here.look_at != Time::max();
    timed_ = timed ? timed_ | bit(index) : timed_ & ~bit(index);
  });
  const auto set_gpus = [&](GpuMask& mask, bool value) { mask = value ? mask | gpus : mask & ~gpus; };
  const bool looks = law.phase == Phase::kProbing || law.phase == Phase::kTrying;
  const bool watches = law.phase == Phase::kWatching || (law.phase == Phase::kSettled && all_run(law));
  set_gpus(sampling_, law.phase == Phase::kProbing || watches);
  set_gpus(looking_, looks);
  // Also at first and while a candidate is tried: programs about to take turns then have little in flight, and where
  // calls are compared, the work submitted has to match the work done.
  const bool at_first = law.phase == Phase::kWatching && law.window_since == law.since;
  set_gpus(metered_, several && settings_.mode != Mode::kConcurrent && (!watches || at_first));
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
void Sharing::go_on(Law& law, Time now) {
  if (now < next_look(law)) return;
  switch (law.phase) {
    case Phase::kUndecided:
      break;
    case Phase::kWatching:
    case Phase::kSettled:
      look_again(law, now);
      break;
    case Phase::kProbing:
      law.samples_at = now + kProbeTurn;
      if (!law.measuring) {
        if (now - law.since >= kLongestSettling || !drains(law, now)) begin_measuring(law, now);
      } else if (now >= law.since + kProbe || has_samples(law)) {
        choose(law, now);
      }
      break;
    case Phase::kTrying:
      if (law.measuring) {
        compare(law, now);
      } else {
        begin_measuring(law, now);
      }
      break;
  }
}

// For a set that is decided, or about which nothing is known: decides whether to take turns for samples.
void Sharing::look_again(Law& law, Time now) {
  Answer* const known = law.phase == Phase::kSettled ? answer(law) : nullptr;
  if (!all_run(law)) return begin(law, Phase::kProbing, Candidate::kTurns, now);
  if (!collide(law)) return begin_window(law, now);
  if (known != nullptr && now < known->again_at) {
    // Each doubt waits twice as long as the one before.
    const Time from = law.since + kDoubted * (1 << std::min(known->doubts, kMostDoubts));
    if (now < from || !doubtful(law, *known, now)) return begin_window(law, now);
    ++known->doubts;
  }
  begin(law, Phase::kProbing, Candidate::kTurns, now);
}

// Whether nobody has to wait for a turn.
bool Sharing::all_run(const Law& law) {
  const bool one_takes_turns = law.candidate == Candidate::kLightOpen && law.light.size() + 1 >= law.set.size();
  return law.candidate == Candidate::kTogether || one_takes_turns;
}

Sharing::Answer* Sharing::answer(Law& law) {
  const auto found =
      std::find_if(law.answers.begin(), law.answers.end(), [&](const Answer& each) { return each.set == law.set; });
  return found == law.answers.end() ? nullptr : &*found;
}

void Sharing::add_answer(Law& law, Answer answer) {
  if (law.answers.size() == kMostAnswers) law.answers.erase(law.answers.begin());
  law.answers.push_back(std::move(answer));
}

void Sharing::begin(Law& law, Phase phase, Candidate candidate, Time now) {
  if (law.candidate != candidate || law.phase != phase) law.news = true;
  law.phase = phase;
  law.candidate = candidate;
  law.since = now;
  law.measuring = false;
  law.samples_at = {};
}

void Sharing::choose(Law& law, Time now) {
  law.light.clear();
  law.in_turns = 0;
  law.ratio = 0;
  const Time passed = now - law.since;
  for (const ClientId id : law.set) {
    Client& client = *books_.find(id);
    const Measurement& measurement = client.measurement;
    if (weigh(client, passed, now)) {
      const auto calls = static_cast<double>(client.evidence.last.calls - measurement.from.calls);
      law.in_turns += calls / seconds(passed) / measurement.alone;
    }
    if (measurement.u >= 0 && measurement.u < kLight) law.light.push_back(id);
  }
  if (!contended(law)) {
    return apply(law, law.light.empty() ? Candidate::kTurns : Candidate::kLightOpen, kSoonAgain, kFirstAgain, now);
  }
  // Later turns are longer, and lose less to hand-overs.
  if (law.in_turns < 1) {
    law.in_turns = 1 - (1 - law.in_turns) * seconds(kProbeTurn) / seconds(std::max(kShortestTurn, kProbeTurn));
  }
  const std::vector<double> u = all_u(law);
  if (const Answer* known = answer(law); known != nullptr && known->ratio != 0 && known->ratio < kByFar) {
    const bool same = std::equal(u.begin(), u.end(), known->u.begin(),
                                 [](double one, double other) { return std::abs(one - other) <= kSameU; });
    if (same) return apply(law, Candidate::kTurns, kFirstAgain, kLastAgain, now);
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

void Sharing::compare(Law& law, Time now) {
  double sum = 0;
  for (const ClientId id : law.set) {
    const Client& client = *books_.find(id);
    const Evidence& evidence = client.evidence;
    const Measurement& measurement = client.measurement;
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
  apply(law, law.ratio >= 1 ? law.candidate : Candidate::kTurns, first, kLastAgain, now);
}

// The question is asked again after `first`, then after twice as long each time that the answer is the same, up to
// `last`.
void Sharing::apply(Law& law, Candidate candidate, Time first, Time last, Time now) {
  begin(law, Phase::kSettled, candidate, now);
  begin_window(law, now);
  Answer* known = answer(law);
  if (known == nullptr) {
    add_answer(law, {.set = law.set, .candidate = candidate, .light = {}, .again_at = {}, .pause = {}, .u = {}});
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
  return client.share(index)->beside && decides(index) && !books_.gpu(index).lacks_room;
}

bool Sharing::conflicts(const Client& client, GpuIndex index) const {
  if (law(index).candidate == Candidate::kTogether || !decides(index) || open_to(client, index)) return false;
  return std::ranges::any_of(books_.gpu(index).holders,
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
  if (law(index).phase == Phase::kProbing) return kProbeTurn;
  const bool moves = books_.gpu(index).crowded;
  const Time switching = gpus_[index].switching;
  if (switching == Time{}) return moves ? settings_.quantum : kShortestTurn;
  return moves ? std::clamp(switching * kTurnPerMove, kShortestTurn, kLongestWithMoves)
               : std::clamp(switching * kTurnPerSwitch, kShortestTurn, kLongestTurn);
}

double Sharing::trial(GpuIndex index) const {
  const Law& law = this->law(index);
  const auto known = std::ranges::find(law.answers, law.set, &Answer::set);
  return known == law.answers.end() ? 0 : known->ratio;
}

std::optional<Time> Sharing::next_deadline() const {
  std::optional<Time> next;
  for_each_gpu(timed_,
               [&](GpuIndex index) { next = next ? std::min(*next, gpus_[index].look_at) : gpus_[index].look_at; });
  return next;
}

GpuMask Sharing::due(Time now) {
  for_each_gpu(timed_, [&](GpuIndex index) {
    if (gpus_[index].look_at <= now) due_ |= bit(index);
  });
  return due_;
}

}  // namespace rota::scheduler
