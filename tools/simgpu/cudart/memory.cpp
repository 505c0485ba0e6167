// Memory, devices and errors of the runtime API.
#include <cstdio>
#include <cstring>

#include "tools/simgpu/cudart/runtime.h"
#include "tools/simgpu/driver/errors.h"

using namespace rota::sim::cudart;  // NOLINT

namespace {

CUdeviceptr address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

int attribute(CUdevice_attribute which, int device) {
  int value = 0;
  Driver& api = driver();
  if (api.cuDeviceGetAttribute != nullptr) api.cuDeviceGetAttribute(&value, which, device);
  return value;
}

// cudaMemcpyKind 0 to 4; which way the bytes go is known from the addresses.
bool is_kind(int kind) {
  return kind >= 0 && kind <= 4;
}

// cudaDeviceProp of CUDA 13.0: 1008 bytes; the fields that are filled in, by their offsets.
constexpr size_t kPropertiesBytes = 1008;
struct Property {
  size_t offset;
  CUdevice_attribute attribute;
};
constexpr Property kIntProperties[] = {
    {304, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
    {308, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
    {320, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
    {324, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X},
    {328, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y},
    {332, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z},
    {336, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X},
    {340, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y},
    {344, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z},
    {360, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {364, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {384, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    {560, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS},
    {568, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID},
    {584, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
    {588, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
    {592, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
    {596, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
    {604, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
    {636, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
    {656, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
    {668, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
    {688, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
    {720, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
};
constexpr Property kSizeProperties[] = {
    {296, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
    {312, CU_DEVICE_ATTRIBUTE_MAX_PITCH},
    {352, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY},
    {368, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT},
};

bool started(int* error) {
  *error = driver().status;
  return *error == kSuccess;
}

}  // namespace

ROTA_CUDART_EXPORT int cudaGetLastError() {
  int error = thread().last_error;
  thread().last_error = kSuccess;
  return error;
}
ROTA_CUDART_EXPORT int cudaPeekAtLastError() {
  return thread().last_error;
}
ROTA_CUDART_EXPORT const char* cudaGetErrorName(int error) {
  return runtime_error_name(error);
}
ROTA_CUDART_EXPORT const char* cudaGetErrorString(int error) {
  return runtime_error_text(error);
}

ROTA_CUDART_EXPORT int cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return done(kInvalidValue);
  *version = 13000;
  return kSuccess;
}
ROTA_CUDART_EXPORT int cudaDriverGetVersion(int* version) {
  if (version == nullptr) return done(kInvalidValue);
  *version = 0;  // documented: 0 if there is no driver
  if (driver().cuDriverGetVersion != nullptr) driver().cuDriverGetVersion(version);
  return kSuccess;
}
ROTA_CUDART_EXPORT int cudaGetDeviceCount(int* count) {
  int error = kSuccess;
  if (count == nullptr) return done(kInvalidValue);
  *count = 0;
  if (!started(&error)) return done(error);
  if (driver().cuDeviceGetCount == nullptr) return done(kNotSupported);
  error = static_cast<int>(driver().cuDeviceGetCount(count));
  return done(error == kSuccess && *count == 0 ? int{kNoDevice} : error);
}
ROTA_CUDART_EXPORT int cudaGetDevice(int* device) {
  int error = kSuccess;
  if (device == nullptr) return done(kInvalidValue);
  if (!started(&error)) return done(error);
  *device = thread().device;
  return kSuccess;
}
ROTA_CUDART_EXPORT int cudaSetDevice(int device) {
  int count = 0;
  if (int error = cudaGetDeviceCount(&count); error != kSuccess) return error;
  if (device < 0 || device >= count) return done(kInvalidDevice);
  thread().device = device;
  if (driver().cuCtxSetCurrent != nullptr) driver().cuCtxSetCurrent(nullptr);
  return done(ensure_context());
}
ROTA_CUDART_EXPORT int cudaDeviceGetAttribute(int* value, CUdevice_attribute which, int device) {
  int error = kSuccess;
  if (!started(&error)) return done(error);
  if (driver().cuDeviceGetAttribute == nullptr) return done(kNotSupported);
  return done(static_cast<int>(driver().cuDeviceGetAttribute(value, which, device)));
}
ROTA_CUDART_EXPORT int cudaGetDeviceProperties(void* properties, int device) {
  int count = 0;
  if (properties == nullptr) return done(kInvalidValue);
  if (int error = cudaGetDeviceCount(&count); error != kSuccess) return error;
  if (device < 0 || device >= count) return done(kInvalidDevice);
  auto* bytes = static_cast<char*>(properties);
  std::memset(bytes, 0, kPropertiesBytes);
  Driver& api = driver();
  if (api.cuDeviceGetName != nullptr) api.cuDeviceGetName(bytes, 256, device);
  if (api.cuDeviceGetUuid != nullptr) api.cuDeviceGetUuid(reinterpret_cast<CUuuid*>(bytes + 256), device);
  size_t total = 0;
  if (api.cuDeviceTotalMem_v2 != nullptr) api.cuDeviceTotalMem_v2(&total, device);
  std::memcpy(bytes + 288, &total, sizeof total);
  for (const Property& property : kIntProperties) {
    int value = attribute(property.attribute, device);
    std::memcpy(bytes + property.offset, &value, sizeof value);
  }
  for (const Property& property : kSizeProperties) {
    auto value = static_cast<size_t>(attribute(property.attribute, device));
    std::memcpy(bytes + property.offset, &value, sizeof value);
  }
  return kSuccess;
}
ROTA_CUDART_EXPORT int cudaDeviceSynchronize() {
  return call(&Driver::cuCtxSynchronize);
}
ROTA_CUDART_EXPORT int cudaDeviceReset() {
  return call(&Driver::cuDevicePrimaryCtxReset, thread().device);
}

ROTA_CUDART_EXPORT int cudaMalloc(void** out, size_t bytes) {
  if (out == nullptr) return done(kInvalidValue);
  *out = nullptr;
  if (bytes == 0) return done(ensure_context());
  return call(&Driver::cuMemAlloc_v2, reinterpret_cast<CUdeviceptr*>(out), bytes);
}
ROTA_CUDART_EXPORT int cudaMallocManaged(void** out, size_t bytes, unsigned flags) {
  return call(&Driver::cuMemAllocManaged, reinterpret_cast<CUdeviceptr*>(out), bytes, flags);
}
ROTA_CUDART_EXPORT int cudaMallocPitch(void** out, size_t* pitch, size_t width, size_t height) {
  return call(&Driver::cuMemAllocPitch_v2, reinterpret_cast<CUdeviceptr*>(out), pitch, width, height, 16U);
}
ROTA_CUDART_EXPORT int cudaMallocHost(void** out, size_t bytes) {
  return call(&Driver::cuMemHostAlloc, out, bytes, 0U);
}
ROTA_CUDART_EXPORT int cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  return call(&Driver::cuMemHostAlloc, out, bytes, flags);
}
ROTA_CUDART_EXPORT int cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  return call(&Driver::cuMemHostRegister_v2, memory, bytes, flags);
}
ROTA_CUDART_EXPORT int cudaHostUnregister(void* memory) {
  return call(&Driver::cuMemHostUnregister, memory);
}
ROTA_CUDART_EXPORT int cudaFree(void* memory) {
  return memory == nullptr ? done(ensure_context()) : call(&Driver::cuMemFree_v2, address(memory));
}
ROTA_CUDART_EXPORT int cudaFreeHost(void* memory) {
  return memory == nullptr ? done(ensure_context()) : call(&Driver::cuMemFreeHost, memory);
}
ROTA_CUDART_EXPORT int cudaMallocAsync(void** out, size_t bytes, CUstream stream) {
  return call(&Driver::cuMemAllocAsync, reinterpret_cast<CUdeviceptr*>(out), bytes, stream);
}
ROTA_CUDART_EXPORT int cudaMallocAsync_ptsz(void** out, size_t bytes, CUstream stream) {
  return call(&Driver::cuMemAllocAsync_ptsz, reinterpret_cast<CUdeviceptr*>(out), bytes, stream);
}
ROTA_CUDART_EXPORT int cudaFreeAsync(void* memory, CUstream stream) {
  return call(&Driver::cuMemFreeAsync, address(memory), stream);
}
ROTA_CUDART_EXPORT int cudaFreeAsync_ptsz(void* memory, CUstream stream) {
  return call(&Driver::cuMemFreeAsync_ptsz, address(memory), stream);
}
ROTA_CUDART_EXPORT int cudaMemGetInfo(size_t* free, size_t* total) {
  return call(&Driver::cuMemGetInfo_v2, free, total);
}

ROTA_CUDART_EXPORT int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  if (!is_kind(kind)) return done(kInvalidMemcpyDirection);
  return call(&Driver::cuMemcpy, address(to), address(from), bytes);
}
ROTA_CUDART_EXPORT int cudaMemcpy_ptds(void* to, const void* from, size_t bytes, int kind) {
  if (!is_kind(kind)) return done(kInvalidMemcpyDirection);
  return call(&Driver::cuMemcpy_ptds, address(to), address(from), bytes);
}
ROTA_CUDART_EXPORT int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, CUstream stream) {
  if (!is_kind(kind)) return done(kInvalidMemcpyDirection);
  return call(&Driver::cuMemcpyAsync, address(to), address(from), bytes, stream);
}
ROTA_CUDART_EXPORT int cudaMemcpyAsync_ptsz(void* to, const void* from, size_t bytes, int kind, CUstream stream) {
  if (!is_kind(kind)) return done(kInvalidMemcpyDirection);
  return call(&Driver::cuMemcpyAsync_ptsz, address(to), address(from), bytes, stream);
}
ROTA_CUDART_EXPORT int cudaMemset(void* to, int value, size_t bytes) {
  return call(&Driver::cuMemsetD8_v2, address(to), static_cast<unsigned char>(value), bytes);
}
ROTA_CUDART_EXPORT int cudaMemset_ptds(void* to, int value, size_t bytes) {
  return call(&Driver::cuMemsetD8_v2_ptds, address(to), static_cast<unsigned char>(value), bytes);
}
ROTA_CUDART_EXPORT int cudaMemsetAsync(void* to, int value, size_t bytes, CUstream stream) {
  return call(&Driver::cuMemsetD8Async, address(to), static_cast<unsigned char>(value), bytes, stream);
}
ROTA_CUDART_EXPORT int cudaMemsetAsync_ptsz(void* to, int value, size_t bytes, CUstream stream) {
  return call(&Driver::cuMemsetD8Async_ptsz, address(to), static_cast<unsigned char>(value), bytes, stream);
}
ROTA_CUDART_EXPORT int cudaMemAdvise(const void* memory, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return call(&Driver::cuMemAdvise_v2, address(memory), bytes, advice, location);
}
ROTA_CUDART_EXPORT int cudaMemPrefetchAsync(const void* memory, size_t bytes, CUmemLocation location, unsigned flags,
                                            CUstream stream) {
  return call(&Driver::cuMemPrefetchAsync_v2, address(memory), bytes, location, flags, stream);
}
ROTA_CUDART_EXPORT int cudaMemPrefetchAsync_ptsz(const void* memory, size_t bytes, CUmemLocation location,
                                                 unsigned flags, CUstream stream) {
  return call(&Driver::cuMemPrefetchAsync_v2_ptsz, address(memory), bytes, location, flags, stream);
}

namespace {
// status is cudaDriverEntryPointQueryResult*, with the driver's numbers.
int entry_point(const char* symbol, void** function, int version, unsigned long long flags, int* status) {
  if (int error = ensure_context(); error != kSuccess) return done(error);
  CUdriverProcAddressQueryResult result{};
  CUresult found = driver().get_proc_address(symbol, function, version, flags, &result);
  if (status != nullptr) *status = static_cast<int>(result);
  return done(found == CUDA_ERROR_NOT_FOUND ? int{kSuccess} : static_cast<int>(found));  // `status` says what happened
}
}  // namespace

ROTA_CUDART_EXPORT int cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                               int* status) {
  return entry_point(symbol, function, 13000, flags, status);
}
ROTA_CUDART_EXPORT int cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags,
                                                    int* status) {
  return entry_point(symbol, function, 13000, flags == 0 ? 2 : flags, status);
}
ROTA_CUDART_EXPORT int cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                        unsigned long long flags, int* status) {
  return entry_point(symbol, function, static_cast<int>(version), flags, status);
}
ROTA_CUDART_EXPORT int cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** function, unsigned version,
                                                             unsigned long long flags, int* status) {
  return entry_point(symbol, function, static_cast<int>(version), flags == 0 ? 2 : flags, status);
}
