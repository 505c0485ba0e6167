// Plain memory that can be evicted: address ranges that are reserved once, with physical memory mapped below them in
// *extents*. While the process does not hold the GPU and another one needs the memory, extents are copied to pinned
// host memory and given back to the driver; before the process runs again they are restored at the same addresses.
//
//   regions.h         which ranges there are, and which of their extents are on the GPU
//   mapper.h          the driver's side: addresses, physical memory, what the driver refuses to take back
//   eviction_order.h  which extents are evicted first
//   mover.h           copies them out and in
//   store/            where their contents lie meanwhile
//   copies.h          what of that is cached while they are on the GPU
//   sharing.h         which GPUs may use them; hand_over.h: how they pass to other processes
//   own_mappings.h    what the program has mapped itself
//   exports.h         what other processes may open by a handle
//
// This class is the backend over these: it allocates. A range is reserved for one allocation, or for a span that small
// ones share (stream_ordered.h). The program's threads can allocate and free while extents move.
//
// If the driver has no fresh memory while the gate is open, but others have memory there that can be evicted, the new
// range counts as out of place before it is recorded: so the gate closes. Its memory is mapped once the others have
// evicted theirs. This waits neither for threads inside the gate nor for running work, since none has the address yet.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/function_ref.h"
#include "runtime/memory/backend.h"
#include "runtime/memory/swap/contents.h"
#include "runtime/memory/swap/copies.h"
#include "runtime/memory/swap/exports.h"
#include "runtime/memory/swap/fingerprints.h"
#include "runtime/memory/swap/mapper.h"
#include "runtime/memory/swap/mover.h"
#include "runtime/memory/swap/own_mappings.h"
#include "runtime/memory/swap/regions.h"
#include "runtime/memory/swap/sharing.h"
#include "runtime/memory/swap/store/host_store.h"
#include "runtime/memory/swap/swap_devices.h"
#include "runtime/memory/turns.h"
#include "scheduler/protocol/protocol.h"

namespace rota::memory {

class SwapBackend final : public Backend {
 public:
  using Found = Regions::Found;
  using Move = memory::Move;
  using Moved = memory::Moved;

  explicit SwapBackend(Turns& turns = WithoutTurns::instance()) { set_turns(turns); }
  // Before there are ranges.
  void set_turns(Turns& turns) {
    turns_ = &turns;
    mapper_.set_turns(turns);
  }
  // What lies in the ranges: by default each is one allocation. Call it before there are ranges.
  void set_contents(Contents& contents) {
    contents_ = &contents;
    mover_.set_contents(contents);
    exports_.set_contents(contents);
  }

  // --- Backend

  Backing backing() const override { return Backing::kSwapped; }
  // False if the GPU has no virtual memory management (before Pascal, some vGPUs).
  bool serves(int device) override { return devices_.of(device).serves; }
  bool reserve(int device, std::uint64_t bytes, std::uint64_t uncounted, bool& for_others) override;
  void release(int device, std::uint64_t bytes) override;
  api::CUresult allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) override;
  void place_allocation(const Place&, api::CUdeviceptr, std::uint64_t) override {}
  void set_access(const Place&, api::CUdeviceptr address, std::uint64_t, int accessing,
                  api::CUmemAccess_flags flags) override {
    sharing_.set_access(address, accessing, flags);
  }
  void context_ended(api::CUcontext context) override;
  Moved evict(int device, std::uint64_t bytes, const Move& move) override { return mover_.evict(device, bytes, move); }
  Moved restore(int device, const Move& move) override { return mover_.restore(device, move); }

  // --- any thread

  // kUnknown, or how memory is served instead because swap was never tested on such a GPU (untried.h).
  protocol::MemoryMode untried(int device) { return devices_.of(device).untried; }
  // What the sizes of extents must be a multiple of.
  std::uint64_t granularity(int device) { return devices_.of(device).granularity; }
  // Memory that the program creates itself: like allocate(), with a size that is a multiple of the granularity. Waits
  // for no work.
  api::CUresult allocate_own(int device, api::CUdeviceptr* address, std::uint64_t bytes, const Making& making);
  OwnMappings& own_mappings() { return own_mappings_; }
  Exports& exports() { return exports_; }
  // Whether its memory can be given to other processes.
  bool has_exportable_memory(int device) { return devices_.of(device).exports; }
  // The range that begins here is no longer used, and may serve another allocation like it. Waits for no work, only for
  // its extents if they are moving.
  void free(std::uint64_t address) { regions_.free(address); }
  // From now on nothing is evicted: the memory may be accessed without any call that rota sees.
  void pin(protocol::PinAll why) {
    regions_.cache_no_own();
    protocol::PinAll before = protocol::PinAll::kNo;
    pinned_.compare_exchange_strong(before, why);  // the first reason is reported
  }
  protocol::PinAll pinned_all() const { return pinned_.load(); }
  bool pinned() const { return pinned_all() != protocol::PinAll::kNo; }
  // The range that contains this address, which is in place and held there, stays on the GPU until it is freed.
  void pin(std::uint64_t address, protocol::Pin why) {
    const std::optional<int> device = regions_.pin(address, why);
    if (device) turns_->resident_changed(*device);
  }
  std::uint64_t pinned_bytes(int device) const { return regions_.pinned_bytes(device); }
  std::array<std::uint64_t, protocol::kPins> pinned_by(int device) const { return regions_.pinned_by(device); }

  // The same functions of the parts.
  bool any() const { return regions_.any(); }
  std::optional<Found> find(std::uint64_t address) const { return regions_.find(address); }
  bool begins(std::uint64_t address) const { return regions_.begins(address); }
  bool overlaps(std::uint64_t address, std::uint64_t bytes) const { return regions_.overlaps(address, bytes); }
  bool was_open(std::uint64_t address) const { return regions_.was_open(address); }
  std::uint64_t drop_kept(int device, std::uint64_t bytes = UINT64_MAX, const Exchange& exchange = {}) {
    return regions_.drop_kept(device, bytes, exchange);
  }
  void set_peer(int accessing, int owner, bool may) { sharing_.set_peer(accessing, owner, may); }
  Devices reachers(int device) const { return sharing_.reachers(device); }
  Devices reachable(Devices devices) const { return sharing_.reachable(devices); }
  std::uint64_t resident_bytes(int device) const { return mapper_.resident_bytes(device); }
  std::uint64_t out_bytes(int device) const { return regions_.out_bytes(device); }
  std::uint64_t needed_bytes(int device) const { return regions_.needed(device); }
  // Memory of rota's own that a context needs besides extents: it has to fit on the GPU as well.
  void add_overhead(int device, std::uint64_t bytes) { overhead_[static_cast<std::size_t>(device)] += bytes; }
  void take_overhead(int device, std::uint64_t bytes) { overhead_[static_cast<std::size_t>(device)] -= bytes; }
  std::uint64_t overhead_bytes(int device) const { return overhead_[static_cast<std::size_t>(device)].load(); }
  bool in_place(Devices devices) const { return regions_.in_place(devices); }
  bool all_in_place() const { return in_place(kAllDevices); }
  bool if_in_place(Devices devices, FunctionRef<void()> work) { return regions_.if_in_place(devices, work); }
  bool use_if_in_place(Devices devices, FunctionRef<void()> open) { return regions_.use_if_in_place(devices, open); }
  std::optional<bool> try_use_if_in_place(Devices devices, FunctionRef<void()> open) {
    return regions_.try_use_if_in_place(devices, open);
  }

  // --- the monitor

  bool prepare_host(const std::vector<Overcommitment>& all) { return copies_.prepare(all); }
  std::uint64_t give_host_back(std::uint64_t bytes = UINT64_MAX, bool unused_too = false) {
    return copies_.give_back(bytes, unused_too);
  }
  void count_copies() { copies_.count(); }
  HostPool& host() { return host_; }
  const HostPool& host() const { return host_; }
  // An error that cannot be cleared has ended all work of this context: releases its memory and no longer waits for any
  // of it. Null: all contexts of the GPU have ended so; releases what belongs to none. Returns the bytes that were on
  // the GPU.
  std::uint64_t context_failed(api::CUcontext context, int device) { return regions_.context_failed(context, device); }
  // What is evicted will never be restored: releases everything, so that others can have the memory. All of it stays
  // out of place.
  void release_all() { regions_.release_all(); }

 private:
  class ClosesGate;
  std::uint64_t most(int device);
  api::CUresult make(Range&& range, api::CUdeviceptr* address);

  Turns* turns_;
  WholeRanges whole_ranges_;
  Contents* contents_ = &whole_ranges_;
  HostPool host_;
  HostStore store_{host_};
  Fingerprints fingerprints_;
  SwapDevices devices_;
  Mapper mapper_;
  Regions regions_{devices_, mapper_, store_};
  Sharing sharing_{regions_};
  OwnMappings own_mappings_{regions_, sharing_};
  Exports exports_{regions_, whole_ranges_};
  Copies copies_{regions_, host_, store_};
  Mover mover_{{devices_, mapper_, regions_, copies_, host_, store_, fingerprints_, &whole_ranges_}};
  std::array<std::atomic<std::uint64_t>, kMaxDevices> overhead_{};
  std::atomic<protocol::PinAll> pinned_{protocol::PinAll::kNo};
};

}  // namespace rota::memory
