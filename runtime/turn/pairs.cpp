#include "runtime/turn/pairs.h"

#include <algorithm>
#include <utility>

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

// How often the monitor checks whether a series is over: while a thread or another program waits for that, and
// otherwise.
constexpr Time kLookForOthers = 100us;
constexpr Time kLookAtPairs = 1ms;

}  // namespace

// --- events

void Pairs::made(EventId event, bool timing) {
  if (!timing) {
    events_.erase(event);  // a context ended, and the handles of its events are reused
    return;
  }
  events_.insert(event);
  has_events_ = true;
}

void Pairs::ended(EventId event) {
  if (events_.erase(event) != 0) drop_closing(event);
}

// Its progress is no longer queried.
void Pairs::drop_closing(EventId event) {
  for (auto next = streams_.begin(); next != streams_.end();) {
    const auto each = next++;
    std::erase(each->second.closings, event);
    if (!each->second.open && each->second.closings.empty()) streams_.erase(each);
  }
}

void Pairs::read(EventId first, EventId second, Time took, Time now) {
  if (events_.count(first) == 0 || events_.count(second) == 0) return;
  read_at_ = now;
  since_reading_ = 0;
  if (took < kLongest) too_long_until_ = Time{0};
}

void Pairs::forget(EventId event) {
  drop_closing(event);
  for (auto next = streams_.begin(); next != streams_.end();) {
    const auto each = next++;
    if (each->second.open && each->second.opening == event) close(each, nullptr);
  }
}

void Pairs::context_ended() {
  streams_.clear();
  open_pairs_ = 0;
}

// --- pairs

bool Pairs::counts(Time now) const {
  const bool reads = read_at_ != Time{0} && now - read_at_ < kReadLately;
  if (since_reading_ >= (reads ? kAfterReading : kOnCredit) || now < too_long_until_) return false;
  return since_ != Time{0} || taken_.lately(now) + kLongest <= protocol::kMostAlone;
}

Pairs::Place Pairs::place(EventId event, const Key& stream, Time now) const {
  if (!situation_.shared || events_.count(event) == 0) return Place::kNone;
  const auto found = streams_.find(stream);
  // The same event again: the measurement starts here.
  if (found != streams_.end() && found->second.open) {
    return found->second.opening == event ? Place::kNone : Place::kCloses;
  }
  return counts(now) ? Place::kOpens : Place::kNone;
}

Pairs::Opens Pairs::open(EventId event, const Key& stream, Time now) {
  if (!situation_.shared || !counts(now)) return Opens::kNoMatter;
  if (situation_.hold) return Opens::kNotYet;
  if (since_ != Time{0} && now - since_ >= kRenewed) {
    renews_ = true;
    return Opens::kNotYet;
  }
  if (has_enough(stream)) return Opens::kNotYet;
  if (since_ != Time{0} && !ends_in_time(stream, now)) {
    renews_ = true;
    return Opens::kNotYet;
  }
  if (situation_.beside && !is_alone(now) && now >= futile_until_) {
    // A series that began in another way is not changed by this.
    if (since_ != Time{0}) {
      renews_ = true;
      return Opens::kNotYet;
    }
    if (asks_since_ == Time{0}) asks_since_ = now;
    if (now - asks_since_ < kLongestWait) return Opens::kNotYet;
    futile_wait_ = std::clamp(futile_wait_ * 2, kAfterFutile, kLongestAfterFutile);
    futile_until_ = now + futile_wait_;
  } else if (situation_.beside && now >= futile_until_) {
    futile_wait_ = Time{0};
  }
  asks_since_ = Time{0};
  const bool first = since_ == Time{0};
  if (first) {
    since_ = now;
    alone_ = situation_.beside && is_alone(now);
    begins_ = true;
  }
  over_since_ = Time{0};
  ++since_reading_;
  Stream& in = streams_[stream];
  if (in.closings.empty()) in.passed_at = now;
  in.opening = event;
  in.open = true;
  in.recorded = false;
  return first ? Opens::kFirst : Opens::kNow;
}

void Pairs::recorded(EventId event, const Key& stream, Place place, bool done, Time now) {
  const auto found = streams_.find(stream);
  if (found == streams_.end() || !found->second.open) return;  // the pair took too long
  Stream& in = found->second;
  if (place == Place::kCloses) return close(found, done ? event : nullptr);
  if (in.opening != event || in.recorded) return;
  if (!done) return close(found, nullptr);
  in.recorded = true;
  ++open_pairs_;
  // The call may have waited for what was in flight.
  if (std::exchange(begins_, false) && !alone_) since_ = in.passed_at = now;
}

void Pairs::close(std::map<Key, Stream>::iterator each, EventId closing) {
  Stream& stream = each->second;
  if (std::exchange(stream.recorded, false)) --open_pairs_;
  stream.open = false;
  if (closing != nullptr) stream.closings.push_back(closing);
  if (stream.closings.empty()) streams_.erase(each);
}

bool Pairs::has_enough(const Key& stream) const {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return false;
  const std::size_t ahead = found->second.closings.size();
  return ahead >= kFirstAhead && (per_pair_ == Time{0} || per_pair_ * static_cast<std::int64_t>(ahead) >= kAhead);
}

// Whether one more pair would be over within the series, judged by earlier ones.
bool Pairs::ends_in_time(const Key& stream, Time now) const {
  const auto found = streams_.find(stream);
  const auto pairs = static_cast<std::int64_t>(found == streams_.end() ? 1 : found->second.closings.size() + 1);
  const Time until = alone_ && alone_until_ != Time{0} ? std::min(since_ + kLongest, alone_until_) : since_ + kLongest;
  return now + per_pair_ * pairs <= until;
}

// The newest value counts a quarter.
void Pairs::count_over(Stream& stream, unsigned pairs, Time now) {
  const Time each = std::max((now - stream.passed_at) / pairs, Time{1});
  stream.passed_at = now;
  per_pair_ = per_pair_ == Time{0} ? each : (per_pair_ * 3 + each) / 4;
}

// --- the monitor

// The series' time is over before its pairs are. If one pair has taken all of it, with exclusive use of the GPU, more
// time would not have been enough.
void Pairs::end_by_time(Time now) {
  const bool was_alone = alone_ || !situation_.beside;
  const bool all =
      std::any_of(streams_.begin(), streams_.end(), [&](const auto& each) { return each.second.passed_at <= since_; });
  if (was_alone && all) too_long_until_ = now + kReadLately;
  end_series(now);
}

void Pairs::end_series(Time now) {
  taken_.add(since_, now);
  since_ = over_since_ = Time{0};
  alone_ = renews_ = false;
  streams_.clear();
  open_pairs_ = 0;
}

Pairs::Wish Pairs::settle(const Situation& situation, Time now) {
  situation_ = situation;
  alone_until_ = situation.alone_until;
  if (alone_until_ == Time{0}) given_up_ = Time{0};
  if (since_ != Time{0}) {
    if (!streams_.empty()) {
      over_since_ = Time{0};
    } else if (over_since_ == Time{0}) {
      over_since_ = now;
    }
    const bool lingers = streams_.empty() && now - over_since_ < kLinger && !renews_ && !situation.hold;
    if (situation.shared && now - since_ >= kLongest && !streams_.empty()) {
      end_by_time(now);
    } else if (!situation.shared || now - since_ >= kLongest || (streams_.empty() && !lingers)) {
      end_series(now);
    }
  }
  // While this process does not hold the GPU it does not ask, since others may measure. The thread that asked may also
  // have ended.
  if (asks_since_ != Time{0} && (!situation.runs || now - asks_since_ >= 2 * kLongestWait)) asks_since_ = Time{0};
  const bool asks = asks_since_ != Time{0} && now - asks_since_ < kLongestWait;
  const bool may_ask = situation.beside && situation.runs;
  Wish wish{.measures = !streams_.empty(), .alone = may_ask && (asks || (since_ != Time{0} && alone_))};
  if (!wish.alone && alone_until_ != Time{0}) given_up_ = alone_until_;
  look_at_ = Time::max();
  if (since_ != Time{0}) {
    const bool waited_for = renews_ || situation.hold || situation.waited_for;
    look_at_ = std::min(since_ + kLongest, now + (waited_for ? kLookForOthers : kLookAtPairs));
  }
  if (asks) look_at_ = std::min(look_at_, asks_since_ + kLongestWait);
  const bool ends = since_ != Time{0} && (renews_ || now - since_ >= kRenewed);
  wish.changed = situation.waited_for && !situation.hold && !ends;
  return wish;
}

}  // namespace rota::turn
