// A program that waits at the gate for a long time says so, or its user would think that it hangs: at most three lines
// in a process's life, after 1, 10 and 60 s, and none below ROTA_LOG=warn.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/function_ref.h"
#include "scheduler/address/socket_path.h"
#include "scheduler/protocol/protocol.h"

namespace rota::client {

class Waiting {
 public:
  // `for_whom` is called on the waiting thread, with no lock held; it returns "GPU 0, held by pid 12 (memhog, alice)".
  // `more`: where to read on; it ends the line.
  explicit Waiting(std::function<std::string()> for_whom, const char* more = "; `rota status` says more")
      : for_whom_(std::move(for_whom)), more_(more) {}

  // See gate::Attendant::stands(). Any thread; if several wait, one reports.
  std::optional<std::chrono::nanoseconds> stands(std::chrono::nanoseconds so_long);

 private:
  std::function<std::string()> for_whom_;
  const char* more_;
  std::atomic<std::size_t> said_{0};
};

// The lines of one wait of many, after 1, 10 and 60 s. A program that waits again and again does not say all of them.
class WaitLines {
 public:
  // As Waiting; one thread.
  void stands(std::chrono::nanoseconds so_long, FunctionRef<std::string()> for_whom);

 private:
  std::size_t said_ = 0;
};

// From now on the functions below ask the rotad at these places, and not where the environment says: the program may
// have changed that. Any thread.
void ask_at(const protocol::SocketCandidates& where);

// Asks rotad for whom this process waits. Takes at most half a second; without an answer it says less.
std::string who_holds();
// The same from what rotad knows. A process that is not in it by its own pid is in another pid namespace than
// rotad: then only the GPU that all waiting programs want can be meant, and pids say nothing to it.
std::string holder_of(const protocol::Snapshot& all, std::int32_t own_pid);

// If a process's first turn waits for members of its gang that have not come: who that is. Otherwise empty.
std::string gang_for(const protocol::Snapshot& all, std::int32_t own_pid);

// If rotad passes a process over because its memory would not fit: for what memory it waits, and which programs have
// memory that stays there. Otherwise empty.
std::string room_for(const protocol::Snapshot& all, std::int32_t own_pid);

// The bytes on a GPU that cannot be evicted: contexts, pinned memory of other programs, and what programs without rota
// have. Nothing: no rotad says so within a quarter of a second, or it serves nobody there.
std::optional<std::uint64_t> taken_for_good(const Uuid& uuid);

// Who has memory on a GPU, by rotad's index of it: "pid 12 (memhog, alice) 3.0 GiB, …", the three largest first; empty
// if rotad does not say, or nobody else has any.
std::string who_has_memory(int gpu);
std::string memory_of(const protocol::Snapshot& all, int gpu, std::int32_t own_pid);
// Who has memory there at this moment, and which of them are stopped. Takes at most a tenth of a second.
std::string who_is_on(int gpu);
std::string present_of(const protocol::Snapshot& all, int gpu, std::int32_t own_pid);
// The same as who_has_memory() for memory that is pinned temporarily; of those, what `bytes` says.
std::string who_stays_for_now(int gpu);
// And for what cannot be evicted at all.
std::string who_stays(int gpu);
std::string staying_of(const protocol::Snapshot& all, int gpu, std::int32_t own_pid,
                       std::uint64_t protocol::TaskRow::* bytes);

}  // namespace rota::client
