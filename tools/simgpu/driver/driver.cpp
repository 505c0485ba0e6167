// The process's driver: initialisation, contexts and their threads' stacks.
#include "tools/simgpu/driver/driver.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/simgpu/driver/array/array.h"
#include "tools/simgpu/driver/device/visible_devices.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/entry/posed.h"
#include "tools/simgpu/driver/graph/state.h"
#include "tools/simgpu/thread_object.h"

namespace rota::sim {
namespace {

// Volatile: a copy made by simgpu-driver holds other values than the compiler sees here.
[[gnu::used]] const volatile Posed posed = {ROTA_SIM_POSED_MARK, 0, ROTA_SIM_POSED_END};

std::atomic<bool> forked{false};

// False: CUDA_VISIBLE_DEVICES leaves no GPU.
bool show_devices(SharedState& state) {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
  if (text == nullptr || mutated(Mutation::visible_devices_are_ignored)) return true;
  std::vector<DeviceUuid> uuids(static_cast<size_t>(state.machine_gpus()));
  for (size_t gpu = 0; gpu < uuids.size(); ++gpu) state.uuid(static_cast<int>(gpu), uuids[gpu].data());
  std::vector<int> devices = visible_devices(text, uuids);
  if (devices.empty()) return false;
  state.show(std::move(devices));
  return true;
}

}  // namespace

uint64_t thread_number() {
  static std::atomic<uint64_t> next{1};
  thread_local uint64_t number = next.fetch_add(1);
  return number;
}

Driver& Driver::get() {
  static auto* driver = new Driver;
  return *driver;
}

Driver::Driver() : options(Options::from_environment()) {
  // A posed driver has the exports of one version, so it cannot report another.
  if (posed.version != 0) options.driver_version = posed.version;
  // As with the real driver, a forked child of a process that initialised it cannot use it.
  pthread_atfork(nullptr, nullptr, [] {
    if (Driver::get().state_.exchange(nullptr) != nullptr) forked.store(true);
    forget_process_clock();
  });
}

CUresult Driver::initialise() {
  std::lock_guard lock(initialise_mutex_);
  if (forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (tried_) return initialise_result_;
  tried_ = true;
  if (!entry_error().empty()) {
    std::fprintf(stderr, "simgpu: %s\n", entry_error().c_str());
    return initialise_result_ = CUDA_ERROR_INVALID_VALUE;
  }
  const auto attached = SharedState::attach(options);
  if (!attached) {
    std::fprintf(stderr, "simgpu: %s\n", attached.error().text.c_str());
    return initialise_result_ = CUDA_ERROR_NO_DEVICE;
  }
  SharedState* const state = *attached;
  if (!show_devices(*state)) {
    delete state;
    return initialise_result_ = CUDA_ERROR_NO_DEVICE;
  }
  if (!memory.reserve()) {
    std::fprintf(stderr, "simgpu: cannot reserve address space for device memory: raise the limit (ulimit -v)\n");
    delete state;
    return initialise_result_ = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (options.context_bytes == 0) {  // a share of the GPUs' actual memory, whatever this process asked for
    const CostFigures& cost = state->profile().cost;
    options.context_bytes = std::min(static_cast<uint64_t>(cost.context_bytes),
                                     state->capacity() / static_cast<uint64_t>(cost.context_share));
  }
  if (!kernels.load(options.kernels)) {
    delete state;
    return initialise_result_ = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
  }
  if (process_clock().is_virtual()) entries_watched.store(true);  // each call takes its time
  state_.store(state, std::memory_order_release);
  return initialise_result_ = CUDA_SUCCESS;
}

const DeviceFigures& Driver::device_figures() const {
  return initialised() ? state_.load(std::memory_order_acquire)->profile().device : options.profile->device;
}

bool Driver::eager_loading() {
  static const bool eager = [] {
    const char* mode = std::getenv("CUDA_MODULE_LOADING");  // NOLINT(concurrency-mt-unsafe)
    return mode != nullptr && std::strcmp(mode, "EAGER") == 0;
  }();
  return eager;
}

std::vector<CUcontext>& Driver::stack() {
  static auto* shared = new std::vector<CUcontext>;
  return mutated(Mutation::threads_share_their_stack) ? *shared : ThreadObject<std::vector<CUcontext>>::get();
}

CUstreamCaptureMode& Driver::thread_capture_mode() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

CUresult Driver::current(ContextPointer* context) {
  std::vector<CUcontext>& contexts_of_thread = stack();
  if (contexts_of_thread.empty() || contexts_of_thread.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *context = contexts.find(contexts_of_thread.back());
  if (!*context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (state().lost((*context)->gpu)) return CUDA_ERROR_UNKNOWN;
  int sticky = (*context)->sticky.load(std::memory_order_acquire);
  if (mutated(Mutation::errors_do_not_stick)) return CUDA_SUCCESS;
  return static_cast<CUresult>(sticky);
}

// Measured on an H100, driver 580.159.
CUresult Driver::current_for(CUstream stream, ContextPointer* context) {
  const CUresult result = current(context);
  const bool of_current = stream == nullptr || stream == kLegacyStream || stream == kPerThreadStream;
  if (result != CUDA_ERROR_INVALID_CONTEXT || of_current || mutated(Mutation::streams_need_a_context)) return result;
  StreamPointer found = streams.find(stream);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  *context = owner_of(*found);
  if (!*context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (state().lost((*context)->gpu)) return CUDA_ERROR_UNKNOWN;
  return static_cast<CUresult>((*context)->sticky.load(std::memory_order_acquire));
}

CUresult Driver::context_of(CUcontext handle, ContextPointer* context) {
  if (handle == nullptr) return current(context);
  *context = contexts.find(handle);
  return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult Driver::create_context(int gpu, unsigned flags, bool primary, unsigned api_version, ContextPointer* out) {
  if (state().lost(gpu)) return CUDA_ERROR_UNKNOWN;
  const ContextPointer context =
      primary ? std::allocate_shared<Context>(InKeptBlock<Context>(&devices[static_cast<size_t>(gpu)].primary_memory))
              : std::make_shared<Context>();
  context->gpu = gpu;
  context->primary = primary;
  context->flags = flags;
  context->api_version = api_version;
  context->id = next_context_id_.fetch_add(1);
  context->legacy = std::make_shared<Stream>(context.get(), CU_STREAM_DEFAULT, 0);
  context->markers = std::make_shared<Stream>(context.get(), CU_STREAM_NON_BLOCKING, 0);
  Migration migration;
  context->charged = mutated(Mutation::contexts_take_no_memory) ? 0 : options.context_bytes;
  if (!take_device_bytes(gpu, context->charged, &migration)) return CUDA_ERROR_OUT_OF_MEMORY;
  contexts.add(context);
  *out = context;
  return CUDA_SUCCESS;
}

std::vector<StreamPointer> Context::all_streams() const {
  std::vector<StreamPointer> all{legacy, markers};
  for (const auto& [thread, stream] : per_thread) all.push_back(stream);
  all.insert(all.end(), streams.begin(), streams.end());
  all.insert(all.end(), ending.begin(), ending.end());
  return all;
}

void Driver::wait_for(Context& context) {
  std::vector<StreamPointer> streams;
  {
    std::lock_guard lock(context.mutex);
    streams = context.all_streams();
  }
  for (const StreamPointer& stream : streams) {
    if (TaskPointer last = stream->last()) last->wait();
  }
}

void Driver::destroy_context(const ContextPointer& context) {
  contexts.remove(context->handle());
  context->destroyed.store(true);
  end_foreign_waits(*context);
  std::vector<StreamPointer> ending;
  {
    std::lock_guard lock(captures.mutex);
    std::lock_guard lock_context(context->mutex);
    ending = context->all_streams();
    for (const StreamPointer& stream : ending) captures.leave(*stream);
    context->per_thread.clear();
    context->streams.clear();
    context->ending.clear();
  }
  for (const StreamPointer& stream : ending) {
    if (TaskPointer last = stream->last()) last->wait();
    streams.remove(stream->handle());
  }
  ending.clear();
  release_contents(*context);
  state().give_back(context->gpu, context->charged);
}

Context::~Context() {
  for (const StreamPointer& stream : streams) driver().streams.remove(stream->handle());
  driver().release_contents(*this);
}

void Driver::release_contents(Context& context) {
  CUcontext handle = context.handle();
  events.remove_if([handle](const Event& event) { return event.context == handle; });
  forget_modules(handle);
  release_arrays(handle);
  for (const Allocation& allocation : memory.of_context(handle)) {
    if (mutated(Mutation::destroyed_contexts_keep_memory)) break;
    // Measured on driver 580.159: memory from pools outlives the context.
    bool of_pool = allocation.pool && !allocation.imported;
    if (of_pool && !mutated(Mutation::pool_memory_goes_with_the_context)) continue;
    // Uses the current record, not the copy: it may have been exported or freed meanwhile.
    if (auto removed = memory.remove(allocation.address)) release(*removed);
  }
  if (!mutated(Mutation::graph_memory_goes_with_the_context)) return;
  for (const Allocation& allocation : memory.of_context(nullptr)) {
    if (auto graph_memory = graph_state().memory.find(allocation.address)) graph_state().memory.free(graph_memory);
  }
}

CUresult Driver::stream_of(CUstream handle, Form form, const ContextPointer& current, StreamPointer* stream) {
  if (handle == nullptr) {
    bool own = form == Form::kPerThread || mutated(Mutation::null_stream_is_the_threads_own);
    handle = own ? kPerThreadStream : kLegacyStream;
  }
  if (handle == kLegacyStream) {
    *stream = current->legacy;
    return CUDA_SUCCESS;
  }
  if (handle == kPerThreadStream) {
    bool made = false;
    {
      std::lock_guard lock(current->mutex);
      StreamPointer& own = current->per_thread[mutated(Mutation::threads_share_one_stream) ? 0 : thread_number()];
      made = !own;
      if (made) own = std::make_shared<Stream>(current.get(), CU_STREAM_DEFAULT, 0);
      *stream = own;
    }
    return made ? wait_as_context_does(*stream) : CUDA_SUCCESS;
  }
  *stream = streams.find(handle);
  return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult Driver::check_unsafe_call() {
  if (!captures.any()) return CUDA_SUCCESS;
  std::lock_guard lock(captures.mutex);
  return captures.unsafe_call(thread_capture_mode());
}

CUresult Driver::submit(const StreamPointer& stream, Operation operation, TaskPointer* finished,
                        const std::optional<CapturePointer>& found) {
  // Another thread may be destroying the stream's context: what is found here lives until this call ends.
  ContextPointer owner = contexts.find(reinterpret_cast<CUcontext>(stream->context));
  if (!owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Context& context = *owner;
  if (captures.any() || found.value_or(nullptr) != nullptr) {
    std::lock_guard lock(captures.mutex);
    if (found && stream->capture != *found) return CUDA_ERROR_ILLEGAL_STATE;
    if (stream->capture && !mutated(Mutation::captured_work_runs_at_once)) {
      if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      if (mutated(Mutation::captured_nodes_have_no_order)) stream->capture_tail.clear();
      GraphNode* node = stream->capture->graph->add(std::move(operation), stream->capture_tail);
      stream->capture_tail.assign(1, node);
      return CUDA_SUCCESS;
    }
    // The legacy stream would have to wait for the capturing one.
    if (stream == context.legacy && captures.has_blocking_capture(&context, true)) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  tell_reach(uint64_t{1} << context.gpu | operation.memory_on);
  auto task = std::make_shared<Task>();
  if (operation.run) {
    // A context outlives its streams' tasks. After a sticky error none of them runs any more.
    task->work = [&context, run = std::move(operation.run), despite_errors = operation.despite_errors] {
      if (despite_errors || context.sticky.load(std::memory_order_acquire) == 0) run(context);
    };
  }
  std::lock_guard lock(context.mutex);
  if (context.destroyed.load()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;  // nothing would wait for the task
  if (stream->destroyed) return CUDA_ERROR_INVALID_HANDLE;
  if (stream == context.legacy) {
    for (const StreamPointer& other : context.all_streams()) {
      if (other == stream || !other->blocking() || mutated(Mutation::legacy_stream_waits_for_nobody)) continue;
      TaskPointer last = other->last();
      if (last && !last->done()) task->after.push_back(std::move(last));
    }
  } else if (stream->blocking() && !mutated(Mutation::legacy_stream_holds_nobody)) {
    TaskPointer last = context.legacy->last();
    if (last && !last->done()) task->after.push_back(std::move(last));
  }
  if (finished != nullptr) *finished = task;
  stream->push(std::move(task));
  return CUDA_SUCCESS;
}

CUresult Driver::submit_after(const StreamPointer& stream, std::vector<TaskPointer> after, TaskPointer* finished,
                              std::function<void()> work) {
  auto task = std::make_shared<Task>();
  task->work = std::move(work);
  task->after = std::move(after);
  ContextPointer owner = contexts.find(reinterpret_cast<CUcontext>(stream->context));
  if (!owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  std::lock_guard lock(owner->mutex);
  if (owner->destroyed.load()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (stream->destroyed) return CUDA_ERROR_INVALID_HANDLE;
  if (finished != nullptr) *finished = task;
  stream->push(std::move(task));
  return CUDA_SUCCESS;
}

void Driver::occupy(Context& context, EngineKind engine, int64_t nanoseconds, Link link) {
  if (!state().waits()) return;
  Clock& clock = process_clock();
  int64_t& timeline = thread_timeline();
  if (engine != EngineKind::kCompute) {
    const CostFigures& cost = profile().cost;
    nanoseconds =
        static_cast<int64_t>(static_cast<double>(nanoseconds) * copy_slowdown) +
        (engine == EngineKind::kDeviceToHost ? cost.copy_fixed_device_to_host : cost.copy_fixed_host_to_device);
  }
  BookingRequest request{context.gpu, engine, context.id, timeline != 0 ? timeline : clock.now(), nanoseconds, link};
  while (request.nanoseconds > 0 && !context.destroyed.load(std::memory_order_relaxed)) {
    Booking booking = state().reserve(request);
    request.nanoseconds -= booking.nanoseconds;
    request.from = std::max(request.from, booking.until);
    if (timeline != 0) timeline = request.from;
    clock.sleep_until(request.from);
  }
  if (request.nanoseconds > 0) state().leave_line(request);  // the context has ended, and others wait behind it
}

void Driver::make_resident(uint64_t address, uint64_t bytes, Access access, int64_t* nanoseconds, int gpu) {
  auto allocation = memory.find(address);
  if (!allocation || allocation->managed_id == 0) return;
  Migration migration = state().touch(allocation->managed_id, address - allocation->address, bytes, access,
                                      gpu >= 0 ? gpu : allocation->gpu);
  *nanoseconds += migration.nanoseconds;
}

bool Driver::take_device_bytes(int gpu, uint64_t bytes, Migration* migration) {
  return with_room([&] { return state().take(gpu, bytes, migration); });
}

void Driver::pools_synchronised() {
  for (const PoolPointer& pool : pools.all()) pool->synchronised();
}

CUresult Driver::allocate_device(Context& context, uint64_t bytes, uint64_t* address, int64_t* pushing_out) {
  uint64_t charged = round_up(bytes, AddressSpace::kGranularity);
  Migration migration;
  if (charged < bytes || !take_device_bytes(context.gpu, charged, &migration)) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.gpu = context.gpu;
  allocation.context = context.handle();
  allocation.charged = charged;
  if (!memory.add_device(&allocation)) {
    state().give_back(context.gpu, charged);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = allocation.address;
  *pushing_out = migration.nanoseconds;
  return CUDA_SUCCESS;
}

void Driver::push_out(Context& context, int64_t nanoseconds) {
  if (nanoseconds > 0) occupy(context, EngineKind::kDeviceToHost, nanoseconds);
}

void Driver::release(const Allocation& allocation) {
  if (allocation.kind == MemoryKind::kManaged) managed_ranges.forget(allocation.address, allocation.bytes);
  if (allocation.charged != 0) state().give_back(allocation.gpu, allocation.charged);
  if (allocation.managed_id != 0) state().remove_managed(allocation.managed_id);
  if (allocation.pool && !allocation.imported) {
    allocation.pool->released(allocation);
    if (allocation.pool->on_gpu()) return;  // the pool keeps the bytes
  }
  // Pages that another process holds are not touched.
  bool last = allocation.shared_id == 0 || state().let_go(allocation.shared_id);
  AddressSpace::unmap(allocation, &memory, last || allocation.imported);
}

// Measured on driver 580.159: memory from a pool is freed without waiting. It is not reused before the work queued in
// its context and in the current one, if there is one, is over.
CUresult Driver::free_pool_memory(const ContextPointer& current, const Allocation& allocation) {
  if (!memory.remove(allocation.address, allocation.buffer_id)) return CUDA_ERROR_INVALID_VALUE;
  const ContextPointer own = contexts.find(allocation.context);
  const ContextPointer& marked = current ? current : own;
  std::vector<TaskPointer> before;
  for (const ContextPointer& context : std::set<ContextPointer>{own, current}) {
    if (!context) continue;
    std::lock_guard lock(context->mutex);
    for (const StreamPointer& stream : context->all_streams()) {
      TaskPointer last = stream->last();
      if (last && !last->done()) before.push_back(std::move(last));
    }
  }
  if (before.empty()) {
    release(allocation);
    return CUDA_SUCCESS;
  }
  auto pending = std::make_shared<Pool::Free>();
  auto over = [pool = allocation.pool, pending] {
    pending->over.store(true);
    pool->reached();
  };
  CUresult result = submit_after(marked->markers, std::move(before), &pending->task, over);
  if (result != CUDA_SUCCESS) {
    release(allocation);
    return result;
  }
  allocation.pool->freed(allocation.address, marked->markers->id, std::move(pending));
  return CUDA_SUCCESS;
}

CUresult Driver::free_memory(const ContextPointer& current, uint64_t address, bool host) {
  auto allocation = memory.find(address);
  if (!allocation || allocation->address != address) return CUDA_ERROR_INVALID_VALUE;
  if (variable_addresses.has(address)) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->physical || (allocation->imported && !allocation->pool)) return CUDA_ERROR_INVALID_VALUE;
  bool is_host = allocation->kind == MemoryKind::kHost && !allocation->pool;
  if (allocation->kind == MemoryKind::kRegistered || is_host != host) return CUDA_ERROR_INVALID_VALUE;
  bool of_pool = allocation->pool && !allocation->imported && allocation->pool->on_gpu();
  if (of_pool && !mutated(Mutation::frees_of_pool_memory_wait)) return free_pool_memory(current, *allocation);
  if (!mutated(Mutation::free_does_not_wait)) {
    // cuMemFree returns when no earlier work can still use the memory. The context of memory from a pool may already be
    // destroyed.
    if (ContextPointer context = contexts.find(allocation->context)) wait_for(*context);
    if (allocation->pool && current) wait_for(*current);
  }
  if (mutated(Mutation::frees_wait_for_every_context)) {
    for (const ContextPointer& context : contexts.all()) wait_for(*context);
  }
  auto removed = memory.remove(address, allocation->buffer_id);
  if (!removed) return CUDA_ERROR_INVALID_VALUE;  // another thread was first
  release(*removed);
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
