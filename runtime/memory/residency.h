// What the code that takes turns asks of memory: how much of it is on each GPU, and that it be evicted and restored.
// Memory (memory.h) implements it, a test as it likes; turns.h is the other direction.
//
// Bytes everywhere. `device` is the driver's ordinal, from 0 to below kMaxDevices unless something else is said.
// Nothing is called with a lock held that memory or the code that takes turns waits for, except for what says so.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/core/devices.h"
#include "runtime/core/function_ref.h"
#include "runtime/memory/ledger.h"
#include "runtime/memory/move.h"
#include "runtime/memory/settings.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/pages.h"
#include "scheduler/protocol/protocol.h"

namespace rota::memory {

class Turns;

class Residency {
 public:
  virtual ~Residency() = default;

  // The object that takes turns with this memory, as long as it lives; null: there is none. Call it before memory is
  // allocated, and once no more is.
  virtual void set_turns(Turns* turns) = 0;

  // --- figures; any thread, with any lock held. They are loads, except for mode().

  virtual Ledger& ledger() = 0;
  virtual const Settings& settings() const = 0;
  // What rotad is told of a GPU.
  struct Sums {
    std::uint64_t live = 0;                                  // the ledger's
    std::uint64_t fixed = 0;                                 // of that, what cannot be evicted
    std::uint64_t resident = 0;                              // extents on the GPU
    std::uint64_t pinned = 0;                                // of them, those that are pinned,
    std::array<std::uint64_t, protocol::kPins> pinned_by{};  // by protocol::Pin
    friend bool operator==(const Sums&, const Sums&) = default;
  };
  virtual Sums sums(int device) const = 0;
  // resident_bytes(): extents on the GPU, used or not. out_bytes(): those that are evicted. needed_bytes(): what has to
  // be on the GPU at once when this process runs: extents in use or about to be, and what rota has there for itself.
  virtual std::uint64_t resident_bytes(int device) const = 0;
  virtual std::uint64_t out_bytes(int device) const = 0;
  virtual std::uint64_t needed_bytes(int device) const = 0;
  // How plain memory on this GPU is served, and why. May ask the driver the first time. Any ordinal.
  virtual protocol::MemoryMode mode(int device) = 0;
  // Whether there has ever been an extent.
  virtual bool has_extents() const = 0;
  // reachers(): the GPUs whose work may use memory of this one, itself included. reachable(): the GPUs whose memory
  // work of these may use.
  virtual Devices reachers(int device) const = 0;
  virtual Devices reachable(Devices devices) const = 0;

  // --- the GPU of an address or array, on it or not; any thread, with no lock held

  // Negative: it is not device memory. `booked`: set if the ledger says so; may be null.
  virtual int device_of(api::CUdeviceptr address, bool* booked) const = 0;
  // Negative: not known, as of a level of a mipmapped one.
  virtual int device_of_array(const void* handle) const = 0;

  // --- what lets a gate open; any thread, with no lock held

  // Whether all memory of these GPUs is where work expects it.
  virtual bool in_place(Devices devices) const = 0;
  bool all_in_place() const { return in_place(kAllDevices); }
  // Runs `work` if it is, under the lock that keeps allocations from ending up out of place during that.
  virtual bool if_in_place(Devices devices, FunctionRef<void()> work) = 0;
  // The same for work that opens these GPUs' gates: from then on memory there may be written.
  virtual bool use_if_in_place(Devices devices, FunctionRef<void()> open) = 0;
  // Nothing: another thread holds the lock, perhaps for ever: a signal handler may have interrupted it and not return.
  virtual std::optional<bool> try_use_if_in_place(Devices devices, FunctionRef<void()> open) = 0;
  // From now on nothing is evicted: the memory may be accessed without any call that rota sees.
  virtual void pin_all(protocol::PinAll why) = 0;
  // Why pin_all() was called; kNo: it was not.
  virtual protocol::PinAll pinned_all() const = 0;
  bool all_pinned() const { return pinned_all() != protocol::PinAll::kNo; }

  // --- frees; any thread, with no lock held, except for collect_deferred()

  // Set by the client: whether a rotad serves this process on the GPU. Existing allocations stay what they are. Any
  // ordinal.
  virtual void set_served(int device, bool served) = 0;
  // Whether memory that was freed in stream order still has to be freed in the driver.
  virtual bool has_deferred() const = 0;
  // Checks which frees the streams have passed: their bytes count as free. Does not wait. Returns whether there was
  // anything to check.
  virtual bool sweep_deferred() = 0;
  // Frees in the driver what the streams have passed. Only while the gate is closed and nothing of this process runs on
  // a GPU (a drain has said so), with some context current, and under the lock that keeps contexts from being
  // destroyed: the driver's free waits for running work, and every other call of the process with it. With an owner,
  // which is a context: frees only that context's memory, right after the driver itself has waited for its work.
  virtual void collect_deferred(const std::optional<Owner>& owner = std::nullopt) = 0;
  // The driver is out of memory: gives back to it what is cached for later allocations. Returns the bytes.
  virtual std::uint64_t drop_kept(int device) = 0;

  // --- extents; the monitor, with nothing of this process running on the GPU and its gate closed

  // evict() moves extents off the GPU until others can have `bytes` more there, or as far as possible; restore() moves
  // them back before work runs.
  virtual Moved evict(int device, std::uint64_t bytes, const Move& move) = 0;
  virtual Moved restore(int device, const Move& move) = 0;
  // An error that cannot be cleared has ended all work of this context: releases its memory and no longer waits for any
  // of it. Null: all contexts of the GPU have ended so; releases what belongs to none. Returns the bytes that were on
  // the GPU. Under the lock that keeps contexts from being destroyed.
  virtual std::uint64_t context_failed(api::CUcontext context, int device) = 0;
  // What is evicted will never be restored: releases everything, so that others can have the memory. All of it stays
  // out of place.
  virtual void release_all() = 0;
  // A context of rota's own, in which extents were moved, has ended.
  virtual void own_context_ended(api::CUcontext context) = 0;

  // --- Unified Memory; the monitor

  // When the lease has come back: what is to move to the GPU, in this order (move_order.h), except for what the program
  // wants elsewhere. At most `most` bytes together with what cannot move.
  virtual std::vector<Allocation> to_bring(int device, std::uint64_t most) = 0;
  // Starts moving it. `stream` and the current context belong to `device`. Returns the bytes requested.
  virtual std::uint64_t bring(int device, api::CUstream stream, const std::vector<Allocation>& ranges) = 0;
  // Before the lease goes to a process that needs the memory: starts moving this many bytes to the host, or as many as
  // there are. Returns the bytes requested.
  virtual std::uint64_t move_out(int device, api::CUstream stream, std::uint64_t bytes) = 0;

  // --- host memory that holds extents; the monitor, with no lock held

  // rotad's pages, which say how much there may be; null: there are none, and no limit. The pages are never unmapped.
  // `tell` is called, by any thread, when rotad has to read what this process has written there.
  virtual void follow_host_share(protocol::UsagePage* usage, const protocol::LeasePage* lease,
                                 std::function<void()> tell) = 0;
  // In this order: how much there is, the part that holds nothing, whether there is a limit, and how much has to be
  // released because of it.
  virtual std::uint64_t host_bytes() const = 0;
  virtual std::uint64_t kept_host_bytes() const = 0;
  virtual bool host_limited() const = 0;
  virtual std::uint64_t host_excess() const = 0;
  // Whether the host is low on memory; the answer may be some milliseconds old. False while there is none here.
  virtual bool host_low() = 0;
  // Counts the copies of what is on the GPU, which can be given up, for what rotad is told.
  virtual void count_copies() = 0;
  // This process waits for no more host memory than it has.
  virtual void needs_no_more_host() = 0;
  // Prepares a little more for extents on these GPUs that have none yet, up to as many bytes as may have to be evicted.
  // False: there is enough, or the host has none to spare. Calls no driver.
  virtual bool prepare_host(const std::vector<Overcommitment>& all) = 0;
  virtual bool has_prepared_host() const = 0;
  virtual void drop_prepared_host() = 0;
  // With some context current, and no work of the process running. trim_host() releases what holds nothing.
  // give_host_back() releases `bytes`, or as much as it can without losing anything; with `unused_too` also copies of
  // extents that were restored and not used yet. Both return the bytes.
  virtual std::uint64_t trim_host() = 0;
  virtual std::uint64_t give_host_back(std::uint64_t bytes, bool unused_too) = 0;

  // --- what other processes open; the monitor

  // A process that opens this process's memory is at the other end.
  virtual void serve_opener(Descriptor&& socket) = 0;
  // The process exits: gives no more answers. Waits for an answer that is being given, at most a second.
  virtual void stop_serving() = 0;
};

}  // namespace rota::memory
