#include "runtime/core/runtime.h"

#include <pthread.h>
#include <unistd.h>
#include <atomic>
#include <cstring>

#include "runtime/core/inside_loader.h"
#include "runtime/core/log.h"
#include "runtime/core/undo.h"
#include "runtime/gate/reach_check.h"
#include "runtime/memory/swap/reach.h"
#include "scheduler/base/not_cancelled.h"

namespace rota {

namespace {

constinit std::atomic<Runtime*> current{nullptr};
// Keeps the parent's object reachable, or leak checkers would report it as lost in the child.
constinit std::atomic<Runtime*> inherited{nullptr};

// Called in the child by the thread that forked, which is its only thread. Takes no lock of rota's. (glibc takes care
// of malloc's.)
void start_afresh_in_child() noexcept {
  gate::forget_other_threads();
  forget_others_undo();
  monitor::Monitor::forget_in_child();
  client::Admission::forget_in_child();
  inherited.store(current.exchange(nullptr));
  try {
    current.store(new Runtime);
  } catch (...) {
    // No memory: the gate stays open, and the next call that needs the runtime tries again.
  }
}

// Exports::Hold
bool hold_in_place(std::uint64_t address, bool waits, FunctionRef<void()> work) {
  if (waits) {
    const gate::MappingScope scope(reinterpret_cast<const void*>(address));
    if (scope.refused()) return false;
    work();
    return true;
  }
  const gate::HeldInPlace held;
  if (gate::out_of_place.load() != 0) return false;
  work();
  return true;
}

void tell_opened(const protocol::ProcessNumber& process, bool open) {
  runtime().monitor.opened(process, open);
}

Runtime* make() {
  Runtime* fresh = new Runtime;
  static constinit std::atomic<bool> told_of_forks{false};
  if (!told_of_forks.exchange(true)) pthread_atfork(nullptr, nullptr, start_afresh_in_child);
  current.store(fresh, std::memory_order_release);
  return fresh;
}

}  // namespace

Runtime::Runtime() : memory(ledger, memory::settings_from_environment()), monitor(gate, contexts, memory) {
  gate::check_reached_calls();
  memory.hold_exports_by(&hold_in_place);
  memory.tell_opened_by(&tell_opened);
}

void Runtime::mark_unevictable(const char* why, const char* function, protocol::PinAll told) noexcept {
  memory.pin_all(told);
  if (!unevictable_.exchange(true, std::memory_order_relaxed)) {
    log::info("rota cannot see every use of this process's GPU memory: {} ({})", why, function);
  }
  // From now on the program may use its memory without a call that would wait for evicted memory, so this waits until
  // everything is resident. Every caller waits, since another thread may have set the mark and still be waiting.
  const NotCancelled waiting;
  gate::wait_in_place();
}

api::CUresult Runtime::placed(api::CUresult result) noexcept {
  if (result != api::CUDA_SUCCESS || !memory.all_pinned()) return result;
  const NotCancelled waiting;
  gate::wait_in_place();
  return result;
}

// Does not wait if this thread holds the dynamic loader's lock: rota's monitor thread may need that lock, since the
// driver loads its compiler at first use. In that case the monitor finds the library shortly after it was loaded. Does
// not wait for a file that does not exist, either.
void Runtime::before_load(const char* name) noexcept {
  try {
    if (!memory.has_extents() || memory.all_pinned()) return;
    if (!memory::lets_reach(name) || inside_loader()) return;
    if (std::strchr(name, '/') != nullptr && access(name, F_OK) != 0) return;
    monitor.bring_back_for(name);
  } catch (...) {
    // No memory: the load is not delayed; the library is found shortly afterwards.
  }
}

Runtime& runtime() {
  Runtime* known = current.load(std::memory_order_acquire);
  return known != nullptr ? *known : *make();
}

Runtime* made_runtime() noexcept {
  return current.load(std::memory_order_acquire);
}

}  // namespace rota
