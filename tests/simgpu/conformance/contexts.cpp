// Contexts: making and ending them, and which one is current.
#include <thread>
#include <vector>

#include "tests/simgpu/conformance/conformance.h"

namespace {

CUcontext current() {
  CUcontext context = nullptr;
  CHECK_OK(cu.cuCtxGetCurrent(&context));
  return context;
}

// A context of device 0, current on this thread.
CUcontext create(unsigned flags = 0) {
  CUcontext context = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&context, flags, 0));
  return context;
}

void start() {
  CHECK_OK(cu.cuInit(0));
}

struct PrimaryState {
  unsigned flags = 0;
  int active = -1;
};

PrimaryState primary() {
  PrimaryState state;
  CHECK_OK(cu.cuDevicePrimaryCtxGetState(0, &state.flags, &state.active));
  return state;
}

}  // namespace

RULE(contexts, created_ones_are_current, "idle:cuCtxCreate_v2", "cuCtxCreate makes the context current") {
  start();
  CHECK(current() == nullptr);
  CUcontext context = create();
  CHECK(context != nullptr);
  CHECK_EQ(current(), context);
}

RULE(contexts, created_ones_lie_on_the_others, "idle:cuCtxPopCurrent_v2",
     "popping a created context makes the one before it current again") {
  Session session;
  CUcontext context = create();
  CUcontext popped = nullptr;
  CHECK_OK(cu.cuCtxPopCurrent_v2(&popped));
  CHECK_EQ(popped, context);
  CHECK_EQ(current(), session.context());
}

RULE(contexts, creation_refuses_flags, "lenient:cuCtxCreate_v2",
     "cuCtxCreate with flags that there are not answers CUDA_ERROR_INVALID_VALUE") {
  start();
  CUcontext context = nullptr;
  CHECK_EQ(cu.cuCtxCreate_v2(&context, 0x8000, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(contexts, one_way_of_waiting, "lenient:cuCtxCreate_v2",
     "cuCtxCreate with two scheduling flags answers CUDA_ERROR_INVALID_VALUE") {
  start();
  CUcontext context = nullptr;
  CHECK_EQ(cu.cuCtxCreate_v2(&context, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(contexts, creation_needs_a_device, "lenient:cuCtxCreate_v2",
     "cuCtxCreate on a device that there is not answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  CUcontext context = nullptr;
  CHECK_EQ(cu.cuCtxCreate_v2(&context, 0, 1000), CUDA_ERROR_INVALID_DEVICE);
}

RULE(contexts, destruction_pops, "destroyed_contexts_stay_current",
     "cuCtxDestroy of the current context makes the one before it current again") {
  Session session;
  CUcontext context = create();
  CHECK_OK(cu.cuCtxDestroy_v2(context));
  CHECK_EQ(current(), session.context());
}

RULE(contexts, destruction_of_another_pops_nothing, "refuse:cuCtxDestroy_v2",
     "cuCtxDestroy of a context that is not current leaves the current one") {
  Session session;
  CUcontext context = create();
  CHECK_OK(cu.cuCtxPopCurrent_v2(nullptr));
  CHECK_OK(cu.cuCtxDestroy_v2(context));
  CHECK_EQ(current(), session.context());
  CHECK_OK(cu.cuCtxSynchronize());
}

RULE(contexts, destruction_needs_a_context, "lenient:cuCtxDestroy_v2", "cuCtxDestroy of no context fails") {
  start();
  CHECK_NE(cu.cuCtxDestroy_v2(nullptr), CUDA_SUCCESS);
}

RULE(contexts, destroyed_on_another_thread, "lenient:cuCtxSynchronize",
     "where a destroyed context is still current on another thread, calls answer CUDA_ERROR_CONTEXT_IS_DESTROYED") {
  start();
  CUcontext context = create();
  CHECK_OK(cu.cuCtxPopCurrent_v2(nullptr));
  CHECK_OK(cu.cuCtxSetCurrent(context));
  CUresult result = CUDA_SUCCESS;
  std::thread([&] { result = cu.cuCtxDestroy_v2(context); }).join();
  CHECK_OK(result);
  CHECK_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

RULE(contexts, allocations_end_with_their_context, "destroyed_contexts_keep_memory",
     "cuCtxDestroy frees what was allocated in the context") {
  Session session;
  CUcontext context = create();
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&address, 1 << 20));
  CHECK_OK(cu.cuCtxDestroy_v2(context));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CHECK_NE(cu.cuMemGetAddressRange_v2(&base, &bytes, address), CUDA_SUCCESS);
}

RULE(contexts, contexts_cost_memory, "contexts_take_no_memory", "a created context takes device memory") {
  Session session;
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  // Rules that run beside this one on a GPU take and give memory meanwhile; not each time.
  for (int attempt = 0; attempt < 10 && after >= before; ++attempt) {
    CHECK_OK(cu.cuMemGetInfo_v2(&before, &total));
    create();
    CHECK_OK(cu.cuMemGetInfo_v2(&after, &total));
  }
  CHECK(after < before);
}

RULE(contexts, pushing_and_popping, "idle:cuCtxPushCurrent_v2",
     "contexts are popped in the reverse order of their pushes") {
  Session session;
  CUcontext first = create();
  CHECK_OK(cu.cuCtxPopCurrent_v2(nullptr));
  CHECK_OK(cu.cuCtxPushCurrent_v2(first));
  CHECK_OK(cu.cuCtxPushCurrent_v2(session.context()));
  CUcontext popped = nullptr;
  CHECK_OK(cu.cuCtxPopCurrent_v2(&popped));
  CHECK_EQ(popped, session.context());
  CHECK_OK(cu.cuCtxPopCurrent_v2(&popped));
  CHECK_EQ(popped, first);
  CHECK_EQ(current(), session.context());
}

RULE(contexts, popping_needs_a_context, "lenient:cuCtxPopCurrent_v2",
     "cuCtxPopCurrent with no context current answers CUDA_ERROR_INVALID_CONTEXT") {
  start();
  CUcontext popped = nullptr;
  CHECK_EQ(cu.cuCtxPopCurrent_v2(&popped), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(contexts, pushing_needs_a_context, "lenient:cuCtxPushCurrent_v2", "cuCtxPushCurrent of no context fails") {
  Session session;
  CHECK_NE(cu.cuCtxPushCurrent_v2(nullptr), CUDA_SUCCESS);
  CHECK_EQ(current(), session.context());
}

RULE(contexts, setting_replaces_the_top, "idle:cuCtxSetCurrent",
     "cuCtxSetCurrent replaces the top of the stack and leaves what lies below") {
  Session session;
  CUcontext first = create();
  CUcontext second = create();
  CHECK_OK(cu.cuCtxSetCurrent(session.context()));
  CHECK_EQ(current(), session.context());
  CHECK_OK(cu.cuCtxPopCurrent_v2(nullptr));
  CHECK_EQ(current(), first);
  CHECK_OK(cu.cuCtxDestroy_v2(second));
}

RULE(contexts, setting_none_pops, "idle:cuCtxSetCurrent", "cuCtxSetCurrent of no context pops the top of the stack") {
  Session session;
  CUcontext context = create();
  CHECK_EQ(current(), context);
  CHECK_OK(cu.cuCtxSetCurrent(nullptr));
  CHECK_EQ(current(), session.context());
  CHECK_OK(cu.cuCtxSetCurrent(nullptr));
  CHECK(current() == nullptr);
  CHECK_OK(cu.cuCtxSetCurrent(nullptr));
}

RULE(contexts, threads_have_their_own_stacks, "threads_share_their_stack", "a new thread has no context current") {
  Session session;
  CUcontext seen = session.context();
  std::thread([&] { seen = current(); }).join();
  CHECK(seen == nullptr);
  CHECK_EQ(current(), session.context());
}

RULE(contexts, current_on_two_threads, "idle:cuCtxSetCurrent",
     "a context can be current on two threads, and memory of one is that of the other") {
  Session session;
  Buffer words(64);
  words.write(std::vector<unsigned>(16, 7));
  std::vector<unsigned> seen;
  std::thread([&] {
    CHECK_OK(cu.cuCtxSetCurrent(session.context()));
    seen = words.read<unsigned>(16);
  }).join();
  CHECK_EQ(seen.back(), 7U);
}

RULE(contexts, device_of_the_current, "idle:cuCtxGetDevice", "cuCtxGetDevice tells the current context's device") {
  Session session;
  CUdevice device = -1;
  CHECK_OK(cu.cuCtxGetDevice(&device));
  CHECK_EQ(device, session.device());
}

RULE(contexts, no_device_without_a_context, "lenient:cuCtxGetDevice",
     "cuCtxGetDevice with no context current answers CUDA_ERROR_INVALID_CONTEXT") {
  start();
  CUdevice device = -1;
  CHECK_EQ(cu.cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(contexts, nothing_to_wait_for_without_a_context, "lenient:cuCtxSynchronize",
     "cuCtxSynchronize with no context current answers CUDA_ERROR_INVALID_CONTEXT") {
  start();
  CHECK_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(contexts, ids_differ, "context_ids_are_alike", "two contexts have different ids, and a context keeps its own") {
  SKIP_UNLESS(exported("cuCtxGetId"), "needs CUDA 12.0");
  Session session;
  unsigned long long first = 0;
  unsigned long long second = 0;
  unsigned long long again = 0;
  CHECK_OK(cu.cuCtxGetId(session.context(), &first));
  CUcontext context = create();
  CHECK_OK(cu.cuCtxGetId(context, &second));
  CHECK_OK(cu.cuCtxGetId(session.context(), &again));
  CHECK_NE(first, second);
  CHECK_EQ(first, again);
}

RULE(contexts, id_of_the_current, "context_ids_are_alike", "cuCtxGetId of no context tells the current one's id") {
  SKIP_UNLESS(exported("cuCtxGetId"), "needs CUDA 12.0");
  Session session;
  CUcontext context = create();
  unsigned long long named = 0;
  unsigned long long own = 1;
  unsigned long long other = 0;
  CHECK_OK(cu.cuCtxGetId(context, &named));
  CHECK_OK(cu.cuCtxGetId(nullptr, &own));
  CHECK_OK(cu.cuCtxGetId(session.context(), &other));
  CHECK_EQ(own, named);
  CHECK_NE(own, other);
}

RULE(contexts, waiting_for_a_context, "synchronize_returns_at_once",
     "cuCtxSynchronize returns when the work of every stream has ended") {
  Session session;
  Stream stream(CU_STREAM_NON_BLOCKING);
  CHECK_OK(launch(session.function("spin"), 1, 1, stream, 50'000'000UL));
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK_OK(cu.cuStreamQuery(stream));
}

RULE(contexts, primary_is_inactive_at_first, "refuse:cuDevicePrimaryCtxGetState",
     "before it is retained a device's primary context is not active") {
  start();
  CHECK_EQ(primary().active, 0);
}

RULE(contexts, retaining_activates, "idle:cuDevicePrimaryCtxRetain",
     "cuDevicePrimaryCtxRetain makes the primary context active but not current") {
  start();
  CUcontext context = nullptr;
  CHECK_OK(cu.cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(context != nullptr);
  CHECK_EQ(primary().active, 1);
  CHECK(current() == nullptr);
}

RULE(contexts, one_primary_context, "idle:cuDevicePrimaryCtxRetain", "retaining twice gives the same context") {
  start();
  CUcontext first = nullptr;
  CUcontext second = nullptr;
  CHECK_OK(cu.cuDevicePrimaryCtxRetain(&first, 0));
  CHECK_OK(cu.cuDevicePrimaryCtxRetain(&second, 0));
  CHECK(first != nullptr);
  CHECK_EQ(first, second);
}

RULE(contexts, the_last_release_ends, "released_contexts_stay",
     "when it is released as often as it was retained, the primary context is not active any more") {
  Session session;
  CHECK_OK(cu.cuDevicePrimaryCtxRelease_v2(session.device()));
  CHECK_EQ(primary().active, 0);
}

RULE(contexts, releases_are_counted, "primary_contexts_are_not_counted",
     "a primary context that was retained twice outlives one release") {
  Session session;
  CUcontext again = nullptr;
  CHECK_OK(cu.cuDevicePrimaryCtxRetain(&again, 0));
  CHECK_OK(cu.cuDevicePrimaryCtxRelease_v2(0));
  CHECK_EQ(primary().active, 1);
  CHECK_OK(cu.cuCtxSynchronize());
}

RULE(contexts, releasing_what_nobody_retained, "lenient:cuDevicePrimaryCtxRelease_v2",
     "cuDevicePrimaryCtxRelease of a context that was not retained answers CUDA_ERROR_INVALID_CONTEXT") {
  start();
  CHECK_EQ(cu.cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(contexts, reset_deactivates, "idle:cuDevicePrimaryCtxReset_v2",
     "cuDevicePrimaryCtxReset makes the primary context inactive") {
  Session session;
  CHECK_OK(cu.cuDevicePrimaryCtxReset_v2(session.device()));
  CHECK_EQ(primary().active, 0);
}

RULE(contexts, reset_keeps_references, "reset_releases",
     "a primary context that was reset can still be released by whoever retained it") {
  Session session;
  CHECK_OK(cu.cuDevicePrimaryCtxReset_v2(session.device()));
  CHECK_OK(cu.cuDevicePrimaryCtxRelease_v2(session.device()));
}

RULE(contexts, primary_flags_are_kept, "idle:cuDevicePrimaryCtxSetFlags_v2",
     "flags that are set for the primary context are told, active or not") {
  start();
  CHECK_OK(cu.cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
  CHECK_EQ(primary().flags & CU_CTX_SCHED_MASK, unsigned{CU_CTX_SCHED_BLOCKING_SYNC});
  CUcontext context = nullptr;
  CHECK_OK(cu.cuDevicePrimaryCtxRetain(&context, 0));
  CHECK_OK(cu.cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_YIELD));
  CHECK_EQ(primary().flags & CU_CTX_SCHED_MASK, unsigned{CU_CTX_SCHED_YIELD});
}

RULE(contexts, primary_flags_are_checked, "lenient:cuDevicePrimaryCtxSetFlags_v2",
     "cuDevicePrimaryCtxSetFlags with two scheduling flags answers CUDA_ERROR_INVALID_VALUE") {
  start();
  CHECK_EQ(cu.cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_BLOCKING_SYNC),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(contexts, primary_state_needs_a_device, "lenient:cuDevicePrimaryCtxGetState",
     "cuDevicePrimaryCtxGetState of a device that there is not answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  unsigned flags = 0;
  int active = 0;
  CHECK_EQ(cu.cuDevicePrimaryCtxGetState(1000, &flags, &active), CUDA_ERROR_INVALID_DEVICE);
}
