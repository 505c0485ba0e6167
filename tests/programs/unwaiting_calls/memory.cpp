// Memory: allocation, pools, virtual memory, addresses, arrays, sharing.
#include <unistd.h>

#include "tests/programs/unwaiting_calls/calls.h"

using behind_kernel::kBytes;
using behind_kernel::Objects;

namespace {

alignas(4096) char registered[3][4096];

CUmemAccessDesc access_here(const Objects& o) {
  CUmemAccessDesc wanted{};
  wanted.location = o.here;
  wanted.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return wanted;
}

CUresult register_more(Objects&) {
  static int next = 0;
  return cu.cuMemHostRegister_v2(registered[next++], 4096, 0);
}

// Imports what was exported: a process may import its own memory.
CUresult import_again(Objects& o) {
  int file = -1;
  CUresult exported = cu.cuMemExportToShareableHandle(&file, o.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (exported != CUDA_SUCCESS) return exported;
  CUresult result = cu.cuMemImportFromShareableHandle(o.any, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(file);
  return result;
}
CUresult import_pool_again(Objects& o) {
  int file = -1;
  CUresult exported =
      cu.cuMemPoolExportToShareableHandle(&file, o.shared_pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (exported != CUDA_SUCCESS) return exported;
  CUresult result = cu.cuMemPoolImportFromShareableHandle(o.any, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  close(file);
  return result;
}
CUresult export_pool(Objects& o) {
  int file = -1;
  CUresult result =
      cu.cuMemPoolExportToShareableHandle(&file, o.shared_pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (file >= 0) close(file);
  return result;
}
CUresult export_memory(Objects& o) {
  int file = -1;
  CUresult result = cu.cuMemExportToShareableHandle(&file, o.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (file >= 0) close(file);
  return result;
}

CUresult set_pool_access(Objects& o) {
  CUmemAccessDesc wanted = access_here(o);
  return cu.cuMemPoolSetAccess(o.pool, &wanted, 1);
}
CUresult create_pool(Objects& o) {
  CUmemPoolProps properties = device_pool_properties(o.device);
  return cu.cuMemPoolCreate(o.any, &properties);
}
CUresult destroy_pool(Objects& o) {
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties = device_pool_properties(o.device);
  CUresult created = cu.cuMemPoolCreate(&pool, &properties);
  return created == CUDA_SUCCESS ? cu.cuMemPoolDestroy(pool) : created;
}
CUresult free_reservation(Objects& o) {
  return cu.cuMemAddressFree(o.reserved, o.extent);
}
CUresult retain(Objects& o) {
  return cu.cuMemRetainAllocationHandle(o.any, reinterpret_cast<void*>(o.mapped));
}

CUresult attribute(Objects& o) {
  for (CUdeviceptr address : {o.plain, o.managed, o.in_order, o.mapped}) {
    CUresult result = cu.cuPointerGetAttribute(o.any, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
CUresult attributes(Objects& o) {
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* data[] = {o.any, o.any};
  return cu.cuPointerGetAttributes(2, which, data, o.plain);
}
CUresult range_attributes(Objects& o) {
  CUmem_range_attribute which[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY};
  void* data[] = {o.any};
  size_t sizes[] = {4};
  return cu.cuMemRangeGetAttributes(data, sizes, which, 1, o.managed, kBytes);
}

CUDA_ARRAY3D_DESCRIPTOR shape() {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = shape.Height = 32;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  return shape;
}
CUresult create_array_3d(Objects& o) {
  CUDA_ARRAY3D_DESCRIPTOR wanted = shape();
  return cu.cuArray3DCreate_v2(o.any, &wanted);
}
CUresult create_array(Objects& o) {
  CUDA_ARRAY_DESCRIPTOR wanted{};
  wanted.Width = wanted.Height = 32;
  wanted.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  wanted.NumChannels = 1;
  return cu.cuArrayCreate_v2(o.any, &wanted);
}
CUresult create_mipmapped(Objects& o) {
  CUDA_ARRAY3D_DESCRIPTOR wanted = shape();
  return cu.cuMipmappedArrayCreate(o.any, &wanted, 2);
}

CUresult pitches(Objects& o) {
  for (unsigned element : {4, 8, 16}) {
    CUresult result = cu.cuMemAllocPitch_v2(o.any, o.any, 100, 10, element);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

RETURNS(cuMemAlloc_v2, o.any, 4096)
BEHIND_KERNEL(cuMemAllocPitch_v2, true, pitches(o))
RETURNS(cuMemAllocManaged, o.any, 4096, CU_MEM_ATTACH_GLOBAL)
RETURNS(cuMemAllocHost_v2, o.any, 4096)
RETURNS(cuMemHostAlloc, o.any, 4096, 0)
BEHIND_KERNEL(cuMemHostRegister_v2, true, register_more(o))
RETURNS(cuMemHostGetDevicePointer_v2, o.any, o.pinned, 0)
RETURNS(cuMemHostGetFlags, o.any, o.pinned)
RETURNS(cuMemGetInfo_v2, o.any, o.any)
RETURNS(cuMemGetAddressRange_v2, o.any, o.any, o.plain)
BEHIND_KERNEL(cuPointerGetAttribute, true, attribute(o))
BEHIND_KERNEL(cuPointerGetAttributes, true, attributes(o))

RETURNS_FORMS(cuMemAllocAsync, o.any, 4096, o.stream)
RETURNS_FORMS(cuMemAllocFromPoolAsync, o.any, 4096, o.pool, o.stream)
RETURNS_FORMS(cuMemFreeAsync, o.in_order, o.stream)
BEHIND_KERNEL(cuMemPoolCreate, true, create_pool(o))
BEHIND_KERNEL(cuMemPoolDestroy, true, destroy_pool(o))
RETURNS(cuMemPoolTrimTo, o.pool, 0)
BEHIND_KERNEL(cuMemPoolSetAccess, true, set_pool_access(o))
RETURNS(cuMemPoolGetAccess, o.any, o.pool, &o.here)
RETURNS(cuMemPoolGetAttribute, o.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, o.any)
RETURNS(cuMemPoolSetAttribute, o.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, o.any)
BEHIND_KERNEL(cuMemPoolExportToShareableHandle, true, export_pool(o))
BEHIND_KERNEL(cuMemPoolImportFromShareableHandle, true, import_pool_again(o))
ANSWERS(cuMemPoolExportPointer, o.any, o.of_shared_pool)
ANSWERS(cuMemPoolImportPointer, o.any, o.shared_pool, o.any)
RETURNS(cuDeviceSetMemPool, o.device, o.pool)
RETURNS(cuDeviceGetMemPool, o.any, o.device)
RETURNS(cuDeviceGetDefaultMemPool, o.any, o.device)
RETURNS(cuMemGetDefaultMemPool, o.any, &o.here, CU_MEM_ALLOCATION_TYPE_PINNED)
RETURNS(cuMemGetMemPool, o.any, &o.here, CU_MEM_ALLOCATION_TYPE_PINNED)
RETURNS(cuMemSetMemPool, &o.here, CU_MEM_ALLOCATION_TYPE_PINNED, o.pool)

RETURNS(cuMemCreate, o.any, o.extent, &o.physical, 0)
RETURNS(cuMemRelease, o.handle)
RETURNS(cuMemAddressReserve, o.any, o.extent, 0, 0, 0)
BEHIND_KERNEL(cuMemAddressFree, true, free_reservation(o))
RETURNS(cuMemGetAccess, o.any, &o.here, o.mapped)
RETURNS(cuMemGetAllocationGranularity, o.any, &o.physical, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
RETURNS(cuMemGetAllocationPropertiesFromHandle, o.any, o.handle)
BEHIND_KERNEL(cuMemRetainAllocationHandle, true, retain(o))
BEHIND_KERNEL(cuMemExportToShareableHandle, true, export_memory(o))
BEHIND_KERNEL(cuMemImportFromShareableHandle, true, import_again(o))
ANSWERS(cuMemGetHandleForAddressRange, o.any, o.plain, kBytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)

RETURNS(cuMemAdvise, o.managed, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, o.device)
RETURNS(cuMemAdvise_v2, o.managed, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, o.here)
RETURNS(cuMemRangeGetAttribute, o.any, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, o.managed, kBytes)
BEHIND_KERNEL(cuMemRangeGetAttributes, true, range_attributes(o))
ANSWERS(cuMemGetLocationInfo, o.managed, kBytes, kBytes, kBytes, o.any)

ANSWERS(cuIpcGetMemHandle, o.any, o.plain)
RETURNS(cuIpcGetEventHandle, o.any, o.shared_event)
ANSWERS(cuIpcOpenMemHandle_v2, o.any, CUipcMemHandle{}, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
ANSWERS(cuIpcOpenEventHandle, o.any, CUipcEventHandle{})

BEHIND_KERNEL(cuArray3DCreate_v2, true, create_array_3d(o))
BEHIND_KERNEL(cuArrayCreate_v2, true, create_array(o))
BEHIND_KERNEL(cuMipmappedArrayCreate, true, create_mipmapped(o))
RETURNS(cuArrayGetDescriptor_v2, o.any, o.array)
RETURNS(cuArray3DGetDescriptor_v2, o.any, o.array)
RETURNS(cuMipmappedArrayGetLevel, o.any, o.mipmapped, 0)
ANSWERS(cuMulticastCreate, o.any, o.any)
ANSWERS(cuMulticastAddDevice, o.handle, o.device)
MAY_ANSWER(cuMulticastGetGranularity)
