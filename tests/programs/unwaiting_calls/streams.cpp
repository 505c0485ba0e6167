// Contexts, streams, events, captures, launches, stream-ordered copies and sets.
#include "tests/programs/unwaiting_calls/calls.h"

using behind_kernel::kBytes;
using behind_kernel::Objects;

namespace {

void host_function(void*) {}
void callback(CUstream, CUresult, void*) {}

// Begins a capture and ends it.
template <class Begin>
CUresult capture(Objects& o, cuStreamEndCapture_fn* end, Begin begin) {
  CUresult begun = begin();
  if (begun != CUDA_SUCCESS) return begun;
  CUgraph graph = nullptr;
  return end(o.stream, &graph);
}
CUresult begin_capture(Objects& o, cuStreamBeginCapture_v2_fn* begin, cuStreamEndCapture_fn* end) {
  return capture(o, end, [&] { return begin(o.stream, CU_STREAM_CAPTURE_MODE_GLOBAL); });
}
CUresult begin_capture_to_graph(Objects& o, cuStreamBeginCaptureToGraph_fn* begin, cuStreamEndCapture_fn* end) {
  return capture(
      o, end, [&] { return begin(o.stream, o.empty_graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL); });
}
CUresult update_capture(Objects& o, cuStreamUpdateCaptureDependencies_v2_fn* update, cuStreamBeginCapture_v2_fn* begin,
                        cuStreamEndCapture_fn* end) {
  CUresult updated = CUDA_ERROR_UNKNOWN;
  CUresult result = capture(o, end, [&] {
    CUresult begun = begin(o.stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (begun == CUDA_SUCCESS) updated = update(o.stream, nullptr, nullptr, 0, 1);
    return begun;
  });
  return result == CUDA_SUCCESS ? updated : result;
}
CUresult exchange_mode() {
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUresult first = cu.cuThreadExchangeStreamCaptureMode(&mode);
  return first == CUDA_SUCCESS ? cu.cuThreadExchangeStreamCaptureMode(&mode) : first;
}

// A context that was created is current.
CUresult back(Objects& o, CUresult created) {
  CUresult set = cu.cuCtxSetCurrent(o.context);
  return created == CUDA_SUCCESS ? set : created;
}
CUresult pop_and_push(Objects& o) {
  CUresult popped = cu.cuCtxPopCurrent_v2(o.any);
  return popped == CUDA_SUCCESS ? cu.cuCtxPushCurrent_v2(o.context) : popped;
}

CUresult launch_ex(Objects& o, cuLaunchKernelEx_fn* launch) {
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 32;
  config.hStream = o.stream;
  return launch(&config, o.function, o.arguments, nullptr);
}

CUresult batch(Objects& o, cuStreamBatchMemOp_v2_fn* submit) {
  CUstreamBatchMemOpParams write{};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = o.pinned_address;
  write.writeValue.value = 1;
  return submit(o.stream, 1, &write, 0);
}

}  // namespace

RETURNS(cuInit, 0)
RETURNS(cuDevicePrimaryCtxRetain, o.any, o.device)
ANSWERS(cuDevicePrimaryCtxSetFlags_v2, o.device, 0)
BEHIND_KERNEL(cuCtxCreate_v2, true, back(o, cu.cuCtxCreate_v2(o.any, 0, o.device)))
BEHIND_KERNEL(cuCtxCreate_v4, true, back(o, cu.cuCtxCreate_v4(o.any, nullptr, 0, o.device)))
ANSWERS(cuCtxAttach, o.any, 0)
RETURNS(cuCtxPushCurrent_v2, o.context)
BEHIND_KERNEL(cuCtxPopCurrent_v2, true, pop_and_push(o))
RETURNS(cuCtxSetCurrent, o.context)
ANSWERS(cuCtxSetFlags, 0)
RETURNS(cuCtxSetCacheConfig, CU_FUNC_CACHE_PREFER_NONE)
ANSWERS(cuCtxSetSharedMemConfig, CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE)
ANSWERS(cuCtxEnablePeerAccess, o.context, 0)
RETURNS(cuCtxRecordEvent, o.context, o.event)
RETURNS(cuCtxWaitEvent, o.context, o.event)

RETURNS(cuStreamCreate, o.any, CU_STREAM_NON_BLOCKING)
RETURNS(cuStreamCreateWithPriority, o.any, CU_STREAM_NON_BLOCKING, 0)
RETURNS(cuStreamDestroy_v2, o.spare)
ANSWERS_FORMS(cuStreamQuery, o.stream)
RETURNS_FORMS(cuStreamWaitEvent, o.stream, o.event, 0)
RETURNS_FORMS(cuStreamAddCallback, o.stream, callback, nullptr, 0)
RETURNS_FORMS(cuLaunchHostFunc, o.stream, host_function, nullptr)
ANSWERS_FORMS(cuLaunchHostFunc_v2, o.stream, host_function, nullptr, 0)
ANSWERS_FORMS(cuStreamAttachMemAsync, o.stream, o.managed, 0, CU_MEM_ATTACH_GLOBAL)
RETURNS_FORMS(cuStreamWriteValue32_v2, o.stream, o.pinned_address, 1, 0)
RETURNS_FORMS(cuStreamWriteValue64_v2, o.stream, o.pinned_address + 8, 1, 0)
RETURNS_FORMS(cuStreamWaitValue32_v2, o.stream, o.pinned_address, 0, CU_STREAM_WAIT_VALUE_GEQ)
RETURNS_FORMS(cuStreamWaitValue64_v2, o.stream, o.pinned_address, 0, CU_STREAM_WAIT_VALUE_GEQ)
BEHIND_KERNEL(cuStreamBatchMemOp_v2, true, batch(o, cu.cuStreamBatchMemOp_v2))
BEHIND_KERNEL(cuStreamBatchMemOp_v2_ptsz, true, batch(o, cu.cuStreamBatchMemOp_v2_ptsz))
RETURNS_FORMS(cuStreamCopyAttributes, o.spare, o.stream)
ANSWERS_FORMS(cuStreamSetAttribute, o.stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, o.any)
ANSWERS_FORMS(cuStreamGetAttribute, o.stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, o.any)

RETURNS(cuEventCreate, o.any, CU_EVENT_DEFAULT)
RETURNS(cuEventDestroy_v2, o.spare_event)
RETURNS(cuEventQuery, o.event)
RETURNS(cuEventElapsedTime, o.any, o.event, o.event)
RETURNS_FORMS(cuEventRecord, o.event, o.stream)
RETURNS_FORMS(cuEventRecordWithFlags, o.event, o.stream, 0)

BEHIND_KERNEL(cuStreamBeginCapture_v2, true, begin_capture(o, cu.cuStreamBeginCapture_v2, cu.cuStreamEndCapture))
BEHIND_KERNEL(cuStreamBeginCapture_v2_ptsz, true,
              begin_capture(o, cu.cuStreamBeginCapture_v2_ptsz, cu.cuStreamEndCapture_ptsz))
BEHIND_KERNEL(cuStreamBeginCaptureToGraph, true,
              begin_capture_to_graph(o, cu.cuStreamBeginCaptureToGraph, cu.cuStreamEndCapture))
BEHIND_KERNEL(cuStreamBeginCaptureToGraph_ptsz, true,
              begin_capture_to_graph(o, cu.cuStreamBeginCaptureToGraph_ptsz, cu.cuStreamEndCapture_ptsz))
BEHIND_KERNEL(cuStreamUpdateCaptureDependencies_v2, true,
              update_capture(o, cu.cuStreamUpdateCaptureDependencies_v2, cu.cuStreamBeginCapture_v2,
                             cu.cuStreamEndCapture))
BEHIND_KERNEL(cuStreamUpdateCaptureDependencies_v2_ptsz, true,
              update_capture(o, cu.cuStreamUpdateCaptureDependencies_v2_ptsz, cu.cuStreamBeginCapture_v2_ptsz,
                             cu.cuStreamEndCapture_ptsz))
ANSWERS_FORMS(cuStreamEndCapture, o.stream, o.any)
RETURNS_FORMS(cuStreamIsCapturing, o.stream, o.any)
RETURNS_FORMS(cuStreamGetCaptureInfo_v3, o.stream, o.any, o.any, o.any, o.any, o.any, o.any)
BEHIND_KERNEL(cuThreadExchangeStreamCaptureMode, true, exchange_mode())

RETURNS_FORMS(cuLaunchKernel, o.function, 1, 1, 1, 32, 1, 1, 0, o.stream, o.arguments, nullptr)
RETURNS_FORMS(cuLaunchCooperativeKernel, o.function, 1, 1, 1, 32, 1, 1, 0, o.stream, o.arguments)
BEHIND_KERNEL(cuLaunchKernelEx, true, launch_ex(o, cu.cuLaunchKernelEx))
BEHIND_KERNEL(cuLaunchKernelEx_ptsz, true, launch_ex(o, cu.cuLaunchKernelEx_ptsz))

RETURNS_FORMS(cuMemcpyDtoDAsync_v2, o.plain, o.other_plain, 4096, o.stream)
RETURNS_FORMS(cuMemcpyPeerAsync, o.plain, o.context, o.other_plain, o.context, 4096, o.stream)
RETURNS_FORMS(cuMemsetD8Async, o.plain, 1, 64, o.stream)
RETURNS_FORMS(cuMemsetD16Async, o.plain, 1, 64, o.stream)
RETURNS_FORMS(cuMemsetD32Async, o.plain, 1, 64, o.stream)
RETURNS_FORMS(cuMemsetD2D8Async, o.plain, 1024, 1, 64, 4, o.stream)
RETURNS_FORMS(cuMemsetD2D16Async, o.plain, 1024, 1, 64, 4, o.stream)
RETURNS_FORMS(cuMemsetD2D32Async, o.plain, 1024, 1, 64, 4, o.stream)
RETURNS_FORMS(cuMemPrefetchAsync, o.managed, kBytes, o.device, o.stream)
RETURNS_FORMS(cuMemPrefetchAsync_v2, o.managed, kBytes, o.here, 0, o.stream)
ANSWERS_FORMS(cuMemPrefetchBatchAsync, &o.managed, &o.one_size, 1, &o.here, &o.zero_index, 1, 0, o.stream)
ANSWERS_FORMS(cuMemDiscardBatchAsync, &o.managed, &o.one_size, 1, 0, o.stream)
ANSWERS_FORMS(cuMemDiscardAndPrefetchBatchAsync, &o.managed, &o.one_size, 1, &o.here, &o.zero_index, 1, 0, o.stream)
ANSWERS_FORMS(cuMemBatchDecompressAsync, o.any, 1, 0, o.any, o.stream)
ANSWERS_FORMS(cuMemMapArrayAsync, o.any, 1, o.stream)
