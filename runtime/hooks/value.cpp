// Stream memory operations: values that a stream waits for or writes. The driver refuses Unified Memory there; small
// allocations, where such values usually lie, are left native (memory.cpp), and for others one line says why.
#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using api::CUstream;

namespace {

// Only for Unified Memory: for extents the driver refuses nothing that it would not refuse natively.
CUresult explained(CUresult result, CUdeviceptr address, std::size_t bytes, const char* function) {
  if (result == api::CUDA_SUCCESS || address % bytes != 0) return result;
  memory::Memory& memory = runtime().memory;
  const auto known = memory.ledger().find(address);
  const bool unified = known && known->kind.backing == memory::Backing::kUnified;
  return unified ? memory.explained(result, address, function) : result;
}

struct Value {
  CUdeviceptr address = 0;
  std::size_t bytes = 1;
};

Value value_of(const api::CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case api::CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return {operation.waitValue.address, 4};
    case api::CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return {operation.waitValue.address, 8};
    case api::CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return {operation.writeValue.address, 4};
    case api::CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return {operation.writeValue.address, 8};
    default:
      return {};
  }
}

CUresult explained(CUresult result, unsigned count, const api::CUstreamBatchMemOpParams* operations) {
  if (operations == nullptr) return result;
  for (unsigned index = 0; index < count; ++index) {
    const Value value = value_of(operations[index]);
    explained(result, value.address, value.bytes, "cuStreamBatchMemOp");
  }
  return result;
}

}  // namespace

// Written out, so that each is next to its own gate.
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, api::cuuint32_t value, unsigned int flags) {
  return explained(gates::cuStreamWaitValue32(stream, addr, value, flags), addr, sizeof value, "cuStreamWaitValue32");
}

CUresult cuStreamWaitValue32_ptsz(CUstream stream, CUdeviceptr addr, api::cuuint32_t value, unsigned int flags) {
  return explained(gates::cuStreamWaitValue32_ptsz(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWaitValue32");
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, api::cuuint32_t value, unsigned int flags) {
  return explained(gates::cuStreamWaitValue32_v2(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWaitValue32");
}

CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr addr, api::cuuint32_t value, unsigned int flags) {
  return explained(gates::cuStreamWaitValue32_v2_ptsz(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWaitValue32");
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, api::cuuint64_t value, unsigned int flags) {
  return explained(gates::cuStreamWaitValue64(stream, addr, value, flags), addr, sizeof value, "cuStreamWaitValue64");
}

CUresult cuStreamWaitValue64_ptsz(CUstream stream, CUdeviceptr addr, api::cuuint64_t value, unsigned int flags) {
  return explained(gates::cuStreamWaitValue64_ptsz(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWaitValue64");
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, api::cuuint64_t value, unsigned int flags) {
  return explained(gates::cuStreamWaitValue64_v2(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWaitValue64");
}

CUresult cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr addr, api::cuuint64_t value, unsigned int flags) {
  return explained(gates::cuStreamWaitValue64_v2_ptsz(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWaitValue64");
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, api::cuuint32_t value, unsigned int flags) {
  return explained(gates::cuStreamWriteValue32(stream, addr, value, flags), addr, sizeof value, "cuStreamWriteValue32");
}

CUresult cuStreamWriteValue32_ptsz(CUstream stream, CUdeviceptr addr, api::cuuint32_t value, unsigned int flags) {
  return explained(gates::cuStreamWriteValue32_ptsz(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWriteValue32");
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, api::cuuint32_t value, unsigned int flags) {
  return explained(gates::cuStreamWriteValue32_v2(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWriteValue32");
}

CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr addr, api::cuuint32_t value, unsigned int flags) {
  return explained(gates::cuStreamWriteValue32_v2_ptsz(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWriteValue32");
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, api::cuuint64_t value, unsigned int flags) {
  return explained(gates::cuStreamWriteValue64(stream, addr, value, flags), addr, sizeof value, "cuStreamWriteValue64");
}

CUresult cuStreamWriteValue64_ptsz(CUstream stream, CUdeviceptr addr, api::cuuint64_t value, unsigned int flags) {
  return explained(gates::cuStreamWriteValue64_ptsz(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWriteValue64");
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, api::cuuint64_t value, unsigned int flags) {
  return explained(gates::cuStreamWriteValue64_v2(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWriteValue64");
}

CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr addr, api::cuuint64_t value, unsigned int flags) {
  return explained(gates::cuStreamWriteValue64_v2_ptsz(stream, addr, value, flags), addr, sizeof value,
                   "cuStreamWriteValue64");
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, api::CUstreamBatchMemOpParams* paramArray,
                            unsigned int flags) {
  return explained(gates::cuStreamBatchMemOp(stream, count, paramArray, flags), count, paramArray);
}

CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned int count, api::CUstreamBatchMemOpParams* paramArray,
                                 unsigned int flags) {
  return explained(gates::cuStreamBatchMemOp_ptsz(stream, count, paramArray, flags), count, paramArray);
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, api::CUstreamBatchMemOpParams* paramArray,
                               unsigned int flags) {
  return explained(gates::cuStreamBatchMemOp_v2(stream, count, paramArray, flags), count, paramArray);
}

CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count, api::CUstreamBatchMemOpParams* paramArray,
                                    unsigned int flags) {
  return explained(gates::cuStreamBatchMemOp_v2_ptsz(stream, count, paramArray, flags), count, paramArray);
}

}  // namespace rota::overrides
