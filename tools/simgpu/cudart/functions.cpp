// Attributes and occupancy of kernels, and libraries that a program loads itself.
#include "tools/simgpu/cudart/forward.h"
#include "tools/simgpu/cudart/launch.h"

using namespace rota::sim::cudart;  // NOLINT

namespace {

struct FunctionAttributes {  // cudaFuncAttributes
  size_t shared_bytes, constant_bytes, local_bytes;
  int max_threads, registers, ptx_version, binary_version, cache_mode_ca, max_dynamic_shared_bytes;
  int preferred_carveout, cluster_must_be_set, cluster_width, cluster_height, cluster_depth;
  int cluster_scheduling, nonportable_clusters;
  int reserved[16];
};
static_assert(sizeof(FunctionAttributes) == 144);

// The function of a kernel in the current context.
int function_of(const void* stub, CUfunction* function) {
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return error;
  return attempt(&Driver::cuKernelGetFunction, function, kernel);
}

int active_blocks(int* blocks, const void* stub, int block_size, size_t shared, unsigned flags) {
  CUfunction function = nullptr;
  if (int error = function_of(stub, &function); error != kSuccess) return done(error);
  return call(&Driver::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, function, block_size, shared,
              flags);
}

template <class Member>
int about_clusters(Member member, int* out, const void* stub, const LaunchConfig* config) {
  if (out == nullptr || config == nullptr) return done(kInvalidValue);
  CUfunction function = nullptr;
  if (int error = function_of(stub, &function); error != kSuccess) return done(error);
  CUlaunchConfig converted = to_driver(*config);
  const CUlaunchConfig* pointer = &converted;
  return call(member, out, function, pointer);
}

}  // namespace

ROTA_CUDART_EXPORT int cudaFuncGetAttributes(FunctionAttributes* out, const void* stub) {
  if (out == nullptr) return done(kInvalidValue);
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return done(error);
  int device = current_device();
  int failed = kSuccess;
  auto get = [&](CUfunction_attribute which) {
    int value = 0;
    int error = attempt(&Driver::cuKernelGetAttribute, &value, which, kernel, device);
    if (error != kSuccess) failed = error;
    return value;
  };
  *out = {};
  out->shared_bytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  out->constant_bytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
  out->local_bytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  out->max_threads = get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  out->registers = get(CU_FUNC_ATTRIBUTE_NUM_REGS);
  out->ptx_version = get(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  out->binary_version = get(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  out->cache_mode_ca = get(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
  out->max_dynamic_shared_bytes = get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  out->preferred_carveout = get(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  out->cluster_must_be_set = get(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET);
  out->cluster_width = get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
  out->cluster_height = get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
  out->cluster_depth = get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
  out->cluster_scheduling = get(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  out->nonportable_clusters = get(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
  return done(failed);
}

// The numbers of cudaFuncAttribute are the driver's.
ROTA_CUDART_EXPORT int cudaFuncSetAttribute(const void* stub, CUfunction_attribute which, int value) {
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return done(error);
  return call(&Driver::cuKernelSetAttribute, which, value, kernel, current_device());
}
ROTA_CUDART_EXPORT int cudaKernelSetAttributeForDevice(CUkernel kernel, CUfunction_attribute which, int value,
                                                       int device) {
  return call(&Driver::cuKernelSetAttribute, which, value, kernel, device);
}
ROTA_CUDART_EXPORT int cudaFuncSetCacheConfig(const void* stub, CUfunc_cache config) {
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return done(error);
  return call(&Driver::cuKernelSetCacheConfig, kernel, config, current_device());
}
ROTA_CUDART_EXPORT int cudaFuncSetSharedMemConfig(const void* stub, CUsharedconfig config) {
  CUfunction function = nullptr;
  if (int error = function_of(stub, &function); error != kSuccess) return done(error);
  return call(&Driver::cuFuncSetSharedMemConfig, function, config);
}
ROTA_CUDART_EXPORT int cudaFuncGetName(const char** name, const void* stub) {
  if (name == nullptr) return done(kInvalidValue);
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return done(error);
  return call(&Driver::cuKernelGetName, name, kernel);
}
ROTA_CUDART_EXPORT int cudaFuncGetParamInfo(const void* stub, size_t index, size_t* offset, size_t* bytes) {
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return done(error);
  return call(&Driver::cuKernelGetParamInfo, kernel, index, offset, bytes);
}

ROTA_CUDART_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* stub, int block_size,
                                                                     size_t shared) {
  return active_blocks(blocks, stub, block_size, shared, 0);
}
ROTA_CUDART_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* stub,
                                                                              int block_size, size_t shared,
                                                                              unsigned flags) {
  return active_blocks(blocks, stub, block_size, shared, flags);
}
ROTA_CUDART_EXPORT int cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* stub, int blocks,
                                                                 int block_size) {
  CUfunction function = nullptr;
  if (int error = function_of(stub, &function); error != kSuccess) return done(error);
  return call(&Driver::cuOccupancyAvailableDynamicSMemPerBlock, bytes, function, blocks, block_size);
}
ROTA_CUDART_EXPORT int cudaOccupancyMaxPotentialClusterSize(int* size, const void* stub, const LaunchConfig* config) {
  return about_clusters(&Driver::cuOccupancyMaxPotentialClusterSize, size, stub, config);
}
ROTA_CUDART_EXPORT int cudaOccupancyMaxActiveClusters(int* clusters, const void* stub, const LaunchConfig* config) {
  return about_clusters(&Driver::cuOccupancyMaxActiveClusters, clusters, stub, config);
}

ROTA_FORWARD(8, cudaLibraryLoadData, cuLibraryLoadData)
ROTA_FORWARD(8, cudaLibraryLoadFromFile, cuLibraryLoadFromFile)
ROTA_FORWARD(4, cudaLibraryGetGlobal, cuLibraryGetGlobal)
ROTA_FORWARD(4, cudaLibraryGetManaged, cuLibraryGetManaged)
ROTA_FORWARD(3, cudaLibraryGetUnifiedFunction, cuLibraryGetUnifiedFunction)
ROTA_FORWARD(2, cudaLibraryGetKernelCount, cuLibraryGetKernelCount)
ROTA_CUDART_EXPORT int cudaLibraryUnload(CUlibrary library) {
  int error = call(&Driver::cuLibraryUnload, library);
  if (error == kSuccess) forget_library(library);
  return error;
}
ROTA_CUDART_EXPORT int cudaLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  int error = call(&Driver::cuLibraryGetKernel, kernel, library, name);
  if (error == kSuccess) remember_kernel(*kernel, library);
  return error;
}
ROTA_CUDART_EXPORT int cudaLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  unsigned has = 0;
  if (int error = call(&Driver::cuLibraryGetKernelCount, &has, library); error != kSuccess) return error;
  int error = call(&Driver::cuLibraryEnumerateKernels, kernels, count, library);
  for (unsigned i = 0; error == kSuccess && i < count && i < has; ++i) remember_kernel(kernels[i], library);
  return error;
}
