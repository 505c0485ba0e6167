// Windows, slots and the record of what lies where.
#include "tools/simgpu/driver/address_space.h"

#include <sys/mman.h>

#include <mutex>

namespace rota::sim {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kLargePage = uint64_t{2} << 20;

uint64_t round_up(uint64_t bytes, uint64_t step) {
  return (bytes + step - 1) / step * step;
}

}  // namespace

bool AddressSpace::reserve() {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  for (uint64_t bytes = kWindowBytes; bytes >= kWindowBytesAtLeast; bytes /= 2) {
    void* window = mmap(nullptr, bytes, PROT_NONE, flags, -1, 0);
    if (window == MAP_FAILED) continue;
    void* storage = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (storage == MAP_FAILED) {
      munmap(window, bytes);
      continue;
    }
    madvise(storage, bytes, MADV_DONTDUMP);
    window_ = reinterpret_cast<uint64_t>(window);
    window_bytes_ = bytes;
    offset_ = reinterpret_cast<uint64_t>(storage) - window_;
    next_ = round_up(window_, kLargePage);
    return true;
  }
  return false;
}

bool AddressSpace::add_device(Allocation* allocation) {
  // Large allocations start at large pages, small ones at pages: storage is given back page by page.
  uint64_t step = allocation->bytes >= kLargePage ? kLargePage : kPage;
  uint64_t length = round_up(allocation->bytes, step);
  std::unique_lock lock(mutex_);
  uint64_t address = 0;
  auto slot = free_by_size_.lower_bound(length);
  // A slot at most twice as long is used as it is: keeping the slots whole keeps them from shattering.
  while (slot != free_by_size_.end() && slot->first <= 2 * length && slot->second % step != 0) ++slot;
  if (slot != free_by_size_.end() && slot->first <= 2 * length) {
    address = slot->second;
    length = slot->first;
    free_by_size_.erase(slot);
  } else {
    uint64_t start = round_up(next_, step);
    if (start + length > window_ + window_bytes_) return false;
    next_ = start + length;
    address = start;
  }
  allocation->address = address;
  allocation->mapped = length;
  allocation->buffer_id = next_buffer_id_++;
  allocations_[address] = *allocation;
  return true;
}

bool AddressSpace::add_mapped(Allocation* allocation) {
  uint64_t length = round_up(allocation->bytes, kPage);
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  std::unique_lock lock(mutex_);
  allocation->address = reinterpret_cast<uint64_t>(memory);
  allocation->mapped = length;
  allocation->buffer_id = next_buffer_id_++;
  allocations_[allocation->address] = *allocation;
  return true;
}

bool AddressSpace::add_registered(Allocation* allocation) {
  std::unique_lock lock(mutex_);
  auto next = allocations_.lower_bound(allocation->address);
  if (next != allocations_.end() && next->first < allocation->address + allocation->bytes) return false;
  if (next != allocations_.begin()) {
    const Allocation& before = std::prev(next)->second;
    if (before.address + before.bytes > allocation->address) return false;
  }
  allocation->buffer_id = next_buffer_id_++;
  allocations_[allocation->address] = *allocation;
  return true;
}

std::optional<Allocation> AddressSpace::find(uint64_t address) const {
  std::shared_lock lock(mutex_);
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(next)->second;
  if (address - allocation.address >= allocation.bytes) return std::nullopt;
  return allocation;
}

std::optional<Allocation> AddressSpace::remove(uint64_t address) {
  std::unique_lock lock(mutex_);
  auto found = allocations_.find(address);
  if (found == allocations_.end()) return std::nullopt;
  Allocation allocation = found->second;
  allocations_.erase(found);
  return allocation;
}

bool AddressSpace::mark_freeing(uint64_t address) {
  std::unique_lock lock(mutex_);
  auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.freeing) return false;
  found->second.freeing = true;
  return true;
}

void AddressSpace::unmap(const Allocation& allocation, AddressSpace* space) {
  auto* memory = reinterpret_cast<void*>(allocation.address);
  switch (allocation.kind) {
    case MemoryKind::kDevice: {
      madvise(reinterpret_cast<void*>(allocation.address + space->offset_), allocation.mapped, MADV_DONTNEED);
      std::unique_lock lock(space->mutex_);
      space->free_by_size_.emplace(allocation.mapped, allocation.address);
      break;
    }
    case MemoryKind::kManaged:
    case MemoryKind::kHost:
      munmap(memory, allocation.mapped);
      break;
    case MemoryKind::kRegistered:
      break;  // the program's own
  }
}

void* AddressSpace::storage(uint64_t address, uint64_t bytes) const {
  auto allocation = find(address);
  if (!allocation || bytes > allocation->bytes - (address - allocation->address)) return nullptr;
  uint64_t host = allocation->kind == MemoryKind::kDevice ? address + offset_ : address;
  return reinterpret_cast<void*>(host);
}

std::vector<Allocation> AddressSpace::of_context(CUcontext context) const {
  std::shared_lock lock(mutex_);
  std::vector<Allocation> found;
  for (const auto& [address, allocation] : allocations_) {
    if (allocation.context == context) found.push_back(allocation);
  }
  return found;
}

}  // namespace rota::sim
