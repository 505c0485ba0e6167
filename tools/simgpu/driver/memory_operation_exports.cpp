// cuStreamWaitValue, cuStreamWriteValue and cuStreamBatchMemOp. The functions without _v2 need a driver that was told
// to allow them (CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1), which nobody does: they stay stubs that answer
// CUDA_ERROR_NOT_SUPPORTED.
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/memory_operations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult submit(CUstream handle, const CUstreamBatchMemOpParams* operations, unsigned count, unsigned flags,
                Form form) {
  ROTA_SIM_CONTEXT(context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  ContextPointer owner = driver().contexts.find(reinterpret_cast<CUcontext>(stream->context));
  if (!owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Operation operation;
  ROTA_SIM_CHECK(make_memory_operations(operations, count, flags, owner, &operation));
  return driver().submit(stream, std::move(operation));
}

template <class Value>
CUresult wait(CUstream stream, CUdeviceptr address, Value value, unsigned flags, Form form) {
  constexpr bool kWide = sizeof(Value) == sizeof(uint64_t);
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = kWide ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = address;
  operation.waitValue.value64 = value;
  operation.waitValue.flags = flags;
  return submit(stream, &operation, 1, 0, form);
}

template <class Value>
CUresult write(CUstream stream, CUdeviceptr address, Value value, unsigned flags, Form form) {
  constexpr bool kWide = sizeof(Value) == sizeof(uint64_t);
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = kWide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = address;
  operation.writeValue.value64 = value;
  operation.writeValue.flags = flags;
  return submit(stream, &operation, 1, 0, form);
}

}  // namespace

ROTA_SIM_EXPORT(cuStreamWaitValue32_v2)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return wait(stream, address, value, flags, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamWaitValue32_v2_ptsz)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return wait(stream, address, value, flags, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamWaitValue64_v2)(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return wait(stream, address, value, flags, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamWaitValue64_v2_ptsz)(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return wait(stream, address, value, flags, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamWriteValue32_v2)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write(stream, address, value, flags, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamWriteValue32_v2_ptsz)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write(stream, address, value, flags, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamWriteValue64_v2)(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write(stream, address, value, flags, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamWriteValue64_v2_ptsz)(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write(stream, address, value, flags, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamBatchMemOp_v2)
(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {
  return submit(stream, operations, count, flags, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamBatchMemOp_v2_ptsz)
(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {
  return submit(stream, operations, count, flags, Form::kPerThread);
}
