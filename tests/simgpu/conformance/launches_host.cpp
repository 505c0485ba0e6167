// Rules of host functions, callbacks, and what an error of the GPU leaves behind.
#include "tests/simgpu/conformance/work.h"

namespace {

// What a host function got from the driver.
struct Calls {
  CUevent event = nullptr;
  CUresult allocate = CUDA_SUCCESS;
  CUresult query = CUDA_SUCCESS;
  static void make(void* data) {
    auto* calls = static_cast<Calls*>(data);
    CUdeviceptr address = 0;
    calls->allocate = cu.cuMemAlloc_v2(&address, 4096);
    calls->query = cu.cuStreamQuery(nullptr);
  }
};

// What a callback was told.
struct Told {
  std::atomic<bool> called{false};
  CUstream stream = nullptr;
  CUresult status = CUDA_ERROR_UNKNOWN;
  static void note(CUstream stream, CUresult status, void* data) {
    auto* told = static_cast<Told*>(data);
    told->stream = stream;
    told->status = status;
    told->called.store(true);
  }
};

// A kernel that writes where no memory is: the context has an error from then on.
void put_failing_work(const Words& words, CUstream stream) {
  CHECK_OK(launch(words.function(), 1, 32, stream, CUdeviceptr{0x10000}, 64UL, 1U));
}

}  // namespace

RULE(launches, host_functions_wait_their_turn, "host_functions_run_early",
     "a host function is called after the stream's earlier work, and only then") {
  Session session;
  Later later(session);
  Stream stream;
  Steps steps;
  Blocker blocker(stream);
  CHECK_OK(cu.cuLaunchHostFunc(stream, &Steps::finish, &steps));
  later.wait();
  CHECK(!steps.done.load());
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(steps.done.load());
}

RULE(launches, host_functions_hold_the_stream, "idle:cuLaunchHostFunc",
     "the stream's later work waits until a host function has returned") {
  Session session;
  Later later(session);
  Words words(session);
  Stream stream;
  Steps steps;
  CHECK_OK(cu.cuLaunchHostFunc(stream, &Steps::wait_for_go, &steps));
  CHECK_OK(words.fill(stream, 5));
  later.wait();
  CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  steps.go = true;
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(launches, host_functions_call_nothing, "host_functions_may_call",
     "calls of the driver inside a host function answer CUDA_ERROR_NOT_PERMITTED") {
  Session session;
  Stream stream;
  Calls calls;
  CHECK_OK(cu.cuLaunchHostFunc(stream, &Calls::make, &calls));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(calls.allocate, CUDA_ERROR_NOT_PERMITTED);
  CHECK_EQ(calls.query, CUDA_ERROR_NOT_PERMITTED);
}

RULE(launches, host_functions_are_needed, "lenient:cuLaunchHostFunc",
     "cuLaunchHostFunc without a function answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Stream stream;
  CHECK_EQ(cu.cuLaunchHostFunc(stream, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(launches, callbacks_are_told, "idle:cuStreamAddCallback",
     "a callback gets its stream, CUDA_SUCCESS when all is well, and its data") {
  Session session;
  Stream stream;
  Told told;
  CHECK_OK(cu.cuStreamAddCallback(stream, &Told::note, &told, 0));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(told.called.load());
  CHECK(told.stream == stream);
  CHECK_EQ(told.status, CUDA_SUCCESS);
}

RULE(launches, callbacks_have_no_flags, "lenient:cuStreamAddCallback",
     "cuStreamAddCallback refuses flags with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Stream stream;
  Told told;
  CHECK_EQ(cu.cuStreamAddCallback(stream, &Told::note, &told, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(launches, callbacks_call_nothing, "host_functions_may_call",
     "calls of the driver inside a callback answer CUDA_ERROR_NOT_PERMITTED") {
  Session session;
  Stream stream;
  Calls calls;
  auto callback = [](CUstream, CUresult, void* data) { Calls::make(data); };
  CHECK_OK(cu.cuStreamAddCallback(stream, callback, &calls, 0));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(calls.allocate, CUDA_ERROR_NOT_PERMITTED);
}

RULE(launches, errors_are_found_by_waiting, "illegal_addresses_do_no_harm",
     "waiting for a kernel that wrote where no memory is answers CUDA_ERROR_ILLEGAL_ADDRESS") {
  Session session;
  Words words(session);
  Stream stream;
  put_failing_work(words, stream);
  CHECK_EQ(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

RULE(launches, errors_stick, "errors_do_not_stick",
     "after an illegal address every call that needs the context answers CUDA_ERROR_ILLEGAL_ADDRESS") {
  Session session;
  Words words(session);
  Stream stream;
  CUdeviceptr address = 0;
  put_failing_work(words, stream);
  CHECK_EQ(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_EQ(cu.cuMemAlloc_v2(&address, 4096), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_EQ(words.fill(stream, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

RULE(launches, events_tell_errors, "illegal_addresses_do_no_harm",
     "an event recorded behind a kernel that failed answers the kernel's error") {
  Session session;
  Words words(session);
  Stream stream;
  Event event;
  Blocker blocker(stream);
  put_failing_work(words, stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  blocker.release();
  CHECK_EQ(cu.cuEventSynchronize(event), CUDA_ERROR_ILLEGAL_ADDRESS);
}

RULE(launches, host_functions_are_not_called_after_errors, "host_functions_run_after_errors",
     "a host function behind a kernel that failed is not called") {
  Session session;
  Words words(session);
  Stream stream;
  Steps steps;
  Blocker blocker(stream);
  put_failing_work(words, stream);
  CHECK_OK(cu.cuLaunchHostFunc(stream, &Steps::finish, &steps));
  blocker.release();
  CHECK_EQ(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(!steps.done.load());
}

RULE(launches, callbacks_are_called_after_errors, "callbacks_are_lost_after_errors",
     "a callback behind a kernel that failed is called, and told the error") {
  Session session;
  Words words(session);
  Stream stream;
  Told told;
  Blocker blocker(stream);
  put_failing_work(words, stream);
  CHECK_OK(cu.cuStreamAddCallback(stream, &Told::note, &told, 0));
  blocker.release();
  CHECK_EQ(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  for (int round = 0; round < 10'000'000 && !told.called.load(); ++round) std::this_thread::yield();
  CHECK(told.called.load());
  CHECK_EQ(told.status, CUDA_ERROR_ILLEGAL_ADDRESS);
}
