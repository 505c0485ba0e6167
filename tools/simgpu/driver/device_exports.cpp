// Initialisation, versions and devices.
#include <cstdio>
#include <cstring>

#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

bool is_device(CUdevice device) {
  return device >= 0 && device < driver().state().gpus();
}

CUresult attribute(CUdevice_attribute which, CUdevice device, int* value) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      *value = profile::kThreadsPerBlock;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      *value = 64;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      *value = 0x7fffffff;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      *value = 65535;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      *value = profile::kSharedPerBlock;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = profile::kSharedPerBlockOptin;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = profile::kSharedPerMultiprocessor;
      break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      *value = 1024;
      break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      *value = profile::kConstantMemory;
      break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      *value = profile::kWarpSize;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      *value = 0x7fffffff;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      *value = profile::kRegistersPerBlock;
      break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      *value = profile::kClockKilohertz;
      break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      *value = profile::kMemoryClockKilohertz;
      break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      *value = profile::kMemoryBusBits;
      break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = profile::kL2Cache;
      break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
      *value = 512;
      break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
      *value = 32;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = profile::kMultiprocessors;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      *value = profile::kThreadsPerMultiprocessor;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      *value = profile::kBlocksPerMultiprocessor;
      break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      *value = profile::kCopyEngines;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = profile::kComputeMajor;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = profile::kComputeMinor;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = 0x40 + device;
      break;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
      *value = 2;
      break;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
      *value = 1;
      break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      *value = driver().options.driver_version >= 11020 ? 1 : 0;  // a driver without them cannot say that it has them
      break;
    default:
      *value = 0;
      break;  // absent: what simgpu does not simulate is reported as not supported by the device
  }
  return CUDA_SUCCESS;
}

}  // namespace

ROTA_SIM_EXPORT(cuInit)(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return driver().initialise();
}

ROTA_SIM_EXPORT(cuDriverGetVersion)(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = driver().options.driver_version;  // needs no cuInit
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetCount)(int* count) {
  ROTA_SIM_READY();
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = driver().state().gpus();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGet)(CUdevice* device, int ordinal) {
  ROTA_SIM_READY();
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetName)(char* name, int length, CUdevice device) {
  ROTA_SIM_READY();
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "rota simulated GPU");
  return CUDA_SUCCESS;
}

namespace {
CUresult device_uuid(CUuuid* uuid, CUdevice device) {
  ROTA_SIM_READY();
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  unsigned char bytes[16];
  driver().state().uuid(device, bytes);
  std::memcpy(uuid, bytes, sizeof bytes);
  return CUDA_SUCCESS;
}
}  // namespace

ROTA_SIM_EXPORT(cuDeviceGetUuid)(CUuuid* uuid, CUdevice device) {
  return device_uuid(uuid, device);
}
ROTA_SIM_EXPORT(cuDeviceGetUuid_v2)(CUuuid* uuid, CUdevice device) {
  return device_uuid(uuid, device);
}

ROTA_SIM_EXPORT(cuDeviceTotalMem_v2)(size_t* bytes, CUdevice device) {
  ROTA_SIM_READY();
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = driver().state().capacity();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetAttribute)(int* value, CUdevice_attribute which, CUdevice device) {
  ROTA_SIM_READY();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (static_cast<int>(which) <= 0 || which >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  return attribute(which, device, value);
}

ROTA_SIM_EXPORT(cuDeviceComputeCapability)(int* major, int* minor, CUdevice device) {
  ROTA_SIM_READY();
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *major = profile::kComputeMajor;
  *minor = profile::kComputeMinor;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetPCIBusId)(char* text, int length, CUdevice device) {
  ROTA_SIM_READY();
  if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  int needed = std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", 0x40 + device);
  return needed < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ROTA_SIM_EXPORT(cuDeviceGetByPCIBusId)(CUdevice* device, const char* text) {
  ROTA_SIM_READY();
  if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
  unsigned function = 0;
  bool full = std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) >= 3;  // NOLINT(cert-err34-c)
  if (!full) {
    domain = 0;
    if (std::sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return CUDA_ERROR_INVALID_VALUE;  // NOLINT
  }
  int index = static_cast<int>(bus) - 0x40;
  if (domain != 0 || slot != 0 || !is_device(index)) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceCanAccessPeer)(int* can, CUdevice device, CUdevice peer) {
  ROTA_SIM_READY();
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device) || !is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = 0;  // peer mappings are not simulated
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetP2PAttribute)(int* value, CUdevice_P2PAttribute which, CUdevice device, CUdevice peer) {
  ROTA_SIM_READY();
  if (value == nullptr || device == peer) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device) || !is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *value = 0;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetDefaultMemPool)(CUmemoryPool* pool, CUdevice device) {
  ROTA_SIM_READY();
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *pool = driver().devices[static_cast<size_t>(device)].default_pool->handle();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetMemPool)(CUmemoryPool* pool, CUdevice device) {
  return cuDeviceGetDefaultMemPool_simulated(pool, device);
}

ROTA_SIM_EXPORT(cuDeviceSetMemPool)(CUdevice device, CUmemoryPool pool) {
  ROTA_SIM_READY();
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  auto known = driver().pools.find(pool);
  return known && known->gpu == device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Primary contexts: one per device and process, counted.

ROTA_SIM_EXPORT(cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device) {
  ROTA_SIM_READY();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Device& state = driver().devices[static_cast<size_t>(device)];
  std::lock_guard lock(state.mutex);
  if (!state.primary) {
    ROTA_SIM_CHECK(driver().create_context(device, state.primary_flags, true, 3020, &state.primary));
  }
  ++state.retained;
  *context = state.primary->handle();
  return CUDA_SUCCESS;
}

namespace {
CUresult release_primary(CUdevice device, bool reset) {
  ROTA_SIM_READY();
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Device& state = driver().devices[static_cast<size_t>(device)];
  std::lock_guard lock(state.mutex);
  if (!state.primary) return reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  if (!reset && --state.retained != 0) return CUDA_SUCCESS;
  state.retained = 0;
  ContextPointer ending = std::move(state.primary);
  state.primary.reset();
  driver().destroy_context(ending);
  return CUDA_SUCCESS;
}

CUresult set_primary_flags(CUdevice device, unsigned flags) {
  ROTA_SIM_READY();
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if ((flags & ~unsigned{CU_CTX_FLAGS_MASK}) != 0) return CUDA_ERROR_INVALID_VALUE;
  Device& state = driver().devices[static_cast<size_t>(device)];
  std::lock_guard lock(state.mutex);
  state.primary_flags = flags;
  if (state.primary) state.primary->flags = flags;
  return CUDA_SUCCESS;
}
}  // namespace

ROTA_SIM_EXPORT(cuDevicePrimaryCtxRelease_v2)(CUdevice device) {
  return release_primary(device, false);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxRelease)(CUdevice device) {
  return release_primary(device, false);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxReset_v2)(CUdevice device) {
  return release_primary(device, true);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxReset)(CUdevice device) {
  return release_primary(device, true);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxSetFlags_v2)(CUdevice device, unsigned flags) {
  return set_primary_flags(device, flags);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxSetFlags)(CUdevice device, unsigned flags) {
  return set_primary_flags(device, flags);
}

ROTA_SIM_EXPORT(cuDevicePrimaryCtxGetState)(CUdevice device, unsigned* flags, int* active) {
  ROTA_SIM_READY();
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Device& state = driver().devices[static_cast<size_t>(device)];
  std::lock_guard lock(state.mutex);
  *flags = state.primary_flags;
  *active = state.primary ? 1 : 0;
  return CUDA_SUCCESS;
}
