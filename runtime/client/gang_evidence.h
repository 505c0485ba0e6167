// Why this process's tasks have to be granted together with those of others, and in which gang (protocol.h).
//
// Named: by ROTA_GANG. Otherwise by what the process does:
//
// - It is one of the ranks that a launcher has started on this machine, and it has looked up a collective kernel by
//   name. Such a kernel waits for those of the other ranks. Looking up is not launching. NCCL looks up its kernels when
//   a communicator is made, not when the library is loaded (unless with CUDA_MODULE_LOADING=EAGER), so a process that
//   has done so is about to launch some. At that time launches are not seen yet, and no launch costs more for it.
// - Its GPU work can reach memory that other processes reach too: GPU memory that it has opened or exported, or host
//   memory that is a shared mapping and registered. There kernels of one process may wait for what those of another
//   write. The others are the ranks of its launch or, without a launcher, the processes of the innermost `rota run`.
//   Only that last gang gives way to another: to that of a launch, once the process looks up a collective kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/core/function_ref.h"
#include "scheduler/protocol/protocol.h"

namespace rota::client {

// According to the list in cuda_headers/policy.toml. The name as in the module, mangled or not; may be null.
bool is_collective_kernel(const char* name);

struct Launch {
  // The gang of all ranks of this launch, without `why`; none: there is no launcher, or only one rank.
  std::optional<protocol::Gang> gang;
  bool several_machines = false;  // the launcher says so; then there is no gang, since rotad sees only some ranks
  bool says_anything() const { return gang || several_machines; }
};
// `variable`: like getenv.
Launch launched_gang(FunctionRef<const char*(const char*)> variable);

class GangEvidence {
 public:
  // Reads ROTA_GANG. `session`: the innermost `rota run`'s; may be empty.
  explicit GangEvidence(std::string session = {});

  // By any thread: a kernel was looked up by name; GPU memory is shared with another process; host memory was
  // registered. Each returns whether rotad has to be told of a gang, or that there is none.
  bool kernel_found(const char* name);
  bool memory_shared() { return decide(protocol::GangWhy::kMemory); }
  bool host_registered(const void* address);

  // --- the monitor, or the thread that connects before the monitor runs
  void connected() { told_ = Known::kNothing; }
  // What rotad has not been told on this connection. Without a name: a gang would be on several machines, so there is
  // none, and the user is told.
  std::optional<protocol::Gang> take_untold();

 private:
  bool decide(protocol::GangWhy why);
  bool decide_by_session();
  // Whether there is a launch or a session.
  bool has_sharers() const;

  enum class Known : std::uint8_t { kNothing, kSession, kAll };

  const std::string session_;
  // Each written once, before known_.
  protocol::Gang session_gang_{};
  std::optional<protocol::Gang> gang_;  // none: it would be on several machines
  std::atomic<Known> known_{Known::kNothing};
  std::atomic<bool> by_session_{false};        // session_gang_ is the gang, if there is no other
  std::atomic<bool> decided_{false};           // no more evidence is collected
  std::atomic<std::int64_t> searched_for_{0};  // ns
  Known told_ = Known::kNothing;
  bool said_ = false;  // why there is none
};

}  // namespace rota::client
