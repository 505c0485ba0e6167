// Attributes of functions, occupancy, and libraries with their kernels.
#include <string>
#include <vector>

#include "tests/simgpu/conformance/conformance.h"

namespace {

int attribute(CUdevice_attribute which) {
  int value = -1;
  CHECK_OK(cu.cuDeviceGetAttribute(&value, which, 0));
  return value;
}

int attribute(CUfunction function, CUfunction_attribute which) {
  int value = -77;
  CHECK_OK(cu.cuFuncGetAttribute(&value, which, function));
  return value;
}

int active_blocks(CUfunction function, int threads, size_t shared = 0) {
  int blocks = -1;
  CHECK_OK(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, shared));
  return blocks;
}

CUlibrary load() {
  CUlibrary library = nullptr;
  CHECK_OK(cu.cuLibraryLoadData(&library, Session::image().c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  return library;
}

CUkernel kernel(CUlibrary library, const char* name) {
  CUkernel found = nullptr;
  CHECK_OK(cu.cuLibraryGetKernel(&found, library, Session::mangled(name).c_str()));
  return found;
}

#define NEEDS_LIBRARIES() SKIP_UNLESS(exported("cuLibraryLoadData"), "needs CUDA 12.0")

}  // namespace

RULE(modules, blocks_of_a_function, "idle:cuFuncGetAttribute",
     "a function's largest block is not larger than the device's and has at least a warp") {
  Session session;
  int threads = attribute(session.function("saxpy"), CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  CHECK(threads >= 32);
  CHECK(threads <= attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
}

RULE(modules, registers_of_a_function, "idle:cuFuncGetAttribute", "a function uses between 1 and 255 registers") {
  Session session;
  int registers = attribute(session.function("saxpy"), CU_FUNC_ATTRIBUTE_NUM_REGS);
  CHECK(registers >= 1);
  CHECK(registers <= 255);
}

RULE(modules, binary_version_fits_the_device, "attributes_are_zero",
     "a function's binary version is of the device's major compute capability") {
  Session session;
  int version = attribute(session.function("saxpy"), CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  CHECK(version > 0);
  CHECK_EQ(version / 10, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
}

RULE(modules, dynamic_shared_memory_by_default, "function_attributes_are_zero",
     "by default a function may have the block's shared memory less its static part as dynamic shared memory") {
  Session session;
  CUfunction function = session.function("saxpy");
  CHECK_EQ(attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES),
           attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK) -
               attribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
}

RULE(modules, dynamic_shared_memory_can_be_raised, "function_attributes_are_not_kept",
     "MAX_DYNAMIC_SHARED_SIZE_BYTES can be raised to what the device lets a block opt into") {
  Session session;
  CUfunction function = session.function("saxpy");
  int most = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) -
             attribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  CHECK_OK(cu.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most));
  CHECK_EQ(attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), most);
}

RULE(modules, dynamic_shared_memory_has_an_end, "lenient:cuFuncSetAttribute",
     "MAX_DYNAMIC_SHARED_SIZE_BYTES above what a block may opt into answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  int most = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  CHECK_EQ(cu.cuFuncSetAttribute(session.function("saxpy"), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most + 1),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(modules, attributes_that_are_read_only, "lenient:cuFuncSetAttribute",
     "setting an attribute that is only to be read answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(cu.cuFuncSetAttribute(session.function("saxpy"), CU_FUNC_ATTRIBUTE_NUM_REGS, 10), CUDA_ERROR_INVALID_VALUE);
}

RULE(modules, attributes_that_there_are_not, "lenient:cuFuncGetAttribute",
     "cuFuncGetAttribute of a number that is no attribute answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  int value = 0;
  CHECK_EQ(cu.cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(1000), session.function("saxpy")),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(modules, carveout_is_kept, "function_attributes_are_not_kept",
     "the preferred carveout of shared memory is told as it was set") {
  Session session;
  CUfunction function = session.function("saxpy");
  CHECK_EQ(attribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT), -1);
  CHECK_OK(cu.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  CHECK_EQ(attribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT), 50);
}

RULE(modules, carveout_is_a_percentage, "lenient:cuFuncSetAttribute",
     "a preferred carveout above 100 answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(cu.cuFuncSetAttribute(session.function("saxpy"), CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(modules, occupancy_by_threads, "idle:cuOccupancyMaxActiveBlocksPerMultiprocessor",
     "the blocks that a multiprocessor holds at a time have no more threads than it has") {
  Session session;
  CUfunction function = session.function("saxpy");
  int threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  for (int block : {32, 64, 256, 512}) {
    int blocks = active_blocks(function, block);
    CHECK(blocks >= 1);
    CHECK(blocks * block <= threads);
    CHECK(blocks <= attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR));
  }
}

RULE(modules, occupancy_by_shared_memory, "occupancy_ignores_shared_memory",
     "blocks that need much dynamic shared memory are fewer on a multiprocessor") {
  Session session;
  CUfunction function = session.function("saxpy");
  auto shared = static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  int blocks = active_blocks(function, 32, shared);
  int whole = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  CHECK(blocks >= 1);
  CHECK(blocks < active_blocks(function, 32));
  CHECK_EQ(blocks,
           whole / (static_cast<int>(shared) + attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)));
}

RULE(modules, occupancy_of_empty_blocks, "lenient:cuOccupancyMaxActiveBlocksPerMultiprocessor",
     "occupancy of blocks without threads answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  int blocks = 0;
  CHECK_EQ(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, session.function("saxpy"), 0, 0),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(modules, block_size_for_occupancy, "idle:cuOccupancyMaxPotentialBlockSize",
     "cuOccupancyMaxPotentialBlockSize suggests a block that fits and a grid that fills the device with it") {
  Session session;
  CUfunction function = session.function("saxpy");
  int grid = 0;
  int block = 0;
  CHECK_OK(cu.cuOccupancyMaxPotentialBlockSize(&grid, &block, function, nullptr, 0, 0));
  CHECK(block >= 32);
  CHECK(block <= attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  CHECK_EQ(grid, active_blocks(function, block) * attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
}

RULE(modules, block_size_within_a_limit, "occupancy_ignores_limits",
     "cuOccupancyMaxPotentialBlockSize suggests no block above the limit that it is given") {
  Session session;
  int grid = 0;
  int block = 0;
  CHECK_OK(cu.cuOccupancyMaxPotentialBlockSize(&grid, &block, session.function("saxpy"), nullptr, 0, 128));
  CHECK(block > 0);
  CHECK(block <= 128);
}

RULE(modules, shared_memory_left, "idle:cuOccupancyAvailableDynamicSMemPerBlock",
     "what cuOccupancyAvailableDynamicSMemPerBlock tells lets that many blocks fit") {
  Session session;
  CUfunction function = session.function("saxpy");
  size_t bytes = SIZE_MAX;
  CHECK_OK(cu.cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 4, 64));
  CHECK(bytes > 0);
  CHECK(active_blocks(function, 64, bytes) >= 4);
}

RULE(modules, clusters_for_a_launch, "idle:cuOccupancyMaxPotentialClusterSize",
     "on a device with clusters, 8 blocks are a cluster that may be launched") {
  Session session;
  SKIP_UNLESS(attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) == 1, "needs clusters");
  CUlaunchConfig config{};
  config.gridDimX = 64;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 128;
  config.blockDimY = config.blockDimZ = 1;
  int size = 0;
  CHECK_OK(cu.cuOccupancyMaxPotentialClusterSize(&size, session.function("saxpy"), &config));
  CHECK_EQ(size, 8);
}

RULE(modules, clusters_on_the_device, "idle:cuOccupancyMaxActiveClusters",
     "on a device with clusters, several of 2 blocks can be active, not more than there is room for blocks") {
  Session session;
  SKIP_UNLESS(attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) == 1, "needs clusters");
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim.x = 2;
  cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
  CUlaunchConfig config{};
  config.gridDimX = 64;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 128;
  config.blockDimY = config.blockDimZ = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  CHECK_OK(cu.cuOccupancyMaxActiveClusters(&clusters, session.function("saxpy"), &config));
  int blocks = active_blocks(session.function("saxpy"), 128);
  CHECK(clusters >= 1);
  CHECK(clusters * 2 <= blocks * attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
}

RULE(modules, libraries_need_no_context, "refuse:cuLibraryLoadData",
     "a library can be loaded, and its kernels found, with no context current") {
  NEEDS_LIBRARIES();
  CHECK_OK(cu.cuInit(0));
  CHECK(kernel(load(), "saxpy") != nullptr);
}

RULE(modules, kernels_that_are_not_there, "lenient:cuLibraryGetKernel",
     "cuLibraryGetKernel of a name that the image has not answers CUDA_ERROR_NOT_FOUND") {
  NEEDS_LIBRARIES();
  Session session;
  CUkernel found = nullptr;
  CHECK_EQ(cu.cuLibraryGetKernel(&found, load(), "nothing"), CUDA_ERROR_NOT_FOUND);
}

RULE(modules, kernels_can_be_launched, "idle:cuLaunchKernel",
     "a kernel of a library can be launched in its function's place") {
  NEEDS_LIBRARIES();
  Session session;
  auto function = reinterpret_cast<CUfunction>(kernel(load(), "fill"));
  Buffer words(64);
  words.write(std::vector<unsigned>(16, 1));
  CHECK_OK(launch(function, 1, 32, nullptr, words.address(), 16UL, 9U));
  std::vector<unsigned> values = words.read<unsigned>(16);
  CHECK_EQ(values[15], 9U);
}

RULE(modules, kernels_know_their_library, "idle:cuKernelGetLibrary",
     "cuKernelGetLibrary gives the library of a kernel") {
  SKIP_UNLESS(exported("cuKernelGetLibrary"), "needs CUDA 12.5");
  Session session;
  CUlibrary library = load();
  CUlibrary found = nullptr;
  CHECK_OK(cu.cuKernelGetLibrary(&found, kernel(library, "saxpy")));
  CHECK_EQ(found, library);
}

RULE(modules, kernels_know_their_name, "idle:cuKernelGetName",
     "cuKernelGetName gives the name that a kernel was found by") {
  SKIP_UNLESS(exported("cuKernelGetName"), "needs CUDA 12.3");
  Session session;
  const char* name = nullptr;
  CHECK_OK(cu.cuKernelGetName(&name, kernel(load(), "saxpy")));
  CHECK_EQ(std::string(name), Session::mangled("saxpy"));
}

RULE(modules, a_function_per_context, "contexts_share_libraries",
     "a kernel has a function in each context, in that context's own module") {
  NEEDS_LIBRARIES();
  Session session;
  CUlibrary library = load();
  CUkernel saxpy = kernel(library, "saxpy");
  CUfunction first = nullptr;
  CUfunction second = nullptr;
  CUmodule first_module = nullptr;
  CUmodule second_module = nullptr;
  CHECK_OK(cu.cuKernelGetFunction(&first, saxpy));
  CHECK_OK(cu.cuLibraryGetModule(&first_module, library));
  CUcontext other = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&other, 0, 0));
  CHECK_OK(cu.cuKernelGetFunction(&second, saxpy));
  CHECK_OK(cu.cuLibraryGetModule(&second_module, library));
  CHECK_NE(first, second);
  CHECK_NE(first_module, second_module);
}

RULE(modules, library_modules_stay, "library_modules_can_be_unloaded",
     "cuModuleUnload of a library's module answers CUDA_ERROR_NOT_PERMITTED") {
  NEEDS_LIBRARIES();
  Session session;
  CUmodule module = nullptr;
  CHECK_OK(cu.cuLibraryGetModule(&module, load()));
  CHECK_EQ(cu.cuModuleUnload(module), CUDA_ERROR_NOT_PERMITTED);
}

RULE(modules, library_variables_per_context, "contexts_share_libraries",
     "a library's variable lies elsewhere in each context, and each has its initial value") {
  NEEDS_LIBRARIES();
  Session session;
  CUlibrary library = load();
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  size_t bytes = 0;
  unsigned value = 0;
  CHECK_OK(cu.cuLibraryGetGlobal(&first, &bytes, library, "counter"));
  CHECK_EQ(bytes, 4U);
  CHECK_OK(cu.cuMemsetD32_v2(first, 1, 1));
  CUcontext other = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&other, 0, 0));
  CHECK_OK(cu.cuLibraryGetGlobal(&second, &bytes, library, "counter"));
  CHECK_NE(first, second);
  CHECK_OK(cu.cuMemcpyDtoH_v2(&value, second, sizeof value));
  CHECK_EQ(value, 5U);
}

RULE(modules, managed_variables_of_the_host, "idle:cuLibraryGetManaged",
     "a library's managed variable can be read and written by the host") {
  NEEDS_LIBRARIES();
  Session session;
  CUlibrary library = load();
  CUmodule module = nullptr;
  CHECK_OK(cu.cuLibraryGetModule(&module, library));
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CHECK_OK(cu.cuLibraryGetManaged(&address, &bytes, library, "total"));
  CHECK_EQ(bytes, 4U);
  auto* total = reinterpret_cast<volatile unsigned*>(address);
  CHECK(total != nullptr);
  CHECK_EQ(*total, 7U);
  *total = 8;
  CHECK_EQ(*total, 8U);
}

RULE(modules, plain_variables_are_not_managed, "lenient:cuLibraryGetManaged",
     "cuLibraryGetManaged of a variable that is not managed answers CUDA_ERROR_NOT_FOUND") {
  NEEDS_LIBRARIES();
  Session session;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CHECK_EQ(cu.cuLibraryGetManaged(&address, &bytes, load(), "counter"), CUDA_ERROR_NOT_FOUND);
}

RULE(modules, kernel_attributes_per_device, "function_attributes_are_not_kept",
     "cuKernelGetAttribute tells what cuKernelSetAttribute set for the device") {
  NEEDS_LIBRARIES();
  Session session;
  CUkernel saxpy = kernel(load(), "saxpy");
  CHECK_OK(cu.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, saxpy, 0));
  int value = 0;
  CHECK_OK(cu.cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, saxpy, 0));
  CHECK_EQ(value, 50);
}

RULE(modules, function_attributes_override, "function_attributes_do_not_override",
     "an attribute of a function holds whatever its kernel's is, and the kernel's stays as it was set") {
  NEEDS_LIBRARIES();
  Session session;
  CUkernel saxpy = kernel(load(), "saxpy");
  CUfunction function = nullptr;
  CHECK_OK(cu.cuKernelGetFunction(&function, saxpy));
  CHECK_OK(cu.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 20));
  CHECK_OK(cu.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, saxpy, 0));
  CHECK_EQ(attribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT), 20);
  int value = 0;
  CHECK_OK(cu.cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, saxpy, 0));
  CHECK_EQ(value, 50);
}

RULE(modules, kernel_attributes_need_a_device, "lenient:cuKernelGetAttribute",
     "cuKernelGetAttribute for a device that there is not answers CUDA_ERROR_INVALID_DEVICE") {
  NEEDS_LIBRARIES();
  Session session;
  int value = 0;
  CHECK_EQ(cu.cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel(load(), "saxpy"), 1000),
           CUDA_ERROR_INVALID_DEVICE);
}

RULE(modules, kernels_are_counted_and_listed, "idle:cuLibraryEnumerateKernels",
     "cuLibraryEnumerateKernels gives as many kernels as cuLibraryGetKernelCount tells") {
  SKIP_UNLESS(exported("cuLibraryGetKernelCount"), "needs CUDA 12.4");
  Session session;
  CUlibrary library = load();
  unsigned count = 0;
  CHECK_OK(cu.cuLibraryGetKernelCount(&count, library));
  CHECK(count >= 7);
  std::vector<CUkernel> kernels(count);
  CHECK_OK(cu.cuLibraryEnumerateKernels(kernels.data(), count, library));
  for (CUkernel one : kernels) CHECK(one != nullptr);
}

RULE(modules, unloading_needs_a_library, "lenient:cuLibraryUnload", "cuLibraryUnload of no library fails") {
  NEEDS_LIBRARIES();
  Session session;
  CHECK_NE(cu.cuLibraryUnload(nullptr), CUDA_SUCCESS);
}
