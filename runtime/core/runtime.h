// The one object that owns rota's parts inside a program. It is made when the thin preload attaches the core and is
// never destroyed: other threads may be inside a CUDA call while the process exits.
//
// A forked child creates a completely new one. The parent's is left as the fork found it: its threads may have been
// anywhere, with any of its locks held and any of its lists half changed. So nothing keeps a reference to the object or
// its parts beyond a call: all code gets them from runtime().
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/client/admission.h"
#include "runtime/driver/contexts.h"
#include "runtime/gate/gate.h"
#include "runtime/memory/ledger.h"
#include "runtime/memory/memory.h"
#include "runtime/monitor/monitor.h"

namespace rota {

class Runtime {
 public:
  Runtime();

  // Work has bypassed or may bypass the thunks and so the gate, or something that does not pass the gate can access
  // memory: from now on rota moves none of this process's memory, and this returns once all of it is in place (for a
  // thread inside the gate it already is). (Managed memory is moved by the driver, which knows of all work.) The first
  // call's `why` and `function`, the driver's function that did it, are logged.
  void mark_unevictable(const char* why, const char* function,
                        protocol::PinAll told = protocol::PinAll::kUnseen) noexcept;
  // What a call that gives the program new memory returns: `result`, once that memory is in place, if the program may
  // reach it without a call that waits for that.
  api::CUresult placed(api::CUresult result) noexcept;
  // A library is about to be loaded. Where memory may be reached through it without any CUDA call, this returns once
  // all of it is in place, or after half a minute; it stays there until the library is seen (reach.h), or was not
  // loaded after all. Not in a constructor: then the library is found a moment after it has been loaded.
  void before_load(const char* name) noexcept;
  bool unevictable() const noexcept { return unevictable_.load(std::memory_order_relaxed); }

  // Functions of the driver that rota does not know: pointers that cuGetProcAddress handed out, exports that were
  // called.
  std::atomic<std::uint64_t> unknown_pointers{0};

  // Each takes what it needs from those before it.
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory;
  monitor::Monitor monitor;
  client::Admission admission;

 private:
  std::atomic<bool> unevictable_{false};
};

// The process's runtime; made at the first use (attach makes it before any slot leads here). Tests build parts alone.
Runtime& runtime();
// The same without creating one: null in a process that has not called CUDA.
Runtime* made_runtime() noexcept;

}  // namespace rota
