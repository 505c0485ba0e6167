// Plain memory that can leave the GPU: address ranges that are reserved once, with pieces of physical memory
// (*extents*) mapped below them. While the process does not hold the GPU and another one needs the room, extents are
// copied to pinned host memory and given back to the driver; before the process runs again they come back at the same
// addresses.
//
// A range is reserved for one allocation, or for a span that small ones share (stream_ordered.h). It ends with its
// context; a pool's span has none and can be moved by any context of its GPU. Extents are moved only by the monitor,
// with the gate closed and the process's work proven to have finished. The program's threads can allocate and free
// during that; a free of an extent that is moving or being examined waits.
//
// Whether fresh memory may be mapped at once is decided together with whether the gate is open: under the lock, a range
// can be added as out of place only while the gate is closed, and the gate opens only while nothing is out of place.
//
// If the driver has no room for fresh memory while the gate is open, but others have memory there that can leave, the
// fresh memory counts as out of place before it is in the books: so the gate closes. The memory is mapped when they
// have made room. This waits neither for threads inside the gate nor for running work, since none has the address yet.
//
// Memory that has come in keeps its copy on the host until the gate opens, and if the gate does not open it leaves
// without being copied. So a process that could not get all of its memory in can undo that without further host memory,
// and the process that ran before can always run again: two processes that lack host memory do not each end up with a
// part of the GPU that neither can give up.
//
// The copies also stay on the host after the gate has opened. Before an extent leaves, the GPU checks what has changed
// in it (fingerprints.h): only that is copied, and nothing that is all zeros.
//
// Memory that the program creates itself (cuMemCreate, own_physical.h) is a range of one extent, which is also mapped
// wherever the program has mapped it: these *aliases* come and go with it. It is copied by the range's own address,
// which the program does not know, whatever aliases and access it has.
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

#include "runtime/core/function_ref.h"
#include "runtime/memory/backend.h"
#include "runtime/memory/heap.h"
#include "runtime/memory/swap/eviction_order.h"
#include "runtime/memory/swap/fingerprints.h"
#include "runtime/memory/swap/hand_over.h"
#include "runtime/memory/swap/store/host_store.h"
#include "scheduler/protocol/protocol.h"

namespace rota::memory {

class SwapBackend final : public Backend {
 public:
  explicit SwapBackend(IfOurTurn if_our_turn) : if_our_turn_(std::move(if_our_turn)) {}

  // Callbacks, set before there are ranges: one is called with a lock held when an allocation ends up out of place (the
  // gate is then closed); one with no lock when resident_bytes() of a GPU has changed, before the driver is asked for
  // more and after it has taken something back.
  struct Observer {
    std::function<void(int device)> out_of_place;
    // Fresh memory is about to be out of place on this GPU, whose gate is closed. Returns whether work of others that
    // may use it cannot run either. If not, waits until that may be so. With no lock held.
    std::function<bool(int device)> others_closed = {};
    std::function<void(int device)> resident;
    // What all processes have on a GPU besides their allocations, as far as known. With a lock held.
    std::function<std::uint64_t(int device)> contexts;
    // Whether this many more bytes, which needed_bytes() already counts, can be there at once next to what others have
    // there. If not, `release` has given them back. `uncounted` as in Backend::reserve(). With no lock held.
    std::function<bool(int device, std::uint64_t bytes, std::uint64_t uncounted, FunctionRef<void()> release)> fits;
    // Says once why not. With no lock held.
    std::function<void(int device)> explain = {};
    // The driver has no room for fresh memory. If others have some there that can leave, and this thread may wait for
    // the monitor: calls `begin`, from which on in_place() is false, and returns once the gate is closed or never will
    // be. Otherwise returns at once, and the monitor sees nothing of it. With no lock held.
    std::function<void(int device, FunctionRef<void()> begin)> close_for_room = {};
  };
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  // Called to free unused ranges that wait to be freed when no more fit on a GPU. Returns whether there were any. Set
  // before there are ranges.
  void set_free_unused(std::function<bool(int device)> free_unused) { free_unused_ = std::move(free_unused); }
  // Whether an allocation lies in a part of a range, or may: the contents of the rest need not be kept. Called with no
  // lock held. Set before there are ranges; without it all of it counts as in use.
  void set_in_use(std::function<bool(std::uint64_t address, std::uint64_t bytes)> in_use) {
    in_use_ = std::move(in_use);
  }

  // --- Backend

  Backing backing() const override { return Backing::kSwapped; }
  // False if the GPU has no virtual memory management (before Pascal, some vGPUs).
  bool serves(int device) override;
  // Whether it is nevertheless not used because it was never tested on such a GPU (untried.h).
  protocol::MemoryMode untried(int device);
  bool reserve(int device, std::uint64_t bytes, std::uint64_t uncounted) override;
  void release(int device, std::uint64_t bytes) override;
  api::CUresult allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) override;
  void settle(const Place&, api::CUdeviceptr, std::uint64_t) override {}
  void set_access(const Place& place, api::CUdeviceptr address, std::uint64_t bytes, int accessing,
                  api::CUmemAccess_flags flags) override;
  std::uint64_t bring(int, api::CUstream, const std::vector<Allocation>&) override { return 0; }
  // The context is gone, and its ranges with it.
  void context_ended(api::CUcontext context) override;

  // --- memory that the program creates itself, by the address of its range. Any thread; waits for no work, only for
  // extents that are moving

  // Like allocate(), with a size that is a multiple of the granularity.
  api::CUresult allocate_own(int device, api::CUdeviceptr* address, std::uint64_t bytes, const Making& making);
  // Where the program has mapped such a range.
  struct Mapped {
    std::uint64_t range;
    std::uint64_t address;
  };
  using OnGpu = FunctionRef<api::CUresult(PhysicalHandle handle)>;
  using OffGpu = FunctionRef<api::CUresult()>;
  // Maps it at another address: by `call` or, while it is swapped out, with the result of `unasked`.
  api::CUresult map_at(const Mapped& where, const OnGpu& call, const OffGpu& unasked);
  // For several mappings: `call` is the driver's function for all that the program has named and is made if they are
  // all on the GPU; otherwise `unasked` gives the result, and those that are on the GPU are handled separately.
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
    std::uint64_t buffer_id = 0;  // not the driver's: stays the same wherever the range is
    int device = 0;
  };
  std::optional<Found> find(std::uint64_t address) const;
  // Whether a range that has not been freed begins here.
  bool begins(std::uint64_t address) const;
  // Whether any of these addresses is in a range, freed or not.
  bool overlaps(std::uint64_t address, std::uint64_t bytes) const;
  // The range that begins here is no longer used, and may serve another allocation like it. Waits for no work, only for
  // its extents if they are moving.
  void free(std::uint64_t address) { free(address, true); }
  // The same for one whose memory others may still have.
  void free_for_good(std::uint64_t address) { free(address, false); }
  // Why memory may be accessed without any call that rota sees, or nothing; and whether it must not move for now
  // (reach.h).
  static std::string reached_from_outside();
  static bool lets_reach(std::string_view library);
  static bool being_checkpointed();
  // Gives kept ranges of a GPU back to the driver, or to other processes, until they add up to so many bytes. Returns
  // the bytes. Waits for nothing.
  std::uint64_t drop_kept(int device, std::uint64_t bytes = UINT64_MAX, const Exchange& exchange = {});
  // From now on nothing leaves the GPU: it may be accessed without any call that rota sees.
  void pin() { pinned_.store(true); }
  bool pinned() const { return pinned_.load(); }
  // From now on this process may or may not use the memory of the GPU `owner` from `accessing`, except memory from
  // pools.
  void set_peer(int accessing, int owner, bool may);

  // The GPUs whose work may use memory of this one: itself, and those that have ever been given access to any of it.
  Devices reachers(int device) const { return reachers_[static_cast<std::size_t>(device)].load() | bit_of(device); }
  // All GPUs whose memory work of these may use.
  Devices reachable(Devices devices) const;

  // How many bytes are on the GPU, including kept ranges, and how many are not.
  std::uint64_t resident_bytes(int device) const { return resident_[static_cast<std::size_t>(device)].load(); }
  std::uint64_t out_bytes(int device) const { return out_[static_cast<std::size_t>(device)].load(); }
  // What has to be there at once when this process runs, in use or about to be: everything except kept ranges.
  std::uint64_t needed_bytes(int device) const { return needed_[static_cast<std::size_t>(device)].load(); }
  // Whether all memory of these GPUs is where work expects it.
  bool in_place(Devices devices) const;
  bool all_in_place() const { return in_place(kAllDevices); }
  // Runs `work` if it is, under the lock that keeps allocations from ending up out of place during that.
  bool if_in_place(Devices devices, FunctionRef<void()> work);
  // The same for work that opens these GPUs' gates: from then on memory there may be written.
  bool use_if_in_place(Devices devices, FunctionRef<void()> open);
  // Nothing: some thread is inside, for ever if a signal handler has interrupted it there and does not return.
  std::optional<bool> try_use_if_in_place(Devices devices, FunctionRef<void()> open);

  // --- the monitor, with nothing of this process running and the gate closed

  // The driver's answer to what was asked of it within a context; nothing: the context has ended, and it was not asked.
  // No error of the driver's stands for that: it may answer any of them to any call.
  using Answer = std::optional<api::CUresult>;

  // How a move proceeds: runs a step with the context current, if it still exists; and whether to give up.
  struct Mover {
    std::function<bool(FunctionRef<void()> step)> within;
    std::function<bool()> stopping;
    // Whether no work of the process runs. Only then is host memory unpinned: the driver waits for kernels first, and
    // launches by all threads wait with it (measured on an H100), so a kernel that waits for one would never end.
    std::function<bool()> idle;
    // `within` without making the context current, which the driver may refuse; false: it has ended, and its work with
    // it.
    std::function<bool(FunctionRef<void()> step)> while_alive;
    api::CUstream stream = nullptr;  // of that context; used in such steps only, as all else that belongs to it
    Exchange exchange = {};
    // The context in which to check what memory contains; null: all of it counts as changed.
    api::CUcontext context = nullptr;
  };
  struct Moved {
    std::uint64_t bytes = 0;         // copied
    std::uint64_t without_copy = 0;  // of memory that left unchanged, unused or kept, and of fresh memory that came
    std::uint64_t spared = 0;        // of that: memory that left unchanged, unused or as zeros
    std::uint64_t taken_over = 0;    // of memory that came: in memory that another process has handed over
    std::uint64_t lacking = 0;       // bytes that the driver has no room for
    bool lacks_host = false;         // the host has no memory for what should leave: it stays where it was
    bool failed = false;             // the driver refused, or a copy failed: what had to move stays where it was
    api::CUresult error = api::CUDA_SUCCESS;  // the driver's error, unless a context ended
  };
  // Makes `bytes` of room, or as much as possible: kept ranges first, then extents that have come in and were not used,
  // then those in which no allocation lies and those that had not changed when they last left, then others, the largest
  // first.
  Moved move_out(int device, std::uint64_t bytes, const Mover& mover);
  // Brings everything back. Gives up when the driver has had no room for a while.
  Moved bring_in(int device, const Mover& mover);
  // By how much the memory of all programs on a GPU exceeds it.
  struct Excess {
    int device;
    std::uint64_t bytes;
  };
  // Prepares a little more room on the host for extents on these GPUs that have none there yet, up to as many bytes as
  // may have to leave. False: there is enough, or the host has none to spare. Room that is not needed is released.
  bool prepare_host(const std::vector<Excess>& all);
  // Releases host memory without which nothing is lost, until it adds up to so many bytes: kept blocks, then copies of
  // what is on the GPU, the most useful last. Copies of what came in and was not used yet, with which it could leave
  // without further host memory, only if `unused_too`. Returns the bytes. With some context current.
  std::uint64_t give_host_back(std::uint64_t bytes = UINT64_MAX, bool unused_too = false);
  // Counts those copies anew, for what the host pool says to rotad.
  void count_copies();
  HostPool& host() { return host_; }
  // An error that cannot be cleared has ended all work of this context: releases its memory and no longer waits for any
  // of it. Null: all contexts of the GPU have ended so; releases what belongs to none. Returns the bytes that were on
  // the GPU.
  std::uint64_t context_failed(api::CUcontext context, int device);
  // What is swapped out will never come back: releases everything, so that others have the room; it stays out of place.
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
    Store::Slot host = nullptr;            // space for its contents, once it has been swapped out
    bool saved = false;                    // they are there, as of when it last left
    std::shared_ptr<const Prints> prints;  // of them, if they are there; null: not known
    bool steady = false;                   // it left without a copy the last time
    bool zeros = false;                    // and as nothing but zeros
    bool moving = false;
    // Whether it is mapped at its own address, and can be copied by it. What the program creates gets both when it may
    // first leave: many programs create and release such memory all the time (JAX's platform allocator), and a mapping
    // and access cost as much as the memory.
    bool mapped = true;
    bool reachable = true;
    std::uint64_t came = 0;  // the value of opened_ of its GPU when it was brought in
    bool in_place() const { return piece && !moving; }
  };
  struct Range {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // multiple of the granularity
    int device = 0;
    api::CUcontext context = nullptr;  // null: it ends with none
    std::uint64_t id = 0;
    bool kept = false;             // unused and on the GPU: serves the next allocation like it
    bool ending = false;           // its context ended while it was moving
    bool failed = false;           // its context has failed: none of it is on the GPU or has to be
    bool begins_small = false;     // its first extents are smaller than they could be
    std::optional<Access> access;  // its pool's access; none: that of its GPU's plain memory
    std::optional<Making> own;     // the program made it, like this
    std::vector<Extent> extents;
  };
  using Ranges = std::map<std::uint64_t, Range>;  // by address
  // What an allocation and a kept range have in common if one serves the other.
  struct Like {
    std::uint64_t bytes = 0;
    std::optional<Making> own;
    auto operator<=>(const Like&) const = default;
  };
  static Like like(const Range& range) { return {.bytes = range.bytes, .own = range.own}; }
  struct Device {
    bool known = false;
    bool serves = false;
    bool exports = false;  // its memory can be handed over
    std::uint64_t granularity = 1;
    std::uint64_t total = 0;
    std::uint64_t most_kept = 0;
    Access access;  // of plain memory
    std::uint64_t kept = 0;
    int begin_small = 0;                            // ranges
    std::multimap<Like, std::uint64_t> kept_alike;  // address
  };
  struct Leaving;
  struct Departure;
  class ClosesGate;
  using Lock = std::unique_lock<std::mutex>;

  static std::vector<std::uint64_t> mappings_of(const Extent& extent);
  Device& device(int ordinal);
  std::uint64_t most(int ordinal);
  Range cut(const Place& place, std::uint64_t bytes, std::uint64_t most, std::uint64_t first = 0);
  static api::CUresult create(std::uint64_t bytes, int device, bool exports, PhysicalHandle* handle);
  static api::CUresult create(const std::optional<Making>& own, std::uint64_t bytes, int device, bool exports,
                              PhysicalHandle* handle);
  api::CUresult make(Range&& range, api::CUdeviceptr* address);
  api::CUresult reserve_addresses(bool own, std::uint64_t bytes, api::CUdeviceptr* address);
  void free_addresses(bool own, std::uint64_t address, std::uint64_t bytes);
  bool is_stuck_at(std::uint64_t address, std::uint64_t bytes) const;
  // Without access at first.
  api::CUresult map(int device, Extent& extent, Piece&& piece);
  static api::CUresult map_aliases(std::uint64_t bytes, const Aliases& aliases, PhysicalHandle handle,
                                   std::size_t* mapped);
  Extent* settled(Lock& lock, std::uint64_t range);
  api::CUresult change_at(const std::vector<Mapped>& all, const OffGpu& call, const OffGpu& unasked,
                          FunctionRef<void(Extent& extent, Aliases::iterator alias, bool asked)> change);
  const Access& access_of(const Range& range) { return range.access ? *range.access : device(range.device).access; }
  // What may be used from where, once it is mapped: the owner included.
  struct Allowed {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    Access access;
  };
  // All mappings of an extent; `access` is what GPUs besides the owner have at its own address.
  static void add_allowed(std::vector<Allowed>& all, const Extent& extent, int owner, const Access& access);
  // By one call of the driver for what lies beside each other and is allowed the same.
  static api::CUresult give_access(std::vector<Allowed> all);
  static api::CUresult give_access(std::uint64_t address, std::uint64_t bytes, int owner, const Access& access);
  static void change_access(std::uint64_t address, std::uint64_t bytes, int accessing, api::CUmemAccess_flags flags);
  void catch_up(const Range& range, const Extent& extent, const Access& given);
  // What the driver has refused to take back: it lies on the GPU, counts as resident, and nobody uses it.
  struct Stuck {
    int device = 0;
    std::uint64_t bytes = 0;
    Piece piece;
    std::vector<std::uint64_t> mapped;  // the addresses where it still is
  };
  // Its physical memory goes to another process by `exchange`, with its contents, or to the driver. If the driver
  // refuses, nothing is handed over, and either all is as it was, or the memory is stuck and `extent.piece` empty.
  api::CUresult unmap(int device, Extent& extent, const Exchange& exchange = {});
  // The same for an extent that is not mapped any more by the books. False: its memory is stuck.
  bool drop(int device, Extent& extent, const Exchange& exchange = {});
  // Of memory that is mapped nowhere.
  void release_piece(int device, std::uint64_t bytes, Piece&& piece);
  void add_stuck(Stuck&& stuck);
  // Tries again what the driver has refused before. Returns the bytes that it has taken back.
  std::uint64_t release_stuck(int device);
  // An extent on its way off the GPU.
  struct Gone {
    Extent extent;
    Access access;
  };
  Gone take_out(const Range& range, Extent& extent);
  api::CUresult leave(int device, Gone&& gone, const Exchange& exchange);
  api::CUresult populate(Range& range, const Access& access, bool exports);
  std::optional<api::CUdeviceptr> reuse(const Range& wanted);
  void free(std::uint64_t address, bool may_keep);
  void may_reach(int owner, int accessing);
  bool open_if_in_place(Devices devices, FunctionRef<void()> open);
  void insert(Range&& range);
  void take_off(const Range& range);
  void add_resident(int device, std::uint64_t bytes);
  void take_resident(int device, std::uint64_t bytes);
  std::uint64_t destroy(Range&& range, const Exchange& exchange = {});
  const Range* range_at(std::uint64_t address) const;
  Extent* extent_at(std::uint64_t address, Range** range = nullptr);
  std::deque<Candidate> on_gpu(int device);
  bool in_use(std::uint64_t address, std::uint64_t bytes) const { return !in_use_ || in_use_(address, bytes); }
  void make_reachable(int device);
  std::vector<Copy> copies() const;
  Store::Slot take_copy(const Copy& copy);
  Store::Slot place_on_host(int device, std::uint64_t bytes);
  Moved move_out_now(int device, std::uint64_t bytes, const Mover& mover);
  std::deque<Leaving> choose(std::deque<Candidate>& all, std::uint64_t bytes, std::uint64_t most);
  Extent* set_out(const Leaving& leaving);
  void look_at(std::deque<Leaving>& chosen, const Mover& mover);
  void left(int device, Departure&& flight, const Exchange& exchange, Moved& moved);
  struct Lacking {
    std::uint64_t address;
    std::uint64_t bytes;
    std::uint64_t range;  // its number, since an address can be reused
    std::optional<Making> own;
    // Not for memory with special properties: descriptors can be created only of memory that was created here.
    bool takes_any() const { return !own || *own == Making{}; }
  };
  std::deque<Lacking> off_gpu(int device);
  Answer refill(const Extent& extent, const Mover& mover, api::CUevent* event);
  bool unused(const Range& range, const Extent& extent) const {
    return extent.in_place() && extent.came == opened_[static_cast<std::size_t>(range.device)];
  }
  std::atomic<std::uint64_t>& out_of_place(int device) { return out_of_place_[static_cast<std::size_t>(device)]; }
  std::uint64_t drop_unused(int device, std::uint64_t bytes, const Exchange& exchange, Moved& moved);
  void landed(std::uint64_t address);

  const IfOurTurn if_our_turn_;
  Observer observer_;
  std::function<bool(int device)> free_unused_;
  std::function<bool(std::uint64_t address, std::uint64_t bytes)> in_use_;
  HostPool host_;
  HostStore store_{host_};
  Fingerprints fingerprints_;
  mutable std::mutex mutex_;  // the fields below
  std::condition_variable landed_;
  std::array<Device, kMaxDevices> devices_;
  enum class Serves : std::uint8_t { kUnknown, kNo, kYes };
  std::array<std::atomic<Serves>, kMaxDevices> serves_{};                 // of them, for serves(): no lock
  std::array<std::atomic<protocol::MemoryMode>, kMaxDevices> untried_{};  // of those that serve, likewise
  Ranges ranges_;
  std::vector<Stuck> stuck_;
  std::multiset<std::uint64_t> being_released_;  // where that is mapped which release_stuck() has taken from there
  // The addresses of what the program creates itself, cut from large reservations that stay: such memory comes and goes
  // all the time in some programs, and a reservation of its own would cost two calls of the driver each time.
  Heap own_addresses_;
  std::array<std::atomic<std::uint64_t>, kMaxDevices> out_of_place_{};  // extents
  std::array<std::uint64_t, kMaxDevices> opened_ = [] {                 // how many times the GPU's gate has opened
    std::array<std::uint64_t, kMaxDevices> once{};
    once.fill(1);
    return once;
  }();
  std::array<std::atomic<Devices>, kMaxDevices> reachers_{};  // not always with the GPU itself
  std::array<std::atomic<std::uint64_t>, kMaxDevices> resident_{};
  std::array<std::atomic<std::uint64_t>, kMaxDevices> out_{};
  std::array<std::atomic<std::uint64_t>, kMaxDevices> needed_{};
  std::uint64_t last_id_ = std::uint64_t{1} << 49;  // beyond the driver's, and those of stream_ordered.h
  std::atomic<bool> any_{false};
  std::atomic<bool> pinned_{false};
};

}  // namespace rota::memory
