// The monitor's beginning and its end.
#include <pthread.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/core/held_signals.h"
#include "runtime/core/log.h"
#include "runtime/core/own_thread.h"
#include "runtime/monitor/monitor.h"

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

// The monitor that the exit handler stops.
constinit std::atomic<Monitor*> exiting{nullptr};
constinit std::atomic<bool> exit_handler{false};

// Whether `rota run` has told the user that this rotad does not answer.
bool run_has_said(const protocol::Listener& rotad) {
  const char* said = std::getenv(protocol::kSilentRotad);  // NOLINT(concurrency-mt-unsafe)
  return said != nullptr && std::to_string(rotad.pid) == said;
}

}  // namespace

void Monitor::start() {
  const Time begun = now();
  while (!started_.load(std::memory_order_acquire)) {
    {
      const HeldSignals held;  // until the lock is free again
      const std::lock_guard lock(start_mutex_);
      if (started_.load(std::memory_order_relaxed)) return;
      const std::optional<bool> served = connect_first();
      if (served) {
        served_.store(*served, std::memory_order_release);
        if (*served) {
          start_thread();
        } else {
          keeper_.open_for_good_unswapped();
        }
        started_.store(true, std::memory_order_release);
        return;
      }
      waiting_.stands(now() - begun);
    }
    std::this_thread::sleep_for(200ms);
  }
}

// Nothing: the program waits for a rotad, and asks again after a while.
std::optional<bool> Monitor::connect_first() {
  Connection::Attempt attempt;
  if (!unanswered_) {
    // A rotad that was already waited for in vain is not waited for again as long.
    attempt = Connection::open(silent_.load() ? Connection::kPatience / 10 : Connection::kPatience);
    unanswered_ = std::move(attempt.unanswered);
  } else if (unanswered_->welcome(attempt.reason) == Connection::Welcome::kYes) {
    attempt.connection = std::move(unanswered_);
  } else if (!attempt.reason.empty()) {
    unanswered_.reset();
  }
  if (attempt.connection) {
    connection_ = std::move(attempt.connection);
    log::debug("client {} of rotad {}", connection_->welcome().client, connection_->welcome().daemon_pid);
    connected();
    if (connection_) return true;
    for (const auto& task : tasks_) task->due.clear();  // not announced to anyone yet
    attempt.reason = "rotad closed the connection";
  }
  const bool wait = service_.waits_for_rotad();
  if (unanswered_ && !wait) {
    // The process is one that rotad serves, as soon as rotad answers.
    log::message(run_has_said(unanswered_->rotad()) ? log::Level::kInfo : log::Level::kWarn,
                 "{}; until it answers this program does not take turns", attempt.reason);
    said_silent_ = true;
    // The program has waited for it already.
    for (const auto& task : tasks_) task->machine.step(event::Lost{}, now() - Machine::kGrace);
    return true;
  }
  if (!std::exchange(told_no_rotad_, true)) {
    if (!attempt.reason.empty()) {
      log::warn("no turns on the GPU: {}; {}", attempt.reason,
                wait ? "waiting for rotad (ROTA_WAIT=1)" : "the program runs as it would without rota");
    } else if (wait) {
      log::warn("waiting for rotad (ROTA_WAIT=1): start one, or use `rota run`");
    } else {
      log::info("no rotad is running: the program runs as it would without rota");
    }
  }
  if (!wait) return false;
  service_.set_reason(attempt.reason);
  return std::nullopt;
}

void Monitor::start_thread() {
  const int error = create_own_thread(
      &thread_,
      [](void* monitor) -> void* {
        static_cast<Monitor*>(monitor)->run();
        return nullptr;
      },
      this);
  if (error != 0) {
    log::warn("no turns on the GPU: the monitor thread cannot be started ({})", error);
    usage_.lost();
    for (const auto& task : tasks_) task->activity.connected(nullptr);
    budget_.serve(false);
    service_.give_up();
    connection_.reset();
    unanswered_.reset();
    keeper_.open_for_good();
    return;
  }
  thread_runs_ = true;
  pthread_setname_np(thread_, "rota");
  // Registered after the driver has registered its own handlers (a context exists), so it runs before those: the driver
  // must not shut down while the monitor is inside it.
  exiting.store(this);
  if (!exit_handler.exchange(true)) {
    std::atexit([] {
      if (Monitor* monitor = exiting.load()) monitor->at_exit();
    });
  }
}

void Monitor::at_exit() {
  if (!swaps()) {
    keeper_.open_for_good_unswapped();
    return stop();
  }
  // Only the monitor knows whether it moves memory. Handlers that run after this one may copy results back and have to
  // wait for their turn: the monitor stops once all memory is in place. Until then it calls the driver only for them.
  budget_.release_all();
  service_.give_up();
  exits_.store(true);
  bell_.ring();
  // At most a second: exit must not hang on a driver call that does not return.
  for (const Time begun = now(); thread_runs_ && !knows_exit_.load() && now() - begun < 1s;) {
    std::this_thread::sleep_for(50us);
  }
}

// Whether memory of this process can be out of place, now or once it allocates some.
bool Monitor::swaps() const {
  if (memory_.swap().any()) return true;
  for (int device = 0; device < memory::kMaxDevices; ++device) {
    if (touches(device) && memory_.mode(device) == protocol::MemoryMode::kSwap) return true;
  }
  return false;
}

// The monitor's part of it. Returns whether it has stopped.
bool Monitor::stops_at_exit() {
  const std::optional<bool> opened = keeper_.try_open_for_good();
  if (opened == true) {
    memory_.swap().pin();
    for (const auto& task : tasks_) publish_pins(*task);
    stop();
  }
  knows_exit_.store(true);
  if (!opened) {
    std::this_thread::sleep_for(1ms);
    bell_.ring();  // tries again at once, not only when it next looks by itself
  }
  return opened == true;
}

void Monitor::stop() {
  stopping_.store(true, std::memory_order_release);
  contexts_.shut();
  bell_.ring();
  budget_.release_all();
  service_.give_up();
  // Nothing would wake threads that wait because too much is in flight.
  gate_.set_metered(false);
}

void Monitor::forget_in_child() {
  exiting.store(nullptr);
  Connection::close_inherited();
  driver::MemoryDescriptor::close_inherited();
}

Monitor::~Monitor() {
  stop();
  if (thread_runs_) pthread_join(thread_, nullptr);
  Monitor* own = this;
  exiting.compare_exchange_strong(own, nullptr);
  gate_.set_attendant(nullptr);
  memory_.set_observer({});
  memory_.set_room({});
  memory_.set_synchronize({});
  memory_.swap().set_observer({});
}

}  // namespace rota::turn
