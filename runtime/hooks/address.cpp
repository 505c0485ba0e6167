// What the driver says of an address. Of stream-ordered memory that rota serves, and of small plain memory, it knows
// the span alone, which holds many allocations: what is asked of one of them is answered here. Attributes of the memory
// itself are the driver's to say; of extents, which it knows as mapped memory or not at all, it is asked about a plain
// byte of the same context.
#include <cstdint>
#include <cstring>
#include <optional>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using Block = memory::Memory::Block;

namespace {

// What is told of every block.
std::optional<std::uint64_t> of_any(const Block& block, api::CUpointer_attribute attribute) {
  switch (attribute) {
    case api::CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return block.buffer_id;
    case api::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return block.address;
    case api::CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return block.bytes;
    default:
      return std::nullopt;
  }
}

// Of a pool's: the span is the mapping, and no context has it.
std::optional<std::uint64_t> of_pooled(const Block& block, api::CUpointer_attribute attribute) {
  switch (attribute) {
    case api::CU_POINTER_ATTRIBUTE_CONTEXT:
      return 0;
    case api::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return block.span_address;
    case api::CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return block.span_bytes;
    case api::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return reinterpret_cast<std::uintptr_t>(block.pool);
    default:
      return std::nullopt;
  }
}

// Of plain memory: the program knows of no span.
std::optional<std::uint64_t> of_plain(const Block& block, api::CUpointer_attribute attribute) {
  switch (attribute) {
    case api::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return block.buffer_id;
    case api::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return block.address;
    case api::CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return block.bytes;
    default:
      return std::nullopt;
  }
}

// Other processes and devices do not reach extents by the ways that these attributes promise.
bool is_refused_promise(api::CUpointer_attribute attribute) {
  return attribute == api::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
         attribute == api::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
}

// Writes the attribute of a block, if it is one of the allocation and not of the memory. `asked`: the address that the
// program named, in whose place the driver may have been asked about the block's twin.
void tell(const Block& block, api::CUpointer_attribute attribute, CUdeviceptr asked, void* data) {
  if (block.twin != 0 && is_refused_promise(attribute)) {
    const int no = 0;
    std::memcpy(data, &no, sizeof no);
    return;
  }
  std::optional<std::uint64_t> value = of_any(block, attribute);
  if (block.twin != 0 && attribute == api::CU_POINTER_ATTRIBUTE_DEVICE_POINTER) value = asked;
  if (!value) value = block.pool != nullptr ? of_pooled(block, attribute) : of_plain(block, attribute);
  if (value) std::memcpy(data, &*value, sizeof *value);
}

// Of converted memory, which the driver knows as managed: whether it is synchronous, as the program has said. One byte,
// as the driver writes.
void tell_synchronous(CUdeviceptr address, api::CUpointer_attribute attribute, void* data) {
  if (attribute != api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return;
  if (const auto synchronous = runtime().memory.synchronous(address)) {
    *static_cast<unsigned char*>(data) = *synchronous ? 1 : 0;
  }
}

// An address that is nobody's, for the driver's own answer to a question about one. The first page is never mapped.
constexpr CUdeviceptr kNowhere = 16;

}  // namespace

CUresult cuPointerGetAttribute(void* data, api::CUpointer_attribute attribute, CUdeviceptr ptr) {
  std::optional<Block> block;
  const bool ours = runtime().memory.find_block(ptr, &block);
  // What has a twin may be out of place; a question about it waits for nothing.
  const bool by_twin = block && block->twin != 0 && attribute != api::CU_POINTER_ATTRIBUTE_P2P_TOKENS;
  const CUresult result = by_twin ? real::cuPointerGetAttribute(data, attribute, block->twin)
                                  : gates::cuPointerGetAttribute(data, attribute, ours && !block ? kNowhere : ptr);
  if (result == api::CUDA_SUCCESS && block) tell(*block, attribute, ptr, data);
  if (result == api::CUDA_SUCCESS) tell_synchronous(ptr, attribute, data);
  if (attribute != api::CU_POINTER_ATTRIBUTE_P2P_TOKENS) return result;
  return runtime().memory.explained(result, ptr, "CU_POINTER_ATTRIBUTE_P2P_TOKENS");
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, api::CUpointer_attribute* attributes, void** data,
                                CUdeviceptr ptr) {
  std::optional<Block> block;
  const bool ours = runtime().memory.find_block(ptr, &block);
  const CUresult result =
      block && block->twin != 0
          ? real::cuPointerGetAttributes(numAttributes, attributes, data, block->twin)
          : gates::cuPointerGetAttributes(numAttributes, attributes, data, ours && !block ? kNowhere : ptr);
  if (result != api::CUDA_SUCCESS) return result;
  for (unsigned index = 0; index < numAttributes; ++index) {
    if (block) tell(*block, attributes[index], ptr, data[index]);
    tell_synchronous(ptr, attributes[index], data[index]);
  }
  return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, std::size_t* psize, CUdeviceptr dptr) {
  std::optional<Block> block;
  const bool ours = runtime().memory.find_block(dptr, &block);
  const CUresult result = block && block->twin != 0
                              ? real::cuMemGetAddressRange_v2(pbase, psize, block->twin)
                              : gates::cuMemGetAddressRange_v2(pbase, psize, ours && !block ? kNowhere : dptr);
  if (result == api::CUDA_SUCCESS && block) {
    if (pbase != nullptr) *pbase = block->address;
    if (psize != nullptr) *psize = block->bytes;
  }
  return result;
}

// 32-bit addresses, which memory that rota serves does not have.
CUresult cuMemGetAddressRange(api::CUdeviceptr_v1* pbase, unsigned int* psize, api::CUdeviceptr_v1 dptr) {
  return gates::cuMemGetAddressRange(pbase, psize, dptr);
}

}  // namespace rota::overrides
