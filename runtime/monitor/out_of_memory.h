// Calls for which the driver has no memory on a GPU, although rotad's accounting may leave some: they wait until others
// have evicted memory. On the program's threads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/client/bell.h"
#include "runtime/client/budget.h"
#include "runtime/client/published.h"
#include "runtime/client/room_requests.h"
#include "runtime/client/usage.h"
#include "runtime/client/waiting.h"
#include "runtime/core/function_ref.h"
#include "runtime/driver/contexts.h"
#include "runtime/gate/gate.h"
#include "runtime/memory/residency.h"
#include "runtime/memory/turns.h"
#include "runtime/monitor/other_threads.h"

namespace rota::monitor {

class OutOfMemory {
 public:
  struct Process {
    const std::atomic<bool>& served;    // by a rotad
    const std::atomic<bool>& stopping;  // no thread may wait any more
  };
  // `for_now_patience`: how long a call waits for memory of others that is pinned temporarily. Longer than rota takes
  // to find that a process cannot be drained and to try again (Machine::kFirstVerdict), since without the memory the
  // call fails. A judgment.
  OutOfMemory(gate::Gate& gate, driver::Contexts& contexts, memory::Residency& memory, client::Budget& budget,
              const client::Published& published, client::RoomRequests& rooms, client::Usage& usage, client::Bell& bell,
              Process process, std::chrono::nanoseconds for_now_patience)
      : gate_(gate),
        contexts_(contexts),
        memory_(memory),
        budget_(budget),
        published_(published),
        rooms_(rooms),
        usage_(usage),
        bell_(bell),
        process_(process),
        for_now_patience_(for_now_patience) {}

  // The driver has refused a call on this GPU: waits until only this process holds the GPU, and calls `again`,
  // repeatedly while memory of others is being evicted. Does nothing where that cannot help: the process wants more
  // than there is, or rotad promises nothing. Does not wait inside the gate or during a capture. `patience`: how long
  // to wait for memory of others that can be evicted although it is not being evicted, from the first turn on.
  // `pending`: what the call wants beyond what the process has; nothing: not known, and charged. Returns how long it
  // has tried since that turn began.
  turn::Time retry(int device, FunctionRef<bool()> again, turn::Time patience = turn::Time{0},
                   std::optional<std::uint64_t> pending = {});
  // The same for a call that is no allocation.
  void retry_call(int device, FunctionRef<bool()> again);
  // The same for a context, on a GPU where this process may have none yet; then as await().
  void retry_context(int device, FunctionRef<bool()> again);
  // Whether await() would wait now with an allocation of these bytes, which the ledger may have already.
  bool may_wait(int device, std::uint64_t bytes) const { return total_if_waiting_helps(device, bytes) != 0; }
  // The driver has refused an allocation although nothing more is being evicted: waits, as long as rotad says so, for
  // memory of others that cannot be evicted, and calls `again` when rotad allows it. Where no thread may wait it
  // returns at once.
  void await(int device, const memory::Refused& what, FunctionRef<bool()> again);
  // The driver has no memory for an allocation that may be out of place. Where others may evict memory later, calls
  // `begin`, from which on not all memory is in place, and returns once the gate is closed or never will be; the
  // monitor closes it without waiting for work when it sees that. Otherwise, inside the gate, and during a capture, it
  // returns at once.
  void close_gate(int device, FunctionRef<void()> begin);
  // Whether a thread waits for memory.
  bool waits() const { return waiting_.load() != 0; }
  // What a thread waits for that has asked for more than its process has been promised.
  std::string needs_room(int device) const;
  // An allocation fails: says who has memory there.
  void say_full(int device) const;

 private:
  void await_room(int device, protocol::AwaitRoom request, FunctionRef<bool()> by_rotad, FunctionRef<bool()> again);
  std::string awaited(int device, bool in_extents, bool by_rotad) const;
  bool may_try(int device, const protocol::AwaitRoom& request, FunctionRef<bool()> again, FunctionRef<void()> say);
  // Also for a thread that has left its wait without returning (Undo).
  static void end_awaiting(void* self, int device, std::uint64_t, std::uint32_t);
  static void end_waiting(void* self, int device, std::uint64_t, std::uint32_t number);
  std::uint64_t total_if_waiting_helps(int device, std::optional<std::uint64_t> pending) const;
  static void say_interrupted(int device);
  bool wait_for_later(int device, std::chrono::steady_clock::time_point until);
  bool served() const { return process_.served.load(std::memory_order_acquire); }
  bool stopping() const { return process_.stopping.load(std::memory_order_acquire); }

  gate::Gate& gate_;
  driver::Contexts& contexts_;
  memory::Residency& memory_;
  client::Budget& budget_;
  const client::Published& published_;
  client::RoomRequests& rooms_;
  client::Usage& usage_;
  std::atomic<std::uint32_t> waiting_{0};  // threads in may_try()
  OtherThreads others_;
  mutable std::array<std::atomic<std::uint64_t>, memory::kMaxDevices> totals_{};  // of GPUs, in bytes; 0: not asked yet
  std::array<std::atomic<turn::Time>, memory::kMaxDevices> patient_from_{};       // when a call waits for others again
  client::Bell& bell_;
  const Process process_;
  const std::chrono::nanoseconds for_now_patience_;
};

}  // namespace rota::monitor
