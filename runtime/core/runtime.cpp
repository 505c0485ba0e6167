#include "runtime/core/runtime.h"

#include <pthread.h>
#include <new>

#include "runtime/core/log.h"

namespace rota {

Runtime::Runtime() : memory(gate, ledger, memory::settings_from_environment()), client(gate, contexts, memory) {}

void Runtime::mark_unevictable(const char* why, const char* function) noexcept {
  if (!unevictable_.exchange(true, std::memory_order_relaxed)) {
    log::info("memory of this process stays on the GPU: {} ({})", why, function);
  }
}

void Runtime::after_fork_in_child() noexcept {
  gate.after_fork_in_child();
  contexts.after_fork_in_child();
  memory.after_fork_in_child();
  client.after_fork_in_child();
}

Runtime& runtime() {
  // Storage without a destructor: threads may still be inside a call when exit handlers run.
  alignas(Runtime) static unsigned char storage[sizeof(Runtime)];
  static Runtime* const made = [] {
    auto* fresh = new (storage) Runtime();
    pthread_atfork(nullptr, nullptr, [] { runtime().after_fork_in_child(); });
    return fresh;
  }();
  return *made;
}

}  // namespace rota
