// The simulated driver of one process: devices, contexts and all objects with handles.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/simgpu/device_figures.h"
#include "tools/simgpu/driver/capture/capture.h"
#include "tools/simgpu/driver/entry/errors.h"
#include "tools/simgpu/driver/event/event.h"
#include "tools/simgpu/driver/graph/graph.h"
#include "tools/simgpu/driver/ipc/ipc.h"
#include "tools/simgpu/driver/launch/host_function.h"
#include "tools/simgpu/driver/launch/kernels.h"
#include "tools/simgpu/driver/memory/address_space.h"
#include "tools/simgpu/driver/memory/managed.h"
#include "tools/simgpu/driver/memory/physical.h"
#include "tools/simgpu/driver/module/modules.h"
#include "tools/simgpu/driver/pool/pool.h"
#include "tools/simgpu/driver/stream/stream.h"
#include "tools/simgpu/profile.h"
#include "tools/simgpu/state/options.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {

struct Array;
struct MipmappedArray;

struct Context {
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  int gpu = 0;
  bool primary = false;
  std::atomic<unsigned> flags{0};
  unsigned api_version = 3020;
  uint64_t id = 0;
  uint64_t charged = 0;  // device bytes of the context itself
  // The first error on the GPU; it stays until the context is destroyed. 0: none.
  std::atomic<int> sticky{0};
  std::atomic<bool> destroyed{false};

  std::mutex mutex;  // the fields below; also makes "look at other streams' last tasks, then queue" one step
  StreamPointer legacy;
  StreamPointer markers;  // runs work that belongs to no stream: cuCtxRecordEvent
  std::map<uint64_t, StreamPointer> per_thread;
  std::set<StreamPointer, ByAge> streams;
  std::set<StreamPointer, ByAge> ending;  // destroyed by the program while work was still queued
  std::vector<Record> waits;              // cuCtxWaitEvent: what streams created later wait for
  std::map<int, size_t> limits;
  int attached = 1;           // cuCtxAttach and cuCtxDetach
  std::set<CUcontext> peers;  // whose memory this context may access
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;

  // Frees what other threads created in the context while it was being destroyed. No such call is in progress any more.
  ~Context();
  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
  // Records an error on the GPU; the first one sticks.
  void fail(CUresult error) {
    int none = 0;
    sticky.compare_exchange_strong(none, error);
  }
  // Every stream that has ever queued something. Under mutex.
  std::vector<StreamPointer> all_streams() const;
};
using ContextPointer = std::shared_ptr<Context>;

// Handles that the program holds, and their objects. An invalid or stale handle is an error, not a crash.
template <class Handle, class Object>
class Registry {
 public:
  Handle add(std::shared_ptr<Object> object) {
    auto handle = reinterpret_cast<Handle>(object.get());
    std::unique_lock lock(mutex_);
    objects_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<Object> find(Handle handle) const {
    std::shared_lock lock(mutex_);
    auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> remove(Handle handle) {
    std::unique_lock lock(mutex_);
    auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  // Removes and returns the objects for which the predicate is true.
  template <class Predicate>
  std::vector<std::shared_ptr<Object>> remove_all(Predicate predicate) {
    std::vector<std::shared_ptr<Object>> removed;
    std::unique_lock lock(mutex_);
    for (auto entry = objects_.begin(); entry != objects_.end();) {
      if (predicate(*entry->second)) {
        removed.push_back(std::move(entry->second));
        entry = objects_.erase(entry);
      } else {
        ++entry;
      }
    }
    return removed;
  }
  std::vector<std::shared_ptr<Object>> all() const {
    std::vector<std::shared_ptr<Object>> found;
    std::shared_lock lock(mutex_);
    found.reserve(objects_.size());
    for (const auto& [handle, object] : objects_) found.push_back(object);
    return found;
  }
  bool empty() const {
    std::shared_lock lock(mutex_);
    return objects_.empty();
  }
  template <class Predicate>
  void remove_if(Predicate predicate) {
    std::unique_lock lock(mutex_);
    for (auto entry = objects_.begin(); entry != objects_.end();) {
      entry = predicate(*entry->second) ? objects_.erase(entry) : std::next(entry);
    }
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
};

// Memory with CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, by buffer id. Ids are never reused, so entries need not be removed.
class SynchronousMemory {
 public:
  void set(uint64_t buffer_id, bool on) {
    std::unique_lock lock(mutex_);
    if (on) {
      buffers_.insert(buffer_id);
    } else {
      buffers_.erase(buffer_id);
    }
  }
  bool has(uint64_t buffer_id) const {
    std::shared_lock lock(mutex_);
    return buffers_.count(buffer_id) != 0;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::set<uint64_t> buffers_;
};

// Memory for one object at a time: each object has the address of the previous one, which must have been destroyed.
class KeptBlock {
 public:
  void* take(size_t bytes) {
    std::lock_guard lock(mutex_);
    if (block_ == nullptr) block_ = ::operator new(bytes_ = bytes);
    if (used_ || bytes != bytes_) return ::operator new(bytes);
    used_ = true;
    return block_;
  }
  void give(void* block) {
    std::lock_guard lock(mutex_);
    if (block == block_) {
      used_ = false;
    } else {
      ::operator delete(block);
    }
  }

 private:
  std::mutex mutex_;
  void* block_ = nullptr;
  size_t bytes_ = 0;
  bool used_ = false;
};

// For std::allocate_shared.
template <typename T>
struct InKeptBlock {
  using value_type = T;
  explicit InKeptBlock(KeptBlock* kept) : kept(kept) {}
  template <typename Other>
  InKeptBlock(const InKeptBlock<Other>& other) : kept(other.kept) {}  // NOLINT: allocators convert
  T* allocate(size_t count) { return static_cast<T*>(kept->take(count * sizeof(T))); }
  void deallocate(T* block, size_t) { kept->give(block); }
  template <typename Other>
  friend bool operator==(const InKeptBlock& one, const InKeptBlock<Other>& other) {
    return one.kept == other.kept;
  }
  KeptBlock* kept;
};

struct Device {
  std::mutex mutex;
  KeptBlock primary_memory;  // NVIDIA's driver gives a primary context the handle of the previous one (seen on an H100)
  ContextPointer primary;
  unsigned retained = 0;
  unsigned primary_flags = 0;
};

class Driver {
 public:
  // The process's driver, created by the first call and never destroyed: streams' threads outlive static destructors.
  static Driver& get();

  CUresult initialise();
  bool initialised() const { return state_.load(std::memory_order_acquire) != nullptr; }
  SharedState& state() { return *state_.load(std::memory_order_acquire); }
  const Profile& profile() { return state().profile(); }
  const DeviceFigures& device_figures() const;
  static bool eager_loading();  // CUDA_MODULE_LOADING=EAGER

  // The calling thread's current context, or why none can be used.
  CUresult current(ContextPointer* context);
  // For a call in a stream: if no context is current, that of the stream, unless it is a default stream.
  CUresult current_for(CUstream stream, ContextPointer* context);
  // The calling thread's stack of contexts; the last is current. May hold contexts that were destroyed since.
  static std::vector<CUcontext>& stack();
  static CUstreamCaptureMode& thread_capture_mode();
  CUresult context_of(CUcontext handle, ContextPointer* context);

  CUresult create_context(int gpu, unsigned flags, bool primary, unsigned api_version, ContextPointer* context);
  // Returns when all work queued in the context's streams has completed.
  void wait_for(Context& context);
  // Waits for its work and frees everything that it holds.
  void destroy_context(const ContextPointer& context);
  // Removes its events, modules and arrays, and frees its memory.
  void release_contents(Context& context);

  // reach_check.h: called when a call's work is about to begin, with the GPUs that it reaches. May be null.
  std::atomic<void (*)(uint64_t devices)> reach_watch{nullptr};
  void tell_reach(uint64_t devices) const {
    if (auto* const watch = reach_watch.load(std::memory_order_relaxed)) watch(devices);
  }
  // The context of a stream; null if it has been destroyed.
  ContextPointer owner_of(const Stream& stream) const {
    return contexts.find(reinterpret_cast<CUcontext>(stream.context));
  }
  CUresult stream_of(CUstream handle, Form form, const ContextPointer& current, StreamPointer* stream);
  // Queues work in a stream, or adds it to the graph that the stream captures. `finished` receives the task; null if
  // captured. Some work is built for the capture that the stream was found in, or for a stream that does not capture
  // (kNoCapture): it is refused (illegal state) if another thread has ended or begun a capture there meanwhile.
  static constexpr std::nullptr_t kNoCapture = nullptr;
  CUresult submit(const StreamPointer& stream, Operation operation, TaskPointer* finished = nullptr,
                  const std::optional<CapturePointer>& found = std::nullopt);
  CUresult submit_after(const StreamPointer& stream, std::vector<TaskPointer> after, TaskPointer* finished,
                        std::function<void()> work = nullptr);
  // Returns 900 if this call is forbidden during a capture, and invalidates that capture.
  CUresult check_unsafe_call();

  // cuMemFree, and with `host` cuMemFreeHost: frees memory once its context's work no longer needs it; for memory from
  // a pool, also the current context's work. Waits for that work, except for memory of a pool on a GPU.
  CUresult free_memory(const ContextPointer& current, uint64_t address, bool host);
  void release(const Allocation& allocation);
  // Evicting managed memory for others takes this many nanoseconds; pass them to push_out() without holding a lock.
  CUresult allocate_device(Context& context, uint64_t bytes, uint64_t* address, int64_t* pushing_out);
  void push_out(Context& context, int64_t nanoseconds);
  // Calls take(), which asks the shared state for device memory. If that fails, frees the pools' unused memory and
  // tries again. The caller must not hold a pool's lock or one that the end of a task may need.
  template <class Take>
  auto with_room(Take take) {
    auto taken = take();
    if (taken) return taken;
    for (const PoolPointer& pool : pools.all()) pool->trim(0);
    return take();
  }
  // Plain device memory from the shared state. False: out of memory.
  bool take_device_bytes(int gpu, uint64_t bytes, Migration* migration);
  // The host has waited for work: pools release unused memory above their thresholds.
  void pools_synchronised();
  // Moves what must move when the GPU uses (or prefetches) managed memory, and adds the modelled time. -1: the GPU that
  // it was allocated on.
  void make_resident(uint64_t address, uint64_t bytes, Access access, int64_t* nanoseconds, int gpu = -1);

  // Occupies the engine for the modelled time and waits until that is over.
  void occupy(Context& context, EngineKind engine, int64_t nanoseconds, Link link = Link::kFull);

  Options options;
  AddressSpace memory;
  Captures captures;
  Kernels kernels;
  std::array<Device, kMaxGpus> devices;
  Registry<CUcontext, Context> contexts;
  Registry<CUstream, Stream> streams;
  Registry<CUevent, Event> events;
  Registry<CUgraph, Graph> graphs;
  Registry<CUgraphExec, GraphExec> graph_execs;
  Registry<CUmodule, Module> modules;
  Registry<CUlibrary, Library> libraries;
  VariableAddresses variable_addresses;
  Registry<CUfunction, Function> functions;  // CUkernel handles too: the driver accepts either in place of the other
  Registry<CUmemoryPool, Pool> pools;
  CurrentPools current_pools;
  PhysicalMemory physical_memory;
  ImportedMemory imported_memory;
  Registry<CUarray, Array> arrays;
  Registry<CUmipmappedArray, MipmappedArray> mipmapped_arrays;
  ManagedRanges managed_ranges;
  SynchronousMemory synchronous_memory;

 private:
  Driver();
  CUresult free_pool_memory(const ContextPointer& current, const Allocation& allocation);
  std::mutex initialise_mutex_;
  std::atomic<SharedState*> state_{nullptr};
  CUresult initialise_result_ = CUDA_ERROR_NOT_INITIALIZED;
  bool tried_ = false;
  std::atomic<uint64_t> next_context_id_{1};
};

// At most one scheduling flag, and no unknown flags.
inline bool valid_context_flags(unsigned flags) {
  unsigned scheduling = flags & CU_CTX_SCHED_MASK;
  return (flags & ~unsigned{CU_CTX_FLAGS_MASK}) == 0 && (scheduling & (scheduling - 1)) == 0;
}

// The calling thread's number, never reused by another thread.
uint64_t thread_number();

inline Driver& driver() {
  return Driver::get();
}

// Under ROTA_SIM_READY().
inline bool is_device(CUdevice device) {
  return device >= 0 && device < driver().state().gpus();
}

// The start of nearly every exported function: checks that the driver is initialised, that the call does not come from
// a host function in a stream, and that this thread has a usable context.
#define ROTA_SIM_READY()                                                                    \
  if (!::rota::sim::driver().initialised()) return ::rota::api::CUDA_ERROR_NOT_INITIALIZED; \
  if (::rota::sim::in_host_function()) return ::rota::api::CUDA_ERROR_NOT_PERMITTED
#define ROTA_SIM_CONTEXT(name)                                                                                    \
  ROTA_SIM_READY();                                                                                               \
  ::rota::sim::ContextPointer name;                                                                               \
  if (::rota::api::CUresult failed_ = ::rota::sim::driver().current(&name); failed_ != ::rota::api::CUDA_SUCCESS) \
  return failed_
// The same for a call in a stream, which needs no current context unless the stream is that of one.
#define ROTA_SIM_CONTEXT_FOR(stream, name)                                              \
  ROTA_SIM_READY();                                                                     \
  ::rota::sim::ContextPointer name;                                                     \
  if (::rota::api::CUresult failed_ = ::rota::sim::driver().current_for(stream, &name); \
      failed_ != ::rota::api::CUDA_SUCCESS)                                             \
  return failed_
#define ROTA_SIM_CHECK(expression) \
  if (::rota::api::CUresult failed_ = (expression); failed_ != ::rota::api::CUDA_SUCCESS) return failed_

}  // namespace rota::sim
