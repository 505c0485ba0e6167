// Devices of the runtime API: properties, attributes, limits, peers, pools of a device.
#include <algorithm>
#include <cstring>

#include "tools/simgpu/cudart/forward.h"

using namespace rota::sim::cudart;  // NOLINT

namespace {

// cudaDeviceProp of CUDA 13.
struct Properties {
  char name[256];
  CUuuid uuid;
  char luid[8];
  unsigned luidDeviceNodeMask;
  size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize;
  size_t memPitch;
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
  size_t totalConstMem;
  int major, minor;
  size_t textureAlignment, texturePitchAlignment;
  int multiProcessorCount, integrated, canMapHostMemory;
  int maxTexture1D, maxTexture1DMipmap, maxTexture2D[2], maxTexture2DMipmap[2], maxTexture2DLinear[3];
  int maxTexture2DGather[2], maxTexture3D[3], maxTexture3DAlt[3], maxTextureCubemap, maxTexture1DLayered[2];
  int maxTexture2DLayered[3], maxTextureCubemapLayered[2];
  int maxSurface1D, maxSurface2D[2], maxSurface3D[3], maxSurface1DLayered[2], maxSurface2DLayered[3];
  int maxSurfaceCubemap, maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount;
  int unifiedAddressing, memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported;
  int pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost, maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
  unsigned gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned memoryPoolSupportedHandleTypes;
  int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers, deviceNumaConfig;
  int deviceNumaId, mpsEnabled, hostNumaId;
  unsigned gpuPciDeviceID, gpuPciSubsystemID;
  int hostNumaMultinodeIpcSupported;
  int reserved[56];
};
static_assert(sizeof(Properties) == 1008);

struct Property {
  size_t offset;
  bool is_size;
  CUdevice_attribute attribute;
};
#define INT(member, name) {offsetof(Properties, member), false, CU_DEVICE_ATTRIBUTE_##name}
#define SIZE(member, name) {offsetof(Properties, member), true, CU_DEVICE_ATTRIBUTE_##name}
#define INT2(member, first, second) INT(member[0], first), INT(member[1], second)
#define INT3(member, first, second, third) INT2(member, first, second), INT(member[2], third)
constexpr Property kProperties[] = {
    SIZE(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
    INT(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
    INT(warpSize, WARP_SIZE),
    SIZE(memPitch, MAX_PITCH),
    INT(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
    INT3(maxThreadsDim, MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z),
    INT3(maxGridSize, MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z),
    SIZE(totalConstMem, TOTAL_CONSTANT_MEMORY),
    INT(major, COMPUTE_CAPABILITY_MAJOR),
    INT(minor, COMPUTE_CAPABILITY_MINOR),
    SIZE(textureAlignment, TEXTURE_ALIGNMENT),
    SIZE(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT),
    INT(multiProcessorCount, MULTIPROCESSOR_COUNT),
    INT(integrated, INTEGRATED),
    INT(canMapHostMemory, CAN_MAP_HOST_MEMORY),
    INT(maxTexture1D, MAXIMUM_TEXTURE1D_WIDTH),
    INT(maxTexture1DMipmap, MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH),
    INT2(maxTexture2D, MAXIMUM_TEXTURE2D_WIDTH, MAXIMUM_TEXTURE2D_HEIGHT),
    INT2(maxTexture2DMipmap, MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT),
    INT3(maxTexture2DLinear, MAXIMUM_TEXTURE2D_LINEAR_WIDTH, MAXIMUM_TEXTURE2D_LINEAR_HEIGHT,
         MAXIMUM_TEXTURE2D_LINEAR_PITCH),
    INT2(maxTexture2DGather, MAXIMUM_TEXTURE2D_GATHER_WIDTH, MAXIMUM_TEXTURE2D_GATHER_HEIGHT),
    INT3(maxTexture3D, MAXIMUM_TEXTURE3D_WIDTH, MAXIMUM_TEXTURE3D_HEIGHT, MAXIMUM_TEXTURE3D_DEPTH),
    INT3(maxTexture3DAlt, MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE, MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE,
         MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE),
    INT(maxTextureCubemap, MAXIMUM_TEXTURECUBEMAP_WIDTH),
    INT2(maxTexture1DLayered, MAXIMUM_TEXTURE1D_LAYERED_WIDTH, MAXIMUM_TEXTURE1D_LAYERED_LAYERS),
    INT3(maxTexture2DLayered, MAXIMUM_TEXTURE2D_LAYERED_WIDTH, MAXIMUM_TEXTURE2D_LAYERED_HEIGHT,
         MAXIMUM_TEXTURE2D_LAYERED_LAYERS),
    INT2(maxTextureCubemapLayered, MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS),
    INT(maxSurface1D, MAXIMUM_SURFACE1D_WIDTH),
    INT2(maxSurface2D, MAXIMUM_SURFACE2D_WIDTH, MAXIMUM_SURFACE2D_HEIGHT),
    INT3(maxSurface3D, MAXIMUM_SURFACE3D_WIDTH, MAXIMUM_SURFACE3D_HEIGHT, MAXIMUM_SURFACE3D_DEPTH),
    INT2(maxSurface1DLayered, MAXIMUM_SURFACE1D_LAYERED_WIDTH, MAXIMUM_SURFACE1D_LAYERED_LAYERS),
    INT3(maxSurface2DLayered, MAXIMUM_SURFACE2D_LAYERED_WIDTH, MAXIMUM_SURFACE2D_LAYERED_HEIGHT,
         MAXIMUM_SURFACE2D_LAYERED_LAYERS),
    INT(maxSurfaceCubemap, MAXIMUM_SURFACECUBEMAP_WIDTH),
    INT2(maxSurfaceCubemapLayered, MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH, MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS),
    SIZE(surfaceAlignment, SURFACE_ALIGNMENT),
    INT(concurrentKernels, CONCURRENT_KERNELS),
    INT(ECCEnabled, ECC_ENABLED),
    INT(pciBusID, PCI_BUS_ID),
    INT(pciDeviceID, PCI_DEVICE_ID),
    INT(pciDomainID, PCI_DOMAIN_ID),
    INT(tccDriver, TCC_DRIVER),
    INT(asyncEngineCount, ASYNC_ENGINE_COUNT),
    INT(unifiedAddressing, UNIFIED_ADDRESSING),
    INT(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH),
    INT(l2CacheSize, L2_CACHE_SIZE),
    INT(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE),
    INT(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
    INT(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED),
    INT(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED),
    INT(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED),
    SIZE(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    INT(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
    INT(managedMemory, MANAGED_MEMORY),
    INT(isMultiGpuBoard, MULTI_GPU_BOARD),
    INT(multiGpuBoardGroupID, MULTI_GPU_BOARD_GROUP_ID),
    INT(hostNativeAtomicSupported, HOST_NATIVE_ATOMIC_SUPPORTED),
    INT(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS),
    INT(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
    INT(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED),
    INT(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
    INT(cooperativeLaunch, COOPERATIVE_LAUNCH),
    SIZE(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    INT(pageableMemoryAccessUsesHostPageTables, PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),
    INT(directManagedMemAccessFromHost, DIRECT_MANAGED_MEM_ACCESS_FROM_HOST),
    INT(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
    INT(accessPolicyMaxWindowSize, MAX_ACCESS_POLICY_WINDOW_SIZE),
    SIZE(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
    INT(hostRegisterSupported, HOST_REGISTER_SUPPORTED),
    INT(sparseCudaArraySupported, SPARSE_CUDA_ARRAY_SUPPORTED),
    INT(hostRegisterReadOnlySupported, READ_ONLY_HOST_REGISTER_SUPPORTED),
    INT(timelineSemaphoreInteropSupported, TIMELINE_SEMAPHORE_INTEROP_SUPPORTED),
    INT(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
    INT(gpuDirectRDMASupported, GPU_DIRECT_RDMA_SUPPORTED),
    INT(gpuDirectRDMAFlushWritesOptions, GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
    INT(gpuDirectRDMAWritesOrdering, GPU_DIRECT_RDMA_WRITES_ORDERING),
    INT(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES),
    INT(deferredMappingCudaArraySupported, DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED),
    INT(ipcEventSupported, IPC_EVENT_SUPPORTED),
    INT(clusterLaunch, CLUSTER_LAUNCH),
    INT(unifiedFunctionPointers, UNIFIED_FUNCTION_POINTERS),
    INT(deviceNumaConfig, NUMA_CONFIG),
    INT(deviceNumaId, NUMA_ID),
    INT(mpsEnabled, MPS_ENABLED),
    INT(hostNumaId, HOST_NUMA_ID),
    INT(gpuPciDeviceID, GPU_PCI_DEVICE_ID),
    INT(gpuPciSubsystemID, GPU_PCI_SUBSYSTEM_ID),
    INT(hostNumaMultinodeIpcSupported, HOST_NUMA_MULTINODE_IPC_SUPPORTED),
};
#undef INT
#undef SIZE
#undef INT2
#undef INT3

int attribute(CUdevice_attribute which, int device) {
  int value = 0;
  Driver& api = driver();
  if (api.cuDeviceGetAttribute == nullptr || api.cuDeviceGetAttribute(&value, which, device) != CUDA_SUCCESS) return 0;
  return value;
}

int fill(Properties* properties, int device) {
  Driver& api = driver();
  if (api.status != kSuccess) return api.status;
  if (api.cuDeviceTotalMem_v2 == nullptr) return kNotSupported;
  *properties = {};
  if (CUresult result = api.cuDeviceTotalMem_v2(&properties->totalGlobalMem, device); result != CUDA_SUCCESS) {
    return static_cast<int>(result);
  }
  if (api.cuDeviceGetName != nullptr) api.cuDeviceGetName(properties->name, sizeof properties->name, device);
  if (api.cuDeviceGetUuid != nullptr) api.cuDeviceGetUuid(&properties->uuid, device);
  for (const Property& property : kProperties) {
    int value = attribute(property.attribute, device);
    size_t size = static_cast<size_t>(value);
    char* to = reinterpret_cast<char*>(properties) + property.offset;
    if (property.is_size) {
      std::memcpy(to, &size, sizeof size);
    } else {
      std::memcpy(to, &value, sizeof value);
    }
  }
  return kSuccess;
}

}  // namespace

ROTA_CUDART_EXPORT int cudaGetDeviceProperties(Properties* properties, int device) {
  if (properties == nullptr) return done(kInvalidValue);
  return done(fill(properties, device));
}

// The device that meets most of the requested properties: compute capability, memory, multiprocessors.
ROTA_CUDART_EXPORT int cudaChooseDevice(int* device, const Properties* wanted) {
  if (device == nullptr || wanted == nullptr) return done(kInvalidValue);
  int count = 0;
  if (int error = call_without_context(&Driver::cuDeviceGetCount, &count); error != kSuccess) return error;
  if (count == 0) return done(kNoDevice);
  int best = -1;
  for (int i = 0; i < count; ++i) {
    Properties has;
    if (int error = fill(&has, i); error != kSuccess) return done(error);
    int met = (has.major >= wanted->major) + (has.totalGlobalMem >= wanted->totalGlobalMem) +
              (has.multiProcessorCount >= wanted->multiProcessorCount);
    if (met > best) {
      best = met;
      *device = i;
    }
  }
  return kSuccess;
}

ROTA_FORWARD_BARE(3, cudaDeviceGetAttribute, cuDeviceGetAttribute)
ROTA_FORWARD_BARE(4, cudaDeviceGetP2PAttribute, cuDeviceGetP2PAttribute)
ROTA_FORWARD_BARE(4, cudaDeviceGetHostAtomicCapabilities, cuDeviceGetHostAtomicCapabilities)
ROTA_FORWARD_BARE(5, cudaDeviceGetP2PAtomicCapabilities, cuDeviceGetP2PAtomicCapabilities)
ROTA_FORWARD_BARE(2, cudaDeviceGetByPCIBusId, cuDeviceGetByPCIBusId)
ROTA_FORWARD_BARE(3, cudaDeviceGetPCIBusId, cuDeviceGetPCIBusId)
ROTA_FORWARD_BARE(3, cudaDeviceCanAccessPeer, cuDeviceCanAccessPeer)
ROTA_FORWARD_BARE(2, cudaDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool)
ROTA_FORWARD_BARE(2, cudaDeviceGetMemPool, cuDeviceGetMemPool)
ROTA_FORWARD_BARE(2, cudaDeviceSetMemPool, cuDeviceSetMemPool)
ROTA_FORWARD_BARE(1, cudaDeviceGraphMemTrim, cuDeviceGraphMemTrim)
ROTA_FORWARD_BARE(3, cudaDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute)
ROTA_FORWARD_BARE(3, cudaDeviceSetGraphMemAttribute, cuDeviceSetGraphMemAttribute)

ROTA_FORWARD(0, cudaDeviceSynchronize, cuCtxSynchronize)
ROTA_FORWARD(2, cudaDeviceGetLimit, cuCtxGetLimit)
ROTA_FORWARD(2, cudaDeviceSetLimit, cuCtxSetLimit)
ROTA_FORWARD(1, cudaDeviceGetCacheConfig, cuCtxGetCacheConfig)
ROTA_FORWARD(1, cudaDeviceSetCacheConfig, cuCtxSetCacheConfig)
ROTA_FORWARD(1, cudaDeviceGetSharedMemConfig, cuCtxGetSharedMemConfig)
ROTA_FORWARD(1, cudaDeviceSetSharedMemConfig, cuCtxSetSharedMemConfig)
ROTA_FORWARD(2, cudaDeviceGetStreamPriorityRange, cuCtxGetStreamPriorityRange)
ROTA_FORWARD(0, cudaCtxResetPersistingL2Cache, cuCtxResetPersistingL2Cache)
ROTA_FORWARD(2, cudaDeviceFlushGPUDirectRDMAWrites, cuFlushGPUDirectRDMAWrites)
ROTA_FORWARD(0, cudaProfilerStart, cuProfilerStart)
ROTA_FORWARD(0, cudaProfilerStop, cuProfilerStop)

// A peer is given by its device and means that device's primary context.
ROTA_CUDART_EXPORT int cudaDeviceEnablePeerAccess(int device, unsigned flags) {
  if (flags != 0) return done(kInvalidValue);
  CUcontext peer = nullptr;
  if (int error = primary_context(device, &peer); error != kSuccess) return done(error);
  if (int error = ensure_context(); error != kSuccess) return done(error);
  if (device == current_device()) return done(kInvalidDevice);
  return call(&Driver::cuCtxEnablePeerAccess, peer, flags);
}
ROTA_CUDART_EXPORT int cudaDeviceDisablePeerAccess(int device) {
  CUcontext peer = nullptr;
  if (int error = primary_context(device, &peer); error != kSuccess) return done(error);
  return call(&Driver::cuCtxDisablePeerAccess, peer);
}

namespace {
// `status` is cudaDriverEntryPointQueryResult*, with the driver's numbers.
int entry_point(const char* symbol, void** function, int version, unsigned long long flags, int* status) {
  if (symbol == nullptr || function == nullptr) return done(kInvalidValue);
  if (int error = ensure_context(); error != kSuccess) return done(error);
  CUdriverProcAddressQueryResult result{};
  CUresult found = driver().get_proc_address(symbol, function, version, flags, &result);
  if (status != nullptr) *status = static_cast<int>(result);
  return done(found == CUDA_ERROR_NOT_FOUND ? int{kSuccess} : static_cast<int>(found));  // `status` says what happened
}
constexpr int kVersion = 13000;
}  // namespace

ROTA_CUDART_EXPORT int cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                               int* status) {
  return entry_point(symbol, function, kVersion, flags, status);
}
ROTA_CUDART_EXPORT int cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags,
                                                    int* status) {
  return entry_point(symbol, function, kVersion, flags == 0 ? 2 : flags, status);
}
ROTA_CUDART_EXPORT int cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                        unsigned long long flags, int* status) {
  return entry_point(symbol, function, static_cast<int>(version), flags, status);
}
ROTA_CUDART_EXPORT int cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** function, unsigned version,
                                                             unsigned long long flags, int* status) {
  return entry_point(symbol, function, static_cast<int>(version), flags == 0 ? 2 : flags, status);
}

ROTA_FORWARD_BARE(4, cudaDeviceRegisterAsyncNotification, cuDeviceRegisterAsyncNotification)
ROTA_FORWARD_BARE(2, cudaDeviceUnregisterAsyncNotification, cuDeviceUnregisterAsyncNotification)
ROTA_FORWARD_BARE(3, cudaDeviceGetNvSciSyncAttributes, cuDeviceGetNvSciSyncAttributes)
ROTA_FORWARD_BARE(3, cudaLogsRegisterCallback, cuLogsRegisterCallback)
ROTA_FORWARD_BARE(1, cudaLogsUnregisterCallback, cuLogsUnregisterCallback)
ROTA_FORWARD_BARE(2, cudaLogsCurrent, cuLogsCurrent)
ROTA_FORWARD_BARE(3, cudaLogsDumpToFile, cuLogsDumpToFile)
ROTA_FORWARD_BARE(4, cudaLogsDumpToMemory, cuLogsDumpToMemory)
