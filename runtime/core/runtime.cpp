#include "runtime/core/runtime.h"

#include <pthread.h>
#include <atomic>

#include "runtime/core/log.h"

namespace rota {

namespace {

constinit std::atomic<Runtime*> current{nullptr};
// Keeps the parent's reachable for leak checkers, which would else call it lost in the child.
constinit std::atomic<Runtime*> inherited{nullptr};

// The thread that forked, in the child, which has no other thread. It takes no lock of rota's. (malloc's are glibc's to
// care for.)
void start_afresh_in_child() noexcept {
  gate::forget_other_threads();
  turn::Monitor::forget_in_child();
  inherited.store(current.exchange(nullptr));
  try {
    current.store(new Runtime);
  } catch (...) {
    // No memory: the gate stays open, and the next call that needs the runtime tries again.
  }
}

Runtime* make() {
  Runtime* fresh = new Runtime;
  static constinit std::atomic<bool> told_of_forks{false};
  if (!told_of_forks.exchange(true)) pthread_atfork(nullptr, nullptr, start_afresh_in_child);
  current.store(fresh, std::memory_order_release);
  return fresh;
}

}  // namespace

Runtime::Runtime()
    : memory([this](const memory::OwnWork& work) { gate.run_if_open(work); }, ledger,
             memory::settings_from_environment()),
      monitor(gate, contexts, memory) {}

void Runtime::mark_unevictable(const char* why, const char* function) noexcept {
  memory.swap().pin();
  if (!unevictable_.exchange(true, std::memory_order_relaxed)) {
    log::info("rota cannot see every use of this process's GPU memory: {} ({})", why, function);
  }
  // What is out may be used from now on without a call that waits for it. Each time: another thread's mark may have
  // come first, and be waiting still.
  gate::wait_in_place();
}

Runtime& runtime() {
  Runtime* known = current.load(std::memory_order_acquire);
  return known != nullptr ? *known : *make();
}

Runtime* made_runtime() noexcept {
  return current.load(std::memory_order_acquire);
}

}  // namespace rota
