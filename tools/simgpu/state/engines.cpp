// The GPU's engines. An operation books a period of its engine's time and sleeps until that is over, outside the mutex.
//
// Compute: contexts take turns. The owner of the engine keeps it for a slice while another context waits, otherwise for
// as long as it needs; an idle owner loses it. A waiting context asks again when its turn may have come; contexts are
// served in order of arrival. Switching takes time if the previous context had not finished.
//
// Copies: one engine for each direction and one to other GPUs, in pieces, first come, first served. While both
// directions of the link are full, each is slower (profile.cpp computes by how much).
#include <algorithm>

#include "tools/simgpu/state/layout.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {
namespace {

// Copies and kernels are booked in pieces of at most this length, so that others run in between.
constexpr int64_t kCopyPiece = 250'000;
// A waiter that has not asked again for this many slices has given up or was killed.
constexpr int64_t kForgottenAfter = 20;

Waiter* waiter_of(ComputeEngine& engine, uint64_t key) {
  for (Waiter& waiter : engine.waiters) {
    if (waiter.key == key) return &waiter;
  }
  return nullptr;
}

bool others_wait(const ComputeEngine& engine, uint64_t key) {
  return std::any_of(engine.waiters, engine.waiters + kMaxWaiters,
                     [key](const Waiter& waiter) { return waiter.key != 0 && waiter.key != key; });
}

void wait_in_line(ComputeEngine& engine, uint64_t key, int64_t since, int64_t now) {
  Waiter* waiter = waiter_of(engine, key);
  if (waiter == nullptr) {
    waiter = waiter_of(engine, 0);
    if (waiter == nullptr) return;  // the table is full: it waits without a place in the queue
    *waiter = Waiter{key, since, now};
  }
  waiter->seen = now;
}

bool first_in_line(const ComputeEngine& engine, uint64_t key, int64_t since) {
  for (const Waiter& waiter : engine.waiters) {
    if (waiter.key == key) since = waiter.since;
  }
  return std::none_of(engine.waiters, engine.waiters + kMaxWaiters, [&](const Waiter& waiter) {
    return waiter.key != 0 && waiter.key != key &&
           (waiter.since < since || (waiter.since == since && waiter.key < key));
  });
}

Booking book_compute(ComputeEngine& engine, const CostFigures& cost, const BookingRequest& asked, uint64_t key,
                     int64_t now, int64_t jitter) {
  for (Waiter& waiter : engine.waiters) {
    if (waiter.key != 0 && waiter.seen + kForgottenAfter * cost.slice + jitter < now) waiter = Waiter{};
  }
  int64_t start = std::max(asked.from, engine.busy_until);
  if (engine.owner == key) {
    if (start >= engine.slice_end) {
      // A forgotten waiter that asks again is queued behind this one, which must then not wait for it in turn.
      if (others_wait(engine, key) && !first_in_line(engine, key, start)) {
        wait_in_line(engine, key, start, now);
        return {start + jitter, 0};
      }
      engine.slice_end = start + cost.slice;
    }
  } else {
    bool idle = engine.owner == 0 || asked.from >= engine.busy_until + jitter;
    bool over = idle || start >= engine.slice_end;
    if (!over || !first_in_line(engine, key, asked.from)) {
      wait_in_line(engine, key, asked.from, now);
      int64_t again = over ? start + jitter : std::min(engine.slice_end, engine.busy_until + jitter);
      return {std::max(again, asked.from + jitter / 2 + 1), 0};
    }
    if (!idle) start += cost.context_switch;
    engine.owner = key;
    engine.slice_end = start + cost.slice;
  }
  if (Waiter* own = waiter_of(engine, key)) *own = Waiter{};
  int64_t granted = std::min(asked.nanoseconds, engine.slice_end - start);
  engine.busy_until = start + granted;
  return {engine.busy_until, granted};
}

}  // namespace

// The key of a waiter for the compute engine: a context of a process. Under the mutex.
uint64_t SharedState::key_of(const BookingRequest& asked) const {
  return layout_->processes[process_].serial << 32 | (asked.context & 0xffffffffU);
}

void SharedState::leave_line(const BookingRequest& asked) {
  if (asked.engine != EngineKind::kCompute) return;
  lock();
  if (Waiter* own = waiter_of(layout_->gpu[physical(asked.gpu)].compute, key_of(asked))) *own = Waiter{};
  unlock();
}

Booking SharedState::reserve(const BookingRequest& asked) {
  if (asked.nanoseconds <= 0) return {asked.from, asked.nanoseconds};
  Clock& clock = process_clock();
  int64_t now = clock.now();
  lock();
  GpuState& gpu = layout_->gpu[physical(asked.gpu)];
  Booking booking{};
  if (asked.engine == EngineKind::kCompute) {
    booking = book_compute(gpu.compute, profile_->cost, asked, key_of(asked), now, clock.jitter());
  } else {
    CopyEngine& engine = gpu.copies[static_cast<int>(asked.engine) - 1];
    int64_t piece = std::min(asked.nanoseconds, kCopyPiece);
    int64_t start = std::max(asked.from, engine.busy_until);
    int64_t takes = piece;
    if (asked.link == Link::kFull && asked.engine != EngineKind::kPeer) {
      bool down = asked.engine == EngineKind::kHostToDevice;
      const CopyEngine& other = gpu.copies[down ? 1 : 0];
      double slower = down ? slower_down_ : slower_up_;
      int64_t both =
          std::clamp<int64_t>(other.link_until - start, 0, static_cast<int64_t>(static_cast<double>(piece) * slower));
      takes += static_cast<int64_t>(static_cast<double>(both) * (1 - 1 / slower));
      engine.link_until = start + takes + asked.nanoseconds - piece;
    }
    engine.busy_until = start + takes;
    booking = {engine.busy_until, piece};
  }
  unlock();
  return booking;
}

}  // namespace rota::sim
