// Errors of the runtime API: the driver's texts, and those that only the runtime has.
#include <map>
#include <string>

#include "tools/simgpu/driver/errors.h"

namespace rota::sim::cudart {
namespace {

struct Own {
  int error;
  const char* name;
  const char* text;
};
constexpr Own kOwn[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {52, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {999, "cudaErrorUnknown", "unknown error"},
};

}  // namespace

const char* runtime_error_name(int error) {
  for (const Own& own : kOwn) {
    if (own.error == error) return own.name;
  }
  const char* name = error_name(static_cast<CUresult>(error));
  return name != nullptr ? name : "unrecognized error code";
}

const char* runtime_error_text(int error) {
  for (const Own& own : kOwn) {
    if (own.error == error) return own.text;
  }
  const char* text = error_text(static_cast<CUresult>(error));
  return text != nullptr ? text : "unrecognized error code";
}

}  // namespace rota::sim::cudart
