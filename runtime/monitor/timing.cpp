#include "runtime/monitor/timing.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "runtime/core/counted.h"

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

// How often the monitor checks whether a series is over: while a thread or another program waits for that, and
// otherwise.
constexpr Time kLookForOthers = 100us;
constexpr Time kLookAtPairs = 1ms;

std::uint32_t* futex_of(std::atomic<std::uint32_t>& word) {
  return reinterpret_cast<std::uint32_t*>(&word);
}

}  // namespace

constinit std::atomic<bool> Timing::has_events_{false};
constinit std::atomic<bool> Timing::matters_{false};

Timing::Timing() {
  has_events_.store(false);
  matters_.store(false);
}

Timing::~Timing() {
  has_events_.store(false);
  matters_.store(false);
}

// --- events

void Timing::made(api::CUevent event, bool timing) {
  const std::lock_guard lock(mutex_);
  if (!timing) {
    events_.erase(event);  // a context ended, and the handles of its events are reused
    return;
  }
  events_.insert(event);
  has_events_.store(true, std::memory_order_relaxed);
  matters_.store(situation_.shared, std::memory_order_relaxed);
}

void Timing::ended(api::CUevent event) {
  const std::lock_guard lock(mutex_);
  if (events_.erase(event) != 0) drop_closing(event);
}

// Its progress is no longer queried.
void Timing::drop_closing(api::CUevent event) {
  for (auto next = streams_.begin(); next != streams_.end();) {
    const auto each = next++;
    std::erase(each->second.closings, event);
    if (!each->second.open && each->second.closings.empty()) streams_.erase(each);
  }
}

void Timing::read(api::CUevent first, api::CUevent second, Time took, Time now) {
  const std::lock_guard lock(mutex_);
  if (events_.count(first) == 0 || events_.count(second) == 0) return;
  read_at_ = now;
  since_reading_ = 0;
  if (took < kLongest) too_long_until_ = Time{0};
}

void Timing::forget(api::CUevent event) {
  const std::lock_guard lock(mutex_);
  drop_closing(event);
  for (auto next = streams_.begin(); next != streams_.end();) {
    const auto each = next++;
    if (each->second.open && each->second.opening == event) close(each, nullptr);
  }
}

void Timing::context_ended() {
  const std::lock_guard lock(mutex_);
  streams_.clear();
  open_pairs_.store(0, std::memory_order_release);
}

// --- pairs

bool Timing::counts(Time now) const {
  const bool reads = read_at_ != Time{0} && now - read_at_ < kReadLately;
  if (since_reading_ >= (reads ? kAfterReading : kOnCredit) || now < too_long_until_) return false;
  return since_ != Time{0} || taken_.lately(now) + kLongest <= protocol::kMostAlone;
}

bool Timing::has_time(api::CUevent event) const {
  const std::lock_guard lock(mutex_);
  return events_.count(event) != 0;
}

Timing::Place Timing::place(api::CUevent event, const Key& stream, Time now) const {
  const std::lock_guard lock(mutex_);
  if (!situation_.shared || events_.count(event) == 0) return Place::kNone;
  const auto found = streams_.find(stream);
  // The same event again: the measurement starts here.
  if (found != streams_.end() && found->second.open) {
    return found->second.opening == event ? Place::kNone : Place::kCloses;
  }
  return counts(now) ? Place::kOpens : Place::kNone;
}

Timing::Opens Timing::open(api::CUevent event, const Key& stream, Time now) {
  const std::lock_guard lock(mutex_);
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
  if (situation_.beside && !is_alone(now) && now >= in_vain_until_) {
    // A series that has begun differently ends as it is.
    if (since_ != Time{0}) {
      renews_ = true;
      return Opens::kNotYet;
    }
    if (asks_since_ == Time{0}) asks_since_ = now;
    if (now - asks_since_ < kLongestWait) return Opens::kNotYet;
    in_vain_ = std::clamp(in_vain_ * 2, kInVain, kLongestInVain);
    in_vain_until_ = now + in_vain_;
  } else if (situation_.beside && now >= in_vain_until_) {
    in_vain_ = Time{0};
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

void Timing::recorded(api::CUevent event, const Key& stream, Place place, bool done, Time now) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end() || !found->second.open) return;  // the pair took too long
  Stream& in = found->second;
  if (place == Place::kCloses) return close(found, done ? event : nullptr);
  if (in.opening != event || in.recorded) return;
  if (!done) return close(found, nullptr);
  in.recorded = true;
  open_pairs_.fetch_add(1, std::memory_order_release);
  // The call may have waited for what was in flight.
  if (std::exchange(begins_, false) && !alone_) since_ = in.passed_at = now;
}

void Timing::close(std::map<Key, Stream>::iterator each, api::CUevent closing) {
  Stream& stream = each->second;
  if (std::exchange(stream.recorded, false)) open_pairs_.fetch_sub(1, std::memory_order_release);
  stream.open = false;
  if (closing != nullptr) stream.closings.push_back(closing);
  if (stream.closings.empty()) streams_.erase(each);
}

bool Timing::has_enough(const Key& stream) const {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return false;
  const std::size_t ahead = found->second.closings.size();
  return ahead >= kFirstAhead && (per_pair_ == Time{0} || per_pair_ * static_cast<std::int64_t>(ahead) >= kAhead);
}

// Whether one more pair would be over within the series, as far as earlier ones tell.
bool Timing::ends_in_time(const Key& stream, Time now) const {
  const auto found = streams_.find(stream);
  const auto pairs = static_cast<std::int64_t>(found == streams_.end() ? 1 : found->second.closings.size() + 1);
  const Time until = alone_ && alone_until_ != Time{0} ? std::min(since_ + kLongest, alone_until_) : since_ + kLongest;
  return now + per_pair_ * pairs <= until;
}

// A quarter of the newest.
void Timing::count_over(Stream& stream, unsigned pairs, Time now) {
  const Time each = std::max((now - stream.passed_at) / pairs, Time{1});
  stream.passed_at = now;
  per_pair_ = per_pair_ == Time{0} ? each : (per_pair_ * 3 + each) / 4;
}

void Timing::wait(std::uint32_t seen) {
  const Counted waiting(waiting_);
  const timespec limit{.tv_sec = 0, .tv_nsec = 10'000'000};
  syscall(SYS_futex, futex_of(changes_), FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
}

void Timing::changed() {
  changes_.fetch_add(1, std::memory_order_release);
  if (waiting_.load() != 0) {
    syscall(SYS_futex, futex_of(changes_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

// --- the monitor

bool Timing::in_flight() const {
  const std::lock_guard lock(mutex_);
  return !streams_.empty();
}

// Its time is over before its pairs are. If one of them has taken all of it, with the GPU to itself, more time would
// not have been enough.
void Timing::end_by_time(Time now) {
  const bool was_alone = alone_ || !situation_.beside;
  const bool all =
      std::any_of(streams_.begin(), streams_.end(), [&](const auto& each) { return each.second.passed_at <= since_; });
  if (was_alone && all) too_long_until_ = now + kReadLately;
  end_series(now);
}

void Timing::end_series(Time now) {
  taken_.add(since_, now);
  since_ = over_since_ = Time{0};
  alone_ = renews_ = false;
  streams_.clear();
  open_pairs_.store(0, std::memory_order_release);
}

Timing::Wish Timing::settle(const Situation& situation, Time now) {
  situation_ = situation;
  alone_until_ = situation.alone_until;
  if (alone_until_ == Time{0}) given_up_ = Time{0};
  matters_.store(situation.shared && has_events(), std::memory_order_relaxed);
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
  // While this process does not hold the GPU it does not ask: others may measure. And the thread that asked may be
  // gone.
  if (asks_since_ != Time{0} && (!situation.runs || now - asks_since_ >= 2 * kLongestWait)) asks_since_ = Time{0};
  const bool asks = asks_since_ != Time{0} && now - asks_since_ < kLongestWait;
  const bool may_ask = situation.beside && situation.runs;
  const Wish wish{.measures = !streams_.empty(), .alone = may_ask && (asks || (since_ != Time{0} && alone_))};
  if (!wish.alone && alone_until_ != Time{0}) given_up_ = alone_until_;
  look_at_ = Time::max();
  if (since_ != Time{0}) {
    const bool waited_for = renews_ || situation.hold || waiting_.load() != 0;
    look_at_ = std::min(since_ + kLongest, now + (waited_for ? kLookForOthers : kLookAtPairs));
  }
  if (asks) look_at_ = std::min(look_at_, asks_since_ + kLongestWait);
  const bool ends = since_ != Time{0} && (renews_ || now - since_ >= kRenewed);
  if (waiting_.load() != 0 && !situation.hold && !ends) changed();
  return wish;
}

}  // namespace rota::turn
