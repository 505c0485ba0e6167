// Where this process's memory comes from: one place that every allocating and freeing override goes through, so that
// the ledger and the limit see all of it.
//
// With the managed backend, plain allocations are served as Unified Memory of the allocating device (preferred location
// set, prefetched while the process holds the lease), so that two processes can each have more than half of a GPU. What
// the program gets then differs in one visible respect: CU_POINTER_ATTRIBUTE_IS_MANAGED tells the truth.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/driver/own_streams.h"
#include "runtime/memory/ledger.h"
#include "runtime/memory/physical.h"
#include "runtime/memory/settings.h"
#include "runtime/turn/contexts.h"
#include "runtime/turn/gate.h"

namespace rota::memory {

class Memory {
 public:
  Memory(gate::Gate& gate, Ledger& ledger, Settings settings);

  // Told by the client: whether a rotad serves this process (the automatic backend then is managed), and whom to tell
  // that a GPU's bytes have changed.
  void set_served(bool served) { served_.store(served, std::memory_order_relaxed); }
  void set_observer(std::function<void(int device)> changed) { changed_ = std::move(changed); }

  // --- overrides; results are the driver's own, or CUDA_ERROR_OUT_OF_MEMORY for what the limit forbids
  api::CUresult allocate(api::CUdeviceptr* address, std::size_t bytes);
  api::CUresult allocate_pitch(api::CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height,
                               unsigned element_bytes);
  // Any route that is left as it is: `call` is the real allocation, `address` tells afterwards what it gave, `stream`
  // is that of a stream-ordered one.
  api::CUresult allocate_native(std::uint64_t bytes, Kind kind, const std::function<api::CUresult()>& call,
                                const std::function<std::uint64_t()>& address, api::CUstream stream = nullptr);
  // cuMemAllocAsync and its kin. What a stream under capture allocates belongs to the graph, whose end no call of ours
  // sees: not counted, or a program that captures again and again would run out of room that it has.
  api::CUresult allocate_async(std::uint64_t bytes, api::CUstream stream, bool per_thread,
                               const std::function<api::CUresult()>& call,
                               const std::function<std::uint64_t()>& address);
  // Frees by the real call `call`, whatever route the memory came by.
  api::CUresult free(std::uint64_t address, const std::function<api::CUresult()>& call);
  // cuMemFreeAsync: `call` is the real one. Converted memory is freed once the stream has come this far.
  api::CUresult free_async(api::CUdeviceptr address, api::CUstream stream, bool per_thread,
                           const std::function<api::CUresult()>& call);
  api::CUresult info(std::size_t* free_bytes, std::size_t* total_bytes);
  api::CUresult ipc_handle(api::CUipcMemHandle* handle, api::CUdeviceptr address);

  // Memory of a context that has just ended.
  void context_ended(api::CUcontext context);
  // Physical memory of cuMemCreate.
  Physical& physical() { return physical_; }

  // The monitor, when the lease came back: starts moving this process's memory to the GPU. `stream` and the context
  // belong to `device`. Bytes asked for.
  std::uint64_t prefetch_all(int device, api::CUstream stream);

  // Reserves room or says why not (once, at level info).
  bool reserve(int device, std::uint64_t bytes, Kind kind);
  void changed(int device) {
    if (changed_) changed_(device);
  }
  Ledger& ledger() { return ledger_; }
  const Settings& settings() const { return settings_; }

  void after_fork_in_child();

 private:
  struct Here {
    api::CUcontext context = nullptr;
    int device = 0;
  };
  struct LateFree {
    api::CUdeviceptr address;
    api::CUevent event;
    api::CUcontext context;
  };
  struct Device {
    std::atomic<bool> known{false};
    std::uint64_t total_bytes = 0;
    bool can_manage = false;
    std::map<unsigned, std::size_t> pitch_unit;  // by element size
  };

  static bool here(Here& place);
  // Where memory of this stream lies: on the GPU of its context, whichever context is current (there need be none).
  static bool here(Here& place, api::CUstream stream);
  Device& device(int ordinal);
  bool converts(int ordinal);
  std::uint64_t capacity(int ordinal);
  api::CUresult allocate_managed(const Here& place, api::CUdeviceptr* address, std::uint64_t bytes);
  void settle(const Here& place, api::CUdeviceptr address, std::uint64_t bytes);
  std::size_t pitch_unit(int ordinal, unsigned element_bytes);
  void free_late_ones();

  gate::Gate& gate_;
  Ledger& ledger_;
  Settings settings_;
  Physical physical_;
  std::function<void(int)> changed_;
  std::atomic<bool> served_{false};
  std::atomic<bool> exports_{false};  // this process hands memory to others: allocations stay native from then on
  std::array<Device, kMaxDevices> devices_;
  std::mutex devices_mutex_;
  driver::OwnStreams streams_;
  std::vector<LateFree> late_;
  std::mutex late_mutex_;
  std::atomic<std::size_t> late_count_{0};
};

// Device bytes of an array, all levels of a mipmapped one; 0 for what takes no memory by itself (sparse, deferred).
std::uint64_t array_bytes(std::uint64_t width, std::uint64_t height, std::uint64_t depth, unsigned channels,
                          api::CUarray_format format, unsigned flags, unsigned levels);

}  // namespace rota::memory
