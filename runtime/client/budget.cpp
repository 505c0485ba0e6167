#include "runtime/client/budget.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "runtime/client/waiting.h"
#include "runtime/core/held_signals.h"
#include "runtime/core/log.h"
#include "runtime/core/one_allocation.h"
#include "runtime/driver/gpu_number.h"
#include "scheduler/protocol/reserve_number.h"

namespace rota::client {

namespace {

// How long the first question waits for rotad, which itself waits for NVML for less (scheduler/server/measure.cpp).
constexpr std::chrono::milliseconds kFirstAnswer{250};
// By then rotad has read what was given back. A judgment.
constexpr std::chrono::seconds kHeard{1};
// How often a thread that waits for a promise sees whether a line is due.
constexpr std::chrono::milliseconds kBetweenLines{500};

std::uint64_t less(std::uint64_t bytes, std::uint64_t part) {
  return bytes - std::min(bytes, part);
}

template <typename Function>
Budget::Bytes each_of(const Budget::Bytes& one, const Budget::Bytes& other, const Function& function) {
  return {function(one.device, other.device), function(one.movable, other.movable), function(one.fixed, other.fixed),
          function(one.swapped, other.swapped)};
}

Budget::Bytes less(const Budget::Bytes& bytes, const Budget::Bytes& part) {
  return each_of(bytes, part, [](std::uint64_t all, std::uint64_t some) { return less(all, some); });
}

Budget::Bytes most_of(const Budget::Bytes& one, const Budget::Bytes& other) {
  return each_of(one, other, [](std::uint64_t a, std::uint64_t b) { return std::max(a, b); });
}

Budget::Bytes least_of(const Budget::Bytes& one, const Budget::Bytes& other) {
  return each_of(one, other, [](std::uint64_t a, std::uint64_t b) { return std::min(a, b); });
}

bool within(const Budget::Bytes& bytes, const Budget::Bytes& most) {
  return bytes.device <= most.device && bytes.movable <= most.movable && bytes.fixed <= most.fixed &&
         bytes.swapped <= most.swapped;
}

constexpr Budget::Bytes kEverything{protocol::kUnlimited, protocol::kUnlimited, protocol::kUnlimited,
                                    protocol::kUnlimited};

}  // namespace

Budget::Bytes Budget::live(int device) const {
  const std::uint64_t bytes = ledger_.live_bytes(device);
  const std::uint64_t fixed = ledger_.fixed_bytes(device);
  return {bytes, less(bytes, fixed), fixed, memory_.needed_bytes(device)};
}

// The process's bytes without those of threads that ask. Under the lock.
Budget::Bytes Budget::without_pending(int device, const Slot& slot) const {
  return less(live(device), less(slot.pending, slot.granted ? slot.own : Bytes{}));
}

bool Budget::may_take(int device, std::uint64_t bytes, memory::Kind kind, FunctionRef<void()> release,
                      bool* for_others) {
  const Bytes own{bytes, kind.movable() ? bytes : 0, kind.movable() ? 0 : bytes, 0};
  return granted(device, own, {}, release, for_others);
}

bool Budget::may_take_extents(int device, std::uint64_t bytes, std::uint64_t uncounted, FunctionRef<void()> release,
                              bool* for_others) {
  return granted(device, {.swapped = bytes}, {.device = uncounted, .movable = uncounted}, release, for_others);
}

// Whether limits grant what the process has, `own` included, which this thread has just reserved. If it has to ask, it
// also asks for `uncounted`, which it is about to reserve.
bool Budget::granted(int device, const Bytes& own, const Bytes& uncounted, FunctionRef<void()> release,
                     bool* for_others) {
  Slot& here = slot(device);
  const auto granted = [&] { return here.granted_bytes.load(); };
  if (within(live(device), granted())) return true;
  // A handler that jumps out of the wait would leave `asking` locked, for ever and for all threads. rotad answers soon.
  const HeldSignals held;
  struct Pending {  // until this thread has its answer, even if it is cancelled while it waits
    Pending(Budget& quota, Slot& slot, const Bytes& own) : quota(quota), slot(slot), own(own) {
      const std::lock_guard lock(quota.mutex_);
      slot.pending = each_of(slot.pending, own, std::plus<>());
    }
    ~Pending() {
      const std::lock_guard lock(quota.mutex_);
      end();
    }
    void end() {  // with the lock
      slot.pending = less(slot.pending, std::exchange(own, {}));
    }
    Budget& quota;
    Slot& slot;
    Bytes own;
  } pending(*this, here, own);
  const std::lock_guard asking(here.asking);
  struct Asking {
    ~Asking() {  // with the lock
      slot.ask.reset();
      slot.awaited = 0;
      slot.granted = false;
      slot.own = {};
    }
    Slot& slot;
  };
  std::unique_lock lock(mutex_);
  const Asking ended{here};
  here.own = own;
  for (;;) {
    // Bytes for which other threads are about to ask are in the ledger, too, and may be refused.
    const Bytes wanted = less(live(device), less(here.pending, own));
    if (released_ || within(wanted, granted())) break;
    asks_ = protocol::next_reserve_number(asks_);
    here.awaited = asks_ | (OneAllocation::refusal_counts() ? 0 : protocol::kRefusalDoesNotCount) |
                   (OneAllocation::waits_if_full() ? protocol::kWaitsIfFull : 0);
    here.ask = Ask{here.awaited, each_of(wanted, uncounted, std::plus<>())};
    bell_.ring();
    const bool answered = answered_.wait_for(
        lock, patience_, [&] { return released_ || here.awaited == 0 || within(wanted, granted()); });
    if (!answered) {
      // As without a rotad, for all threads, until rotad answers again.
      log::warn("rotad does not answer: allocations on GPU {} are not checked against its limits until it does",
                driver::gpu_number(device));
      here.granted_bytes.store(kEverything);
    }
    if (released_ || here.granted || within(wanted, granted())) break;
    if (!here.full || !OneAllocation::waits_if_full()) OneAllocation::refused();
    // There may have been a free in the meantime.
    const Bytes again = less(live(device), less(here.pending, own));
    if (!within(wanted, again)) continue;
    if (for_others != nullptr) *for_others = here.full;
    // Both under one lock: no thread sees one without the other.
    release();
    pending.end();
    return false;
  }
  pending.end();
  return true;
}

bool Budget::wait_for_others(int device) {
  Slot& here = slot(device);
  {
    const std::lock_guard lock(mutex_);
    if (here.pending.device == 0) return false;
  }
  const HeldSignals held;
  const std::lock_guard asking(here.asking);
  return true;
}

void Budget::explain(int device) {
  static log::Once once;
  if (!once.first()) return;
  const std::lock_guard lock(mutex_);
  log::warn("GPU {} is out of memory: {}", driver::gpu_number(device), slot(device).why);
}

bool Budget::wait_until_known(int device, bool afresh) {
  std::unique_lock lock(mutex_);
  Slot& here = slot(device);
  const auto known = [&] { return released_ || !serving_ || !here.decided || here.known; };
  if (afresh && !here.afresh && here.served) {
    here.known = false;
    here.measure = true;
    here.wait_until = {};
    bell_.ring();
  }
  if (known()) return true;
  here.afresh = true;  // the answer to come is of a reading that begins after the context was made
  if (here.wait_until == Clock::time_point{}) here.wait_until = Clock::now() + kFirstAnswer;
  lock.unlock();
  const HeldSignals held;  // the wait ends with the lock held
  lock.lock();
  return answered_.wait_until(lock, here.wait_until, known);
}

void Budget::context_made(int device) {
  const std::lock_guard lock(mutex_);
  slot(device).afresh = false;
}

void Budget::measured(int device) {
  {
    const std::lock_guard lock(mutex_);
    slot(device).known = true;
  }
  answered_.notify_all();
}

bool Budget::take_measure(int device) {
  const std::lock_guard lock(mutex_);
  return std::exchange(slot(device).measure, false);
}

std::uint64_t Budget::spare(int device) const {
  const std::uint64_t most = slot(device).granted_bytes.device.load();
  return most == protocol::kUnlimited ? most : less(most, ledger_.live_bytes(device));
}

void Budget::serve(bool serves) {
  {
    const std::lock_guard lock(mutex_);
    serving_ = serves;
    for (Slot& slot : slots_) {
      open_locked(slot);
      slot.decided = slot.known = slot.measure = false;
    }
  }
  answered_.notify_all();
}

void Budget::limit(int device) {
  const std::lock_guard lock(mutex_);
  Slot& here = slot(device);
  if (serving_ && !std::exchange(here.decided, true)) tighten_locked(device, here);
}

void Budget::open(int device) {
  {
    const std::lock_guard lock(mutex_);
    open_locked(slot(device));
  }
  answered_.notify_all();
}

void Budget::open_locked(Slot& slot) {
  slot.granted_bytes.store(kEverything);
  slot.answered = 0;
  slot.decided = slot.known = true;
  slot.served = false;
}

std::optional<Budget::Ask> Budget::take_ask(int device) {
  const std::lock_guard lock(mutex_);
  return std::exchange(slot(device).ask, std::nullopt);
}

void Budget::answer(int device, const protocol::Reserved& answer) {
  {
    const std::lock_guard lock(mutex_);
    Slot& here = slot(device);
    here.granted_bytes.store({answer.device_bytes, answer.movable_bytes, answer.fixed_bytes, answer.swapped_bytes});
    here.answered = answer.number;
    here.given_back = 0;  // rotad knows of it: it reads in order
    if (here.awaited == answer.number) {
      here.granted = answer.granted != 0;
      here.full = answer.full != 0;
      const bool said = (answer.number & protocol::kRefusalDoesNotCount) != 0 && !here.why.empty();
      if (answer.granted == 0 && !said) here.why = answer.text;
      here.awaited = 0;
    }
  }
  answered_.notify_all();
}

std::uint64_t Budget::available(int device, std::uint64_t left) {
  const std::lock_guard lock(mutex_);
  Slot& here = slot(device);
  if (left != here.left_then || Clock::now() - here.given_back_at > kHeard) here.given_back = 0;
  const std::uint64_t unused = spare(device);
  return unused == protocol::kUnlimited ? left : left + unused + here.given_back;
}

Budget::Has Budget::tighten(int device, std::uint64_t left) {
  Has has{};
  {
    const std::lock_guard lock(mutex_);
    Slot& here = slot(device);
    const std::uint64_t before = here.granted_bytes.device.load();
    has = {tighten_locked(device, here), here.answered};
    if (left != here.left_then) here.given_back = 0;
    if (before != protocol::kUnlimited) here.given_back += less(before, has.bytes.device);
    here.left_then = left;
    here.given_back_at = Clock::now();
    here.known = here.served = true;
  }
  answered_.notify_all();
  return has;
}

// Lowers the grant and then reads the ledger again: a thread that has reserved in the meantime either was covered by
// the previous grant, which the second reading shows, or is not covered and asks.
Budget::Bytes Budget::tighten_locked(int device, Slot& slot) {
  const Bytes before = slot.granted_bytes.load();
  Bytes covered = least_of(without_pending(device, slot), before);
  for (;;) {
    slot.granted_bytes.store(covered);
    const Bytes now = least_of(without_pending(device, slot), before);
    if (within(now, covered)) return covered;
    covered = most_of(now, covered);
  }
}

// --- the promise of a turn

std::uint64_t Budget::needed(int device) const {
  // rotad promises no more than a GPU has. A thread that reserves more gets the driver's answer.
  const std::uint64_t live = std::min(ledger_.live_bytes(device), protocol::kMaxGpuBytes);
  return slot(device).want_all.count() != 0 ? std::max(live, slot(device).total.load()) : live;
}

void Budget::wait_for_all(int device, std::uint64_t bytes, ForWhom for_whom) {
  Slot& here = slot(device);
  here.total.store(bytes);
  wait_for_promise(device, &here.want_all, for_whom);
}

void Budget::wait_for_promise(int device, Waiters* counted, ForWhom for_whom) {
  Waiters::Place place(waiters_, promise_mutex_);
  std::optional<Waiters::Place> wanting;
  if (counted != nullptr) wanting.emplace(*counted, promise_mutex_);
  bell_.ring();
  const auto done = [&] {
    if (wanting) wanting->count_again();
    return released_.load() || covered(device);
  };
  WaitLines lines;
  const Clock::time_point begun = Clock::now();
  std::unique_lock lock(promise_mutex_);
  while (!waiters_.wait(place, lock, Clock::now() + kBetweenLines, done, [] {})) {
    lock.unlock();
    lines.stands(Clock::now() - begun, for_whom);
    lock.lock();
  }
}

// A waiting thread is counted before it checks, and checks under the lock.
void Budget::changed() {
  if (waiters_.count() == 0) return;
  const std::lock_guard lock(promise_mutex_);
  waiters_.wake_all();
  for (Slot& slot : slots_) slot.want_all.wake_all();
}

void Budget::promise(int device, std::uint64_t bytes) {
  slot(device).promised.store(bytes);
}

void Budget::release_all() {
  {
    const std::lock_guard lock(mutex_);
    released_ = true;
  }
  answered_.notify_all();
  changed();
}

}  // namespace rota::client
