// What the attributes of an address say by how the memory was allocated: plainly, mapped from a handle, managed, in
// stream order.
#include "tests/simgpu/conformance/pools.h"
#include "tests/simgpu/conformance/vmm.h"

namespace {

constexpr size_t kReserved = 128 * kMiB;

template <class T>
T attribute(CUpointer_attribute which, CUdeviceptr address) {
  T value{};
  CHECK_OK(cu.cuPointerGetAttribute(&value, which, address));
  return value;
}
// Some attributes are a byte wide, some four.
bool flag(CUpointer_attribute which, CUdeviceptr address) {
  unsigned value = 0;
  CHECK_OK(cu.cuPointerGetAttribute(&value, which, address));
  return (value & 0xff) != 0;
}
using Id = unsigned long long;

// An allocation of each kind. Lives as long as its rule's process.
struct Kinds {
  explicit Kinds(const Session& session) : extent(2 * granularity(session.device())) {
    CHECK_OK(cu.cuMemAlloc_v2(&plain, 2 * kMiB));
    reservation = reserve(kReserved);
    for (CUdeviceptr address : {reservation, reservation + extent}) {
      CHECK_OK(cu.cuMemMap(address, extent, 0, create_physical(session.device(), extent), 0));
    }
    CHECK_OK(set_access(reservation, 2 * extent, session.device()));
    CHECK_OK(cu.cuMemAllocManaged(&managed, 2 * kMiB, CU_MEM_ATTACH_GLOBAL));
    CHECK_OK(cu.cuDeviceGetDefaultMemPool(&pool, session.device()));
    in_order = allocate_from(pool, 4096, nullptr);
    CHECK_OK(cu.cuStreamSynchronize(nullptr));
    mapped = reservation + extent;
  }
  size_t extent;
  CUdeviceptr plain = 0;
  CUdeviceptr reservation = 0;
  CUdeviceptr mapped = 0;  // the second of two extents side by side in the reservation
  CUdeviceptr managed = 0;
  CUdeviceptr in_order = 0;
  CUmemoryPool pool = nullptr;
};

}  // namespace

RULE(memory, kinds_and_contexts, "pool_memory_has_a_context",
     "plain and managed memory name the context that they were allocated in, mapped and stream-ordered memory none") {
  Session session;
  Kinds kinds(session);
  CHECK_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, kinds.plain), session.context());
  CHECK_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, kinds.managed), session.context());
  CHECK(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, kinds.mapped) == nullptr);
  CHECK(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, kinds.in_order) == nullptr);
}

RULE(memory, kinds_and_types, "idle:cuMemAllocManaged",
     "memory of every kind is of type device, and only managed memory is managed") {
  Session session;
  Kinds kinds(session);
  for (CUdeviceptr address : {kinds.plain, kinds.mapped, kinds.managed, kinds.in_order}) {
    CHECK_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(flag(CU_POINTER_ATTRIBUTE_IS_MANAGED, address), address == kinds.managed);
  }
}

RULE(memory, kinds_have_buffer_ids, "idle:cuPointerGetAttribute",
     "every allocation and every mapping has a buffer id of its own") {
  Session session;
  Kinds kinds(session);
  std::vector<Id> ids;
  for (CUdeviceptr address : {kinds.plain, kinds.reservation, kinds.mapped, kinds.managed, kinds.in_order}) {
    auto id = attribute<Id>(CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    for (Id other : ids) CHECK_NE(id, other);
    ids.push_back(id);
  }
}

RULE(memory, kinds_and_ranges, "ranges_are_mappings",
     "the range of an address is the allocation, of mapped memory the whole reservation") {
  Session session;
  Kinds kinds(session);
  for (CUdeviceptr address : {kinds.plain, kinds.managed}) {
    CHECK_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 5000), address);
    CHECK_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + 5000), 2 * kMiB);
  }
  CHECK_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, kinds.in_order + 500), kinds.in_order);
  CHECK_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, kinds.in_order + 500), 4096);
  CHECK_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, kinds.mapped + 5000), kinds.reservation);
  CHECK_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, kinds.mapped + 5000), kReserved);
}

RULE(memory, kinds_and_mappings, "idle:cuPointerGetAttribute",
     "the mapping of an address is the allocation, of mapped memory what one cuMemMap mapped") {
  Session session;
  Kinds kinds(session);
  for (CUdeviceptr address : {kinds.plain, kinds.managed}) {
    CHECK_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address + 5000), address);
    CHECK_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address + 5000), 2 * kMiB);
  }
  CHECK_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, kinds.mapped + 5000), kinds.mapped);
  CHECK_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, kinds.mapped + 5000), kinds.extent);
}

RULE(memory, mapping_of_stream_ordered_memory_is_the_pools, "pool_memory_is_mapped_by_itself",
     "stream-ordered allocations side by side are of one mapping and one block, which are the pool's") {
  Session session;
  Kinds kinds(session);
  CUdeviceptr other = allocate_from(kinds.pool, 4096, nullptr);
  auto base = attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, kinds.in_order);
  auto bytes = attribute<size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, kinds.in_order);
  CHECK(bytes >= 2 * kMiB);
  CHECK(base <= kinds.in_order && kinds.in_order + 4096 <= base + bytes);
  CHECK(base <= other && other + 4096 <= base + bytes);
  CHECK_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, other), base);
  CHECK_EQ(attribute<Id>(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, other),
           attribute<Id>(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, kinds.in_order));
}

RULE(memory, kinds_and_blocks, "block_ids_are_buffer_ids",
     "every allocation and every handle has a memory block id of its own, and all mappings of a handle have the "
     "handle's") {
  Session session;
  Kinds kinds(session);
  std::vector<Id> ids;
  for (CUdeviceptr address : {kinds.plain, kinds.reservation, kinds.mapped, kinds.managed, kinds.in_order}) {
    auto id = attribute<Id>(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address);
    for (Id other : ids) CHECK_NE(id, other);
    ids.push_back(id);
  }
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr one = map_somewhere(handle, bytes, session.device());
  CUdeviceptr other = map_somewhere(handle, bytes, session.device());
  CHECK_EQ(attribute<Id>(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, one),
           attribute<Id>(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, other));
  CHECK_NE(attribute<Id>(CU_POINTER_ATTRIBUTE_BUFFER_ID, one), attribute<Id>(CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
}

RULE(memory, kinds_for_other_processes, "idle:cuPointerGetAttribute",
     "only plain memory is capable of legacy interprocess handles") {
  Session session;
  Kinds kinds(session);
  CHECK(flag(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, kinds.plain));
  CHECK(!flag(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, kinds.mapped));
  CHECK(!flag(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, kinds.managed));
  CHECK(!flag(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, kinds.in_order));
}

RULE(memory, only_plain_memory_has_an_interprocess_handle, "lenient:cuIpcGetMemHandle",
     "cuIpcGetMemHandle of mapped, managed and stream-ordered memory answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Kinds kinds(session);
  CUipcMemHandle handle{};
  for (CUdeviceptr address : {kinds.mapped, kinds.managed, kinds.in_order}) {
    CHECK_EQ(cu.cuIpcGetMemHandle(&handle, address), CUDA_ERROR_INVALID_VALUE);
  }
}

RULE(memory, kinds_for_network_cards, "only_plain_memory_is_rdma_capable",
     "memory from cuMemAlloc is capable of GPUDirect RDMA, mapped memory if it was created so, other memory is not") {
  Session session;
  Kinds kinds(session);
  CHECK(flag(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, kinds.plain));
  CHECK(!flag(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, kinds.mapped));
  CHECK(!flag(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, kinds.managed));
  CHECK(!flag(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, kinds.in_order));
  CUmemAllocationProp properties = physical_properties(session.device());
  properties.allocFlags.gpuDirectRDMACapable = 1;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = 0;
  CHECK_OK(cu.cuMemCreate(&handle, bytes, &properties, 0));
  CHECK(flag(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, map_somewhere(handle, bytes, session.device())));
}

RULE(memory, kinds_and_pools, "current_pools_are_not_used",
     "only stream-ordered memory names a pool, which is the one that it came from") {
  Session session;
  Kinds kinds(session);
  OwnPool own(session);
  CHECK_OK(cu.cuDeviceSetMemPool(session.device(), own));
  CUdeviceptr of_own = 0;
  CHECK_OK(cu.cuMemAllocAsync(&of_own, 4096, nullptr));
  CHECK_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, kinds.in_order), kinds.pool);
  CHECK_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, of_own), static_cast<CUmemoryPool>(own));
  for (CUdeviceptr address : {kinds.plain, kinds.mapped, kinds.managed}) {
    CHECK(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == nullptr);
  }
}

RULE(memory, kinds_and_address_ranges, "idle:cuMemGetAddressRange_v2",
     "cuMemGetAddressRange gives the allocation, of mapped memory what one cuMemMap mapped") {
  Session session;
  Kinds kinds(session);
  struct {
    CUdeviceptr start;
    size_t bytes;
  } expected[] = {
      {kinds.plain, 2 * kMiB}, {kinds.mapped, kinds.extent}, {kinds.managed, 2 * kMiB}, {kinds.in_order, 4096}};
  for (const auto& [start, bytes] : expected) {
    CUdeviceptr base = 0;
    size_t size = 0;
    CHECK_OK(cu.cuMemGetAddressRange_v2(&base, &size, start + 100));
    CHECK_EQ(base, start);
    CHECK_EQ(size, bytes);
  }
}

RULE(memory, only_mapped_memory_has_a_handle, "lenient:cuMemRetainAllocationHandle",
     "cuMemRetainAllocationHandle of plain, managed and stream-ordered memory answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Kinds kinds(session);
  for (CUdeviceptr address : {kinds.plain, kinds.managed, kinds.in_order}) {
    CUmemGenericAllocationHandle handle = 0;
    CHECK_EQ(cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)), CUDA_ERROR_INVALID_VALUE);
  }
}
