// Virtual memory management: physical memory, reservations and mappings.
#include "tests/simgpu/conformance/vmm.h"

RULE(vmm, granularity_is_a_power_of_two, "idle:cuMemGetAllocationGranularity",
     "The minimum granularity of physical memory is a power of two, and the recommended one a multiple of it") {
  Session session;
  CUmemAllocationProp properties = physical_properties(session.device());
  size_t least = 0;
  size_t best = 0;
  CHECK_OK(cu.cuMemGetAllocationGranularity(&least, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK_OK(cu.cuMemGetAllocationGranularity(&best, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  CHECK(least != 0);
  CHECK_EQ(least & (least - 1), 0U);
  CHECK_EQ(best % least, 0U);
}

RULE(vmm, physical_size_must_be_whole, "lenient:cuMemCreate",
     "cuMemCreate of a size that is no multiple of the granularity answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUmemAllocationProp properties = physical_properties(session.device());
  CUmemGenericAllocationHandle handle = 0;
  CHECK_EQ(cu.cuMemCreate(&handle, granularity(session.device()) + 512, &properties, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, physical_size_must_not_be_zero, "lenient:cuMemCreate",
     "cuMemCreate of nothing answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUmemAllocationProp properties = physical_properties(session.device());
  CUmemGenericAllocationHandle handle = 0;
  CHECK_EQ(cu.cuMemCreate(&handle, 0, &properties, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, creating_has_no_flags, "lenient:cuMemCreate", "cuMemCreate with flags answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUmemAllocationProp properties = physical_properties(session.device());
  CUmemGenericAllocationHandle handle = 0;
  CHECK_EQ(cu.cuMemCreate(&handle, granularity(session.device()), &properties, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, creating_needs_an_allocation_type, "lenient:cuMemCreate",
     "cuMemCreate without an allocation type answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUmemAllocationProp properties = physical_properties(session.device());
  properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  CUmemGenericAllocationHandle handle = 0;
  CHECK_EQ(cu.cuMemCreate(&handle, granularity(session.device()), &properties, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, creating_needs_a_known_device, "lenient:cuMemCreate",
     "cuMemCreate on a device that does not exist answers CUDA_ERROR_INVALID_DEVICE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemAllocationProp properties = physical_properties(1000);
  CUmemGenericAllocationHandle handle = 0;
  CHECK_EQ(cu.cuMemCreate(&handle, bytes, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
}

RULE(vmm, too_much_is_out_of_memory, "lenient:cuMemCreate",
     "cuMemCreate of more than the device has answers CUDA_ERROR_OUT_OF_MEMORY") {
  Session session;
  size_t total = 0;
  CHECK_OK(cu.cuDeviceTotalMem_v2(&total, session.device()));
  size_t step = granularity(session.device());
  CUmemAllocationProp properties = physical_properties(session.device());
  CUmemGenericAllocationHandle handle = 0;
  CHECK_EQ(cu.cuMemCreate(&handle, 2 * total / step * step, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

RULE(vmm, reservation_must_not_be_empty, "lenient:cuMemAddressReserve",
     "cuMemAddressReserve of nothing answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAddressReserve(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, reservation_size_must_be_whole, "lenient:cuMemAddressReserve",
     "cuMemAddressReserve of a size that is no multiple of the host's page answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAddressReserve(&address, 4096 + 512, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, reservation_is_aligned, "reservations_are_not_aligned",
     "A reservation starts at a multiple of the alignment that was asked for") {
  Session session;
  size_t bytes = granularity(session.device());
  constexpr size_t kAlignment = size_t{64} << 20;
  CUdeviceptr addresses[2];
  for (CUdeviceptr& address : addresses) {
    address = reserve(bytes, kAlignment);
    CHECK_EQ(address % kAlignment, 0U);
  }
  for (CUdeviceptr address : addresses) CHECK_OK(cu.cuMemAddressFree(address, bytes));
}

RULE(vmm, alignment_must_be_a_power_of_two, "lenient:cuMemAddressReserve",
     "cuMemAddressReserve with an alignment that is no power of two answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAddressReserve(&address, bytes, 3 * bytes, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, reserving_has_no_flags, "lenient:cuMemAddressReserve",
     "cuMemAddressReserve with flags answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAddressReserve(&address, granularity(session.device()), 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, reservation_is_freed_as_it_was_made, "lenient:cuMemAddressFree",
     "cuMemAddressFree with another size than was reserved answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUdeviceptr address = reserve(2 * bytes);
  CHECK_EQ(cu.cuMemAddressFree(address, bytes), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuMemAddressFree(address, 2 * bytes));
}

RULE(vmm, reservation_is_freed_once, "lenient:cuMemAddressFree",
     "cuMemAddressFree of what was freed already answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUdeviceptr address = reserve(bytes);
  CHECK_OK(cu.cuMemAddressFree(address, bytes));
  CHECK_EQ(cu.cuMemAddressFree(address, bytes), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, mapped_memory_holds_data, "idle:cuMemcpyHtoD_v2",
     "What is copied to mapped memory with access is read back") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  set_first_word(address, 42);
  set_first_word(address + bytes - 4, 43);
  CHECK_EQ(first_word(address), 42U);
  CHECK_EQ(first_word(address + bytes - 4), 43U);
  unmap_and_free(address, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, two_mappings_show_the_same_memory, "mappings_show_other_pages",
     "What is written through one mapping of a handle is read through another one") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr one = map_somewhere(handle, bytes, session.device());
  CUdeviceptr other = map_somewhere(handle, bytes, session.device());
  CHECK_NE(one, other);
  set_first_word(one, 17);
  CHECK_EQ(first_word(other), 17U);
  unmap_and_free(one, bytes);
  unmap_and_free(other, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, what_is_mapped_cannot_be_mapped_over, "lenient:cuMemMap",
     "cuMemMap where something is mapped already answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  CHECK_EQ(cu.cuMemMap(address, bytes, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  unmap_and_free(address, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, mapping_needs_a_reservation, "lenient:cuMemMap",
     "cuMemMap at an address that is not reserved answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = reserve(bytes);
  CHECK_OK(cu.cuMemAddressFree(address, bytes));
  CHECK_EQ(cu.cuMemMap(address, bytes, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, mapping_is_no_longer_than_its_memory, "lenient:cuMemMap",
     "cuMemMap of more than the handle has answers CUDA_ERROR_NOT_SUPPORTED") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = reserve(2 * bytes);
  CHECK_EQ(cu.cuMemMap(address, 2 * bytes, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_OK(cu.cuMemAddressFree(address, 2 * bytes));
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, handle_is_mapped_whole, "lenient:cuMemMap",
     "cuMemMap of a part of the handle's memory answers CUDA_ERROR_NOT_SUPPORTED") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), 2 * bytes);
  CUdeviceptr address = reserve(2 * bytes);
  CHECK_EQ(cu.cuMemMap(address, bytes, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_EQ(cu.cuMemMap(address, bytes + 512, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_OK(cu.cuMemAddressFree(address, 2 * bytes));
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, mapping_is_unmapped_whole, "lenient:cuMemUnmap",
     "cuMemUnmap of a part of a mapping answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), 2 * bytes);
  CUdeviceptr address = map_somewhere(handle, 2 * bytes, session.device());
  CHECK_EQ(cu.cuMemUnmap(address, bytes), CUDA_ERROR_INVALID_VALUE);
  unmap_and_free(address, 2 * bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, several_mappings_are_unmapped_at_once, "mappings_are_handled_one_by_one",
     "One cuMemUnmap takes a range of several whole mappings side by side") {
  Session session;
  size_t bytes = granularity(session.device());
  CUdeviceptr address = reserve(2 * bytes);
  for (size_t offset : {size_t{0}, bytes}) {
    CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
    CHECK_OK(cu.cuMemMap(address + offset, bytes, 0, handle, 0));
    CHECK_OK(cu.cuMemRelease(handle));
  }
  CHECK_OK(cu.cuMemUnmap(address, 2 * bytes));
  CHECK_OK(cu.cuMemAddressFree(address, 2 * bytes));
}

RULE(vmm, unmapped_range_can_be_mapped_again, "idle:cuMemUnmap",
     "After cuMemUnmap the range is a reservation again, in which something else can be mapped") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle one = create_physical(session.device(), bytes);
  CUmemGenericAllocationHandle other = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(one, bytes, session.device());
  set_first_word(address, 1);
  CHECK_OK(cu.cuCtxSynchronize());  // a copy from pageable memory may still be on its way to the device
  CHECK_OK(cu.cuMemUnmap(address, bytes));
  CHECK_OK(cu.cuMemMap(address, bytes, 0, other, 0));
  CHECK_OK(set_access(address, bytes, session.device()));
  set_first_word(address, 2);
  CUdeviceptr elsewhere = map_somewhere(one, bytes, session.device());
  CHECK_EQ(first_word(elsewhere), 1U);
  unmap_and_free(address, bytes);
  unmap_and_free(elsewhere, bytes);
  CHECK_OK(cu.cuMemRelease(one));
  CHECK_OK(cu.cuMemRelease(other));
}
