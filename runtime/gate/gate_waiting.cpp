// What threads do while they wait at the gates, and how single calls are let in although the gates are closed.
#include <algorithm>
#include <bit>
#include <thread>

#include "runtime/gate/gate.h"
#include "runtime/gate/thread_records.h"

namespace rota::gate {

namespace {

using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

constinit std::atomic<Stood*> stood{nullptr};

}  // namespace

template <typename MayGo, typename Interrupted>
void Gate::stand(Waiters& waiters, Waiters::Place& place, Attendant* attendant, MayGo may_go, Interrupted interrupted) {
  const ToldWait wait;
  for (std::chrono::nanoseconds so_far{0};; so_far = std::chrono::steady_clock::now() - wait.begun()) {
    if (attendant != nullptr) attendant = attendant_.load(memory_order_acquire);
    const auto next = attendant != nullptr ? attendant->stands(so_far) : std::nullopt;
    const auto until = next ? wait.begun() + *next : std::chrono::steady_clock::time_point::max();
    std::unique_lock lock(mutex_);
    if (waiters.wait(place, lock, until, [&] { return may_go(lock); }, interrupted)) return;
  }
}

// Returns true if a signal handler has run meanwhile.
bool Gate::wait_metered(Devices devices, std::uint64_t resumed) {
  Waiters& held = held_[static_cast<std::size_t>(std::countr_zero(devices))];
  Waiters::Place place(held, mutex_);
  if (Attendant* attendant = attendant_.load(memory_order_acquire)) attendant->arrived();
  bool interrupted = false;
  // Its own work is in the way, not another program's turn: there is nothing to report.
  stand(
      held, place, nullptr,
      [&](auto&) { return resumed_.load(memory_order_relaxed) != resumed || closed(devices) || !metered(); },
      [&] { interrupted = true; });
  return interrupted;
}

void Gate::pass(Devices devices) {
  for (;;) {
    const Devices closed = counted(closed_.load(memory_order_seq_cst) & devices);
    if (closed == 0 || refuses()) return;
    wait_outside(closed, false, false);
  }
}

// Waits at the first of these gates. `interrupted`, and what this returns: a signal handler has run since the call
// began to wait. That is told again whenever the thread finds the gate closed: it may have been open for too short a
// time for this thread to pass. `admissible`: it also goes on once it may be admitted (takes_admission()).
bool Gate::wait_outside(Devices devices, bool interrupted, bool admissible) {
  const int device = std::countr_zero(devices);
  Waiters& outside = outside_[static_cast<std::size_t>(device)];
  Waiters::Place place(outside, mutex_);
  if (Attendant* attendant = attendant_.load(memory_order_acquire)) attendant->arrived();
  const auto tell = [&] {
    interrupted = true;
    if (Attendant* attendant = attendant_.load(memory_order_acquire)) attendant->interrupted(device);
  };
  const auto waits = [&] {
    if (!closed(bit_of(device)) || refuses()) return false;
    return !admissible || admission_for(closed_.load(memory_order_seq_cst) & devices) == nullptr;
  };
  const auto done = [&](std::unique_lock<std::mutex>& lock) {
    while (waits() && wait_awake(device, place.signals(), lock, waits)) tell();
    if (!waits()) return true;
    if (interrupted) tell();
    return false;
  };
  stand(outside, place, attendant_.load(memory_order_acquire), done, tell);
  return interrupted;
}

ToldWait::ToldWait() {
  if (Stood* const told = stood.load(memory_order_acquire)) told(std::nullopt);
}

ToldWait::~ToldWait() {
  if (Stood* const told = stood.load(memory_order_acquire)) told(std::chrono::steady_clock::now() - begun_);
}

void tell_of_waits(Stood* told) {
  stood.store(told, memory_order_release);
}

void Gate::rouse(std::chrono::steady_clock::time_point until, Devices devices) {
  const std::lock_guard lock(mutex_);
  if (until <= roused_until_ && (devices & ~roused_) == 0) return;
  roused_until_ = until;
  roused_ = devices;
  if (awake_until_ > std::chrono::steady_clock::now()) return;
  wake(outside_, devices);
}

// Returns true if the gate is still closed and a signal handler has run in this thread. Most of the time is spent in a
// system call that a handler interrupts, and which takes a fraction of a microsecond: one that happens to run between
// two of them is missed.
bool Gate::wait_awake(int device, const HeldSignals& signals, std::unique_lock<std::mutex>& lock,
                      FunctionRef<bool()> waits) {
  constexpr int kUntilYield = 128;
  const auto begin = std::chrono::steady_clock::now();
  if (awake_until_ > begin || roused_until_ <= begin || (roused_ & bit_of(device)) == 0) return false;
  const auto until = awake_until_ = roused_until_;
  lock.unlock();
  bool interrupted = false;
  const auto go_on = [&] { return waits() && !interrupted; };
  while (go_on() && std::chrono::steady_clock::now() < until) {
    for (int i = 0; i < kUntilYield && go_on(); ++i) {
      interrupted = interrupted_sleep(std::chrono::nanoseconds{0}, &signals.programs());
    }
    std::this_thread::yield();
  }
  lock.lock();
  if (awake_until_ == until) awake_until_ = {};
  return interrupted && waits();
}

// --- admissions

void Gate::admit(Devices devices) {
  const std::lock_guard lock(mutex_);
  if (devices == 0 || !all_closed(devices)) return;
  admissions_[static_cast<std::size_t>(std::countr_zero(devices))].store(devices, memory_order_seq_cst);
  wake(outside_, devices);
}

void Gate::withdraw(Devices devices) {
  const std::lock_guard lock(mutex_);
  forget_admissions(devices);
}

void Gate::forget_admissions(Devices devices) {
  for (std::atomic<Devices>& admission : admissions_) {
    if ((admission.load(memory_order_seq_cst) & devices) != 0) admission.store(0, memory_order_seq_cst);
  }
}

bool Gate::admits(Devices devices) const {
  return std::ranges::any_of(admissions_, [devices](const std::atomic<Devices>& admission) {
    return (admission.load(memory_order_seq_cst) & devices) != 0;
  });
}

// An admission by which a call may enter that finds these gates closed; null: none. There is none for work whose memory
// is not resident.
std::atomic<Devices>* Gate::admission_for(Devices closed) {
  if ((out_of_place.load(memory_order_seq_cst) & closed) != 0) return nullptr;
  const auto covers = [closed](const std::atomic<Devices>& admission) {
    const Devices devices = admission.load(memory_order_seq_cst);
    return devices != 0 && (closed & ~devices) == 0;
  };
  const auto found = std::ranges::find_if(admissions_, covers);
  return found != admissions_.end() ? &*found : nullptr;
}

// Takes an admission, if there is one. No lock and nothing to undo: a thread that is interrupted after this and never
// comes back counts as one that has left a call inside the gate.
bool Gate::takes_admission(Devices closed) {
  for (std::atomic<Devices>* admission = admission_for(closed); admission != nullptr;
       admission = admission_for(closed)) {
    Devices devices = admission->load(memory_order_seq_cst);
    const bool covers = devices != 0 && (closed & ~devices) == 0;
    if (covers && admission->compare_exchange_strong(devices, 0, memory_order_seq_cst)) return true;
  }
  return false;
}

}  // namespace rota::gate
