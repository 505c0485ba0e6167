// What several processes share: memory and events that this one exports, by a legacy IPC handle or, to a device, as a
// dma-buf; and memory, pools, events and external objects of others that it opens.
//
// Work of one process may wait on the GPU for what another does with shared memory, so both may have to run at the same
// time. A process that only opens memory counts like one that exports it (Monitor::shares()), and ranks of one launch
// that share memory are a gang (runtime/client/gang_evidence.h). So are ranks whose registered host memory is a shared
// mapping. Memory that was opened is the exporter's: it is counted there, and rota moves none of it.
#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;

namespace {

CUresult opened(CUresult result) {
  if (result == api::CUDA_SUCCESS) runtime().monitor.shares(protocol::kSharesOfOthers);
  return result;
}

CUresult exported(CUresult result) {
  if (result == api::CUDA_SUCCESS) runtime().monitor.shares(protocol::kSharesOwn);
  return result;
}

CUresult memory_opened(CUresult result) {
  if (result == api::CUDA_SUCCESS) runtime().monitor.memory_shared();
  return opened(result);
}

// A handle of rota's leads to memory that rota maps; any other goes to the driver.
template <typename Call>
CUresult open(CUdeviceptr* address, const api::CUipcMemHandle& handle, unsigned int flags, const Call& call) {
  using Time = memory::Opened::Clock::time_point;
  const auto introduce = [](const protocol::ProcessNumber& number, Time until) -> std::optional<Descriptor> {
    if (!runtime().monitor.served()) return std::nullopt;
    return runtime().monitor.introduce(number, until).socket;
  };
  const auto opened = runtime().memory.open(address, handle, flags, introduce);
  return memory_opened(opened ? *opened : call());
}

// Exports memory wherever it is: it is restored, and pinned, when another process opens it.
CUresult export_own(api::CUipcMemHandle* handle, CUdeviceptr address) {
  memory::Memory& memory = runtime().memory;
  const CUresult result = memory.export_own(handle, address);
  if (result != api::CUDA_SUCCESS) return result;
  runtime().monitor.shares(protocol::kSharesOwn);
  runtime().monitor.announce(memory.exporter());
  return api::CUDA_SUCCESS;
}

CUresult registered(CUresult result, const void* address) {
  if (result == api::CUDA_SUCCESS) runtime().monitor.host_registered(address);
  return result;
}

}  // namespace

CUresult cuMemHostRegister_v2(void* p, std::size_t bytesize, unsigned int Flags) {
  return registered(real::cuMemHostRegister_v2(p, bytesize, Flags), p);
}

CUresult cuMemHostRegister(void* p, std::size_t bytesize, unsigned int Flags) {
  return registered(real::cuMemHostRegister(p, bytesize, Flags), p);
}

CUresult cuIpcGetMemHandle(api::CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  memory::Memory& memory = runtime().memory;
  if (memory.is_opened(dptr)) return api::CUDA_ERROR_INVALID_VALUE;
  const bool own = memory.exports(dptr);
  const CUresult result = own ? export_own(pHandle, dptr) : gates::cuIpcGetMemHandle(pHandle, dptr);
  if (result == api::CUDA_SUCCESS) runtime().monitor.memory_shared();
  // What is allocated from a pool has no such handle natively either.
  const auto known = memory.ledger().find(dptr);
  const bool natively_so = known && known->kind.stream_ordered();
  return own || natively_so ? result : memory.explained(result, dptr, "cuIpcGetMemHandle");
}

// An event holds no memory.
CUresult cuIpcGetEventHandle(api::CUipcEventHandle* pHandle, api::CUevent event) {
  return exported(real::cuIpcGetEventHandle(pHandle, event));
}

CUresult cuIpcOpenEventHandle(api::CUevent* phEvent, api::CUipcEventHandle handle) {
  return opened(real::cuIpcOpenEventHandle(phEvent, handle));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* pdptr, api::CUipcMemHandle handle, unsigned int Flags) {
  return open(pdptr, handle, Flags, [&] { return real::cuIpcOpenMemHandle(pdptr, handle, Flags); });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, api::CUipcMemHandle handle, unsigned int Flags) {
  return open(pdptr, handle, Flags, [&] { return real::cuIpcOpenMemHandle_v2(pdptr, handle, Flags); });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  const auto closed = runtime().memory.close(dptr);
  return closed ? *closed : real::cuIpcCloseMemHandle(dptr);
}

// What is exported of pools stays where it is: only the driver's own memory is in such pools.
CUresult cuMemPoolExportToShareableHandle(void* handle_out, api::CUmemoryPool pool,
                                          api::CUmemAllocationHandleType handleType, unsigned long long flags) {
  const gate::MappingScope scope;
  if (scope.refused()) return gate::refusal.load();
  return exported(real::cuMemPoolExportToShareableHandle(handle_out, pool, handleType, flags));
}

CUresult cuMemPoolExportPointer(api::CUmemPoolPtrExportData* shareData_out, CUdeviceptr ptr) {
  const gate::MappingScope scope(reinterpret_cast<const void*>(ptr));
  if (scope.refused()) return gate::refusal.load();
  return exported(real::cuMemPoolExportPointer(shareData_out, ptr));
}

CUresult cuMemPoolImportFromShareableHandle(api::CUmemoryPool* pool_out, void* handle,
                                            api::CUmemAllocationHandleType handleType, unsigned long long flags) {
  return opened(real::cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags));
}

CUresult cuMemPoolImportPointer(CUdeviceptr* ptr_out, api::CUmemoryPool pool, api::CUmemPoolPtrExportData* shareData) {
  return memory_opened(real::cuMemPoolImportPointer(ptr_out, pool, shareData));
}

CUresult cuImportExternalMemory(api::CUexternalMemory* extMem_out,
                                const api::CUDA_EXTERNAL_MEMORY_HANDLE_DESC* memHandleDesc) {
  return opened(real::cuImportExternalMemory(extMem_out, memHandleDesc));
}

CUresult cuImportExternalSemaphore(api::CUexternalSemaphore* extSem_out,
                                   const api::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* semHandleDesc) {
  return opened(real::cuImportExternalSemaphore(extSem_out, semHandleDesc));
}

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr dptr, std::size_t size,
                                       api::CUmemRangeHandleType handleType, unsigned long long flags) {
  const gate::MappingScope scope(reinterpret_cast<const void*>(dptr));
  if (scope.refused()) return gate::refusal.load();
  memory::Memory& memory = runtime().memory;
  const CUresult result = opened(real::cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags));
  if (result == api::CUDA_SUCCESS) memory.pin(dptr, size, protocol::Pin::kDmaBuf);
  if (handle == nullptr || size == 0 || handleType != api::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) return result;
  return memory.explained_with(api::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, result, dptr,
                               "cuMemGetHandleForAddressRange");
}

}  // namespace rota::overrides
