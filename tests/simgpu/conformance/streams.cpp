// Rules of streams: making them, their properties, the order between them, waiting and destroying.
#include <future>
#include <set>
#include <thread>

#include "tests/simgpu/conformance/work.h"

RULE(streams, stream_flags_are_known_ones, "lenient:cuStreamCreate",
     "cuStreamCreate refuses flags that do not exist with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUstream stream = nullptr;
  CHECK_EQ(cu.cuStreamCreate(&stream, 2), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuStreamCreate(&stream, 0x80), CUDA_ERROR_INVALID_VALUE);
}

RULE(streams, stream_needs_a_place, "lenient:cuStreamCreate",
     "cuStreamCreate without a place for the handle answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(cu.cuStreamCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(streams, priorities_have_a_range, "idle:cuCtxGetStreamPriorityRange",
     "the least priority is 0, and greater priorities are smaller numbers") {
  Session session;
  int least = 77;
  int greatest = 77;
  CHECK_OK(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
  CHECK_EQ(least, 0);
  CHECK(greatest < least);
}

RULE(streams, priorities_are_clamped, "priorities_are_not_clamped",
     "a priority outside of the range becomes the nearest one in it") {
  Session session;
  int least = 0;
  int greatest = 0;
  CHECK_OK(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
  for (int asked : {greatest - 10, least + 10}) {
    CUstream stream = nullptr;
    int priority = 77;
    CHECK_OK(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, asked));
    CHECK_OK(cu.cuStreamGetPriority(stream, &priority));
    CHECK_EQ(priority, asked < greatest ? greatest : least);
    CHECK_OK(cu.cuStreamDestroy_v2(stream));
  }
}

RULE(streams, priority_is_told, "idle:cuStreamGetPriority",
     "cuStreamGetPriority tells the priority that a stream was made with, and 0 of one made without") {
  Session session;
  int greatest = 0;
  CHECK_OK(cu.cuCtxGetStreamPriorityRange(nullptr, &greatest));
  CUstream high = nullptr;
  CHECK_OK(cu.cuStreamCreateWithPriority(&high, 0, greatest));
  Stream plain;
  int priority = 77;
  CHECK_OK(cu.cuStreamGetPriority(high, &priority));
  CHECK_EQ(priority, greatest);
  CHECK_OK(cu.cuStreamGetPriority(plain, &priority));
  CHECK_EQ(priority, 0);
}

RULE(streams, flags_are_told, "all_streams_are_blocking",
     "cuStreamGetFlags tells the flags that a stream was made with") {
  Session session;
  for (unsigned flags : {0U, 1U}) {
    Stream stream(flags);
    unsigned told = 77;
    CHECK_OK(cu.cuStreamGetFlags(stream, &told));
    CHECK_EQ(told, flags);
  }
}

RULE(streams, context_is_told, "idle:cuStreamGetCtx",
     "cuStreamGetCtx gives the context that a stream was made in, whichever is current") {
  Session session;
  Stream stream;
  SecondContext other(session);
  CUcontext context = nullptr;
  CHECK_OK(cu.cuStreamGetCtx(stream, &context));
  CHECK(context == session.context());
  CHECK_OK(cu.cuStreamGetCtx(nullptr, &context));
  CHECK(context == other.context());
}

RULE(streams, plain_streams_have_no_green_context, "idle:cuStreamGetCtx_v2",
     "cuStreamGetCtx_v2 gives the context, and no green context for a stream of a plain one") {
  Session session;
  SKIP_UNLESS(exported("cuStreamGetCtx_v2"), "needs cuStreamGetCtx_v2");
  Stream stream;
  CUcontext context = nullptr;
  auto green = reinterpret_cast<CUgreenCtx>(uintptr_t{8});
  CHECK_OK(cu.cuStreamGetCtx_v2(stream, &context, &green));
  CHECK(context == session.context());
  CHECK(green == nullptr);
}

RULE(streams, device_is_told, "idle:cuStreamGetDevice", "cuStreamGetDevice gives the device of the stream's context") {
  Session session;
  SKIP_UNLESS(exported("cuStreamGetDevice"), "needs cuStreamGetDevice");
  Stream stream;
  CUdevice device = 77;
  CHECK_OK(cu.cuStreamGetDevice(stream, &device));
  CHECK_EQ(device, session.device());
}

RULE(streams, ids_are_unique, "idle:cuStreamGetId",
     "every stream has an id of its own, which stays the same, and no later stream gets it again") {
  Session session;
  std::set<unsigned long long> ids;
  for (int round = 0; round < 8; ++round) {
    Stream stream;
    unsigned long long id = 0;
    unsigned long long again = 1;
    CHECK_OK(cu.cuStreamGetId(stream, &id));
    CHECK_OK(cu.cuStreamGetId(stream, &again));
    CHECK_EQ(id, again);
    CHECK(ids.insert(id).second);
  }
}

RULE(streams, null_is_the_legacy_stream, "null_stream_is_the_threads_own",
     "in the plain functions NULL is CU_STREAM_LEGACY, and in the _ptsz ones CU_STREAM_PER_THREAD") {
  Session session;
  unsigned long long null_id = 0;
  unsigned long long legacy = 0;
  unsigned long long own = 0;
  unsigned long long null_ptsz = 0;
  CHECK_OK(cu.cuStreamGetId(nullptr, &null_id));
  CHECK_OK(cu.cuStreamGetId(CU_STREAM_LEGACY, &legacy));
  CHECK_OK(cu.cuStreamGetId(CU_STREAM_PER_THREAD, &own));
  CHECK_OK(cu.cuStreamGetId_ptsz(nullptr, &null_ptsz));
  CHECK_EQ(null_id, legacy);
  CHECK_EQ(null_ptsz, own);
  CHECK_NE(legacy, own);
}

RULE(streams, threads_have_streams_of_their_own, "threads_share_one_stream",
     "CU_STREAM_PER_THREAD is another stream on every thread") {
  Session session;
  unsigned long long mine = 0;
  unsigned long long other = 0;
  CHECK_OK(cu.cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
  CHECK_OK(on_other_thread(session, [&] { return cu.cuStreamGetId(CU_STREAM_PER_THREAD, &other); }));
  CHECK_NE(mine, other);
}

RULE(streams, non_blocking_streams_ignore_the_legacy_one, "all_streams_are_blocking",
     "work in a non-blocking stream ends while work in the legacy stream still runs") {
  Session session;
  Words words(session);
  Stream stream(CU_STREAM_NON_BLOCKING);
  Blocker blocker(CU_STREAM_LEGACY);
  CHECK_OK(words.fill(stream, 5));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(streams, blocking_streams_wait_for_the_legacy_one, "legacy_stream_holds_nobody",
     "work in a blocking stream waits for what was put into the legacy stream before") {
  Session session;
  Later later(session);
  Words words(session);
  Stream stream(CU_STREAM_DEFAULT);
  Blocker blocker(CU_STREAM_LEGACY);
  CHECK_OK(words.fill(stream, 5));
  later.wait();
  CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(streams, legacy_stream_waits_for_blocking_ones, "legacy_stream_waits_for_nobody",
     "work in the legacy stream waits for what was put into blocking streams before") {
  Session session;
  Later later(session);
  Words words(session);
  Event event;
  Stream stream(CU_STREAM_DEFAULT);
  Blocker blocker(stream);
  CHECK_OK(words.fill(CU_STREAM_LEGACY, 5));
  CHECK_OK(cu.cuEventRecord(event, CU_STREAM_LEGACY));
  later.wait();
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
}

RULE(streams, per_thread_streams_wait_for_the_legacy_one, "legacy_stream_holds_nobody",
     "a thread's own stream is a blocking one: its work waits for the legacy stream") {
  Session session;
  Later later(session);
  Words words(session);
  Event event;
  Blocker blocker(CU_STREAM_LEGACY);
  CHECK_OK(words.fill(CU_STREAM_PER_THREAD, 5));
  CHECK_OK(cu.cuEventRecord(event, CU_STREAM_PER_THREAD));
  later.wait();
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
}

RULE(streams, legacy_query_sees_blocking_streams, "legacy_stream_stands_alone",
     "cuStreamQuery of the legacy stream answers CUDA_ERROR_NOT_READY while a blocking stream works") {
  Session session;
  Stream stream(CU_STREAM_DEFAULT);
  Blocker blocker(stream);
  CHECK_EQ(cu.cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
}

RULE(streams, legacy_query_sees_other_threads_streams, "legacy_stream_stands_alone",
     "cuStreamQuery of the legacy stream answers CUDA_ERROR_NOT_READY while another thread's own stream works") {
  Session session;
  std::promise<void> works;
  std::promise<void> asked;
  std::thread other([&] {
    CHECK_OK(cu.cuCtxSetCurrent(session.context()));
    Blocker blocker(CU_STREAM_PER_THREAD);
    works.set_value();
    asked.get_future().wait();
    blocker.release();
    CHECK_OK(cu.cuStreamSynchronize(CU_STREAM_PER_THREAD));
  });
  works.get_future().wait();
  const CUresult while_it_works = cu.cuStreamQuery(CU_STREAM_LEGACY);
  asked.set_value();
  other.join();
  CHECK_EQ(while_it_works, CUDA_ERROR_NOT_READY);
  CHECK_OK(cu.cuStreamQuery(CU_STREAM_LEGACY));
}

RULE(streams, legacy_query_holds_up_nobody, "waits:cuStreamQuery",
     "cuStreamQuery of the legacy stream does not wait for a blocking stream, nor does later work in another one") {
  Session session;
  Words words(session);
  Stream stream(CU_STREAM_DEFAULT);
  Stream other(CU_STREAM_DEFAULT);
  Blocker blocker(stream);
  CHECK_EQ(cu.cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
  CHECK_OK(words.fill(other, 5));
  CHECK_OK(cu.cuStreamSynchronize(other));
  CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  blocker.release();
}

RULE(streams, query_tells_work, "streams_are_always_idle",
     "cuStreamQuery answers CUDA_ERROR_NOT_READY while the stream works, and CUDA_SUCCESS once it was waited for") {
  Session session;
  Stream stream;
  Stream idle;
  Blocker blocker(stream);
  CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  CHECK_OK(cu.cuStreamQuery(idle));
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_OK(cu.cuStreamQuery(stream));
}

RULE(streams, synchronize_waits, "stream_synchronize_returns_at_once",
     "when cuStreamSynchronize returns, all that was in the stream before is over") {
  Session session;
  Stream stream;
  Steps steps;
  put_slow_work(session, stream, &steps);
  steps.go = true;
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(steps.done.load());
}

RULE(streams, synchronize_waits_for_one_stream, "stream_synchronize_waits_for_all",
     "cuStreamSynchronize does not wait for other streams") {
  Session session;
  Words words(session);
  Stream stream;
  Stream other;
  Blocker blocker(other);
  CHECK_OK(words.fill(stream, 5));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(streams, destroying_does_not_wait, "destroying_a_stream_waits",
     "cuStreamDestroy returns while the stream still works, and what was queued still happens") {
  Session session;
  Words words(session);
  Stream stream;
  Event event;
  Blocker blocker(stream);
  CHECK_OK(words.fill(stream, 5));
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_OK(cu.cuStreamDestroy_v2(stream.release()));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
  CHECK_EQ(words.value(), 5U);
}

RULE(streams, default_streams_stay, "lenient:cuStreamDestroy_v2", "the default streams cannot be destroyed") {
  Session session;
  CHECK_NE(cu.cuStreamDestroy_v2(CU_STREAM_LEGACY), CUDA_SUCCESS);
  CHECK_NE(cu.cuStreamDestroy_v2(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  CHECK_OK(cu.cuStreamSynchronize(CU_STREAM_LEGACY));
}

RULE(streams, synchronization_policy_is_kept, "idle:cuStreamSetAttribute",
     "a stream's synchronization policy is what it was set to") {
  Session session;
  Stream stream;
  CUstreamAttrValue value{};
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  CHECK_OK(cu.cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  value = {};
  CHECK_OK(cu.cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  CHECK_EQ(value.syncPolicy, CU_SYNC_POLICY_YIELD);
}

RULE(streams, attributes_of_launches_are_not_of_streams, "lenient:cuStreamGetAttribute",
     "an attribute that only launches have cannot be asked of a stream or set") {
  Session session;
  Stream stream;
  CUstreamAttrValue value{};
  CHECK_EQ(cu.cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value), CUDA_ERROR_INVALID_VALUE);
}

RULE(streams, attributes_are_copied, "copying_stream_attributes_does_nothing",
     "cuStreamCopyAttributes gives a stream the attributes of another one of the same context") {
  Session session;
  Stream from;
  Stream to;
  CUstreamAttrValue value{};
  value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  CHECK_OK(cu.cuStreamSetAttribute(from, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
  CHECK_OK(cu.cuStreamCopyAttributes(to, from));
  value = {};
  CHECK_OK(cu.cuStreamGetAttribute(to, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
  CHECK_EQ(value.memSyncDomain, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
}

RULE(streams, hit_ratios_are_ratios, "lenient:cuStreamSetAttribute",
     "an access policy window with a hit ratio above 1 is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Stream stream;
  Buffer buffer(1 << 20);
  CUstreamAttrValue value{};
  value.accessPolicyWindow = {reinterpret_cast<void*>(buffer.address()), 1 << 16, 1.5F, CU_ACCESS_PROPERTY_PERSISTING,
                              CU_ACCESS_PROPERTY_STREAMING};
  CHECK_EQ(cu.cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value), CUDA_ERROR_INVALID_VALUE);
}
