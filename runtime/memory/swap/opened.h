// Memory of other processes that this one has opened by legacy IPC handles of rota's. It is mapped here, stays where
// the exporter has it, and is counted there: opening it again gives the same address, and closing it as often unmaps
// it. Once the exporter has ended, which a thread of rota's notices by the socket to it, the memory is counted here.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/core/function_ref.h"
#include "runtime/driver/memory_descriptor.h"
#include "runtime/memory/backend.h"
#include "runtime/memory/ledger.h"
#include "runtime/memory/swap/exported_handle.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/protocol.h"

namespace rota::memory {

class Opened {
 public:
  // `changed`, by any thread: what this process has on a GPU has changed.
  Opened(Ledger& ledger, std::function<void(int device)> changed) : ledger_(ledger), changed_(std::move(changed)) {}
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  // Is told when this process opens memory of another, and when nothing of it is open any more. Called with the lock
  // held.
  using Tell = void (*)(const protocol::ProcessNumber& process, bool open);
  // Before anything is opened.
  void tell_by(Tell tell) { tell_ = tell; }

  using Clock = std::chrono::steady_clock;
  // Returns a socket to the exporter, before `until`; an empty one: there is none yet; nothing: there never will be
  // one.
  using Introduce = FunctionRef<std::optional<Descriptor>(Clock::time_point until)>;

  // Whether there is any. One load.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // --- all with no lock held, outside the gate

  // In the current context, which is that of `place`. Waits for the exporter's answers, 5 s at most.
  api::CUresult open(const ExportedHandle& handle, const Place& place, const Introduce& introduce,
                     api::CUdeviceptr* address);
  // Nothing: it was not opened by such a handle. `wait` is called before memory is unmapped, and closes nothing where
  // it fails.
  std::optional<api::CUresult> close(api::CUdeviceptr address, FunctionRef<api::CUresult(api::CUcontext)> wait);
  void context_ended(api::CUcontext context);

  // What lies at an address.
  struct Found {
    bool inside = false;  // false: only the memory around it was mapped with it
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t buffer_id = 0;
    Place place;
  };
  std::optional<Found> find(api::CUdeviceptr address) const;

 private:
  struct Memory {
    ExportedHandle handle;
    std::uint64_t mapped = 0;            // the address of the first extent
    std::uint64_t reserved = 0;          // bytes from there
    std::vector<std::uint64_t> extents;  // their sizes
    std::vector<bool> unmapped;          // whether each is unmapped; empty before the first is
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t buffer_id = 0;
    Place place;
    int device = -1;       // the GPU that it lies on
    bool charged = false;  // to this process, since the exporter has ended
    unsigned opens = 1;
    std::uint64_t all_bytes() const;
  };
  // Null: it is not known. A forked child does not keep it, or what was open here would count as open there.
  using Socket = driver::SharedDescriptor;
  Socket peer(const ExportedHandle& handle) const;
  void remember(const ExportedHandle& handle, const Socket& socket);
  void closed(const ExportedHandle& handle);
  void tell(const ExportedHandle& handle, bool open) const;
  std::optional<Memory> import(const ExportedHandle& handle, const Place& place, int socket, Clock::time_point until,
                               bool* answered);
  // Returns whether all of it is unmapped.
  static bool unmap(Memory& memory);
  const Memory* at(api::CUdeviceptr address) const;
  // For memory that has been taken out of all_ or unreturned_ under the lock.
  void end(Memory& memory);
  static void* run(void* self);
  void watch_all();
  void watch();
  void adopt();

  Ledger& ledger_;
  const std::function<void(int device)> changed_;
  Tell tell_ = nullptr;
  std::atomic<std::uint64_t> questions_{0};
  mutable std::mutex mutex_;             // the fields below
  std::map<std::uint64_t, Memory> all_;  // by `mapped`
  // What is being opened: one allocation of each exporter at a time, so that each is mapped once and each answer has
  // one reader. came_ is notified when one has been opened, or could not be.
  std::vector<ExportedHandle> coming_;
  std::condition_variable came_;
  std::vector<Memory*> ending_;     // closed, while a thread unmaps it
  std::vector<Memory> unreturned_;  // closed, but the driver has not unmapped it
  // The sockets to processes of which anything is open. By its socket a process knows what is open of it.
  struct Peer {
    std::uint64_t process[2];
    Socket socket;
    bool gone = false;
  };
  std::vector<Peer> peers_;
  Descriptor bell_;  // an eventfd, for the thread that watches them; empty: none has been started
  std::uint64_t last_id_ = std::uint64_t{1} << 51;  // beyond the driver's, and those of other memory of rota's
  std::atomic<bool> any_{false};
};

}  // namespace rota::memory
