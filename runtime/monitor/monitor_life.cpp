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

namespace rota::monitor {

using namespace std::chrono_literals;

namespace {

// The monitor that the exit handler stops.
constinit std::atomic<Monitor*> exiting{nullptr};
constinit std::atomic<bool> exit_handler{false};

}  // namespace

void Monitor::start() {
  const turn::Time begun = now();
  while (!started_.load(std::memory_order_acquire)) {
    {
      const HeldSignals held;  // until the lock is free again
      const std::lock_guard lock(start_mutex_);
      if (started_.load(std::memory_order_relaxed)) return;
      const client::Conversation::First first = rotad_.find_first(limits_.rotad_is_silent());
      // Not announced to any thread yet.
      if (first != client::Conversation::First::kServed) {
        for (const auto& task : tasks_) task->due.clear();
      }
      if (first == client::Conversation::First::kSilent) {
        // The program has already waited for it.
        for (const auto& task : tasks_) task->machine.step(turn::event::Lost{}, now() - turn::Machine::kGrace);
      }
      if (first != client::Conversation::First::kWait) {
        const bool served = first != client::Conversation::First::kNone;
        served_.store(served, std::memory_order_release);
        if (served) {
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
    for (const auto& task : tasks_) task->sampler.connected(nullptr);
    budget_.serve(false);
    service_.give_up();
    rotad_.give_up();
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
  for (const turn::Time begun = now(); thread_runs_ && !knows_exit_.load() && now() - begun < 1s;) {
    std::this_thread::sleep_for(50us);
  }
}

// Whether memory of this process can be out of place, now or once it allocates some.
bool Monitor::swaps() const {
  if (memory_.has_extents()) return true;
  for (int device = 0; device < memory::kMaxDevices; ++device) {
    if (touches(device) && memory_.mode(device) == protocol::MemoryMode::kSwap) return true;
  }
  return false;
}

// The monitor's part of it. Returns whether it has stopped.
bool Monitor::stops_at_exit() {
  const std::optional<bool> opened = keeper_.try_open_for_good();
  if (opened == true) {
    memory_.pin_all(protocol::PinAll::kReached);
    for (const auto& task : tasks_) publish_pins(*task);
    stop();
  }
  knows_exit_.store(true);
  if (!opened) {
    std::this_thread::sleep_for(1ms);
    bell_.ring();  // tries again at once, not only at its next poll
  }
  return opened == true;
}

void Monitor::stop() {
  stopping_.store(true, std::memory_order_release);
  contexts_.shut();
  memory_.stop_serving();
  bell_.ring();
  budget_.release_all();
  service_.give_up();
  // Nothing would wake threads that wait because too much is in flight.
  gate_.set_metered(false);
}

void Monitor::forget_in_child() {
  exiting.store(nullptr);
  client::Connection::close_inherited();
  driver::MemoryDescriptor::close_inherited();
}

Monitor::~Monitor() {
  stop();
  if (thread_runs_) pthread_join(thread_, nullptr);
  Monitor* own = this;
  exiting.compare_exchange_strong(own, nullptr);
  gate_.set_attendant(nullptr);
  memory_.set_turns(nullptr);
}

}  // namespace rota::monitor
