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

CUresult explained(CUresult result, CUdeviceptr address, const char* function) {
  if (result != api::CUDA_SUCCESS) runtime().memory.explain_refusal(address, function);
  return result;
}

CUdeviceptr address_of(const api::CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case api::CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case api::CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return operation.waitValue.address;
    case api::CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case api::CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return operation.writeValue.address;
    default:
      return 0;
  }
}

CUresult explained(CUresult result, unsigned count, const api::CUstreamBatchMemOpParams* operations) {
  if (result == api::CUDA_SUCCESS || operations == nullptr) return result;
  for (unsigned index = 0; index < count; ++index) {
    explained(result, address_of(operations[index]), "cuStreamBatchMemOp");
  }
  return result;
}

}  // namespace

#define ROTA_VALUE(symbol, gate, type)                                                 \
  CUresult symbol(CUstream stream, CUdeviceptr addr, type value, unsigned int flags) { \
    return explained(gate(stream, addr, value, flags), addr, #symbol);                 \
  }
ROTA_VALUE(cuStreamWaitValue32, gates::cuStreamWaitValue32, api::cuuint32_t)
ROTA_VALUE(cuStreamWaitValue32_ptsz, gates::cuStreamWaitValue32_ptsz, api::cuuint32_t)
ROTA_VALUE(cuStreamWaitValue32_v2, gates::cuStreamWaitValue32_v2, api::cuuint32_t)
ROTA_VALUE(cuStreamWaitValue32_v2_ptsz, gates::cuStreamWaitValue32_v2_ptsz, api::cuuint32_t)
ROTA_VALUE(cuStreamWaitValue64, gates::cuStreamWaitValue64, api::cuuint64_t)
ROTA_VALUE(cuStreamWaitValue64_ptsz, gates::cuStreamWaitValue64_ptsz, api::cuuint64_t)
ROTA_VALUE(cuStreamWaitValue64_v2, gates::cuStreamWaitValue64_v2, api::cuuint64_t)
ROTA_VALUE(cuStreamWaitValue64_v2_ptsz, gates::cuStreamWaitValue64_v2_ptsz, api::cuuint64_t)
ROTA_VALUE(cuStreamWriteValue32, gates::cuStreamWriteValue32, api::cuuint32_t)
ROTA_VALUE(cuStreamWriteValue32_ptsz, gates::cuStreamWriteValue32_ptsz, api::cuuint32_t)
ROTA_VALUE(cuStreamWriteValue32_v2, gates::cuStreamWriteValue32_v2, api::cuuint32_t)
ROTA_VALUE(cuStreamWriteValue32_v2_ptsz, gates::cuStreamWriteValue32_v2_ptsz, api::cuuint32_t)
ROTA_VALUE(cuStreamWriteValue64, gates::cuStreamWriteValue64, api::cuuint64_t)
ROTA_VALUE(cuStreamWriteValue64_ptsz, gates::cuStreamWriteValue64_ptsz, api::cuuint64_t)
ROTA_VALUE(cuStreamWriteValue64_v2, gates::cuStreamWriteValue64_v2, api::cuuint64_t)
ROTA_VALUE(cuStreamWriteValue64_v2_ptsz, gates::cuStreamWriteValue64_v2_ptsz, api::cuuint64_t)
#undef ROTA_VALUE

#define ROTA_BATCH(symbol, gate)                                                                  \
  CUresult symbol(CUstream stream, unsigned int count, api::CUstreamBatchMemOpParams* paramArray, \
                  unsigned int flags) {                                                           \
    return explained(gate(stream, count, paramArray, flags), count, paramArray);                  \
  }
ROTA_BATCH(cuStreamBatchMemOp, gates::cuStreamBatchMemOp)
ROTA_BATCH(cuStreamBatchMemOp_ptsz, gates::cuStreamBatchMemOp_ptsz)
ROTA_BATCH(cuStreamBatchMemOp_v2, gates::cuStreamBatchMemOp_v2)
ROTA_BATCH(cuStreamBatchMemOp_v2_ptsz, gates::cuStreamBatchMemOp_v2_ptsz)
#undef ROTA_BATCH

}  // namespace rota::overrides
