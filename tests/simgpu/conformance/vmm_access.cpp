// Virtual memory management: who may use mapped memory, how long it lives, and other processes.
#include <unistd.h>

#include "tests/simgpu/conformance/vmm.h"

RULE(vmm, mapping_starts_without_access, "mappings_start_accessible",
     "A new mapping cannot be accessed: cuMemGetAccess answers no flags and a copy CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = reserve(bytes);
  CHECK_OK(cu.cuMemMap(address, bytes, 0, handle, 0));
  CHECK_EQ(access_of(address, session.device()), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  unsigned word = 0;
  CHECK_EQ(cu.cuMemcpyDtoH_v2(&word, address, sizeof word), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, kernel_without_access_is_illegal, "mappings_start_accessible",
     "A kernel that writes to a mapping without access ends with CUDA_ERROR_ILLEGAL_ADDRESS") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = reserve(bytes);
  CHECK_OK(cu.cuMemMap(address, bytes, 0, handle, 0));
  CHECK_OK(launch(session.function("fill"), 1, 32, nullptr, address, 32UL, 1U));
  CHECK_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

RULE(vmm, access_is_what_was_set, "idle:cuMemSetAccess",
     "cuMemGetAccess answers what cuMemSetAccess set, anywhere in the mapping") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = reserve(bytes);
  CHECK_OK(cu.cuMemMap(address, bytes, 0, handle, 0));
  CHECK_OK(set_access(address, bytes, session.device()));
  CHECK_EQ(access_of(address + bytes / 2, session.device()), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  unmap_and_free(address, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, mapped_memory_is_never_synchronous, "lenient:cuPointerSetAttribute",
     "SYNC_MEMOPS of mapped memory is off, and setting it answers CUDA_ERROR_NOT_SUPPORTED") {
  Session session;
  size_t bytes = granularity(session.device());
  CUdeviceptr address = map_somewhere(create_physical(session.device(), bytes), bytes, session.device());
  for (unsigned value : {0U, 1U}) {
    CHECK_EQ(cu.cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address), CUDA_ERROR_NOT_SUPPORTED);
  }
  unsigned read = 1;
  CHECK_OK(cu.cuPointerGetAttribute(&read, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
  CHECK_EQ(read & 0xff, 0);
}

RULE(vmm, access_goes_with_the_mapping, "access_outlives_mappings",
     "Memory that is mapped where other memory could be accessed before starts without access") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  CHECK_OK(cu.cuMemUnmap(address, bytes));
  CHECK_OK(cu.cuMemMap(address, bytes, 0, handle, 0));
  CHECK_EQ(access_of(address, session.device()), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  unmap_and_free(address, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, access_can_be_taken_away, "idle:cuMemSetAccess",
     "Access that was given can be taken away again with CU_MEM_ACCESS_FLAGS_PROT_NONE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  set_first_word(address, 5);
  CHECK_OK(cu.cuCtxSynchronize());  // a copy from pageable memory may still be on its way to the device
  CHECK_OK(set_access(address, bytes, session.device(), CU_MEM_ACCESS_FLAGS_PROT_NONE));
  CHECK_EQ(access_of(address, session.device()), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CHECK_OK(set_access(address, bytes, session.device()));
  CHECK_EQ(first_word(address), 5U);
  unmap_and_free(address, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, access_needs_mapped_memory, "lenient:cuMemSetAccess",
     "cuMemSetAccess of a reservation without mapping answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUdeviceptr address = reserve(bytes);
  CHECK_EQ(set_access(address, bytes, session.device()), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuMemAddressFree(address, bytes));
}

RULE(vmm, access_has_no_gaps, "lenient:cuMemSetAccess",
     "cuMemSetAccess of a range of which only a part is mapped answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = reserve(2 * bytes);
  CHECK_OK(cu.cuMemMap(address, bytes, 0, handle, 0));
  CHECK_EQ(set_access(address, 2 * bytes, session.device()), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuMemUnmap(address, bytes));
  CHECK_OK(cu.cuMemAddressFree(address, 2 * bytes));
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, one_call_sets_access_for_several_mappings, "mappings_are_handled_one_by_one",
     "One cuMemSetAccess covers several mappings side by side") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = reserve(2 * bytes);
  CHECK_OK(cu.cuMemMap(address, bytes, 0, handle, 0));
  CHECK_OK(cu.cuMemMap(address + bytes, bytes, 0, handle, 0));
  CHECK_OK(set_access(address, 2 * bytes, session.device()));
  CHECK_EQ(access_of(address, session.device()), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK_EQ(access_of(address + bytes, session.device()), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  for (CUdeviceptr start : {address, address + bytes}) CHECK_OK(cu.cuMemUnmap(start, bytes));
  CHECK_OK(cu.cuMemAddressFree(address, 2 * bytes));
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, mappings_side_by_side_are_one_range, "ranges_end_at_mappings",
     "One copy can go over several mappings side by side") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handles[2];
  CUdeviceptr address = reserve(2 * bytes);
  for (size_t index = 0; index < 2; ++index) {
    handles[index] = create_physical(session.device(), bytes);
    CHECK_OK(cu.cuMemMap(address + index * bytes, bytes, 0, handles[index], 0));
  }
  CHECK_OK(set_access(address, 2 * bytes, session.device()));
  unsigned words[] = {11, 12, 13, 14};
  CHECK_OK(cu.cuMemcpyHtoD_v2(address + bytes - 8, words, sizeof words));
  CHECK_EQ(first_word(address + bytes - 4), 12U);
  CHECK_EQ(first_word(address + bytes), 13U);
  CHECK_OK(cu.cuMemUnmap(address, 2 * bytes));
  CHECK_OK(cu.cuMemAddressFree(address, 2 * bytes));
  for (CUmemGenericAllocationHandle handle : handles) CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, mapping_keeps_released_memory, "released_memory_is_lost",
     "Memory whose handle was released stays, with its contents, while it is mapped") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  set_first_word(address, 21);
  CHECK_OK(cu.cuMemRelease(handle));
  CHECK_EQ(first_word(address), 21U);
  unmap_and_free(address, bytes);
}

RULE(vmm, retained_handle_is_the_same, "idle:cuMemRetainAllocationHandle",
     "cuMemRetainAllocationHandle of any mapped address answers the handle that was mapped") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  CUmemGenericAllocationHandle retained = 0;
  CHECK_OK(cu.cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(address + 4096)));
  CHECK_EQ(retained, handle);
  CHECK_OK(cu.cuMemRelease(retained));
  unmap_and_free(address, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, retaining_is_a_reference, "retaining_does_not_count",
     "A retained handle must be released once more than it was created") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  CUmemGenericAllocationHandle retained = 0;
  CHECK_OK(cu.cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(address)));
  CHECK_OK(cu.cuMemRelease(handle));
  unmap_and_free(address, bytes);
  CUmemAllocationProp properties{};
  CHECK_OK(cu.cuMemGetAllocationPropertiesFromHandle(&properties, retained));
  CHECK_OK(cu.cuMemRelease(retained));
}

RULE(vmm, only_mapped_addresses_have_handles, "lenient:cuMemRetainAllocationHandle",
     "cuMemRetainAllocationHandle of memory from cuMemAlloc answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer plain(4096);
  CUmemGenericAllocationHandle handle = 0;
  CHECK_EQ(cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(plain.address())), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, properties_are_those_of_the_creation, "idle:cuMemGetAllocationPropertiesFromHandle",
     "A handle's properties are those that it was created with") {
  Session session;
  CUmemGenericAllocationHandle handle = create_physical(session.device(), granularity(session.device()), true);
  CUmemAllocationProp properties{};
  CHECK_OK(cu.cuMemGetAllocationPropertiesFromHandle(&properties, handle));
  CHECK_EQ(properties.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  CHECK_EQ(properties.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  CHECK_EQ(properties.location.id, session.device());
  CHECK_EQ(properties.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, mapped_reservation_cannot_be_freed, "lenient:cuMemAddressFree",
     "cuMemAddressFree of a reservation in which something is mapped is refused") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  CHECK_NE(cu.cuMemAddressFree(address, bytes), CUDA_SUCCESS);
}

RULE(vmm, mapped_memory_is_not_freed_as_plain_memory, "lenient:cuMemFree_v2",
     "cuMemFree of mapped memory answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  CHECK_EQ(cu.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, unmapping_does_not_wait, "unmapping_waits",
     "cuMemUnmap does not wait for a kernel that runs and uses other memory") {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  Stream stream;
  Event event;
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_OK(cu.cuMemUnmap(address, bytes));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_OK(cu.cuMemAddressFree(address, bytes));
  CHECK_OK(cu.cuMemRelease(handle));
}

RULE(vmm, other_device_gets_access_by_name, "idle:cuMemSetAccess",
     "A second device writes to mapped memory of the first once it was given access") {
  Session session;
  SKIP_UNLESS(session.devices() >= 2, "needs two GPUs");
  int possible = 0;
  CHECK_OK(cu.cuDeviceCanAccessPeer(&possible, 1, 0));
  SKIP_UNLESS(possible != 0, "needs peers");
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  CHECK_EQ(access_of(address, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CHECK_OK(set_access(address, bytes, 1));
  CHECK_EQ(access_of(address, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK_EQ(access_of(address, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  unmap_and_free(address, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}

namespace {

int export_file(CUmemGenericAllocationHandle handle) {
  int file = -1;
  CHECK_OK(cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CHECK(file >= 0);
  return file;
}

// Takes the descriptor over.
CUmemGenericAllocationHandle import_file(int file) {
  CUmemGenericAllocationHandle handle = 0;
  CHECK_OK(cu.cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ::close(file);
  return handle;
}

void needs_files(const Session& session) {
  int supported = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                   session.device()));
  SKIP_UNLESS(supported != 0, "needs memory that can be exported as a file");
}

}  // namespace

RULE(vmm, private_memory_cannot_be_exported, "lenient:cuMemExportToShareableHandle",
     "cuMemExportToShareableHandle of a type that was not asked for at the creation is refused") {
  Session session;
  CUmemGenericAllocationHandle handle = create_physical(session.device(), granularity(session.device()));
  int file = -1;
  CHECK_NE(cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
}

RULE(vmm, exporting_has_no_flags, "lenient:cuMemExportToShareableHandle",
     "cuMemExportToShareableHandle with flags answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  needs_files(session);
  CUmemGenericAllocationHandle handle = create_physical(session.device(), granularity(session.device()), true);
  int file = -1;
  CHECK_EQ(cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(vmm, imported_memory_is_the_same_memory, "mappings_show_other_pages",
     "Memory imported from its own file shows what was written through the first handle") {
  Session session;
  needs_files(session);
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes, true);
  CUmemGenericAllocationHandle imported = import_file(export_file(handle));
  CUdeviceptr one = map_somewhere(handle, bytes, session.device());
  CUdeviceptr other = map_somewhere(imported, bytes, session.device());
  set_first_word(one, 31);
  CHECK_EQ(first_word(other), 31U);
  unmap_and_free(one, bytes);
  unmap_and_free(other, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
  CHECK_OK(cu.cuMemRelease(imported));
}

CHILD(vmm_importer) {
  Session session;
  size_t bytes = granularity(session.device()) * 16;
  int file = parent.receive_file();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  bool taken = true;
  // Other processes use the device too: one look may be wrong.
  for (int look = 0; look < 10 && taken; ++look) {
    if (look != 0) {
      unmap_and_free(address, bytes);
      CHECK_OK(cu.cuMemRelease(handle));
    }
    size_t before = free_memory();
    handle = import_file(::dup(file));
    address = map_somewhere(handle, bytes, session.device());
    taken = before > free_memory() + bytes / 2;
  }
  ::close(file);
  parent.send_value(taken);
  parent.receive();
  unsigned word = first_word(address);
  set_first_word(address, word + 1);
  CHECK_OK(cu.cuCtxSynchronize());
  parent.send_value(word);
  parent.receive();
}

RULE(vmm, other_process_uses_the_same_memory, "idle:cuMemImportFromShareableHandle",
     "A process that imports exported memory reads and writes the exporter's memory") {
  Session session;
  needs_files(session);
  size_t bytes = granularity(session.device()) * 16;
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes, true);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  set_first_word(address, 50);
  Child child("vmm_importer");
  int file = export_file(handle);
  child.send_file(file);
  ::close(file);
  child.receive_value<bool>();
  child.send("go on");
  CHECK_EQ(child.receive_value<unsigned>(), 50U);
  CHECK_EQ(first_word(address), 51U);
  child.send("end");
  child.finish();
}

RULE(vmm, importing_takes_no_memory, "every_holder_is_charged",
     "Importing and mapping another process's memory takes no device memory beyond it") {
  Session session;
  needs_files(session);
  size_t bytes = granularity(session.device()) * 16;
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes, true);
  Child child("vmm_importer");
  int file = export_file(handle);
  child.send_file(file);
  ::close(file);
  CHECK(!child.receive_value<bool>());
  child.send("go on");
  child.receive_value<unsigned>();
  child.send("end");
  child.finish();
}

RULE(vmm, memory_outlives_the_exporters_handle, "released_memory_is_lost",
     "Imported memory keeps its contents when the exporter unmaps and releases its own") {
  Session session;
  needs_files(session);
  size_t bytes = granularity(session.device()) * 16;
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes, true);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  set_first_word(address, 60);
  CHECK_OK(cu.cuCtxSynchronize());
  Child child("vmm_importer");
  int file = export_file(handle);
  child.send_file(file);
  ::close(file);
  child.receive_value<bool>();
  unmap_and_free(address, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
  child.send("go on");
  CHECK_EQ(child.receive_value<unsigned>(), 60U);
  child.send("end");
  child.finish();
}

CHILD(vmm_exporter) {
  Session session;
  size_t bytes = granularity(session.device());
  CUmemGenericAllocationHandle handle = create_physical(session.device(), bytes, true);
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  set_first_word(address, 70);
  CHECK_OK(cu.cuCtxSynchronize());
  int file = export_file(handle);
  parent.send_file(file);
  parent.receive();  // never comes: the rule kills this process
}

RULE(vmm, memory_outlives_its_process, "mappings_show_other_pages",
     "Imported memory keeps its contents when the process that made it is killed") {
  Session session;
  needs_files(session);
  size_t bytes = granularity(session.device());
  Child child("vmm_exporter");
  CUmemGenericAllocationHandle handle = import_file(child.receive_file());
  child.kill();
  CUdeviceptr address = map_somewhere(handle, bytes, session.device());
  CHECK_EQ(first_word(address), 70U);
  unmap_and_free(address, bytes);
  CHECK_OK(cu.cuMemRelease(handle));
}
