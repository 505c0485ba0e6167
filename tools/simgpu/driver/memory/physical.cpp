// Creating and releasing physical memory, and sharing it with other processes: a memfd whose name describes its
// content.
#include "tools/simgpu/driver/memory/physical.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>

#include "scheduler/base/descriptor.h"
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

namespace rota::sim {
namespace {

// Read by the importer of the descriptor: id in the shared state, GPU, handle types, usage.
constexpr const char* kPhysicalFileName = "simgpu-physical-%" PRIx64 "-%d-%x-%x";

constexpr unsigned short kForDecompression = 2;  // CU_MEM_CREATE_USAGE_HW_DECOMPRESS and CU_MEM_POOL_CREATE_…

bool whole_pages(uint64_t bytes) {
  return bytes != 0 && bytes % AddressSpace::kLargePage == 0;
}

// The pages read as zero from now on.
void punch(const Pages& pages, uint64_t bytes) {
  fallocate(pages.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(pages.offset),
            static_cast<off_t>(bytes));
}

}  // namespace

bool decompresses() {
  return driver().device_figures().attribute(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK) != 0;
}

bool decompressible(const Allocation& allocation) {
  if (!decompresses() || allocation.kind != MemoryKind::kDevice || allocation.imported) return false;
  if (allocation.physical) return (allocation.physical->properties.allocFlags.usage & kForDecompression) != 0;
  return !allocation.pool || (allocation.pool->properties.usage & kForDecompression) != 0;
}

int make_named_file(const char* name, uint64_t bytes) {
  Descriptor file(memfd_create(name, MFD_CLOEXEC));
  return file && ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 ? file.release() : -1;
}

std::string file_name(int file) {
  char path[64];
  char target[300];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  ssize_t length = readlink(path, target, sizeof target);
  constexpr const char* kPrefix = "/memfd:";
  if (length <= 0 || static_cast<size_t>(length) == sizeof target) return {};
  std::string name(target, static_cast<size_t>(length));
  return name.compare(0, std::strlen(kPrefix), kPrefix) == 0 ? name.substr(std::strlen(kPrefix)) : std::string();
}

Physical::~Physical() {
  if (shared_id != 0) driver().state().let_go(shared_id);
  if (charged != 0) driver().state().give_back(gpu, charged);
  if (own_file) {
    close(pages.fd);
  } else if (pages.fd >= 0) {
    driver().memory.give_back_pages(pages.offset, bytes);
  }
}

CUresult PhysicalMemory::check(const CUmemAllocationProp& properties) {
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (properties.win32HandleMetaData != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((properties.requestedHandleTypes & ~0xf) != 0) return CUDA_ERROR_INVALID_VALUE;
  // CU_MEM_CREATE_USAGE_TILE_POOL is not simulated.
  if ((properties.allocFlags.usage & ~kForDecompression) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (properties.allocFlags.usage != 0 && !decompresses()) return CUDA_ERROR_NOT_SUPPORTED;
  bool only_files = (properties.requestedHandleTypes & ~int{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) == 0;
  switch (properties.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (properties.location.id < 0 || properties.location.id >= driver().state().gpus()) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      if (properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (properties.location.id != 0) return CUDA_ERROR_INVALID_DEVICE;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return only_files ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult PhysicalMemory::create(uint64_t bytes, const CUmemAllocationProp& properties,
                                CUmemGenericAllocationHandle* handle) {
  if (!whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(check(properties));
  auto physical = std::make_shared<Physical>();
  physical->properties = properties;
  physical->bytes = bytes;
  physical->block_id = driver().memory.new_id();
  bool exportable = properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
  Migration migration;
  if (physical->on_gpu()) {
    physical->gpu = properties.location.id;
    if (exportable) {
      physical->shared_id =
          driver().with_room([&] { return driver().state().share(physical->gpu, bytes, false, &migration); });
      if (physical->shared_id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    } else {
      if (!driver().take_device_bytes(physical->gpu, bytes, &migration)) return CUDA_ERROR_OUT_OF_MEMORY;
      physical->charged = bytes;
    }
  }
  if (exportable) {
    char name[128];
    std::snprintf(name, sizeof name, kPhysicalFileName, physical->shared_id,
                  physical->on_gpu() ? driver().state().physical(physical->gpu) : -1,
                  static_cast<unsigned>(properties.requestedHandleTypes), unsigned{properties.allocFlags.usage});
    physical->pages = {make_named_file(name, bytes), 0};
    physical->own_file = physical->pages.fd >= 0;
  } else {
    physical->pages = driver().memory.take_pages(bytes);
  }
  if (physical->pages.fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = retain(physical);
  return CUDA_SUCCESS;
}

PhysicalPointer PhysicalMemory::find(CUmemGenericAllocationHandle handle) const {
  std::lock_guard lock(mutex_);
  auto found = held_.find(handle);
  return found == held_.end() ? nullptr : found->second.physical;
}

CUmemGenericAllocationHandle PhysicalMemory::retain(const PhysicalPointer& physical) {
  auto handle = static_cast<CUmemGenericAllocationHandle>(reinterpret_cast<uintptr_t>(physical.get()));
  std::lock_guard lock(mutex_);
  Held& held = held_[handle];
  held.physical = physical;
  if (held.references == 0 || !mutated(Mutation::retaining_does_not_count)) ++held.references;
  return handle;
}

CUresult PhysicalMemory::release(CUmemGenericAllocationHandle handle) {
  if (mutated(Mutation::released_memory_is_lost)) {
    if (PhysicalPointer lost = find(handle)) punch(lost->pages, lost->bytes);
  }
  PhysicalPointer last;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  auto found = held_.find(handle);
  if (found == held_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0) {
    last = std::move(found->second.physical);
    held_.erase(found);
  }
  return CUDA_SUCCESS;
}

CUresult PhysicalMemory::export_file(CUmemGenericAllocationHandle handle, int* file) const {
  PhysicalPointer physical = find(handle);
  if (!physical || !physical->own_file) return CUDA_ERROR_INVALID_VALUE;
  int copy = fcntl(physical->pages.fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *file = copy;
  return CUDA_SUCCESS;
}

CUresult PhysicalMemory::import_file(int file, CUmemGenericAllocationHandle* handle) {
  uint64_t id = 0;
  int gpu = 0;
  unsigned types = 0;
  unsigned usage = 0;
  struct stat status{};
  if (fstat(file, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (std::sscanf(file_name(file).c_str(), kPhysicalFileName, &id, &gpu, &types, &usage) != 4) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto bytes = static_cast<uint64_t>(status.st_size);
  if (!whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (gpu >= 0) {
    gpu = driver().state().visible(gpu);
    if (gpu < 0) return CUDA_ERROR_NOT_SUPPORTED;
  }
  auto physical = std::make_shared<Physical>();
  physical->bytes = bytes;
  physical->block_id = driver().memory.new_id();
  physical->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical->properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  physical->properties.allocFlags.usage = static_cast<unsigned short>(usage);
  physical->properties.location.type = gpu < 0 ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  physical->properties.location.id = gpu < 0 ? 0 : gpu;
  physical->gpu = gpu < 0 ? 0 : gpu;
  Migration migration;
  if (id != 0) {
    if (!driver().state().hold(id, physical->gpu, bytes, true, &migration)) return CUDA_ERROR_OUT_OF_MEMORY;
    physical->shared_id = id;
    if (mutated(Mutation::every_holder_is_charged) && driver().state().take(physical->gpu, bytes, &migration)) {
      physical->charged = bytes;
    }
  }
  physical->pages = {fcntl(file, F_DUPFD_CLOEXEC, 0), 0};
  if (physical->pages.fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  physical->own_file = true;
  *handle = retain(physical);
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
