// What a context is set to: flags, limits, configuration, references.
#include "tests/simgpu/conformance/conformance.h"

namespace {

size_t limit(CUlimit which) {
  size_t value = 0;
  CHECK_OK(cu.cuCtxGetLimit(&value, which));
  return value;
}

CUcontext create(unsigned flags = 0) {
  CUcontext context = nullptr;
  CHECK_OK(cu.cuInit(0));
  CHECK_OK(cu.cuCtxCreate_v2(&context, flags, 0));
  return context;
}

unsigned scheduling() {
  unsigned flags = 0;
  CHECK_OK(cu.cuCtxGetFlags(&flags));
  return flags & CU_CTX_SCHED_MASK;
}

}  // namespace

RULE(contexts, flags_are_told, "idle:cuCtxGetFlags", "cuCtxGetFlags tells the flags that a context was created with") {
  create(CU_CTX_SCHED_YIELD);
  CHECK_EQ(scheduling(), unsigned{CU_CTX_SCHED_YIELD});
}

RULE(contexts, flags_can_be_set, "context_flags_are_not_kept", "cuCtxSetFlags replaces the current context's flags") {
  SKIP_UNLESS(exported("cuCtxSetFlags"), "needs CUDA 12.1");
  create(CU_CTX_SCHED_YIELD);
  CHECK_OK(cu.cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC));
  CHECK_EQ(scheduling(), unsigned{CU_CTX_SCHED_BLOCKING_SYNC});
}

RULE(contexts, flags_are_checked, "lenient:cuCtxSetFlags",
     "cuCtxSetFlags with two scheduling flags answers CUDA_ERROR_INVALID_VALUE") {
  SKIP_UNLESS(exported("cuCtxSetFlags"), "needs CUDA 12.1");
  create();
  CHECK_EQ(cu.cuCtxSetFlags(CU_CTX_SCHED_SPIN | CU_CTX_SCHED_BLOCKING_SYNC), CUDA_ERROR_INVALID_VALUE);
}

RULE(contexts, stack_size_can_be_raised, "limits_are_not_kept",
     "after cuCtxSetLimit the stack of a thread has at least the size asked for") {
  Session session;
  size_t wanted = limit(CU_LIMIT_STACK_SIZE) + 4096;
  CHECK_OK(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, wanted));
  CHECK(limit(CU_LIMIT_STACK_SIZE) >= wanted);
}

RULE(contexts, heap_size_can_be_raised, "limits_are_not_kept",
     "after cuCtxSetLimit the heap of kernels has at least the size asked for") {
  Session session;
  size_t wanted = limit(CU_LIMIT_MALLOC_HEAP_SIZE) + (size_t{4} << 20);
  CHECK_OK(cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, wanted));
  CHECK(limit(CU_LIMIT_MALLOC_HEAP_SIZE) >= wanted);
}

RULE(contexts, limits_belong_to_a_context, "limits_are_not_kept", "a limit that was set holds in its context only") {
  Session session;
  size_t initial = limit(CU_LIMIT_MALLOC_HEAP_SIZE);
  CHECK_OK(cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, initial * 2));
  CUcontext other = create();
  CHECK_EQ(limit(CU_LIMIT_MALLOC_HEAP_SIZE), initial);
  CHECK_OK(cu.cuCtxDestroy_v2(other));
  CHECK(limit(CU_LIMIT_MALLOC_HEAP_SIZE) >= initial * 2);
}

RULE(contexts, launch_depth_is_gone, "lenient:cuCtxGetLimit",
     "from compute capability 9.0 on CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH is CUDA_ERROR_UNSUPPORTED_LIMIT") {
  Session session;
  int major = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  SKIP_UNLESS(major >= 9, "needs compute capability 9.0");
  size_t value = 0;
  CHECK_EQ(cu.cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH), CUDA_ERROR_UNSUPPORTED_LIMIT);
}

RULE(contexts, pending_launches_have_a_limit, "idle:cuCtxGetLimit",
     "by default 2048 launches of kernels may be pending on the device") {
  Session session;
  CHECK_EQ(limit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT), 2048U);
}

RULE(contexts, unknown_limits, "lenient:cuCtxGetLimit",
     "cuCtxGetLimit of a number that is no limit answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t value = 0;
  CHECK_EQ(cu.cuCtxGetLimit(&value, static_cast<CUlimit>(1000)), CUDA_ERROR_INVALID_VALUE);
}

RULE(contexts, limits_need_a_place, "lenient:cuCtxGetLimit",
     "cuCtxGetLimit without a place for the value answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(cu.cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE), CUDA_ERROR_INVALID_VALUE);
}

RULE(contexts, limits_need_a_context, "lenient:cuCtxSetLimit",
     "cuCtxSetLimit with no context current answers CUDA_ERROR_INVALID_CONTEXT") {
  CHECK_OK(cu.cuInit(0));
  CHECK_EQ(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(contexts, cache_configuration_is_kept, "idle:cuCtxSetCacheConfig",
     "cuCtxGetCacheConfig tells what cuCtxSetCacheConfig set") {
  Session session;
  CHECK_OK(cu.cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  CUfunc_cache config = CU_FUNC_CACHE_PREFER_NONE;
  CHECK_OK(cu.cuCtxGetCacheConfig(&config));
  CHECK_EQ(config, CU_FUNC_CACHE_PREFER_L1);
}

RULE(contexts, cache_configuration_is_checked, "lenient:cuCtxSetCacheConfig",
     "cuCtxSetCacheConfig with a number that is no configuration answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(cu.cuCtxSetCacheConfig(static_cast<CUfunc_cache>(77)), CUDA_ERROR_INVALID_VALUE);
}

RULE(contexts, priorities_have_a_range, "idle:cuCtxGetStreamPriorityRange",
     "the lowest priority of streams is 0 and the highest below it or the same") {
  Session session;
  int least = -77;
  int greatest = 77;
  CHECK_OK(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
  CHECK_EQ(least, 0);
  CHECK(greatest <= least);
}

RULE(contexts, priorities_without_places, "refuse:cuCtxGetStreamPriorityRange",
     "either place for a priority may be missing") {
  Session session;
  int greatest = 77;
  CHECK_OK(cu.cuCtxGetStreamPriorityRange(nullptr, &greatest));
  CHECK(greatest <= 0);
  CHECK_OK(cu.cuCtxGetStreamPriorityRange(nullptr, nullptr));
}

RULE(contexts, attaching_keeps_a_context, "idle:cuCtxAttach",
     "a context that was attached to outlives one cuCtxDetach, and not the second") {
  CUcontext context = create();
  CUcontext attached = nullptr;
  CHECK_OK(cu.cuCtxAttach(&attached, 0));
  CHECK_EQ(attached, context);
  CHECK_OK(cu.cuCtxDetach(context));
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK_OK(cu.cuCtxDetach(context));
  CHECK_NE(cu.cuCtxSynchronize(), CUDA_SUCCESS);
}

RULE(contexts, attaching_takes_no_flags, "lenient:cuCtxAttach",
     "cuCtxAttach with flags answers CUDA_ERROR_INVALID_VALUE") {
  create();
  CUcontext attached = nullptr;
  CHECK_EQ(cu.cuCtxAttach(&attached, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(contexts, shared_memory_banks, "idle:cuCtxGetSharedMemConfig",
     "cuCtxGetSharedMemConfig tells four or eight bytes, never the default's number") {
  Session session;
  auto config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  CHECK_OK(cu.cuCtxGetSharedMemConfig(&config));
  CHECK(config == CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE || config == CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE);
}

RULE(contexts, api_version_is_told, "idle:cuCtxGetApiVersion", "cuCtxGetApiVersion tells at least 3020") {
  Session session;
  unsigned version = 0;
  CHECK_OK(cu.cuCtxGetApiVersion(session.context(), &version));
  CHECK(version >= 3020);
}

RULE(contexts, affinity_of_unknown_types, "lenient:cuCtxGetExecAffinity",
     "cuCtxGetExecAffinity of a type that there is not fails") {
  Session session;
  CUexecAffinityParam affinity{};
  CHECK_NE(cu.cuCtxGetExecAffinity(&affinity, static_cast<CUexecAffinityType>(77)), CUDA_SUCCESS);
}

RULE(contexts, persisting_lines_can_be_reset, "refuse:cuCtxResetPersistingL2Cache",
     "cuCtxResetPersistingL2Cache succeeds on a device that has such lines") {
  Session session;
  int bytes = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&bytes, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 0));
  SKIP_UNLESS(bytes > 0, "needs persisting cache lines");
  CHECK_OK(cu.cuCtxResetPersistingL2Cache());
}

RULE(contexts, profiling_needs_a_context, "lenient:cuProfilerStart",
     "cuProfilerStart with no context current answers CUDA_ERROR_INVALID_CONTEXT") {
  CHECK_OK(cu.cuInit(0));
  CHECK_EQ(cu.cuProfilerStart(), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(contexts, profiling_can_be_repeated, "refuse:cuProfilerStop",
     "cuProfilerStart and cuProfilerStop succeed again and again, with no profiler there") {
  Session session;
  for (int round = 0; round < 2; ++round) {
    CHECK_OK(cu.cuProfilerStart());
    CHECK_OK(cu.cuProfilerStart());
    CHECK_OK(cu.cuProfilerStop());
    CHECK_OK(cu.cuProfilerStop());
  }
}
