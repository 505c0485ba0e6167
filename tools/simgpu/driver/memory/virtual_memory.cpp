// Virtual memory management in the address space: reservations, and physical memory mapped into them.
#include <fcntl.h>
#include <sys/mman.h>

#include <mutex>

#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/memory/address_space.h"
#include "tools/simgpu/driver/memory/physical.h"

namespace rota::sim {

Pages AddressSpace::take_pages(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  if (auto offset = free_pages_.take(bytes)) return {storage_fd_, *offset};
  return {-1, UINT64_MAX};
}

void AddressSpace::give_back_pages(uint64_t offset, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  fallocate(storage_fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
  free_pages_.give(offset, bytes);
}

uint64_t AddressSpace::add_reservation(uint64_t bytes, uint64_t alignment, uint64_t hint) {
  uint64_t step = alignment < kLargePage ? kLargePage : alignment;
  std::unique_lock lock(mutex_);
  uint64_t end = window_ + window_bytes_;
  uint64_t address = 0;
  uint64_t length = bytes;
  if (hint >= next_ && hint < end && hint % step == 0 && bytes <= end - hint) {
    if (hint > next_) give_slot(next_, hint - next_, before_next_);
    address = hint;
    next_ = hint + bytes;
  } else {
    address = take_slot(bytes, step, kNoGpu, &length);
    // The rest of a longer slot is freed: a reservation is exactly as long as requested.
    if (address != 0 && length > bytes) give_slot(address + bytes, length - bytes, kNoGpu);
  }
  if (address != 0) reservations_[address] = {address, bytes};
  return address;
}

CUresult AddressSpace::remove_reservation(uint64_t address, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  auto mapped = allocations_.lower_bound(address);
  if (mapped != allocations_.end() && mapped->first - address < bytes) return CUDA_ERROR_INVALID_VALUE;
  reservations_.erase(found);
  give_slot(address, bytes, kNoGpu);
  return CUDA_SUCCESS;
}

std::optional<AddressSpace::Reservation> AddressSpace::reservation(uint64_t address) const {
  std::shared_lock lock(mutex_);
  auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return std::nullopt;
  const Reservation& found = std::prev(next)->second;
  if (address - found.address >= found.bytes) return std::nullopt;
  return found;
}

CUresult AddressSpace::map(uint64_t address, uint64_t bytes, const std::shared_ptr<Physical>& physical) {
  std::unique_lock lock(mutex_);
  auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return CUDA_ERROR_INVALID_VALUE;
  const Reservation& reserved = std::prev(next)->second;
  uint64_t into = address - reserved.address;
  if (into >= reserved.bytes || bytes > reserved.bytes - into) return CUDA_ERROR_INVALID_VALUE;
  auto later = allocations_.lower_bound(address);
  if (later != allocations_.end() && later->first - address < bytes) return CUDA_ERROR_INVALID_VALUE;
  if (at(address) != nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool shown = mutated(Mutation::mappings_show_other_pages) || show(address, bytes, physical->pages);
  if (!shown) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.address = address;
  allocation.bytes = bytes;
  allocation.gpu = physical->gpu;
  allocation.buffer_id = next_buffer_id_++;
  allocation.mapped = bytes;
  allocation.physical = physical;
  bool accessible = mutated(Mutation::mappings_start_accessible) ||
                    (mutated(Mutation::access_outlives_mappings) && !were_mapped_.insert(address).second);
  if (!accessible) allocation.readable = allocation.writable = 0;
  allocations_.emplace(address, std::move(allocation));
  return CUDA_SUCCESS;
}

// Under the mutex.
bool AddressSpace::tiled(uint64_t address, uint64_t bytes) const {
  if (bytes == 0) return false;
  if (mutated(Mutation::mappings_are_handled_one_by_one)) {
    auto found = allocations_.find(address);
    if (found == allocations_.end() || found->second.bytes != bytes) return false;
  }
  while (bytes != 0) {
    auto found = allocations_.find(address);
    if (found == allocations_.end() || !found->second.physical || found->second.bytes > bytes) return false;
    address += found->second.bytes;
    bytes -= found->second.bytes;
  }
  return true;
}

bool AddressSpace::whole_mappings(uint64_t address, uint64_t bytes) const {
  std::shared_lock lock(mutex_);
  return tiled(address, bytes);
}

CUresult AddressSpace::unmap(uint64_t address, uint64_t bytes) {
  std::vector<std::shared_ptr<Physical>> released;  // destroyed after the lock is released
  std::unique_lock lock(mutex_);
  if (!tiled(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (!show_own(address, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  hide_from_host(address, bytes);
  auto found = allocations_.find(address);
  for (uint64_t end = address + bytes; found != allocations_.end() && found->first < end;) {
    released.push_back(std::move(found->second.physical));
    found = allocations_.erase(found);
  }
  lock.unlock();
  return CUDA_SUCCESS;
}

CUresult AddressSpace::set_access(uint64_t address, uint64_t bytes, int gpu, bool read, bool write) {
  std::unique_lock lock(mutex_);
  if (!tiled(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  uint32_t bit = 1U << gpu;
  for (auto found = allocations_.find(address); found != allocations_.end() && found->first < address + bytes;
       ++found) {
    Allocation& mapping = found->second;
    mapping.readable = read ? mapping.readable | bit : mapping.readable & ~bit;
    mapping.writable = write ? mapping.writable | bit : mapping.writable & ~bit;
  }
  return CUDA_SUCCESS;
}

CUresult AddressSpace::set_host_access(uint64_t address, uint64_t bytes, bool read, bool write) {
  std::unique_lock lock(mutex_);
  if (!tiled(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (auto found = allocations_.find(address); found != allocations_.end() && found->first < address + bytes;
       ++found) {
    Allocation& mapping = found->second;
    if (mapping.physical->on_gpu()) return CUDA_ERROR_INVALID_VALUE;
    auto* here = reinterpret_cast<void*>(mapping.address);
    int protection = (read ? PROT_READ : PROT_NONE) | (write ? PROT_WRITE : PROT_NONE);
    const Pages& pages = mapping.physical->pages;
    if (!read && !write) {
      hide_from_host(mapping.address, mapping.bytes);
    } else if (mmap(here, mapping.bytes, protection, MAP_SHARED | MAP_FIXED, pages.fd,
                    static_cast<off_t>(pages.offset)) == MAP_FAILED) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mapping.host_readable = read;
    mapping.host_writable = write;
  }
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
