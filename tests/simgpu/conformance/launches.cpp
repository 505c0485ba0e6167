// Rules of kernel launches: shape, arguments, attributes and errors.
#include "tests/simgpu/conformance/work.h"

namespace {

// A launch of the kernel `fill` on words, in pieces that a rule can spoil.
struct FillLaunch {
  explicit FillLaunch(const Words& words, unsigned wanted = 5)
      : function(words.function()), address(words.address()), value(wanted) {}
  CUresult run(CUstream stream = nullptr, void** extra = nullptr) {
    return cu.cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream,
                             arguments, extra);
  }
  CUresult run_with(std::vector<CUlaunchAttribute> attributes, CUstream stream = nullptr) {
    CUlaunchConfig config{};
    config.gridDimX = grid[0];
    config.gridDimY = grid[1];
    config.gridDimZ = grid[2];
    config.blockDimX = block[0];
    config.blockDimY = block[1];
    config.blockDimZ = block[2];
    config.sharedMemBytes = shared;
    config.hStream = stream;
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    return cu.cuLaunchKernelEx(&config, function, arguments, nullptr);
  }

  CUfunction function;
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {32, 1, 1};
  unsigned shared = 0;
  CUdeviceptr address;
  unsigned long count = 64;
  unsigned value;
  void* arguments[3] = {&address, &count, &value};
};

CUlaunchAttribute attribute(CUlaunchAttributeID id) {
  CUlaunchAttribute attribute{};
  attribute.id = id;
  return attribute;
}

CUlaunchAttribute cluster_of(unsigned blocks) {
  CUlaunchAttribute cluster = attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  cluster.value.clusterDim = {blocks, 1, 1};
  return cluster;
}

int figure(const Session& session, CUdevice_attribute which) {
  int value = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&value, which, session.device()));
  return value;
}

}  // namespace

RULE(launches, launches_need_a_function, "lenient:cuLaunchKernel",
     "a launch without a function answers CUDA_ERROR_INVALID_HANDLE") {
  Session session;
  CHECK_EQ(cu.cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

RULE(launches, grids_are_not_empty, "lenient:cuLaunchKernel",
     "a launch whose grid or block has no extent answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Words words(session);
  for (int axis = 0; axis < 3; ++axis) {
    FillLaunch no_grid(words);
    no_grid.grid[axis] = 0;
    CHECK_EQ(no_grid.run(), CUDA_ERROR_INVALID_VALUE);
    FillLaunch no_block(words);
    no_block.block[axis] = 0;
    CHECK_EQ(no_block.run(), CUDA_ERROR_INVALID_VALUE);
  }
}

RULE(launches, blocks_have_a_greatest_size, "lenient:cuLaunchKernel",
     "a block of more threads than the device allows answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Words words(session);
  FillLaunch fill(words);
  fill.block[0] = static_cast<unsigned>(figure(session, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)) + 1;
  CHECK_EQ(fill.run(), CUDA_ERROR_INVALID_VALUE);
  fill.block[0] = 1;
  fill.block[2] = static_cast<unsigned>(figure(session, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)) + 1;
  CHECK_EQ(fill.run(), CUDA_ERROR_INVALID_VALUE);
}

RULE(launches, grids_have_a_greatest_size, "lenient:cuLaunchKernel",
     "a grid that is higher than the device allows answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Words words(session);
  FillLaunch fill(words);
  fill.grid[1] = static_cast<unsigned>(figure(session, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)) + 1;
  CHECK_EQ(fill.run(), CUDA_ERROR_INVALID_VALUE);
}

RULE(launches, shared_memory_is_asked_for_first, "lenient:cuLaunchKernel",
     "more dynamic shared memory than the function was allowed answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Words words(session);
  FillLaunch fill(words);
  fill.shared = static_cast<unsigned>(figure(session, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)) + 1024;
  CHECK_EQ(fill.run(), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuFuncSetAttribute(fill.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                 static_cast<int>(fill.shared)));
  CHECK_OK(fill.run());
}

RULE(launches, arguments_come_one_way, "lenient:cuLaunchKernel",
     "arguments given both as kernelParams and in extra answer CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Words words(session);
  FillLaunch fill(words);
  size_t bytes = 24;
  unsigned char buffer[24] = {};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CHECK_EQ(fill.run(nullptr, extra), CUDA_ERROR_INVALID_VALUE);
}

RULE(launches, arguments_come_in_a_buffer, "packed_arguments_are_lost",
     "arguments can be given as one buffer through extra") {
  Session session;
  Words words(session);
  struct {
    CUdeviceptr address;
    unsigned long count;
    unsigned value;
  } packed{words.address(), 64, 9};
  size_t bytes = 20;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CHECK_OK(cu.cuLaunchKernel(words.function(), 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra));
  CHECK_EQ(words.value(), 9U);
}

RULE(launches, arguments_are_taken_at_once, "arguments_are_read_when_the_kernel_runs",
     "a launch copies its arguments: what they are changed to afterwards does not matter") {
  Session session;
  Words words(session);
  Stream stream;
  FillLaunch fill(words, 5);
  Blocker blocker(stream);
  CHECK_OK(fill.run(stream));
  fill.value = 6;
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(words.value(), 5U);
}

RULE(launches, launches_return_at_once, "launches_wait",
     "a launch returns while the stream's earlier work still runs") {
  Session session;
  Words words(session);
  Stream stream;
  Blocker blocker(stream);
  CHECK_OK(words.fill(stream, 5));
  CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
}

RULE(launches, streams_fit_their_functions, "lenient:cuLaunchKernel",
     "a function of one context cannot be launched in a stream of another") {
  Session session;
  Words words(session);
  FillLaunch fill(words);
  CUcontext other = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&other, 0, session.device()));
  Stream stream;
  CHECK_EQ(fill.run(stream), CUDA_ERROR_INVALID_HANDLE);
}

RULE(launches, cooperative_launches_run, "idle:cuLaunchCooperativeKernel",
     "a cooperative launch of a grid that fits runs like any other") {
  Session session;
  SKIP_UNLESS(figure(session, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) != 0, "needs cooperative launches");
  Words words(session);
  FillLaunch fill(words, 7);
  CHECK_OK(cu.cuLaunchCooperativeKernel(fill.function, 2, 1, 1, 32, 1, 1, 0, nullptr, fill.arguments));
  CHECK_EQ(words.value(), 7U);
}

RULE(launches, cooperative_grids_fit, "cooperative_launches_may_be_too_large",
     "a cooperative launch of more blocks than the device holds at once answers "
     "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, as a function or as an attribute") {
  Session session;
  SKIP_UNLESS(figure(session, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) != 0, "needs cooperative launches");
  Words words(session);
  FillLaunch fill(words);
  int blocks = 0;
  CHECK_OK(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill.function, 32, 0));
  fill.grid[0] = static_cast<unsigned>(blocks * figure(session, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)) + 1;
  CHECK_EQ(cu.cuLaunchCooperativeKernel(fill.function, fill.grid[0], 1, 1, 32, 1, 1, 0, nullptr, fill.arguments),
           CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  CUlaunchAttribute cooperative = attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  cooperative.value.cooperative = 1;
  CHECK_EQ(fill.run_with({cooperative}), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  cooperative.value.cooperative = 0;
  CHECK_OK(fill.run_with({cooperative}));
}

RULE(launches, configured_launches_run, "idle:cuLaunchKernelEx",
     "cuLaunchKernelEx launches without attributes, and passes over those that are to be ignored") {
  Session session;
  Words words(session);
  FillLaunch fill(words, 7);
  CHECK_OK(fill.run_with({}));
  CHECK_EQ(words.value(), 7U);
  fill.value = 8;
  CHECK_OK(fill.run_with({attribute(CU_LAUNCH_ATTRIBUTE_IGNORE)}));
  CHECK_EQ(words.value(), 8U);
}

RULE(launches, launch_attributes_are_known_ones, "lenient:cuLaunchKernelEx",
     "an attribute that does not exist is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Words words(session);
  FillLaunch fill(words);
  CHECK_EQ(fill.run_with({attribute(static_cast<CUlaunchAttributeID>(999))}), CUDA_ERROR_INVALID_VALUE);
}

RULE(launches, configurations_are_needed, "lenient:cuLaunchKernelEx",
     "cuLaunchKernelEx without a configuration answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Words words(session);
  FillLaunch fill(words);
  CHECK_EQ(cu.cuLaunchKernelEx(nullptr, fill.function, fill.arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(launches, clusters_run, "idle:cuLaunchKernelEx", "a grid of whole clusters runs where the device has clusters") {
  Session session;
  SKIP_UNLESS(figure(session, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0, "needs clusters");
  Words words(session);
  FillLaunch fill(words, 7);
  fill.grid[0] = 4;
  CHECK_OK(fill.run_with({cluster_of(2)}));
  CHECK_EQ(words.value(), 7U);
}

RULE(launches, clusters_divide_the_grid, "lenient:cuLaunchKernelEx", "a grid that is not whole clusters is refused") {
  Session session;
  SKIP_UNLESS(figure(session, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0, "needs clusters");
  Words words(session);
  FillLaunch fill(words);
  fill.grid[0] = 3;
  CHECK_NE(fill.run_with({cluster_of(2)}), CUDA_SUCCESS);
}

RULE(launches, clusters_have_a_greatest_size, "lenient:cuLaunchKernelEx",
     "a cluster of more than 8 blocks answers CUDA_ERROR_INVALID_CLUSTER_SIZE unless the function allows it") {
  Session session;
  SKIP_UNLESS(figure(session, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0, "needs clusters");
  Words words(session);
  FillLaunch fill(words);
  fill.grid[0] = 32;
  CHECK_EQ(fill.run_with({cluster_of(32)}), CUDA_ERROR_INVALID_CLUSTER_SIZE);
}

RULE(launches, completion_events_are_recorded, "launches_record_no_events",
     "a launch completion event is not complete while the stream's earlier work runs, and is once the kernel has run") {
  Session session;
  Words words(session);
  Later later(session);
  Stream stream;
  Event event(CU_EVENT_DISABLE_TIMING);
  FillLaunch fill(words, 7);
  CUlaunchAttribute completion = attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  completion.value.launchCompletionEvent.event = event;
  CHECK_OK(fill.run_with({completion}, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  Blocker blocker(stream);
  CHECK_OK(fill.run_with({completion}, stream));
  later.wait();
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
}

RULE(launches, programmatic_events_have_no_time, "lenient:cuLaunchKernelEx",
     "a programmatic event of a launch that has timing is not supported") {
  Session session;
  Words words(session);
  Stream stream;
  Event event;
  FillLaunch fill(words);
  CUlaunchAttribute programmatic = attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
  programmatic.value.programmaticEvent.event = event;
  CHECK_EQ(fill.run_with({programmatic}, stream), CUDA_ERROR_NOT_SUPPORTED);
}

RULE(launches, held_arguments_are_launched, "idle:cuLaunchGridAsync",
     "the deprecated functions launch with what they set in the function: block, argument bytes, grid") {
  Session session;
  SKIP_UNLESS(exported("cuLaunchGridAsync"), "needs cuLaunchGridAsync");
  Words words(session);
  Stream stream;
  CUdeviceptr address = words.address();
  unsigned long count = 64;
  CHECK_OK(cu.cuFuncSetBlockShape(words.function(), 32, 1, 1));
  CHECK_OK(cu.cuParamSetv(words.function(), 0, &address, sizeof address));
  CHECK_OK(cu.cuParamSetv(words.function(), 8, &count, sizeof count));
  CHECK_OK(cu.cuParamSeti(words.function(), 16, 7));
  CHECK_OK(cu.cuParamSetSize(words.function(), 20));
  CHECK_OK(cu.cuLaunchGridAsync(words.function(), 1, 1, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(words.value(), 7U);
}

RULE(launches, block_shapes_are_not_empty, "lenient:cuFuncSetBlockShape",
     "cuFuncSetBlockShape refuses a block without extent with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  SKIP_UNLESS(exported("cuFuncSetBlockShape"), "needs cuFuncSetBlockShape");
  Words words(session);
  CHECK_EQ(cu.cuFuncSetBlockShape(words.function(), 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
}
