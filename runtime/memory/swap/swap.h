// Plain memory that can leave the GPU: address ranges that are reserved once, with pieces of physical memory
// (*extents*) mapped below them. While the process does not hold the GPU and somebody needs the room, extents are
// copied to pinned memory of the host and given back to the driver; before the process runs again they come back at the
// same addresses.
//
// A range is reserved for one allocation, or for a span that small ones share (stream_ordered.h). It ends with its
// context; a pool's span has none, and is moved by any context of its GPU. What moves is
// an extent, and only the monitor moves, with the gate closed and the process's work proven to have finished. The
// program's threads allocate and free meanwhile; a free of what is in motion, or being looked at, waits for
// that.
//
// Whether fresh memory may be mapped at once is decided together with whether the gate is open: under the lock a range
// enters the books as out of place only while the gate is closed, and the gate opens only while nothing is out of
// place.
//
// Where the driver has no room for fresh memory with the gate open, but others have memory there that can leave, it
// counts as out of place before it is in the books: so the gate closes. It comes in when they have made room. Nothing
// is waited for, since nobody has its address yet: neither a thread inside the gate nor work that runs.
//
// What has come in keeps its copy on the host until the gate opens, and leaves without being copied if it does not. So
// whoever could not get all of its memory in goes back to where it was without any memory of the host, and who ran
// last beside what then lay on the GPU can always run again: two that lack memory of the host do not end up each with a
// part of the GPU that neither can leave.
//
// Copies of what the gate has opened for stay on the host as well, and before an extent leaves the GPU is asked what
// has changed in it (fingerprints.h): only that is copied, and nothing of what is all zeros.
//
// Memory that the program makes itself (cuMemCreate, own_physical.h) is a range of one extent, which besides lies
// wherever the program has mapped it: its *aliases* come and go with it. By the range's own address, which the program
// does not know, it is copied, whoever may use it by which alias, and where there is none.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/memory/backend.h"
#include "runtime/memory/swap/fingerprints.h"
#include "runtime/memory/swap/hand_over.h"
#include "runtime/memory/swap/host_pool.h"
#include "scheduler/protocol/protocol.h"

namespace rota::memory {

class SwapBackend final : public Backend {
 public:
  explicit SwapBackend(IfOurTurn if_our_turn) : if_our_turn_(std::move(if_our_turn)) {}

  // Whom to tell, before there are ranges: with a lock held, when an allocation ends up out of place (the gate is
  // closed then); and with none, when resident_bytes() of a GPU has changed, before the driver is asked for more and
  // after it has taken something back.
  struct Observer {
    std::function<void()> out_of_place;
    std::function<void(int device)> resident;
    // What all processes have on a GPU beside their allocations, as far as that is known. With a lock held.
    std::function<std::uint64_t(int device)> contexts;
    // Whether so many bytes more, which needed_bytes() counts already, can be there at once beside what others have
    // there. If not, they have been given back by `release`. With no lock held.
    std::function<bool(int device, std::uint64_t bytes, const std::function<void()>& release)> fits;
    // The driver has no room for fresh memory. If others have some there that can leave, and this thread may wait for
    // who watches the gate: returns once the gate is closed, or never will be, and in_place() says no until then. With
    // no lock held.
    std::function<void(int device)> close_for_room = {};
  };
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  // By which ranges go that nothing uses any more and that wait to be freed, where more do not fit. Whether there were
  // any. Before there are ranges.
  void set_free_unused(std::function<bool()> free_unused) { free_unused_ = std::move(free_unused); }

  // --- Backend

  Backing backing() const override { return Backing::kSwapped; }
  // No, where the GPU has no virtual memory management (before Pascal, some vGPUs).
  bool serves(int device) override;
  // Whether it does not all the same, since that has never been tried on such a GPU (untried.h).
  protocol::MemoryMode untried(int device);
  bool reserve(int device, std::uint64_t bytes) override;
  void release(int device, std::uint64_t bytes) override;
  api::CUresult allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) override;
  void settle(const Place&, api::CUdeviceptr, std::uint64_t) override {}
  void set_access(const Place& place, api::CUdeviceptr address, std::uint64_t bytes, int accessing,
                  api::CUmemAccess_flags flags) override;
  std::uint64_t bring(int, api::CUstream, const std::vector<Allocation>&) override { return 0; }
  // Its ranges go with it.
  void context_ended(api::CUcontext context) override;

  // --- memory that the program makes itself, by the address of its range. Any thread; waits for no work, only for what
  // is in motion

  // As allocate(), of a size that is a multiple of the granularity.
  api::CUresult allocate_own(int device, api::CUdeviceptr* address, std::uint64_t bytes, const Making& making);
  // Where the program has mapped such a range.
  struct Mapped {
    std::uint64_t range;
    std::uint64_t address;
  };
  using OnGpu = std::function<api::CUresult(PhysicalHandle handle)>;
  using OffGpu = std::function<api::CUresult()>;
  // Maps it at another address: by `call`, or, while it is out, with the answer of `unasked`.
  api::CUresult map_at(const Mapped& where, const OnGpu& call, const OffGpu& unasked);
  // Of several mappings: `call` is the driver's function for all that the program has named, and is made if they all
  // lie on the GPU; else `unasked` answers, and what does lie there is seen to by itself.
  api::CUresult unmap_at(const std::vector<Mapped>& all, const OffGpu& call, const OffGpu& unasked);
  api::CUresult set_access_at(const std::vector<Mapped>& all, const std::vector<api::CUmemAccessDesc>& accesses,
                              const OffGpu& call, const OffGpu& unasked);
  // What a mapping may be used for by a GPU.
  api::CUmemAccess_flags access_at(const Mapped& where, int accessing);
  // The driver's handle of it, while it lies on the GPU; 0: it does not.
  PhysicalHandle handle_of(std::uint64_t range);
  // What its size must be a multiple of.
  std::uint64_t granularity(int ordinal);

  // --- any thread

  // Whether any range was ever made. One load.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // The range that holds an address, freed or not.
  struct Found {
    api::CUcontext context = nullptr;
    std::uint64_t buffer_id = 0;  // not the driver's: stays with the range, wherever it lies
  };
  std::optional<Found> find(std::uint64_t address) const;
  // Whether a range that has not been freed begins here.
  bool begins(std::uint64_t address) const;
  // Whether any of these addresses is in a range, freed or not.
  bool overlaps(std::uint64_t address, std::uint64_t bytes) const;
  // The range that begins here is used by nothing any more. Waits for no work; for its extents, if they are in motion.
  void free(std::uint64_t address);
  // Why memory may be reached without any call that rota sees, or nothing; and whether it must not move for now
  // (reach.h).
  static std::string reached_from_outside();
  static bool being_checkpointed();
  // Nothing leaves the GPU from now on: somebody may reach it without any call that rota sees.
  void pin() { pinned_.store(true); }
  bool pinned() const { return pinned_.load() || !asked_.load(std::memory_order_relaxed); }
  // Whether the rotad that serves this process says who has to move. By one that does not, nothing would ever move.
  void set_asked(bool asked) { asked_.store(asked, std::memory_order_relaxed); }
  // From now on this process may use the memory of `owner`, a GPU, from `accessing`, or may not, but for what pools
  // gave.
  void set_peer(int accessing, int owner, bool may);

  // What of it lies on the GPU, kept ranges included, and what does not. Bytes.
  std::uint64_t resident_bytes(int device) const { return resident_[static_cast<std::size_t>(device)].load(); }
  std::uint64_t out_bytes(int device) const { return out_[static_cast<std::size_t>(device)].load(); }
  // What has to be there at once when this process runs, in use or about to be: all but what is kept.
  std::uint64_t needed_bytes(int device) const { return needed_[static_cast<std::size_t>(device)].load(); }
  // Whether everything lies where work expects it.
  bool in_place() const { return out_of_place_.load(std::memory_order_acquire) == 0; }
  // Runs `work` if it does, with the lock that keeps allocations from ending up out of place meanwhile.
  bool if_in_place(const std::function<void()>& work);
  // The same for work that opens the gate: from then on what lies on the GPU may be written.
  bool use_if_in_place(const std::function<void()>& open);

  // --- the monitor, with nothing of this process running and the gate closed

  // How a move goes on: runs a step with the context current, if there still is one; and whether to give up.
  struct Mover {
    std::function<bool(const std::function<void()>& step)> within;
    std::function<bool()> stopping;
    api::CUstream stream = nullptr;  // of that context
    Exchange exchange = {};
    // The context, if what memory holds is to be looked at there; null: all of it counts as changed.
    api::CUcontext context = nullptr;
  };
  struct Moved {
    std::uint64_t bytes = 0;         // copied
    std::uint64_t without_copy = 0;  // of what went unchanged, unused or kept, or of fresh memory that came
    std::uint64_t spared = 0;        // of that: what left unchanged, unused or as zeros
    std::uint64_t taken_over = 0;    // of what came, in memory that another process has handed over
    std::uint64_t lacking = 0;       // bytes that the driver has no room for
    bool lacks_host = false;         // the host has no memory for what should leave: it stays where it was
    bool failed = false;             // the driver refused, or a copy failed: what had to move stays where it was
    api::CUresult error = api::CUDA_SUCCESS;  // why, if the driver says so and it is not that a context ended
  };
  // Makes `bytes` of room, or as much as there is: what is kept first, then what has come in and was not used, then
  // what had not changed when it left last, then other extents, the largest first.
  Moved move_out(int device, std::uint64_t bytes, const Mover& mover);
  // Brings everything back. Gives up when the driver has had no room for a while.
  Moved bring_in(int device, const Mover& mover);
  // By how much what all programs have on a GPU exceeds it.
  struct Excess {
    int device;
    std::uint64_t bytes;
  };
  // A little more room on the host for what lies on these GPUs and has none there yet, up to as many bytes as may have
  // to leave. False: there is as much, or the host has none to spare. What is ready for nothing goes back.
  bool prepare_host(const std::vector<Excess>& all);
  // The host is low on memory: gives back what copies of this process occupy there that nobody would read again, and
  // what is kept. Bytes. With some context current.
  std::uint64_t give_host_back();
  HostPool& host() { return host_; }
  // An error that cannot be cleared has ended all work of this context: what it has is released, and nothing of it is
  // waited for any more. Null: of all contexts of the GPU, for what ends with none. Bytes of it that lay on the GPU.
  std::uint64_t context_failed(api::CUcontext context, int device);
  // What is out will never come back: everything is released, so that others have the room, and stays out of place.
  void release_all();

 private:
  // Other GPUs that may use memory.
  using Access = std::map<int, api::CUmemAccess_flags>;
  using Prints = std::vector<Fingerprints::Sums>;
  struct Alias {
    std::uint64_t address = 0;
    Access access;  // the owner's included
  };
  using Aliases = std::vector<Alias>;
  struct Extent {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    Aliases aliases;                       // changed only while it is not in motion
    Piece piece;                           // empty: not on the GPU
    void* host = nullptr;                  // room for its contents, once it has been out
    bool saved = false;                    // they are there, as they were when it left last
    std::shared_ptr<const Prints> prints;  // of them, if they are there; null: not known
    bool steady = false;                   // it left without a copy the last time
    bool zeros = false;                    // and as nothing but zeros
    bool moving = false;
    std::uint64_t came = 0;  // brought in when the gate had opened so many times
    bool in_place() const { return piece && !moving; }
  };
  struct Range {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // multiple of the granularity
    int device = 0;
    api::CUcontext context = nullptr;  // null: it ends with none
    std::uint64_t id = 0;
    bool kept = false;             // nobody's, and on the GPU: serves the next allocation of its size
    bool ending = false;           // its context went while it was in motion
    bool failed = false;           // its context has failed: nothing of it is on the GPU, or has to be
    std::optional<Access> access;  // its pool's; none: that of its GPU's plain memory
    std::optional<Making> own;     // the program made it, like this
    std::vector<Extent> extents;
  };
  using Ranges = std::map<std::uint64_t, Range>;  // by address
  struct Device {
    bool known = false;
    bool serves = false;
    bool exports = false;  // its memory can be handed over
    std::uint64_t granularity = 1;
    std::uint64_t total = 0;
    std::uint64_t most_kept = 0;
    Access access;  // of plain memory
    std::uint64_t kept = 0;
    std::multimap<std::uint64_t, std::uint64_t> kept_by_size;  // bytes, address
  };
  // Of the extents that could leave: in the order of what leaves last.
  struct Candidate {
    bool steady;
    std::uint64_t bytes;
    std::uint64_t address;
    auto operator<=>(const Candidate&) const = default;
  };
  struct Leaving;
  struct Departure;
  class ClosesGate;
  using Lock = std::unique_lock<std::mutex>;

  Device& device(int ordinal);
  std::uint64_t most(int ordinal);
  Range cut(const Place& place, std::uint64_t bytes, std::uint64_t most);
  static api::CUresult create(std::uint64_t bytes, int device, bool exports, PhysicalHandle* handle);
  static api::CUresult create(const std::optional<Making>& own, std::uint64_t bytes, int device, bool exports,
                              PhysicalHandle* handle);
  api::CUresult make(Range&& range, api::CUdeviceptr* address);
  static api::CUresult map(Extent& extent, Piece&& piece);
  static api::CUresult map_aliases(const Extent& extent, PhysicalHandle handle);
  Extent* settled(Lock& lock, std::uint64_t range);
  api::CUresult change_at(const std::vector<Mapped>& all, const OffGpu& call, const OffGpu& unasked,
                          const std::function<void(Extent& extent, Aliases::iterator alias, bool asked)>& change);
  const Access& access_of(const Range& range) { return range.access ? *range.access : device(range.device).access; }
  static api::CUresult give_access(std::uint64_t address, std::uint64_t bytes, int owner, const Access& access);
  static void change_access(std::uint64_t address, std::uint64_t bytes, int accessing, api::CUmemAccess_flags flags);
  void catch_up(const Range& range, const Extent& extent, const Access& given);
  // What it lay in goes to whoever takes it by `exchange`, with its contents, or to the driver.
  static void unmap(Extent& extent, const Exchange& exchange = {});
  static api::CUresult populate(Range& range, const Access& access, bool exports);
  std::optional<api::CUdeviceptr> reuse(const Place& place, std::uint64_t bytes);
  std::uint64_t drop_kept(int device, std::uint64_t bytes, const Exchange& exchange = {});
  void insert(Range&& range);
  void take_off(const Range& range);
  void add_resident(int device, std::uint64_t bytes);
  void take_resident(int device, std::uint64_t bytes);
  void destroy(Range&& range, const Exchange& exchange = {});
  const Range* range_at(std::uint64_t address) const;
  Extent* extent_at(std::uint64_t address, Range** range = nullptr);
  std::deque<Candidate> on_gpu(int device);
  std::deque<Leaving> choose(std::deque<Candidate>& all, std::uint64_t bytes);
  Extent* set_out(const Leaving& leaving);
  void look_at(std::deque<Leaving>& chosen, const Mover& mover);
  void left(int device, Departure&& flight, const Exchange& exchange, Moved& moved);
  struct Lacking {
    std::uint64_t address;
    std::uint64_t bytes;
    std::optional<Making> own;
    // Not what has to be made in a certain way: descriptors are made only of what was made here.
    bool takes_any() const { return !own || *own == Making{}; }
  };
  std::deque<Lacking> off_gpu(int device);
  static api::CUresult refill(const Extent& extent, const Mover& mover, api::CUevent* event);
  bool unused(const Extent& extent) const { return extent.in_place() && extent.came == opened_; }
  std::uint64_t drop_unused(int device, std::uint64_t bytes, const Exchange& exchange);
  void landed(std::uint64_t address);

  const IfOurTurn if_our_turn_;
  Observer observer_;
  std::function<bool()> free_unused_;
  HostPool host_;
  Fingerprints fingerprints_;
  mutable std::mutex mutex_;  // the fields below
  std::condition_variable landed_;
  std::array<Device, kMaxDevices> devices_;
  enum class Serves : std::uint8_t { kUnknown, kNo, kYes };
  std::array<std::atomic<Serves>, kMaxDevices> serves_{};                 // of them, for serves(): no lock
  std::array<std::atomic<protocol::MemoryMode>, kMaxDevices> untried_{};  // of those that serve, likewise
  Ranges ranges_;
  std::atomic<std::uint64_t> out_of_place_{0};  // extents
  std::uint64_t opened_ = 1;                    // how many times the gate has opened
  std::array<std::atomic<std::uint64_t>, kMaxDevices> resident_{};
  std::array<std::atomic<std::uint64_t>, kMaxDevices> out_{};
  std::array<std::atomic<std::uint64_t>, kMaxDevices> needed_{};
  std::uint64_t last_id_ = std::uint64_t{1} << 49;  // beyond the driver's, and those of stream_ordered.h
  std::atomic<bool> any_{false};
  std::atomic<bool> pinned_{false};
  std::atomic<bool> asked_{true};
};

}  // namespace rota::memory
