// cuStreamWaitValue, cuStreamWriteValue and cuStreamBatchMemOp. The functions without _v2 need a driver configured to
// allow them (CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1), which is rare: they remain stubs that return
// CUDA_ERROR_NOT_SUPPORTED.
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/stream/memory_operations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

enum class Version { kFirst, kSecond };

CUresult submit(CUstream handle, const CUstreamBatchMemOpParams* operations, unsigned count, unsigned flags,
                Version version, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  ContextPointer owner = driver().owner_of(*stream);
  if (!owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  bool first = driver().device_figures().attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1) != 0;
  if (version == Version::kFirst && !first) return CUDA_ERROR_NOT_SUPPORTED;
  Operation operation;
  ROTA_SIM_CHECK(make_memory_operations(operations, count, flags, owner, &operation));
  return driver().submit(stream, std::move(operation));
}

template <class Value>
CUresult wait(CUstream stream, CUdeviceptr address, Value value, unsigned flags, Version version, Form form) {
  constexpr bool kWide = sizeof(Value) == sizeof(uint64_t);
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = kWide ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = address;
  operation.waitValue.value64 = value;
  operation.waitValue.flags = flags;
  return submit(stream, &operation, 1, 0, version, form);
}

template <class Value>
CUresult write(CUstream stream, CUdeviceptr address, Value value, unsigned flags, Version version, Form form) {
  constexpr bool kWide = sizeof(Value) == sizeof(uint64_t);
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = kWide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = address;
  operation.writeValue.value64 = value;
  // The first version may omit the barrier before the write; simgpu always has it.
  if (version == Version::kFirst) flags &= ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER};
  operation.writeValue.flags = flags;
  return submit(stream, &operation, 1, 0, version, form);
}

}  // namespace

ROTA_SIM_EXPORT_FORMS(cuStreamWaitValue32, _ptsz,
                      (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
                      wait(stream, address, value, flags, Version::kFirst, form))
ROTA_SIM_EXPORT_FORMS(cuStreamWaitValue32_v2, _ptsz,
                      (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
                      wait(stream, address, value, flags, Version::kSecond, form))
ROTA_SIM_EXPORT_FORMS(cuStreamWaitValue64, _ptsz,
                      (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
                      wait(stream, address, value, flags, Version::kFirst, form))
ROTA_SIM_EXPORT_FORMS(cuStreamWaitValue64_v2, _ptsz,
                      (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
                      wait(stream, address, value, flags, Version::kSecond, form))
ROTA_SIM_EXPORT_FORMS(cuStreamWriteValue32, _ptsz,
                      (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
                      write(stream, address, value, flags, Version::kFirst, form))
ROTA_SIM_EXPORT_FORMS(cuStreamWriteValue32_v2, _ptsz,
                      (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
                      write(stream, address, value, flags, Version::kSecond, form))
ROTA_SIM_EXPORT_FORMS(cuStreamWriteValue64, _ptsz,
                      (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
                      write(stream, address, value, flags, Version::kFirst, form))
ROTA_SIM_EXPORT_FORMS(cuStreamWriteValue64_v2, _ptsz,
                      (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
                      write(stream, address, value, flags, Version::kSecond, form))
ROTA_SIM_EXPORT_FORMS(cuStreamBatchMemOp, _ptsz,
                      (CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags),
                      submit(stream, operations, count, flags, Version::kFirst, form))
ROTA_SIM_EXPORT_FORMS(cuStreamBatchMemOp_v2, _ptsz,
                      (CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags),
                      submit(stream, operations, count, flags, Version::kSecond, form))
