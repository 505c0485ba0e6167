// Events by which programs time their work (runtime/monitor/timing.h). If there is none, or no other program uses the
// GPU, each of these costs one check of a flag.
#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUevent;
using api::CUresult;
using api::CUstream;
using monitor::Timing;

namespace {

template <typename Call>
[[gnu::cold, gnu::noinline]] CUresult record_timed(CUevent event, CUstream stream, bool per_thread, const Call& call) {
  return runtime().monitor.record(event, stream, per_thread, call);
}

template <typename Call>
[[gnu::always_inline]] inline CUresult record(CUevent event, CUstream stream, bool per_thread, const Call& call) {
  if (!Timing::matters()) [[likely]]
    return call();
  return record_timed(event, stream, per_thread, call);
}

void end(CUevent event) {
  if (Timing::has_events()) runtime().monitor.timing().ended(event);
}

CUresult read(CUresult result, const float* milliseconds, CUevent first, CUevent second) {
  if (result == api::CUDA_SUCCESS && Timing::has_events()) {
    const auto took = std::chrono::duration_cast<turn::Time>(std::chrono::duration<float, std::milli>(*milliseconds));
    runtime().monitor.timing().read(first, second, took, monitor::now());
  }
  return result;
}

}  // namespace

CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  const CUresult result = gates::cuEventCreate(phEvent, Flags);
  const bool timing = (Flags & api::CU_EVENT_DISABLE_TIMING) == 0;
  if (result == api::CUDA_SUCCESS && (timing || Timing::has_events())) {
    runtime().monitor.timing().made(*phEvent, timing);
  }
  return result;
}

CUresult cuEventDestroy(CUevent hEvent) {
  end(hEvent);
  return real::cuEventDestroy(hEvent);
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  end(hEvent);
  return real::cuEventDestroy_v2(hEvent);
}

CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return read(real::cuEventElapsedTime(pMilliseconds, hStart, hEnd), pMilliseconds, hStart, hEnd);
}

CUresult cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return read(real::cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd), pMilliseconds, hStart, hEnd);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
  return record(hEvent, hStream, false, [&] { return gates::cuEventRecord(hEvent, hStream); });
}

CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream) {
  return record(hEvent, hStream, true, [&] { return gates::cuEventRecord_ptsz(hEvent, hStream); });
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return record(hEvent, hStream, false, [&] { return gates::cuEventRecordWithFlags(hEvent, hStream, flags); });
}

CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return record(hEvent, hStream, true, [&] { return gates::cuEventRecordWithFlags_ptsz(hEvent, hStream, flags); });
}

}  // namespace rota::overrides
