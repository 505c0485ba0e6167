// Queries of an address. Of stream-ordered memory that rota serves, and of small plain memory, the driver knows only
// the arena, which holds many allocations: queries of one of them are answered here. The driver answers for attributes
// of the memory itself; for extents, which it knows as mapped memory or not at all, it is queried with a plain byte of
// the same context.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using Block = memory::Memory::Block;

namespace {

// What is reported for every allocation.
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

// For a pool's allocation: the arena is the mapping, and it belongs to no context.
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

// For plain memory: the program does not know the arena.
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

// Other processes and devices cannot access extents in the ways that these attributes promise.
bool is_refused_promise(CUdeviceptr address, api::CUpointer_attribute attribute) {
  if (attribute == api::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) return !runtime().memory.exports(address);
  return attribute == api::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
}

// Writes the attribute of an allocation, if it is a property of the allocation and not of the memory. `asked`: the
// address that the program passed; the driver may have been asked about a stand-in instead.
void tell(const Block& block, api::CUpointer_attribute attribute, CUdeviceptr asked, void* data) {
  if (block.twin != 0 && is_refused_promise(asked, attribute)) {
    const int no = 0;
    std::memcpy(data, &no, sizeof no);
    return;
  }
  // The stand-in is plain memory, which is a valid target of hardware decompression wherever there is any.
  if (block.twin != 0 && attribute == api::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE) {
    const int capable = memory::made_for_decompression(block.device) ? 1 : 0;
    std::memcpy(data, &capable, sizeof capable);
    return;
  }
  std::optional<std::uint64_t> value = of_any(block, attribute);
  if (block.twin != 0 && attribute == api::CU_POINTER_ATTRIBUTE_DEVICE_POINTER) value = asked;
  if (!value) value = block.pool != nullptr ? of_pooled(block, attribute) : of_plain(block, attribute);
  if (value) std::memcpy(data, &*value, sizeof *value);
}

// For memory that the program created and rota moves: numbers that the driver changes each time that it is restored.
void tell_number(CUdeviceptr address, api::CUpointer_attribute attribute, void* data) {
  const bool of_mapping = attribute == api::CU_POINTER_ATTRIBUTE_BUFFER_ID;
  if (!of_mapping && attribute != api::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID) return;
  const auto found = runtime().memory.own_physical().find(address);
  if (!found) return;
  const std::uint64_t number = of_mapping ? found->buffer_id : found->block_id;
  std::memcpy(data, &number, sizeof number);
}

// For converted memory, which the driver knows as managed: whether it is synchronous, as the program has set it. One
// byte, as the driver writes it.
void tell_synchronous(CUdeviceptr address, api::CUpointer_attribute attribute, void* data) {
  if (attribute != api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return;
  if (const auto synchronous = runtime().memory.synchronous(address)) {
    *static_cast<unsigned char*>(data) = *synchronous ? 1 : 0;
  }
}

// An address without memory, to get the driver's own answer for such an address. The first page is never mapped.
constexpr CUdeviceptr kNowhere = 16;

// With its tokens a device can access memory without any call: the memory is brought into place before the driver is
// asked for them, and stays there once they are returned.
template <typename Call>
CUresult tell_tokens(CUdeviceptr address, const Call& call) {
  const gate::MappingScope scope;
  if (scope.refused()) return gate::refusal.load();
  const CUresult result = call();
  memory::Memory& memory = runtime().memory;
  if (result == api::CUDA_SUCCESS) memory.pin(address, 1, protocol::Pin::kTokens);
  return memory.explained_with(api::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, result, address,
                               "CU_POINTER_ATTRIBUTE_P2P_TOKENS");
}

bool is_tokens(api::CUpointer_attribute attribute) {
  return attribute == api::CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

bool asks_for_tokens(unsigned int count, const api::CUpointer_attribute* attributes, void* const* data) {
  return attributes != nullptr && data != nullptr && std::any_of(attributes, attributes + count, is_tokens);
}

// For memory that has a stand-in, including the tokens: the stand-in's would lead to the stand-in.
CUresult attributes_of_stand_in(unsigned int count, api::CUpointer_attribute* attributes, void** data,
                                CUdeviceptr stand_in, CUdeviceptr address) {
  api::CUpointer_attribute tokens = api::CU_POINTER_ATTRIBUTE_P2P_TOKENS;
  if (!asks_for_tokens(count, attributes, data)) return real::cuPointerGetAttributes(count, attributes, data, stand_in);
  std::vector<api::CUpointer_attribute> others;
  std::vector<void*> into;
  for (unsigned int index = 0; index < count; ++index) {
    if (is_tokens(attributes[index])) {
      const CUresult result =
          tell_tokens(address, [&] { return real::cuPointerGetAttributes(1, &tokens, &data[index], address); });
      if (result != api::CUDA_SUCCESS) return result;
    } else {
      others.push_back(attributes[index]);
      into.push_back(data[index]);
    }
  }
  if (others.empty()) return api::CUDA_SUCCESS;
  return real::cuPointerGetAttributes(static_cast<unsigned int>(others.size()), others.data(), into.data(), stand_in);
}

}  // namespace

CUresult cuPointerGetAttribute(void* data, api::CUpointer_attribute attribute, CUdeviceptr ptr) {
  std::optional<Block> block;
  const bool ours = runtime().memory.find_block(ptr, &block);
  const CUdeviceptr asked = ours && !block ? kNowhere : ptr;
  if (attribute == api::CU_POINTER_ATTRIBUTE_P2P_TOKENS) {
    return tell_tokens(ptr, [&] { return real::cuPointerGetAttribute(data, attribute, asked); });
  }
  const CUresult result = block && block->twin != 0 ? real::cuPointerGetAttribute(data, attribute, block->twin)
                                                    : gates::cuPointerGetAttribute(data, attribute, asked);
  if (result == api::CUDA_SUCCESS && block) tell(*block, attribute, ptr, data);
  if (result != api::CUDA_SUCCESS) return result;
  tell_synchronous(ptr, attribute, data);
  tell_number(ptr, attribute, data);
  return result;
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, api::CUpointer_attribute* attributes, void** data,
                                CUdeviceptr ptr) {
  std::optional<Block> block;
  const bool ours = runtime().memory.find_block(ptr, &block);
  const CUdeviceptr asked = ours && !block ? kNowhere : ptr;
  CUresult result = api::CUDA_SUCCESS;
  if (block && block->twin != 0) {
    result = attributes_of_stand_in(numAttributes, attributes, data, block->twin, ptr);
  } else if (asks_for_tokens(numAttributes, attributes, data)) {
    result = tell_tokens(ptr, [&] { return real::cuPointerGetAttributes(numAttributes, attributes, data, asked); });
  } else {
    result = gates::cuPointerGetAttributes(numAttributes, attributes, data, asked);
  }
  if (result != api::CUDA_SUCCESS) return result;
  for (unsigned index = 0; index < numAttributes; ++index) {
    if (block) tell(*block, attributes[index], ptr, data[index]);
    tell_synchronous(ptr, attributes[index], data[index]);
    tell_number(ptr, attributes[index], data[index]);
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

CUresult cuMemGetAccess(unsigned long long* flags, const api::CUmemLocation* location, CUdeviceptr ptr) {
  if (const auto result = runtime().memory.own_physical().access(flags, location, ptr)) return *result;
  const CUdeviceptr stand_in = runtime().memory.twin(ptr);
  return stand_in != 0 ? real::cuMemGetAccess(flags, location, stand_in) : gates::cuMemGetAccess(flags, location, ptr);
}

CUresult cuMemRangeGetAttribute(void* data, std::size_t dataSize, api::CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, std::size_t count) {
  const CUdeviceptr stand_in = runtime().memory.twin(devPtr);
  return stand_in != 0
             ? real::cuMemRangeGetAttribute(data, dataSize, attribute, stand_in, std::min<std::size_t>(count, 1))
             : gates::cuMemRangeGetAttribute(data, dataSize, attribute, devPtr, count);
}

CUresult cuMemRangeGetAttributes(void** data, std::size_t* dataSizes, api::CUmem_range_attribute* attributes,
                                 std::size_t numAttributes, CUdeviceptr devPtr, std::size_t count) {
  const CUdeviceptr stand_in = runtime().memory.twin(devPtr);
  return stand_in != 0 ? real::cuMemRangeGetAttributes(data, dataSizes, attributes, numAttributes, stand_in,
                                                       std::min<std::size_t>(count, 1))
                       : gates::cuMemRangeGetAttributes(data, dataSizes, attributes, numAttributes, devPtr, count);
}

// 32-bit addresses, which memory that rota serves does not have.
CUresult cuMemGetAddressRange(api::CUdeviceptr_v1* pbase, unsigned int* psize, api::CUdeviceptr_v1 dptr) {
  return gates::cuMemGetAddressRange(pbase, psize, dptr);
}

}  // namespace rota::overrides
