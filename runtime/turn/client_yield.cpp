// Giving the lease back: when (idle, or the quantum is over), and how (close, wait for the work, and change one's mind
// if the work waits for us).
#include <algorithm>

#include "runtime/core/log.h"
#include "runtime/turn/client.h"

namespace rota::client {

using namespace std::chrono_literals;

namespace {

constexpr auto kFarAway = 1s;
// After so many drains that failed in a row (1, 2, 4 and 8 s) this process is taken for one that cannot be drained.
constexpr int kMaxFailedDrains = 4;
constexpr auto kMaxPatience = 8s;

}  // namespace

std::chrono::nanoseconds Client::step_holding(const Lease& lease) {
  const auto now = Clock::now();
  if (lease.grant != grant_) {
    if (lease.grant == 0) {
      // 0 also shows for an instant while rotad replaces a grant: look twice.
      nap(1ms);
      if (connection_->lease().grant != 0) return 0ns;
      lease_revoked();
      return 0ns;
    }
    grant_ = lease.grant;
  }
  if ((lease.held_gpus & mask()) != mask()) {
    // The process has touched another GPU: all at once or not at all, so the smaller set goes back first.
    if (now >= retry_at_) yield(false);
    return phase_ == Phase::kHolding ? std::max<std::chrono::nanoseconds>(retry_at_ - Clock::now(), 1ms) : 0ns;
  }
  if (lease.waiters == 0) {
    // Nobody gives anything back while nobody waits: no event is recorded and nothing is looked at, but for memory that
    // has to go.
    idle_since_.reset();
    mark_due_ = true;
    write_submissions();
    if (memory_.has_deferred()) collect_if_idle();
    return kFarAway;
  }

  const Clock::time_point drain_at = Clock::time_point(std::chrono::nanoseconds(lease.drain_at_ns));
  if (lease.drain_at_ns != 0 && now >= std::max(drain_at, earliest_yield_) && now >= retry_at_) {
    yield(false);
    return 0ns;
  }

  // Idle: no call since the last look, nobody inside, and an event behind all work reached; and so for a while.
  const gate::Gate::Traffic traffic = gate_.traffic();
  if (traffic.calls != calls_seen_) {
    calls_seen_ = traffic.calls;
    mark_due_ = true;
  }
  bool idle = traffic.inside == 0;
  if (idle && mark_due_) mark_due_ = contexts_.mark() != gate::Contexts::Mark::kMarked;
  const gate::Contexts::Progress progress = contexts_.progress();
  idle = idle && !mark_due_ && progress.looked && progress.done;
  if (!idle) {
    idle_since_.reset();
  } else if (!idle_since_) {
    idle_since_ = now;
  } else if (now - *idle_since_ >= idle_grace_ && now >= retry_at_) {
    yield(true);
    return 0ns;
  }
  std::chrono::nanoseconds pause = std::max<std::chrono::nanoseconds>(idle_grace_ / 2, 500us);
  if (lease.drain_at_ns != 0 && drain_at > now) pause = std::min<std::chrono::nanoseconds>(pause, drain_at - now);
  return std::max<std::chrono::nanoseconds>(pause, 100us);
}

void Client::yield(bool idle) {
  const auto begun = Clock::now();
  gate_.close();
  switch (drain()) {
    case Drained::kGone:
      if (stopping()) return;
      if (!connection_) {
        gate_.open();  // rotad died while we held the lease: a holder keeps running
      } else if (phase_ == Phase::kHolding) {
        lease_revoked();
      }
      return;
    case Drained::kHeldBack:
      drain_failed();
      return;
    case Drained::kYes:
      break;
  }
  failed_drains_ = 0;
  patience_ = 1s;
  write_submissions();
  if (memory_.has_deferred()) collect();
  if (phase_ != Phase::kHolding) return;  // nothing to give back: rotad has not granted yet
  const auto us = [](Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  };
  log::debug("grant {}: given back {} after {} us, {} us of them drained, {} calls waiting", grant_,
             idle ? "idle" : "at the end of the turn", us(Clock::now() - taken_at_), us(Clock::now() - begun),
             gate_.standing());
  phase_ = Phase::kIdle;
  idle_since_.reset();
  gave_back_idle_at_.reset();
  if (idle) gave_back_idle_at_ = Clock::now();
  give_back(grant_);
}

// The gate is closed and nothing runs: memory whose free would wait for the GPU can go.
void Client::collect() {
  for (const Gpu& gpu : gpus_) {
    const api::CUcontext context = contexts_.any(gpu.device);
    if (context == nullptr) continue;
    contexts_.within(context, [&] { memory_.collect_deferred(); });
    return;
  }
}

// Only where nothing runs and nobody is on the way to the GPU; else at another time. The gate is closed for a
// millisecond at most, and calls that come meanwhile wait for the free as they would for their own.
void Client::collect_if_idle() {
  gate_.close();
  const auto until = Clock::now() + 1ms;
  if (gate_.wait_until_empty(until) && contexts_.mark() == gate::Contexts::Mark::kMarked) {
    bool idle = false;
    do {
      const gate::Contexts::Progress progress = contexts_.progress();
      idle = progress.looked && progress.done;
      if (!idle) nap(20us);
    } while (!idle && Clock::now() < until);
    if (idle) collect();
  }
  gate_.open();
}

Client::Drained Client::drain() {
  auto deadline = Clock::now() + patience_;
  std::uint64_t reached = contexts_.progress().reached;
  bool marked = false;
  for (std::chrono::nanoseconds pause = 20us;; pause = std::min<std::chrono::nanoseconds>(pause * 3 / 2, 500us)) {
    if (stopping()) return Drained::kGone;
    const auto now = Clock::now();
    // Threads inside leave by themselves; but one may be inside because it waits for the GPU (a synchronous copy).
    if (gate_.wait_until_empty(std::min(deadline, now + 10ms))) {
      if (!marked) marked = contexts_.mark() == gate::Contexts::Mark::kMarked;
      const gate::Contexts::Progress progress = contexts_.progress();
      if (marked && progress.looked && progress.done) return Drained::kYes;
      if (progress.looked && progress.reached != reached) {
        // The GPU gets on: however long its queue, nothing is stuck.
        reached = progress.reached;
        deadline = Clock::now() + patience_;
      }
    }
    if (Clock::now() >= deadline) {
      // No progress for long. With nobody at the gate there is nothing that our gate could be holding back: a long
      // kernel.
      if (gate_.standing() > 0) return Drained::kHeldBack;
      deadline = Clock::now() + 100ms;
    }
    if (connection_) read_messages();
    if (!connection_) return Drained::kGone;
    if (phase_ == Phase::kHolding && connection_->lease().grant != grant_) {
      nap(1ms);
      if (connection_->lease().grant == 0) return Drained::kGone;
      grant_ = connection_->lease().grant;
    }
    nap(pause);
  }
}

void Client::drain_failed() {
  const bool capturing = contexts_.captures() > 0;
  gate_.open();
  if (!capturing) ++failed_drains_;
  patience_ = std::min<std::chrono::nanoseconds>(patience_ * 2, kMaxPatience);
  retry_at_ = Clock::now() + patience_;
  if (phase_ == Phase::kWaiting) running_want_until_ = retry_at_;
  if (failed_drains_ < kMaxFailedDrains) {
    static log::Once once;
    if (once.first()) {
      log::info("the GPU made no progress while calls waited at the closed gate ({}): opened again, tried again later",
                capturing ? "a stream capture is under way" : "its work may wait for those calls");
    }
    return;
  }
  // Work that can never be drained: others get their turn beside it.
  log::warn(
      "this program's GPU work waits for its own later calls, so it cannot take turns: it runs beside the others");
  if (phase_ == Phase::kHolding) give_back(grant_);
  if (connection_) phase_ = Phase::kBeside;
}

}  // namespace rota::client
