// What the driver says of an address. Of stream-ordered memory that rota serves, and of small plain memory, it knows
// the span alone, which holds many allocations: what is asked of one of them is answered here. Attributes of the memory
// itself are the driver's to say.
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
using Block = memory::StreamOrdered::Block;

namespace {

// The same of plain memory: what several share is one allocation of its context to the driver.
bool tell_plain(const Block& block, api::CUpointer_attribute attribute, void* data) {
  std::uint64_t value = 0;
  switch (attribute) {
    case api::CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case api::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      value = block.buffer_id;
      break;
    case api::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case api::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      value = block.address;
      break;
    case api::CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case api::CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      value = block.bytes;
      break;
    default:
      return false;
  }
  std::memcpy(data, &value, sizeof value);
  return true;
}

// Writes the attribute of a block, if it is one of the allocation and not of the memory.
bool tell(const Block& block, api::CUpointer_attribute attribute, void* data) {
  if (block.pool == nullptr) return tell_plain(block, attribute, data);
  std::uint64_t value = 0;
  switch (attribute) {
    case api::CU_POINTER_ATTRIBUTE_CONTEXT:  // stream-ordered memory belongs to none
      break;
    case api::CU_POINTER_ATTRIBUTE_BUFFER_ID:
      value = block.buffer_id;
      break;
    case api::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      value = block.address;
      break;
    case api::CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      value = block.bytes;
      break;
    case api::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      value = block.span_address;
      break;
    case api::CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      value = block.span_bytes;
      break;
    case api::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      value = reinterpret_cast<std::uintptr_t>(block.pool);
      break;
    default:
      return false;
  }
  std::memcpy(data, &value, sizeof value);
  return true;
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
  const bool ours = runtime().memory.find_stream_ordered(ptr, &block);
  const CUresult result = gates::cuPointerGetAttribute(data, attribute, ours && !block ? kNowhere : ptr);
  if (result == api::CUDA_SUCCESS && block) tell(*block, attribute, data);
  if (result == api::CUDA_SUCCESS) tell_synchronous(ptr, attribute, data);
  if (attribute != api::CU_POINTER_ATTRIBUTE_P2P_TOKENS) return result;
  return runtime().memory.explained(result, ptr, "CU_POINTER_ATTRIBUTE_P2P_TOKENS");
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, api::CUpointer_attribute* attributes, void** data,
                                CUdeviceptr ptr) {
  std::optional<Block> block;
  const bool ours = runtime().memory.find_stream_ordered(ptr, &block);
  const CUresult result =
      gates::cuPointerGetAttributes(numAttributes, attributes, data, ours && !block ? kNowhere : ptr);
  if (result != api::CUDA_SUCCESS) return result;
  for (unsigned index = 0; index < numAttributes; ++index) {
    if (block) tell(*block, attributes[index], data[index]);
    tell_synchronous(ptr, attributes[index], data[index]);
  }
  return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, std::size_t* psize, CUdeviceptr dptr) {
  std::optional<Block> block;
  const bool ours = runtime().memory.find_stream_ordered(dptr, &block);
  const CUresult result = gates::cuMemGetAddressRange_v2(pbase, psize, ours && !block ? kNowhere : dptr);
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
