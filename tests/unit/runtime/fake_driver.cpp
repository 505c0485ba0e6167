#include "tests/unit/runtime/fake_driver.h"

#include <algorithm>

#include "generated/driver_real.h"

namespace rota::test {

using namespace api;

namespace {

FakeDriver* fake = nullptr;
thread_local std::vector<CUcontext> stack;

CUcontext current() {
  return stack.empty() ? nullptr : stack.back();
}

CUresult unsupported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult get_current(CUcontext* context) {
  *context = current();
  return CUDA_SUCCESS;
}

CUresult get_device(CUdevice* device) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(fake->mutex);
  *device = fake->device_of[current()];
  return CUDA_SUCCESS;
}

CUresult push(CUcontext context) {
  const std::lock_guard lock(fake->mutex);
  if (fake->contexts.count(context) == 0) {
    fake->dead_uses.fetch_add(1);
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult pop(CUcontext* context) {
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult event_create(CUevent* event, unsigned) {
  const std::lock_guard lock(fake->mutex);
  *event = reinterpret_cast<CUevent>(fake->next_handle += 16);
  fake->events[*event] = 0;
  fake->event_context[*event] = current();
  return CUDA_SUCCESS;
}

CUresult record(CUevent event) {
  if (fake->events.count(event) == 0 || fake->contexts.count(fake->event_context[event]) == 0) {
    fake->dead_uses.fetch_add(1);
    return CUDA_ERROR_INVALID_HANDLE;
  }
  fake->events[event] = fake->submitted.load();
  return CUDA_SUCCESS;
}

CUresult context_record(CUcontext, CUevent event) {
  const std::lock_guard lock(fake->mutex);
  fake->marks.fetch_add(1);
  if (const int refused = fake->mark_result.load(); refused != CUDA_SUCCESS) return static_cast<CUresult>(refused);
  if (fake->capturing.load()) {
    fake->broken_captures.fetch_add(1);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return record(event);
}

CUresult event_record(CUevent event, CUstream) {
  const std::lock_guard lock(fake->mutex);
  return record(event);
}

CUresult event_query(CUevent event) {
  const std::lock_guard lock(fake->mutex);
  if (fake->events.count(event) == 0 || fake->contexts.count(fake->event_context[event]) == 0) {
    fake->dead_uses.fetch_add(1);
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return fake->finished.load() >= fake->events[event] ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult event_destroy(CUevent event) {
  const std::lock_guard lock(fake->mutex);
  fake->events.erase(event);
  return CUDA_SUCCESS;
}

CUresult launch(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**,
                void**) {
  if (fake->in_exclusive_hands.load()) fake->intrusions.fetch_add(1);
  fake->launches.fetch_add(1);
  fake->submitted.fetch_add(1);
  return static_cast<CUresult>(fake->launch_result.load());
}

}  // namespace

FakeDriver& FakeDriver::the() {
  return *fake;
}

CUresult FakeDriver::give_memory(CUdeviceptr* address, std::uint64_t bytes) {
  allocation_calls.fetch_add(1);
  const std::lock_guard lock(mutex);
  *address = next_address;
  next_address += (bytes + 511) / 512 * 512;
  memory[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult FakeDriver::take_memory(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  return address == 0 || memory.erase(address) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FakeDriver::FakeDriver() {
  fake = this;
  std::fill(std::begin(real::table), std::end(real::table), reinterpret_cast<void*>(&unsupported));
  set<cuCtxGetCurrent_fn>(Symbol::k_cuCtxGetCurrent, get_current);
  set<cuCtxGetDevice_fn>(Symbol::k_cuCtxGetDevice, get_device);
  set<cuCtxPushCurrent_v2_fn>(Symbol::k_cuCtxPushCurrent_v2, push);
  set<cuCtxPopCurrent_v2_fn>(Symbol::k_cuCtxPopCurrent_v2, pop);
  set<cuEventCreate_fn>(Symbol::k_cuEventCreate, event_create);
  set<cuEventRecord_fn>(Symbol::k_cuEventRecord, event_record);
  set<cuEventQuery_fn>(Symbol::k_cuEventQuery, event_query);
  set<cuEventDestroy_v2_fn>(Symbol::k_cuEventDestroy_v2, event_destroy);
  set<cuCtxRecordEvent_fn>(Symbol::k_cuCtxRecordEvent, context_record);
  set<cuLaunchKernel_fn>(Symbol::k_cuLaunchKernel, launch);
  set<cuCtxSynchronize_fn>(Symbol::k_cuCtxSynchronize, [] {
    fake->synchronizations.fetch_add(1);
    return CUDA_SUCCESS;
  });
  set<cuStreamGetCtx_fn>(Symbol::k_cuStreamGetCtx, [](CUstream, CUcontext* context) {
    *context = current();
    return *context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  });
  set<cuStreamIsCapturing_fn>(Symbol::k_cuStreamIsCapturing, [](CUstream, CUstreamCaptureStatus* status) {
    *status = fake->capturing.load() ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  });
  set<cuStreamCreate_fn>(Symbol::k_cuStreamCreate, [](CUstream* stream, unsigned) {
    const std::lock_guard lock(fake->mutex);
    *stream = reinterpret_cast<CUstream>(fake->next_handle += 16);
    return CUDA_SUCCESS;
  });
  set<cuStreamDestroy_v2_fn>(Symbol::k_cuStreamDestroy_v2, [](CUstream) { return CUDA_SUCCESS; });
  set<cuThreadExchangeStreamCaptureMode_fn>(Symbol::k_cuThreadExchangeStreamCaptureMode,
                                            [](CUstreamCaptureMode*) { return CUDA_SUCCESS; });
  set<cuDeviceTotalMem_v2_fn>(Symbol::k_cuDeviceTotalMem_v2, [](size_t* bytes, CUdevice) {
    *bytes = fake->device_bytes;
    return CUDA_SUCCESS;
  });
  set<cuDeviceGetUuid_v2_fn>(Symbol::k_cuDeviceGetUuid_v2, [](CUuuid* uuid, CUdevice device) {
    *uuid = {};
    uuid->bytes[0] = static_cast<char>(device + 1);
    return CUDA_SUCCESS;
  });
  set<cuDeviceGetAttribute_fn>(Symbol::k_cuDeviceGetAttribute, [](int* value, CUdevice_attribute which, CUdevice) {
    const bool unusual = which == CU_DEVICE_ATTRIBUTE_MPS_ENABLED ||
                         which == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
    *value = unusual ? 0 : 1;
    return CUDA_SUCCESS;
  });
  set<cuMemGetInfo_v2_fn>(Symbol::k_cuMemGetInfo_v2, [](size_t* free, size_t* total) {
    *free = *total = fake->device_bytes;
    return CUDA_SUCCESS;
  });
  set<cuMemAlloc_v2_fn>(Symbol::k_cuMemAlloc_v2,
                        [](CUdeviceptr* address, size_t bytes) { return fake->give_memory(address, bytes); });
  set<cuMemAllocManaged_fn>(Symbol::k_cuMemAllocManaged, [](CUdeviceptr* address, size_t bytes, unsigned) {
    fake->managed_allocations.fetch_add(1);
    return fake->give_memory(address, bytes);
  });
  set<cuMemAllocPitch_v2_fn>(Symbol::k_cuMemAllocPitch_v2,
                             [](CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned) {
                               *pitch = (width + 511) / 512 * 512;
                               return fake->give_memory(address, *pitch * height);
                             });
  set<cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](CUdeviceptr address) { return fake->take_memory(address); });
  set<cuMemAdvise_fn>(Symbol::k_cuMemAdvise, [](CUdeviceptr, size_t, CUmem_advise, CUdevice) { return CUDA_SUCCESS; });
  set<cuMemPrefetchAsync_fn>(Symbol::k_cuMemPrefetchAsync, [](CUdeviceptr, size_t, CUdevice, CUstream) {
    fake->prefetches.fetch_add(1);
    return CUDA_SUCCESS;
  });
}

FakeDriver::~FakeDriver() {
  std::fill(std::begin(real::table), std::end(real::table), reinterpret_cast<void*>(&unsupported));
  stack.clear();
}

void FakeDriver::set_entry(Symbol symbol, void* function) {
  real::table[static_cast<std::size_t>(symbol)] = function;
}

CUcontext FakeDriver::enter_context(int device) {
  const std::lock_guard lock(mutex);
  auto context = reinterpret_cast<CUcontext>(next_handle += 16);
  contexts.insert(context);
  device_of[context] = device;
  stack.push_back(context);
  return context;
}

void FakeDriver::leave_context() {
  stack.pop_back();
}

void FakeDriver::destroy(CUcontext context) {
  const std::lock_guard lock(mutex);
  contexts.erase(context);
}

void FakeDriver::reset(CUcontext context) {
  const std::lock_guard lock(mutex);
  contexts.insert(context);
  std::erase_if(event_context,
                [&](const auto& each) { return each.second == context && events.erase(each.first) > 0; });
}

}  // namespace rota::test
