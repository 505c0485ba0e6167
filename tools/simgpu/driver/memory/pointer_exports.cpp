// Pointer attributes.
#include <cstring>

#include "tools/simgpu/driver/context/peer.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/memory/physical.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

constexpr int kRead = 1;
constexpr int kReadWrite = 3;

template <class T>
CUresult tell(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// For a reserved address with nothing mapped to it.
CUresult reserved_attribute(void* data, CUpointer_attribute attribute, const AddressSpace::Reservation& reservation) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return tell(data, reservation.address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return tell(data, reservation.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return tell(data, 0U);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Measured on driver 580.159: the reservation that memory was mapped into, otherwise the allocation.
AddressSpace::Reservation range_of(const Allocation& allocation) {
  auto reservation = driver().memory.reservation(allocation.address);
  if (reservation && !mutated(Mutation::ranges_are_mappings)) return *reservation;
  return {allocation.address, allocation.bytes};
}

// The block mapped to the GPU: for memory from a pool, the pool's segment (measured on driver 580.159), otherwise the
// allocation. The same handle is the same block wherever it is mapped.
AddressSpace::Block block_of(const Allocation& allocation) {
  bool of_pool = allocation.pool && !allocation.imported && !mutated(Mutation::pool_memory_is_mapped_by_itself);
  auto segment = of_pool ? driver().memory.segment(allocation.address) : std::nullopt;
  if (segment) return *segment;
  bool by_handle = allocation.physical && !mutated(Mutation::block_ids_are_buffer_ids);
  return {allocation.address, allocation.bytes, by_handle ? allocation.physical->block_id : allocation.buffer_id};
}

// Measured on driver 580.159: only memory that belongs to a context reports one.
CUcontext context_of(const Allocation& allocation) {
  bool of_pool = allocation.pool && !mutated(Mutation::pool_memory_has_a_context);
  return of_pool || allocation.physical ? nullptr : allocation.context;
}

// Memory of another process says the GPU of the context in which it was opened, wherever it lies (measured on two
// H200s, driver 580.159.04).
int ordinal_of(const Allocation& allocation) {
  bool opened = allocation.imported && !allocation.pool && !mutated(Mutation::opened_memory_says_where_it_lies);
  ContextPointer context = opened ? driver().contexts.find(allocation.context) : nullptr;
  return context ? context->gpu : allocation.gpu;
}

// Measured on driver 580.159: set for managed memory from the start.
bool always_synchronous(const Allocation& allocation) {
  return allocation.kind == MemoryKind::kManaged && !mutated(Mutation::managed_memory_says_asynchronous);
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = driver().memory.find(address);
  auto reservation = driver().memory.reservation(address);
  if (!allocation) return reservation ? reserved_attribute(data, attribute, *reservation) : CUDA_ERROR_INVALID_VALUE;
  const Physical* physical = allocation->physical.get();
  bool host = allocation->kind == MemoryKind::kHost || allocation->kind == MemoryKind::kRegistered ||
              (physical != nullptr && !physical->on_gpu());
  bool plain =
      allocation->kind == MemoryKind::kDevice && !allocation->pool && physical == nullptr && !allocation->imported;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return tell(data, context_of(*allocation));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return tell(data, static_cast<unsigned>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: {
      ROTA_SIM_CONTEXT(context);
      if (!accessible(*context, *allocation)) return CUDA_ERROR_INVALID_VALUE;
      return tell(data, address);
    }
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return allocation->kind == MemoryKind::kDevice ? CUDA_ERROR_INVALID_VALUE : tell(data, address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return tell(data,
                  unsigned{driver().synchronous_memory.has(allocation->buffer_id) || always_synchronous(*allocation)});
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return tell(data, static_cast<unsigned long long>(block_of(*allocation).id));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return tell(data, static_cast<unsigned long long>(
                            mutated(Mutation::buffer_ids_are_addresses) ? allocation->address : allocation->buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return tell(data, unsigned{allocation->kind == MemoryKind::kManaged});
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return tell(data, ordinal_of(*allocation));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return tell(data, unsigned{plain});
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return tell(data, range_of(*allocation).address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return tell(data, range_of(*allocation).bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return tell(data, block_of(*allocation).address);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return tell(data, block_of(*allocation).bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return tell(data, 1U);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return tell(data, static_cast<uint64_t>(physical != nullptr ? physical->properties.requestedHandleTypes
                                                                  : CU_MEM_HANDLE_TYPE_NONE));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return tell(data,
                  unsigned{plain || (physical != nullptr && physical->properties.allocFlags.gpuDirectRDMACapable &&
                                     !mutated(Mutation::only_plain_memory_is_rdma_capable))});
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return tell(data, physical == nullptr || allocation->accessible(allocation->gpu, true) ? kReadWrite : kRead);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return tell(data, allocation->pool ? allocation->pool->handle() : CUmemoryPool{nullptr});
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return tell(data, unsigned{decompressible(*allocation)});
    case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
      return tell(data, -1);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// An attribute's value where there is no memory.
CUresult default_attribute(void* data, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return tell(data, uint64_t{0});
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return CUDA_SUCCESS;  // measured on driver 580.159: left unchanged
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return tell(data, -2);  // CU_DEVICE_INVALID
    case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
      return tell(data, -1);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_INVALID_VALUE;
    default:
      return tell(data, 0U);
  }
}

bool known(CUpointer_attribute attribute) {
  return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT && attribute <= CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL;
}

// Waits for earlier work in the legacy stream: synchronous memory operations may still be in progress.
void wait_for_synchronous_operations(CUcontext handle) {
  ContextPointer context = driver().contexts.find(handle);
  if (!context) return;
  if (TaskPointer last = context->legacy->last()) last->wait();
}

}  // namespace

ROTA_SIM_EXPORT(cuPointerGetAttribute)(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  ROTA_SIM_READY();
  return pointer_attribute(data, attribute, address);
}

ROTA_SIM_EXPORT(cuPointerGetAttributes)
(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  ROTA_SIM_READY();
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned index = 0; index < count; ++index) {
    if (data[index] == nullptr || !known(attributes[index])) return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned index = 0; index < count; ++index) {
    // Documented: an address unknown to CUDA is not an error here; its attributes read as empty.
    if (pointer_attribute(data[index], attributes[index], address) == CUDA_SUCCESS) continue;
    ROTA_SIM_CHECK(default_attribute(data[index], attributes[index]));
  }
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuPointerSetAttribute)(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  ROTA_SIM_READY();
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = driver().memory.find(address);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->physical) return CUDA_ERROR_NOT_SUPPORTED;  // measured on an H100, driver 580.159
  unsigned on = 0;
  std::memcpy(&on, value, sizeof on);
  driver().synchronous_memory.set(allocation->buffer_id, on != 0);
  if (on != 0) wait_for_synchronous_operations(allocation->context);
  return CUDA_SUCCESS;
}
