// Managed memory: allocation, advice by the page, what ranges say of themselves.
#include "tests/simgpu/conformance/managed.h"

RULE(managed, alloc_of_nothing_is_refused, "lenient:cuMemAllocManaged",
     "cuMemAllocManaged of 0 bytes answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAllocManaged(&address, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, alloc_needs_one_attachment, "lenient:cuMemAllocManaged",
     "cuMemAllocManaged with flags other than one of GLOBAL and HOST answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAllocManaged(&address, kMiB, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuMemAllocManaged(&address, kMiB, CU_MEM_ATTACH_SINGLE), CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, host_and_kernel_share_it, "idle:cuLaunchKernel",
     "the host reads at the same address what a kernel wrote into managed memory") {
  Session session;
  Managed managed(kMiB);
  managed.words()[100] = 5;
  CHECK_OK(launch(session.function("fill"), 1, 64, nullptr, managed.address(), 64UL, 21U));
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK_EQ(managed.words()[63], 21);
  CHECK_EQ(managed.words()[100], 5);
}

RULE(managed, says_that_it_is_managed, "idle:cuPointerGetAttribute", "managed memory has the attribute IS_MANAGED") {
  Session session;
  Managed managed(kMiB);
  unsigned is_managed = 0;
  CHECK_OK(cu.cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
  CHECK_EQ(is_managed & 0xff, 1);
}

RULE(managed, sets_wait, "set_of_host_memory_does_not_wait",
     "cuMemsetD8 of managed memory returns after the set was done") {
  Session session;
  Managed managed(kMiB);
  Stream blocking(CU_STREAM_DEFAULT);
  Blocker blocker(blocking);
  std::thread releasing = release_soon(blocker);
  CHECK_OK(cu.cuMemsetD8_v2(managed, 1, kMiB));
  CUresult state = cu.cuStreamQuery(blocking);
  releasing.join();
  CHECK_EQ(state, CUDA_SUCCESS);
}

RULE(managed, fresh_memory_has_no_advice, "idle:cuMemRangeGetAttribute",
     "a fresh range is not read-mostly, prefers no place and was prefetched nowhere") {
  Session session;
  Managed managed(kMiB);
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0);
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_INVALID);
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), CU_DEVICE_INVALID);
}

RULE(managed, preferred_device_reads_back, "idle:cuMemAdvise",
     "the preferred location reads as the device that it was set to") {
  Session session;
  Managed managed(kMiB);
  CHECK_OK(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, session.device()));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), session.device());
}

RULE(managed, preferred_host_reads_back, "idle:cuMemAdvise",
     "the preferred location reads as CU_DEVICE_CPU when it was set to that") {
  Session session;
  Managed managed(kMiB);
  CHECK_OK(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_CPU);
}

RULE(managed, preferred_location_can_be_unset, "idle:cuMemAdvise",
     "after UNSET_PREFERRED_LOCATION no place is preferred") {
  Session session;
  Managed managed(kMiB);
  managed.set_preferred(kMiB, CU_DEVICE_CPU);
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_CPU);
  CHECK_OK(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, session.device()));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_INVALID);
}

RULE(managed, preferred_location_of_a_mixed_range, "range_attributes_look_at_the_start",
     "a range whose pages prefer different places reads as preferring none") {
  Session session;
  Managed managed(4 * kMiB);
  managed.set_preferred(4 * kMiB, session.device());
  CHECK_OK(cu.cuMemAdvise(managed.address() + 2 * kMiB, 2 * kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_INVALID);
  CHECK_EQ(range_attribute(managed, 2 * kMiB, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), session.device());
  CHECK_EQ(range_attribute(managed.address() + 2 * kMiB, 2 * kMiB, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION),
           CU_DEVICE_CPU);
}

RULE(managed, preferred_location_by_type, "idle:cuMemAdvise_v2",
     "the preferred location reads as type and id where it was set by cuMemAdvise with a location") {
  Session session;
  Managed managed(kMiB);
  CHECK_OK(cu.cuMemAdvise_v2(managed, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                             location(CU_MEM_LOCATION_TYPE_DEVICE, session.device())));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_DEVICE);
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID), session.device());
  CHECK_OK(
      cu.cuMemAdvise_v2(managed, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location(CU_MEM_LOCATION_TYPE_HOST, 0)));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_HOST);
}

RULE(managed, preferred_device_must_exist, "lenient:cuMemAdvise",
     "a device that does not exist cannot be preferred: CUDA_ERROR_INVALID_DEVICE") {
  Session session;
  Managed managed(kMiB);
  CHECK_EQ(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, session.devices()),
           CUDA_ERROR_INVALID_DEVICE);
}

RULE(managed, read_mostly_needs_every_page, "range_attributes_look_at_the_start",
     "a range reads as read-mostly only where all of its pages are") {
  Session session;
  Managed managed(4 * kMiB);
  CHECK_OK(cu.cuMemAdvise(managed, 2 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, session.device()));
  CHECK_EQ(range_attribute(managed, 2 * kMiB, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1);
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0);
}

RULE(managed, read_mostly_can_be_unset, "idle:cuMemAdvise", "UNSET_READ_MOSTLY undoes SET_READ_MOSTLY") {
  Session session;
  Managed managed(kMiB);
  CHECK_OK(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, session.device()));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1);
  CHECK_OK(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_UNSET_READ_MOSTLY, session.device()));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0);
}

RULE(managed, accessed_by_lists_devices, "idle:cuMemAdvise",
     "ACCESSED_BY lists the devices that it was set for and fills the rest with CU_DEVICE_INVALID") {
  Session session;
  Managed managed(kMiB);
  int devices[3] = {5, 5, 5};
  CHECK_OK(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, session.device()));
  CHECK_OK(cu.cuMemRangeGetAttribute(devices, sizeof devices, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, kMiB));
  CHECK_EQ(devices[0], session.device());
  CHECK_EQ(devices[1], CU_DEVICE_INVALID);
  CHECK_EQ(devices[2], CU_DEVICE_INVALID);
}

RULE(managed, accessed_by_can_be_unset, "idle:cuMemAdvise", "UNSET_ACCESSED_BY takes the device from the list") {
  Session session;
  Managed managed(kMiB);
  int device = 5;
  CHECK_OK(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, session.device()));
  CHECK_OK(cu.cuMemRangeGetAttribute(&device, sizeof device, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, kMiB));
  CHECK_EQ(device, session.device());
  CHECK_OK(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_UNSET_ACCESSED_BY, session.device()));
  CHECK_OK(cu.cuMemRangeGetAttribute(&device, sizeof device, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, kMiB));
  CHECK_EQ(device, CU_DEVICE_INVALID);
}

RULE(managed, range_attributes_have_sizes, "lenient:cuMemRangeGetAttribute",
     "cuMemRangeGetAttribute with a size that the attribute has not answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Managed managed(kMiB);
  int data[2] = {};
  CHECK_EQ(cu.cuMemRangeGetAttribute(data, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed, kMiB),
           CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuMemRangeGetAttribute(data, 6, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, kMiB),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, range_attributes_need_managed_memory, "lenient:cuMemRangeGetAttribute",
     "cuMemRangeGetAttribute of memory from cuMemAlloc answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(kMiB);
  int value = 0;
  CHECK_EQ(cu.cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, buffer, kMiB),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, range_attributes_several_at_once, "idle:cuMemRangeGetAttributes",
     "cuMemRangeGetAttributes gives each attribute that is asked for") {
  Session session;
  Managed managed(kMiB);
  managed.set_preferred(kMiB, session.device());
  CHECK_OK(cu.cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, session.device()));
  int read_mostly = 5;
  int preferred = 5;
  void* data[] = {&read_mostly, &preferred};
  size_t sizes[] = {4, 4};
  CUmem_range_attribute which[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
  CHECK_OK(cu.cuMemRangeGetAttributes(data, sizes, which, 2, managed, kMiB));
  CHECK_EQ(read_mostly, 1);
  CHECK_EQ(preferred, session.device());
}

RULE(managed, advice_needs_managed_memory, "lenient:cuMemAdvise",
     "cuMemAdvise about memory from cuMemAlloc answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(kMiB);
  CHECK_EQ(cu.cuMemAdvise(buffer, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, session.device()), CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, advice_about_nothing_is_refused, "lenient:cuMemAdvise",
     "cuMemAdvise about 0 bytes, or with an unknown advice, answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Managed managed(kMiB);
  CHECK_EQ(cu.cuMemAdvise(managed, 0, CU_MEM_ADVISE_SET_READ_MOSTLY, session.device()), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuMemAdvise(managed, kMiB, static_cast<CUmem_advise>(77), session.device()), CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, advice_goes_with_the_memory, "advice_survives_free",
     "memory that takes a freed range's place has no advice") {
  Session session;
  for (int round = 0; round < 8; ++round) {
    Managed managed(4 * kMiB);
    CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_INVALID);
    managed.set_preferred(4 * kMiB, session.device());
  }
}

RULE(managed, attaching_a_part_is_refused, "lenient:cuStreamAttachMemAsync",
     "cuStreamAttachMemAsync of a part of a managed allocation is refused") {
  Session session;
  Managed managed(kMiB);
  Stream stream;
  CHECK_NE(cu.cuStreamAttachMemAsync(stream, managed, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
}

RULE(managed, attaching_singly_to_the_null_stream_is_refused, "lenient:cuStreamAttachMemAsync",
     "cuStreamAttachMemAsync with SINGLE to the null stream is refused") {
  Session session;
  Managed managed(kMiB);
  CHECK_NE(cu.cuStreamAttachMemAsync(nullptr, managed, 0, CU_MEM_ATTACH_SINGLE), CUDA_SUCCESS);
}

RULE(managed, attaching_the_whole, "refuse:cuStreamAttachMemAsync",
     "cuStreamAttachMemAsync takes a whole allocation, given by its length or by 0") {
  Session session;
  Managed managed(kMiB);
  Stream stream;
  CHECK_OK(cu.cuStreamAttachMemAsync(stream, managed, 0, CU_MEM_ATTACH_SINGLE));
  CHECK_OK(cu.cuStreamAttachMemAsync(stream, managed, kMiB, CU_MEM_ATTACH_GLOBAL));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}
