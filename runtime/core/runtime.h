// The one object that owns rota's parts inside a program. It is made when the thin preload attaches the core and is
// never destroyed: other threads may be inside a CUDA call while the process exits.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/memory/ledger.h"
#include "runtime/memory/memory.h"
#include "runtime/turn/client.h"
#include "runtime/turn/contexts.h"
#include "runtime/turn/gate.h"

namespace rota {

class Runtime {
 public:
  Runtime();

  // Work has gone, or may go, around the thunks: this process's memory must not be moved from now on. The first call's
  // `why` and `function`, the driver's function that did it, are logged.
  void mark_unevictable(const char* why, const char* function) noexcept;
  bool unevictable() const noexcept { return unevictable_.load(std::memory_order_relaxed); }

  // Functions of the driver that rota does not know: pointers that cuGetProcAddress handed out, exports that were
  // called.
  std::atomic<std::uint64_t> unknown_pointers{0};

  // Each takes what it needs from those before it.
  gate::Gate gate;
  gate::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory;
  client::Client client;

  // In the child of a fork: close what was inherited and start afresh. No lock of the parent's may be taken:
  // another thread may have held it. (malloc's are glibc's to care for.)
  void after_fork_in_child() noexcept;

 private:
  std::atomic<bool> unevictable_{false};
};

// The process's runtime; made at the first use (attach makes it before any slot leads here). Tests build parts alone.
Runtime& runtime();

}  // namespace rota
