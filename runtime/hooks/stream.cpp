// Streams, which have to be known one by one on drivers without cuCtxRecordEvent.
#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUresult;
using api::CUstream;

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  const CUresult result = gates::cuStreamCreate(phStream, Flags);
  if (result == api::CUDA_SUCCESS) runtime().contexts.stream_made(*phStream);
  return result;
}

CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  const CUresult result = gates::cuStreamCreateWithPriority(phStream, flags, priority);
  if (result == api::CUDA_SUCCESS) runtime().contexts.stream_made(*phStream);
  return result;
}

CUresult cuStreamDestroy_v2(CUstream hStream) {
  return runtime().contexts.destroy_stream(hStream, [&] { return real::cuStreamDestroy_v2(hStream); });
}

CUresult cuStreamDestroy(CUstream hStream) {
  return runtime().contexts.destroy_stream(hStream, [&] { return real::cuStreamDestroy(hStream); });
}

}  // namespace rota::overrides
