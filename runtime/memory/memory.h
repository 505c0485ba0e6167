// Where this process's memory comes from: every allocating and freeing override goes through here, so that the ledger
// and the limit see all of it. Plain memory comes from a backend (backend.h); everything else is allocated by the
// driver as requested, and counted.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "generated/driver_types.h"
#include "runtime/account/account.h"
#include "runtime/core/function_ref.h"
#include "runtime/driver/events.h"
#include "runtime/driver/known_streams.h"
#include "runtime/memory/backend.h"
#include "runtime/memory/charge.h"
#include "runtime/memory/deferred.h"
#include "runtime/memory/graphs.h"
#include "runtime/memory/ledger.h"
#include "runtime/memory/managed.h"
#include "runtime/memory/native.h"
#include "runtime/memory/peers.h"
#include "runtime/memory/physical.h"
#include "runtime/memory/pools.h"
#include "runtime/memory/residency.h"
#include "runtime/memory/settings.h"
#include "runtime/memory/sharers.h"
#include "runtime/memory/stream_ordered.h"
#include "runtime/memory/swap/opened.h"
#include "runtime/memory/swap/own_physical.h"
#include "runtime/memory/swap/swap.h"
#include "runtime/memory/turns.h"
#include "scheduler/protocol/protocol.h"

namespace rota::memory {

class Memory final : public Residency, Contents {
 public:
  using RealCall = FunctionRef<api::CUresult()>;
  using GivenAddress = FunctionRef<std::uint64_t()>;
  using GivenPitch = FunctionRef<std::uint64_t()>;

  Memory(Ledger& ledger, Settings settings);

  // Set by the client: whether a rotad serves this process. Without one the automatic choice is native memory.
  void set_served(bool served);

  // --- overrides; results are the driver's own, or CUDA_ERROR_OUT_OF_MEMORY where a limit is exceeded. None waits for
  // the GPU where the driver's own call would not.

  // `may_reuse`: freed memory may be reused without a driver call. False during a capture: then the driver has to be
  // called, since it may refuse.
  api::CUresult allocate(api::CUdeviceptr* address, std::size_t bytes, bool may_reuse = true);
  api::CUresult allocate_pitch(api::CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height,
                               unsigned element_bytes, bool may_reuse = true);
  // Pitched memory that rota does not convert: `call` is the real allocation, `address` and `pitch` hold its results.
  api::CUresult allocate_pitch_native(std::size_t width, std::size_t height, const RealCall& call,
                                      const GivenAddress& address, const GivenPitch& pitch);
  // Any other allocation in the current context that rota does not convert: `call` is the real allocation, `address`
  // holds its result.
  api::CUresult allocate_native(std::uint64_t bytes, Kind kind, const RealCall& call, const GivenAddress& address);
  // cuMemAllocAsync and its kin.
  struct AsyncCall {
    api::CUdeviceptr* address = nullptr;
    std::uint64_t bytes = 0;
    api::CUmemoryPool pool = nullptr;  // null: the device's current pool serves
    api::CUstream stream = nullptr;
    bool per_thread = false;
    bool capturing = false;  // some stream of this process captures
  };
  // `call` is the real one. Allocations in a capturing stream belong to the graph and are counted with what graphs
  // reserve.
  api::CUresult allocate_async(const AsyncCall& wanted, const RealCall& call);
  // Frees by the real call `call`, however the memory was allocated. `capturing`: some stream of this process captures.
  api::CUresult free(std::uint64_t address, const RealCall& call, bool capturing = false);
  // cuMemFree: the same by a call that waits for the work of the memory's context, unless the memory is a pool's.
  api::CUresult free_waiting(api::CUdeviceptr address, bool capturing, const RealCall& call);
  // cuMemFreeAsync: `call` is the real one. Converted memory is freed once the stream has reached this point.
  // `capturing`: some stream of this process captures.
  api::CUresult free_async(api::CUdeviceptr address, api::CUstream stream, bool per_thread, const RealCall& call,
                           bool capturing = false);
  api::CUresult info(std::size_t* free_bytes, std::size_t* total_bytes);
  // The sizes in bytes that the program sees of a GPU for which the driver reports these. Any thread may call, without
  // a context.
  struct Shown {
    std::uint64_t total;
    std::uint64_t free;
    std::uint64_t own;  // what this process has there
  };
  Shown shown(int device, std::uint64_t total, std::uint64_t free);
  // Whether any limit applies to this process, as far as it knows. Does not ask rotad.
  bool limited() const { return settings_.limit_bytes != kNoLimit || turns_->limited(); }
  // The most that this process may have on a GPU, by itself or together with others; kNoLimit: there is no limit.
  std::uint64_t limit(int device) const;
  // Passes on the driver's result of `function` for memory at `address`. If the driver refused, perhaps because the
  // memory is Unified Memory, which the program does not know, one line per function says so, and the process's later
  // allocations are native.
  api::CUresult explained(api::CUresult result, api::CUdeviceptr address, const char* function);
  // The same of a function that the driver has only for GPUs with this attribute: without it, it refuses all memory.
  api::CUresult explained_with(api::CUdevice_attribute attribute, api::CUresult result, api::CUdeviceptr address,
                               const char* function);
  api::CUresult create_physical(Physical::Handle* handle, std::uint64_t bytes, int device, const RealCall& call);
  // The same for memory that rota moves; nothing: it cannot be moved and must be created as the program requested.
  std::optional<api::CUresult> create_moving(Physical::Handle* handle, std::uint64_t bytes,
                                             const api::CUmemAllocationProp& wanted);
  api::CUresult release_physical(Physical::Handle handle, const RealCall& call);
  // `call` is the real one, for all of the range or for a part of it.
  api::CUresult unmap(std::uint64_t address, std::uint64_t bytes, const OwnPhysical::UnmapPart& call);
  // graph_allocates(): a graph has received a node that allocates on this GPU. graph_memory_changed(): a call was made
  // by which graphs take memory or give it back.
  void graph_allocates(int device) { graphs_.allocate_on(device); }
  void graph_memory_changed() {
    if (!graphs_.any()) return;
    for (const int device : graphs_.poll()) changed(device);
  }
  Physical& physical() { return physical_; }
  OwnPhysical& own_physical() { return own_physical_; }
  Pools& pools() { return pools_; }

  // --- information about stream-ordered memory that rota serves instead of a pool; the driver does not know it.

  // Adds what rota serves to what the driver reports for a pool (CU_MEMPOOL_ATTR_{USED,RESERVED}_MEM_*), and nothing to
  // other attributes. Called after the driver's own call has succeeded.
  void add_pool_attribute(api::CUmemoryPool pool, api::CUmemPool_attribute attribute, void* value);
  // The program has set it: its release threshold, or a high mark to 0, which is all that the driver accepts.
  void pool_attribute_set(api::CUmemoryPool pool, api::CUmemPool_attribute attribute);
  void trim_pool(api::CUmemoryPool pool, std::uint64_t keep);
  // cuMemPoolSetAccess, which the driver has granted.
  void set_pool_access(api::CUmemoryPool pool, const api::CUmemAccessDesc* accesses, std::size_t count);
  std::shared_ptr<ServedPool> serving(api::CUmemoryPool pool) const { return stream_ordered_.serving(pool); }
  void pool_destroyed(const std::shared_ptr<ServedPool>& pool) { stream_ordered_.pool_destroyed(pool); }
  void pool_made(api::CUmemoryPool pool) { stream_ordered_.pool_made(pool); }
  // What lies at an address.
  struct Block : StreamOrdered::Block {
    // A plain byte of the same context (for a pool's block: of any context on the same GPU), for which the driver
    // reports what it would report for this block; 0: the driver knows the block itself.
    api::CUdeviceptr twin = 0;
  };
  // False: the driver knows the address. True: rota has to answer, with the block or that there is none.
  bool find_block(api::CUdeviceptr address, std::optional<Block>* block);
  int device_of(api::CUdeviceptr address, bool* booked = nullptr) const override;
  int device_of_array(const void* handle) const override;
  // The context of plain memory that is swapped; null: of other memory.
  api::CUcontext context_of_plain(api::CUdeviceptr address) const;
  // The byte that is passed to the driver instead of this address, whose memory may be out of place: queries of the
  // byte wait for nothing. 0: the address itself is passed.
  api::CUdeviceptr twin(api::CUdeviceptr address);
  // Whether any of these addresses is in a range of the swap backend: mapped memory for the driver, but plain memory
  // for the program, which may not map there.
  bool swaps(api::CUdeviceptr address, std::uint64_t bytes) const { return swap_.overlaps(address, bytes); }
  // For tests.
  SwapBackend& swap() { return swap_; }

  // --- legacy IPC of memory that rota moves; an empty result: the driver has to answer

  // Whether this address is in plain memory for which rota makes handles itself.
  bool exports(api::CUdeviceptr address) const;
  // How threads of rota's hold in place the memory that others open. Call it before any is exported.
  void hold_exports_by(Exports::Hold hold) { swap_.exports().set_hold(hold); }
  void tell_opened_by(Opened::Tell tell) { opened_.tell_by(tell); }
  // The number by which the handles name this process.
  protocol::ProcessNumber exporter() { return swap_.exports().number(); }
  // Makes a handle of such memory, wherever it is. While others have the memory open it stays on the GPU.
  api::CUresult export_own(api::CUipcMemHandle* handle, api::CUdeviceptr address);
  // `introduce` returns a socket to the process with this number, before `until`; an empty one: there is none yet;
  // nothing: there never will be one. Call it outside the gate.
  using Introduce =
      FunctionRef<std::optional<Descriptor>(const protocol::ProcessNumber& number, Opened::Clock::time_point until)>;
  std::optional<api::CUresult> open(api::CUdeviceptr* address, const api::CUipcMemHandle& handle, unsigned flags,
                                    const Introduce& introduce);
  std::optional<api::CUresult> close(api::CUdeviceptr address);
  bool is_opened(api::CUdeviceptr address) const { return opened_.find(address).has_value(); }

  // From now on memory that rota moves stays on the GPU until it is freed: what is allocated at the address, and what
  // the program has mapped in the range. It has to be in place and held there.
  void pin(api::CUdeviceptr address, std::uint64_t bytes, protocol::Pin why);

  // The program has advised or prefetched a range to a GPU or elsewhere (unified::kHost), or has withdrawn its advice
  // (nothing). Not recorded while there is no Unified Memory.
  void placed(api::CUdeviceptr address, std::uint64_t bytes, std::optional<int> device) {
    ledger_.set_placed(address, bytes, device);
  }

  // cuCtxEnablePeerAccess and its opposite of the current context: `call` is the real one.
  api::CUresult enable_peer_access(api::CUcontext peer, const RealCall& call);
  api::CUresult disable_peer_access(api::CUcontext peer, const RealCall& call);

  // Whether a synchronous set or copy would wait for earlier work only because rota has made memory Unified Memory: for
  // the program all that the call touches is memory of one GPU. False for addresses that the ledger does not know.
  // Costs one load as long as nothing was ever converted.
  bool only_converted_makes_it_wait(api::CUdeviceptr destination) const;
  bool only_converted_makes_it_wait(api::CUdeviceptr destination, api::CUdeviceptr source) const;

  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: the program wants calls that touch this memory to wait.
  void set_synchronous(api::CUdeviceptr address, bool synchronous);
  // Whether rota has to make them wait: the driver refuses the attribute for mapped memory. Costs one load as long as
  // the program has never set it.
  bool has_to_wait(api::CUdeviceptr address) const;

  // The program's setting for converted memory, for which the driver always reports synchronous.
  std::optional<bool> synchronous(api::CUdeviceptr address) const;

  // A green context is about to be destroyed, and its null stream with it.
  void green_context_ending() { streams_.forget_null_streams(); }
  // What happens to a context's memory when the context ends. Created before the driver is called; gone() is called as
  // soon as the driver has destroyed the context, since it may reuse the handle.
  class ContextEnd {
   public:
    ContextEnd(Memory& memory, api::CUcontext context);
    ~ContextEnd();
    ContextEnd(const ContextEnd&) = delete;
    ContextEnd& operator=(const ContextEnd&) = delete;
    void gone();

   private:
    Memory& memory_;
    api::CUcontext context_;
    bool gone_ = false;
  };

  // --- Residency

  void set_turns(Turns* turns) override;
  Ledger& ledger() override { return ledger_; }
  const Settings& settings() const override { return settings_; }
  Sums sums(int device) const override {
    const Ledger::Settled settled = ledger_.settled(device);
    return {settled.bytes, settled.fixed, swap_.resident_bytes(device), swap_.pinned_bytes(device),
            swap_.pinned_by(device)};
  }
  std::uint64_t resident_bytes(int device) const override { return swap_.resident_bytes(device); }
  std::uint64_t out_bytes(int device) const override { return swap_.out_bytes(device); }
  std::uint64_t needed_bytes(int device) const override {
    return swap_.needed_bytes(device) + swap_.overhead_bytes(device);
  }
  // One load, once that has been decided.
  protocol::MemoryMode mode(int device) override;
  bool has_extents() const override { return swap_.any(); }
  Devices reachers(int device) const override { return swap_.reachers(device); }
  Devices reachable(Devices devices) const override { return swap_.reachable(devices); }
  bool in_place(Devices devices) const override { return swap_.in_place(devices); }
  bool if_in_place(Devices devices, FunctionRef<void()> work) override { return swap_.if_in_place(devices, work); }
  bool use_if_in_place(Devices devices, FunctionRef<void()> open) override {
    return swap_.use_if_in_place(devices, open);
  }
  std::optional<bool> try_use_if_in_place(Devices devices, FunctionRef<void()> open) override {
    return swap_.try_use_if_in_place(devices, open);
  }
  void pin_all(protocol::PinAll why) override { swap_.pin(why); }
  protocol::PinAll pinned_all() const override { return swap_.pinned_all(); }
  void set_served(int ordinal, bool served) override;
  bool has_deferred() const override { return deferred_.any(); }
  bool sweep_deferred() override;
  void collect_deferred(const std::optional<Owner>& owner = std::nullopt) override;
  std::uint64_t drop_kept(int device) override { return swap_.drop_kept(device); }
  Moved evict(int device, std::uint64_t bytes, const Move& move) override { return swap_.evict(device, bytes, move); }
  Moved restore(int device, const Move& move) override { return swap_.restore(device, move); }
  std::uint64_t context_failed(api::CUcontext context, int device) override {
    return swap_.context_failed(context, device);
  }
  void release_all() override { swap_.release_all(); }
  void own_context_ended(api::CUcontext context) override { swap_.host().context_ended(context); }
  std::vector<Allocation> to_bring(int device, std::uint64_t most) override;
  std::uint64_t bring(int device, api::CUstream stream, const std::vector<Allocation>& ranges) override;
  std::uint64_t move_out(int device, api::CUstream stream, std::uint64_t bytes) override;
  void follow_host_share(protocol::UsagePage* usage, const protocol::LeasePage* lease,
                         std::function<void()> tell) override {
    swap_.host().follow(usage, lease, std::move(tell));
  }
  std::uint64_t host_bytes() const override { return swap_.host().bytes(); }
  std::uint64_t kept_host_bytes() const override { return swap_.host().cached_bytes(); }
  bool host_limited() const override { return swap_.host().limited(); }
  std::uint64_t host_excess() const override { return swap_.host().excess(); }
  bool host_low() override { return swap_.host().low(); }
  void count_copies() override { swap_.count_copies(); }
  void needs_no_more_host() override { swap_.host().set_deficit(0); }
  bool prepare_host(const std::vector<Overcommitment>& all) override { return swap_.prepare_host(all); }
  bool has_prepared_host() const override { return swap_.host().has_prepared(); }
  void drop_prepared_host() override { swap_.host().drop_prepared(); }
  std::uint64_t trim_host() override { return swap_.host().trim(); }
  std::uint64_t give_host_back(std::uint64_t bytes, bool unused_too) override {
    return swap_.give_host_back(bytes, unused_too);
  }
  void serve_opener(Descriptor&& socket) override { swap_.exports().serve(std::move(socket)); }
  void stop_serving() override { swap_.exports().stop(); }

  // Reserves bytes and waits until they may be taken; or logs why not (once), and returns none. `frame`: that of the
  // function which holds the charge.
  Charge reserve(int device, std::uint64_t bytes, Kind kind, const void* frame = __builtin_dwarf_cfa());
  void changed(int device) {
    if (account::wanted()) tell_account(device);
    turns_->changed(device);
  }

 private:
  struct Device {
    std::atomic<bool> known{false};
    std::uint64_t total_bytes = 0;
    std::atomic<bool> served{false};  // by a rotad
    std::atomic<protocol::MemoryMode> mode{protocol::MemoryMode::kUnknown};
    std::uint64_t turn_began = 0;                  // the ledger's clock when the turn began; used only by the monitor
    std::map<unsigned, std::size_t> pitch_unit;    // by element size
    std::atomic<std::int64_t> free_sampled_at{0};  // much_is_free(): when the driver was last asked, in ns,
    std::atomic<bool> much_free{false};            // and whether much of the GPU was free
    std::atomic<std::uint64_t> others{0};          // others(), as last found
  };

  static bool here(Place& place);
  // The GPU of this stream's context, whichever context is current (there need be none).
  static bool here(Place& place, const driver::KnownStream& stream);
  void tell_account(int ordinal);
  Device& device(int ordinal);
  Backend& backend(int ordinal);
  // For an allocation: first waits a moment if it is not known yet whether a rotad serves this process there.
  Backend& backend_for_allocation(int ordinal);
  protocol::MemoryMode decide(int ordinal);
  bool turned_native(api::CUresult result, const Backend& asked, int ordinal);
  std::uint64_t capacity(int ordinal);
  // What this process's contexts, modules and heaps have there.
  std::uint64_t contexts(int ordinal) const;
  // The same of all processes, and what programs without rota have: nothing of this can be evicted.
  std::uint64_t all_contexts(int ordinal) const;
  // The most that this process can have beyond the `own` bytes that it has, where its memory is not native. `free`: the
  // driver's figure.
  std::uint64_t obtainable(int ordinal, std::uint64_t own, std::uint64_t free);
  // What others have there, by the driver's figure alone.
  std::uint64_t others(int ordinal, std::uint64_t own, std::uint64_t free);
  // What keep_a_byte() will take on this GPU for the current context or, if that is on another GPU, for any context. 0:
  // it has allocated its byte.
  std::uint64_t missing_byte(int ordinal);
  // To gain memory on a GPU: frees extents that the program does not use, and unused memory of pools. Returns whether
  // there were such extents.
  bool free_unused(int ordinal) override;
  bool has_unused() const override { return deferred_.any() || stream_ordered_.any(); }
  bool in_use(std::uint64_t address, std::uint64_t bytes) override;
  bool lives(std::uint64_t address, std::uint64_t id) override;
  // `pending`: the bytes that the call has charged and the driver is to give (Ledger::settled).
  api::CUresult with_room(int ordinal, std::uint64_t pending, const RealCall& call);
  // Who refuses an attempt at an allocation because of memory that others may free; kNobody: it was not refused, or not
  // for that.
  enum class RefusedBy : std::uint8_t { kNobody, kDriver, kRotad };
  // Like reserve(), but if rotad refuses because of others' memory, logs nothing and sets `by`.
  Charge reserve_or_wait(int device, std::uint64_t bytes, Kind kind, RefusedBy& by,
                         const void* frame = __builtin_dwarf_cfa());
  // Who refuses what has been charged: the driver, if the backend has room for it.
  static RefusedBy refused_by(const BackendReservation& room) {
    if (room) return RefusedBy::kDriver;
    return room.for_others() ? RefusedBy::kRotad : RefusedBy::kNobody;
  }
  // An attempt at an allocation, which charges for it itself: `first`, and again where others may have freed memory.
  // While this waits nothing is charged.
  using Attempt = FunctionRef<api::CUresult(bool first, RefusedBy& by)>;
  api::CUresult with_waiting(int ordinal, std::uint64_t bytes, Backing backing, Attempt attempt);
  void say_refused(int ordinal, RefusedBy by = RefusedBy::kDriver);
  bool may_grow(const StreamOrdered::Wanted& wanted);
  bool much_is_free(const Place& place, std::uint64_t gpu_bytes);
  api::CUresult allocate_from(Backend& backend, const Place& place, api::CUdeviceptr* address, std::uint64_t bytes,
                              bool may_reuse);
  api::CUresult allocate_counted(const Allocation& what, const RealCall& call, const GivenAddress& address);
  // One attempt; `once`: nobody is asked to make room. `full`: who refuses it where the call has no memory.
  api::CUresult attempt_counted(const Allocation& what, const RealCall& call, const GivenAddress& address, bool once,
                                RefusedBy full, RefusedBy& by);
  api::CUresult allocate_captured(const AsyncCall& wanted, const RealCall& call);
  api::CUresult allocate_stream_ordered(const AsyncCall& call, const StreamOrdered::Wanted& wanted, Backend& backend);
  api::CUresult free_stream_ordered(Freeing& taken);
  api::CUresult free_plain(Freeing& taken, bool capturing);
  bool hold_back(const Allocation& taken, const StreamOrdered::Behind& behind, bool captured = false);
  void defer_captured(const Allocation& taken);
  void free_shared(const Allocation& taken, const StreamOrdered::Behind& behind);
  bool passed(const StreamOrdered::Behind& behind);
  void give_up_extents(const Allocation& taken);
  void closed_by_others(std::uint64_t serial) override;
  void opened_by_others(std::uint64_t address) override;
  void pins_changed(int device) override { turns_->resident_changed(device); }
  void forget_held_back(api::CUcontext context);
  api::CUresult free_a_byte(const Place& place);
  static api::CUresult refused_by_driver();
  api::CUdeviceptr keep_a_byte(const Place& place);
  void ensure_a_byte(const Place& place);
  api::CUdeviceptr twin_of(const Block& block);
  bool is_kept(std::uint64_t address) const;
  // Records an event behind all work in the stream so far: that of `before` again, if possible. Returns the driver's
  // error.
  api::CUresult record_behind(api::CUstream stream, bool per_thread, StreamOrdered::Behind* behind,
                              const StreamOrdered::Behind& before = {});
  api::CUresult free_claimed(std::uint64_t address, const RealCall& call, bool capturing);
  api::CUresult free_async_claimed(api::CUdeviceptr address, api::CUstream stream, bool per_thread,
                                   const RealCall& call, bool capturing);
  std::size_t pitch_unit(const Place& place, unsigned element_bytes);
  // The allocations that rota may move to the GPU and off it, except for the program's own managed memory.
  std::vector<Allocation> movable(int ordinal) const;
  void context_ended(api::CUcontext context);
  void trim_to_thresholds();

  Ledger& ledger_;
  Settings settings_;
  NativeBackend native_;
  ManagedBackend managed_;
  SwapBackend swap_;
  Peers peers_;
  Physical physical_;
  OwnPhysical own_physical_;
  Pools pools_;
  Graphs graphs_;
  Opened opened_{ledger_, [this](int device) { changed(device); }};
  Sharers sharers_;
  driver::KnownStreams streams_;
  driver::SpareEvents events_;
  Deferred deferred_;
  StreamOrdered stream_ordered_;
  Turns* turns_ = &WithoutTurns::instance();
  std::atomic<bool> exports_{false};  // a function refused converted memory: allocations stay native from then on
  std::set<std::string> explained_;   // functions; under the lock below
  // What extents are rounded up to, and what the driver takes for a byte.
  static constexpr std::uint64_t kGranularity = std::uint64_t{2} << 20;
  struct KeptByte {
    api::CUdeviceptr address;
    int device;
  };
  std::map<api::CUcontext, KeptByte> kept_bytes_;          // keep_a_byte(); under the same
  std::atomic<api::CUcontext> last_with_a_byte_{nullptr};  // the last context that was found to have one
  std::atomic<bool> has_converted_{false};
  std::atomic<bool> has_pool_of_driver_{false};  // memory came from one
  std::atomic<bool> has_synchronous_{false};     // some memory that rota has to make calls wait for
  std::array<Device, kMaxDevices> devices_;
  // Memory that the program has freed and other processes have open: nothing else gets it meanwhile.
  struct HeldBack {
    Allocation taken;
    StreamOrdered::Behind behind;
    bool captured = false;  // freed during a capture
  };
  std::map<std::uint64_t, HeldBack> held_back_;  // by Exports::ends()
  std::mutex held_back_mutex_;                   // of that; taken before all other locks
  std::optional<std::uint64_t> host_bytes_;      // that the host had left when it was first asked
  std::mutex devices_mutex_;
};

}  // namespace rota::memory
