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
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(check_memory_operations(*context, operations, count));
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  std::vector<CUstreamBatchMemOpParams> list(operations, operations + count);
  operation.parameters = MemoryOperationParameters{list, flags};
  operation.run = [list = std::move(list)](Context& running) { run_memory_operations(running, list); };
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
