#include "runtime/memory/memory.h"

#include <algorithm>
#include <new>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/driver/answers.h"
#include "runtime/driver/capture_mode.h"
#include "runtime/driver/stream.h"

namespace rota::memory {

namespace {

// Prefetching less costs more than the fault that it saves.
constexpr std::uint64_t kWorthPrefetching = std::uint64_t{64} << 10;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The first forms take a device ordinal and are in every driver so far; the second ones came with CUDA 12.2.
api::CUresult prefetch(api::CUdeviceptr address, std::uint64_t bytes, int device, api::CUstream stream) {
  const api::CUresult result = real::cuMemPrefetchAsync(address, bytes, device, stream);
  if (!driver::lacks_function(result)) return result;
  const api::CUmemLocation location{.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return real::cuMemPrefetchAsync_v2(address, bytes, location, 0, stream);
}

api::CUresult prefer(api::CUdeviceptr address, std::uint64_t bytes, int device) {
  const api::CUresult result = real::cuMemAdvise(address, bytes, api::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device);
  if (!driver::lacks_function(result)) return result;
  const api::CUmemLocation location{.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return real::cuMemAdvise_v2(address, bytes, api::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location);
}

}  // namespace

Memory::Memory(gate::Gate& gate, Ledger& ledger, Settings settings)
    : gate_(gate), ledger_(ledger), settings_(settings) {}

bool Memory::here(Here& place) {
  api::CUdevice device = 0;
  if (real::cuCtxGetCurrent(&place.context) != api::CUDA_SUCCESS || place.context == nullptr) return false;
  if (real::cuCtxGetDevice(&device) != api::CUDA_SUCCESS) return false;
  place.device = device;
  return device >= 0 && device < kMaxDevices;
}

bool Memory::here(Here& place, api::CUstream stream) {
  const bool current = here(place);
  api::CUcontext context = nullptr;
  // NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD mean streams of the current context.
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2 || real::cuStreamGetCtx(stream, &context) != api::CUDA_SUCCESS ||
      context == nullptr || context == place.context || real::cuCtxPushCurrent_v2(context) != api::CUDA_SUCCESS) {
    return current;
  }
  const bool found = here(place);
  api::CUcontext popped = nullptr;
  real::cuCtxPopCurrent_v2(&popped);
  return found;
}

Memory::Device& Memory::device(int ordinal) {
  Device& entry = devices_[static_cast<std::size_t>(ordinal)];
  if (!entry.known.load(std::memory_order_acquire)) {
    const std::lock_guard lock(devices_mutex_);
    if (!entry.known.load(std::memory_order_relaxed)) {
      std::size_t total = 0;
      int concurrent = 0;
      real::cuDeviceTotalMem_v2(&total, ordinal);
      real::cuDeviceGetAttribute(&concurrent, api::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, ordinal);
      entry.total_bytes = total;
      // Without it managed memory is all moved at each launch, and the CPU may not touch any of it meanwhile.
      entry.can_manage = concurrent != 0;
      entry.known.store(true, std::memory_order_release);
    }
  }
  return entry;
}

bool Memory::converts(int ordinal) {
  if (settings_.backend == Backend::kNative || exports_.load(std::memory_order_relaxed)) return false;
  if (settings_.backend == Backend::kAutomatic && !served_.load(std::memory_order_relaxed)) return false;
  if (device(ordinal).can_manage) return true;
  static log::Once once;
  if (once.first()) log::info("GPU {} cannot page managed memory by itself: memory there stays native", ordinal);
  return false;
}

// A program has the whole GPU, and no more of it: where the driver's own refusal no longer holds (managed memory may be
// larger than the GPU), the ledger refuses in its place, so that programs which allocate until it fails come to an end.
// But for what the program itself takes as managed memory, which the driver never refused for that.
std::uint64_t Memory::capacity(int ordinal) {
  const std::uint64_t total = device(ordinal).total_bytes;
  return converts(ordinal) && total != 0 ? total : kNoLimit;
}

bool Memory::reserve(int ordinal, std::uint64_t bytes, Kind kind) {
  if (ordinal < 0 || ordinal >= kMaxDevices) return true;
  const std::uint64_t limit = settings_.limit_bytes;
  const std::uint64_t most = capacity(ordinal);
  if (ledger_.limit(ordinal) != limit) ledger_.set_limit(ordinal, limit);
  if (ledger_.capacity(ordinal) != most) ledger_.set_capacity(ordinal, most);
  if (ledger_.reserve(ordinal, bytes, kind)) return true;
  static log::Once once;
  if (once.first()) {
    log::info("{} bytes on GPU {} refused: {} of {} are in use{}", bytes, ordinal, ledger_.live_bytes(ordinal),
              std::min(limit, most), limit <= most ? " (ROTA_GPU_MEM_LIMIT)" : " (all of the GPU)");
  }
  return false;
}

api::CUresult Memory::allocate_native(std::uint64_t bytes, Kind kind, const std::function<api::CUresult()>& call,
                                      const std::function<std::uint64_t()>& address, api::CUstream stream) {
  Here place;
  if (bytes == 0 || !here(place, stream)) return call();  // the driver says what is wrong
  free_late_ones();
  if (!reserve(place.device, bytes, kind)) return api::CUDA_ERROR_OUT_OF_MEMORY;
  const api::CUresult result = call();
  if (result != api::CUDA_SUCCESS) {
    ledger_.release(place.device, bytes, kind);
    return result;
  }
  ledger_.add({.address = address(), .bytes = bytes, .context = place.context, .device = place.device, .kind = kind});
  changed(place.device);
  return result;
}

api::CUresult Memory::allocate_async(std::uint64_t bytes, api::CUstream stream, bool per_thread,
                                     const std::function<api::CUresult()>& call,
                                     const std::function<std::uint64_t()>& address) {
  return driver::captures(stream, per_thread) ? call() : allocate_native(bytes, Kind::kAsync, call, address, stream);
}

api::CUresult Memory::allocate(api::CUdeviceptr* address, std::size_t bytes) {
  Here place;
  if (address == nullptr || bytes == 0 || !here(place)) return real::cuMemAlloc_v2(address, bytes);
  if (!converts(place.device)) {
    return allocate_native(
        bytes, Kind::kPlain, [&] { return real::cuMemAlloc_v2(address, bytes); }, [&] { return *address; });
  }
  return allocate_managed(place, address, bytes);
}

api::CUresult Memory::allocate_managed(const Here& place, api::CUdeviceptr* address, std::uint64_t bytes) {
  free_late_ones();
  if (!reserve(place.device, bytes, Kind::kConverted)) return api::CUDA_ERROR_OUT_OF_MEMORY;
  const api::CUresult result = real::cuMemAllocManaged(address, bytes, api::CU_MEM_ATTACH_GLOBAL);
  if (result != api::CUDA_SUCCESS) {
    ledger_.release(place.device, bytes, Kind::kConverted);
    return result;
  }
  ledger_.add({.address = *address,
               .bytes = bytes,
               .context = place.context,
               .device = place.device,
               .kind = Kind::kConverted});
  settle(place, *address, bytes);
  changed(place.device);
  return result;
}

// Puts fresh managed memory where plain memory would have been. Failures cost time (faults), not correctness.
void Memory::settle(const Here& place, api::CUdeviceptr address, std::uint64_t bytes) {
  const driver::RelaxedCapture relaxed;
  prefer(address, bytes, place.device);
  if (bytes < kWorthPrefetching || !gate_.try_enter()) return;
  if (const api::CUstream stream = streams_.in(place.context); stream != nullptr) {
    prefetch(address, bytes, place.device, stream);
  }
  gate_.leave();
}

// The driver's own rule, asked of the driver: a row of one byte gets the pitch that every width is rounded up to.
std::size_t Memory::pitch_unit(int ordinal, unsigned element_bytes) {
  Device& entry = device(ordinal);
  {
    const std::lock_guard lock(devices_mutex_);
    if (const auto known = entry.pitch_unit.find(element_bytes); known != entry.pitch_unit.end()) return known->second;
  }
  api::CUdeviceptr probe = 0;
  std::size_t pitch = 0;
  if (real::cuMemAllocPitch_v2(&probe, &pitch, 1, 1, element_bytes) != api::CUDA_SUCCESS) return 0;
  real::cuMemFree_v2(probe);
  const std::lock_guard lock(devices_mutex_);
  return entry.pitch_unit[element_bytes] = pitch;
}

api::CUresult Memory::allocate_pitch(api::CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                     std::size_t height, unsigned element_bytes) {
  const auto call = [&] { return real::cuMemAllocPitch_v2(address, pitch, width, height, element_bytes); };
  Here place;
  if (address == nullptr || pitch == nullptr || width == 0 || height == 0 || !here(place)) return call();
  const std::size_t unit = pitch_unit(place.device, element_bytes);
  if (unit == 0 || width > SIZE_MAX - unit) return call();  // an element size that the driver refuses, and so on
  const std::size_t row = round_up(width, unit);
  if (height > SIZE_MAX / row) return call();
  if (!converts(place.device)) {
    return allocate_native(row * height, Kind::kPlain, call, [&] { return *address; });
  }
  const api::CUresult result = allocate_managed(place, address, row * height);
  if (result == api::CUDA_SUCCESS) *pitch = row;
  return result;
}

api::CUresult Memory::free(std::uint64_t address, const std::function<api::CUresult()>& call) {
  free_late_ones();
  // Taken out before the driver is asked: once it has taken the memory back, another thread may get the same address.
  const std::optional<Allocation> taken = ledger_.take(address);
  const api::CUresult result = call();
  if (!taken) return result;
  if (result != api::CUDA_SUCCESS) {
    ledger_.add(*taken);
    return result;
  }
  ledger_.release(taken->device, taken->bytes, taken->kind);
  changed(taken->device);
  return result;
}

api::CUresult Memory::free_async(api::CUdeviceptr address, api::CUstream stream, bool per_thread,
                                 const std::function<api::CUresult()>& call) {
  const std::optional<Allocation> owner = ledger_.find(address);
  if (!owner || owner->address != address || owner->kind != Kind::kConverted) return free(address, call);
  // A capture has no point in time to free it at.
  if (driver::captures(stream, per_thread)) return free(address, call);
  const std::optional<Allocation> taken = ledger_.take(address);
  if (!taken) return call();  // freed by another thread just now: the driver says what that is
  // The driver does not take managed memory here. An event behind the stream's work says when it may go.
  const driver::RelaxedCapture relaxed;
  LateFree late{address, nullptr, nullptr};
  api::CUcontext before = nullptr;
  real::cuCtxGetCurrent(&before);
  late.context = before;
  const auto get_context =
      per_thread ? real::cuStreamGetCtx_ptsz(stream, &late.context) : real::cuStreamGetCtx(stream, &late.context);
  const bool other = get_context == api::CUDA_SUCCESS && late.context != before &&
                     real::cuCtxPushCurrent_v2(late.context) == api::CUDA_SUCCESS;
  api::CUresult result = real::cuEventCreate(&late.event, api::CU_EVENT_DISABLE_TIMING);
  if (result == api::CUDA_SUCCESS) {
    result = per_thread ? real::cuEventRecord_ptsz(late.event, stream) : real::cuEventRecord(late.event, stream);
    if (result != api::CUDA_SUCCESS) real::cuEventDestroy_v2(late.event);
  }
  if (other) real::cuCtxPopCurrent_v2(&before);
  if (result != api::CUDA_SUCCESS) {
    ledger_.add(*taken);
    return result;
  }
  {
    const std::lock_guard lock(late_mutex_);
    late_.push_back(late);
    late_count_.store(late_.size(), std::memory_order_release);
  }
  ledger_.release(taken->device, taken->bytes, taken->kind);
  changed(taken->device);
  return result;
}

void Memory::free_late_ones() {
  if (late_count_.load(std::memory_order_acquire) == 0) return;
  const driver::RelaxedCapture relaxed;
  std::vector<LateFree> due;
  {
    const std::lock_guard lock(late_mutex_);
    std::erase_if(late_, [&](const LateFree& late) {
      if (real::cuEventQuery(late.event) == api::CUDA_ERROR_NOT_READY) return false;
      due.push_back(late);
      return true;
    });
    late_count_.store(late_.size(), std::memory_order_release);
  }
  // Without the lock: a free waits for all that the GPU has to do, which may itself wait for another thread of ours.
  for (const LateFree& late : due) {
    real::cuEventDestroy_v2(late.event);
    real::cuMemFree_v2(late.address);
  }
}

api::CUresult Memory::info(std::size_t* free_bytes, std::size_t* total_bytes) {
  const api::CUresult result = real::cuMemGetInfo_v2(free_bytes, total_bytes);
  Here place;
  if (result != api::CUDA_SUCCESS || free_bytes == nullptr || total_bytes == nullptr || !here(place)) return result;
  const std::uint64_t total = std::min<std::uint64_t>(*total_bytes, settings_.limit_bytes);
  const std::uint64_t left = total - std::min(total, ledger_.live_bytes(place.device));
  // Managed: the GPU's real free memory says who lies there now, not what this program may take.
  *free_bytes = converts(place.device) ? left : std::min<std::uint64_t>(left, *free_bytes);
  *total_bytes = total;
  return result;
}

api::CUresult Memory::ipc_handle(api::CUipcMemHandle* handle, api::CUdeviceptr address) {
  const api::CUresult result = real::cuIpcGetMemHandle(handle, address);
  if (result == api::CUDA_SUCCESS) return result;
  const std::optional<Allocation> owner = ledger_.find(address);
  if (owner && owner->kind == Kind::kConverted && !exports_.exchange(true, std::memory_order_relaxed)) {
    log::warn(
        "this program shares GPU memory with another process (cuIpcGetMemHandle), which managed memory cannot: run it "
        "with ROTA_MEMORY=native; its allocations from now on are native");
  }
  return result;
}

void Memory::context_ended(api::CUcontext context) {
  streams_.forget(context);
  {
    const std::lock_guard lock(late_mutex_);
    std::erase_if(late_, [&](const LateFree& late) { return late.context == context; });
    late_count_.store(late_.size(), std::memory_order_release);
  }
  ledger_.drop_context(context);
}

std::uint64_t Memory::prefetch_all(int ordinal, api::CUstream stream) {
  std::uint64_t bytes = 0;
  for (const Allocation& allocation : ledger_.list(ordinal, Kind::kConverted)) {
    if (allocation.bytes < kWorthPrefetching) continue;
    if (prefetch(allocation.address, allocation.bytes, ordinal, stream) == api::CUDA_SUCCESS) bytes += allocation.bytes;
  }
  return bytes;
}

void Memory::after_fork_in_child() {
  // Their holders may be threads that are no more.
  new (&devices_mutex_) std::mutex;
  new (&late_mutex_) std::mutex;
  ledger_.after_fork_in_child();
  physical_.after_fork_in_child();
  streams_.after_fork_in_child();
  late_.clear();
  late_count_.store(0, std::memory_order_relaxed);
  served_.store(false, std::memory_order_relaxed);
}

std::uint64_t array_bytes(std::uint64_t width, std::uint64_t height, std::uint64_t depth, unsigned channels,
                          api::CUarray_format format, unsigned flags, unsigned levels) {
  // cuda.h has these as macros: CUDA_ARRAY3D_LAYERED, _CUBEMAP, _SPARSE, _DEFERRED_MAPPING.
  constexpr unsigned kLayered = 0x01, kCubemap = 0x04, kSparse = 0x40, kDeferredMapping = 0x80;
  if ((flags & (kSparse | kDeferredMapping)) != 0) return 0;
  std::uint64_t element = 4;
  switch (format) {
    case api::CU_AD_FORMAT_UNSIGNED_INT8:
    case api::CU_AD_FORMAT_SIGNED_INT8:
      element = 1;
      break;
    case api::CU_AD_FORMAT_UNSIGNED_INT16:
    case api::CU_AD_FORMAT_SIGNED_INT16:
    case api::CU_AD_FORMAT_HALF:
      element = 2;
      break;
    default:  // 32-bit formats; compressed and video formats take less, and are charged too much rather than too little
      break;
  }
  std::uint64_t sum = 0;
  const bool cube_or_layered = (flags & (kLayered | kCubemap)) != 0;
  for (unsigned level = 0; level < std::max(levels, 1U); ++level) {
    sum += std::max<std::uint64_t>(width, 1) * std::max<std::uint64_t>(height, 1) * std::max<std::uint64_t>(depth, 1) *
           std::max(channels, 1U) * element;
    if (width <= 1 && height <= 1 && (cube_or_layered || depth <= 1)) break;
    width = std::max<std::uint64_t>(width / 2, 1);
    height /= 2;
    if (!cube_or_layered) depth /= 2;
  }
  return sum;
}

}  // namespace rota::memory
