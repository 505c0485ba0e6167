// Windows, slots and the record of allocations.
#include "tools/simgpu/driver/memory/address_space.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>

#include "scheduler/base/descriptor.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/memory/physical.h"
#include "tools/simgpu/driver/pool/pool.h"

namespace rota::sim {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t physical_memory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

bool Allocation::accessible(int accessing_gpu, bool write) const {
  if (accessing_gpu < 0) return true;
  uint32_t gpus = write ? writable : readable;
  if (pool && !physical) gpus = pool->accessible_from(write);
  return (gpus >> accessing_gpu & 1U) != 0;
}

bool AddressSpace::reserve() {
  Descriptor file(memfd_create(kFileName, MFD_CLOEXEC));
  if (!file) return false;
  for (uint64_t bytes = kWindowBytes; bytes >= kWindowBytesAtLeast; bytes /= 2) {
    // The pages of cuMemCreate come after the window's own.
    if (ftruncate(file.get(), static_cast<off_t>(2 * bytes)) != 0) continue;
    void* window = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (window == MAP_FAILED) continue;
    void* storage = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
    if (storage == MAP_FAILED) {
      munmap(window, bytes);
      continue;
    }
    madvise(storage, bytes, MADV_DONTDUMP);
    storage_fd_ = file.release();
    window_ = reinterpret_cast<uint64_t>(window);
    window_bytes_ = bytes;
    offset_ = reinterpret_cast<uint64_t>(storage) - window_;
    next_ = round_up(window_, kLargePage);
    free_pages_.give(bytes, bytes);
    return true;
  }
  return false;
}

// 0: nothing left.
uint64_t AddressSpace::take_slot(uint64_t bytes, uint64_t step, int gpu, uint64_t* length) {
  if (bytes == 0 || bytes > window_bytes_) return 0;  // a slot of 0 bytes would have the same address as the next one
  *length = round_up(bytes, step < kLargePage ? step : kLargePage);
  const int owner = owner_of(*length, gpu);
  auto& free = free_by_size_[owner];
  auto slot = free.lower_bound(*length);
  // A slot at most twice as long is used whole, to avoid fragmentation.
  while (slot != free.end() && slot->first <= 2 * *length && slot->second % step != 0) ++slot;
  if (slot != free.end() && slot->first <= 2 * *length) {
    uint64_t address = slot->second;
    *length = slot->first;
    free.erase(slot);
    return address;
  }
  const bool apart = owner != kNoGpu && owner != before_next_;
  uint64_t start = round_up(next_, apart ? std::max(step, kApart) : step);
  uint64_t end = window_ + window_bytes_;
  if (start < next_ || start > end || *length > end - start) return 0;
  if (start - next_ >= kLargePage) give_slot(next_, start - next_, kNoGpu);
  if (owner != kNoGpu) before_next_ = owner;
  next_ = start + *length;
  return start;
}

void AddressSpace::give_slot(uint64_t start, uint64_t length, int gpu) {
  free_by_size_[owner_of(length, gpu)].emplace(length, start);
}

bool AddressSpace::show(uint64_t address, uint64_t bytes, Pages pages) const {
  void* storage = reinterpret_cast<void*>(address + offset_);
  void* shown = mmap(storage, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, pages.fd,
                     static_cast<off_t>(pages.offset));
  if (shown == MAP_FAILED) return false;
  madvise(storage, bytes, MADV_DONTDUMP);
  return true;
}

bool AddressSpace::show_own(uint64_t address, uint64_t bytes) const {
  return show(address, bytes, pages(address));
}

void AddressSpace::hide_from_host(uint64_t address, uint64_t bytes) const {
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
}

bool AddressSpace::add_device(Allocation* allocation) {
  // Large allocations are aligned to large pages, small ones to pages: storage is released page by page.
  uint64_t step = allocation->bytes >= kLargePage ? kLargePage : kPage;
  std::unique_lock lock(mutex_);
  uint64_t address = take_slot(allocation->bytes, step, allocation->gpu, &allocation->mapped);
  if (address == 0) return false;
  allocation->address = address;
  allocation->buffer_id = next_buffer_id_++;
  allocations_[address] = *allocation;
  return true;
}

bool AddressSpace::add_foreign(Allocation* allocation, Pages pages) {
  uint64_t into = pages.offset % kPage;
  uint64_t length = round_up(into + allocation->bytes, kPage);
  std::unique_lock lock(mutex_);
  uint64_t start = take_slot(length, kLargePage, allocation->gpu, &allocation->mapped);
  if (start == 0) return false;
  if (!show(start, length, {pages.fd, pages.offset - into})) {
    give_slot(start, allocation->mapped, allocation->gpu);
    return false;
  }
  allocation->address = start + into;
  allocation->buffer_id = next_buffer_id_++;
  allocations_[allocation->address] = *allocation;
  return true;
}

bool AddressSpace::add_in_segment(Allocation* allocation) {
  std::unique_lock lock(mutex_);
  if (allocation->buffer_id == 0) allocation->buffer_id = next_buffer_id_++;  // otherwise the record is being put back
  return allocations_.emplace(allocation->address, *allocation).second;
}

uint64_t AddressSpace::add_segment(uint64_t bytes, int gpu, Pages pages) {
  std::unique_lock lock(mutex_);
  uint64_t length = 0;
  uint64_t address = take_slot(bytes, kLargePage, gpu, &length);
  if (address == 0) return 0;
  if (pages.fd >= 0 && !show(address, bytes, pages)) {
    give_slot(address, length, gpu);
    return 0;
  }
  segments_[address] = {length, gpu, next_buffer_id_++};
  return address;
}

std::optional<AddressSpace::Block> AddressSpace::segment(uint64_t address) const {
  std::shared_lock lock(mutex_);
  auto next = segments_.upper_bound(address);
  if (next == segments_.begin()) return std::nullopt;
  const auto& [start, segment] = *std::prev(next);
  if (address - start >= segment.bytes) return std::nullopt;
  return Block{start, segment.bytes, segment.id};
}

uint64_t AddressSpace::new_id() {
  std::unique_lock lock(mutex_);
  return next_buffer_id_++;
}

void AddressSpace::remove_segment(uint64_t address) {
  std::unique_lock lock(mutex_);
  auto found = segments_.find(address);
  if (found == segments_.end()) return;
  uint64_t length = found->second.bytes;
  madvise(reinterpret_cast<void*>(address + offset_), length, MADV_REMOVE);
  if (show_own(address, length)) give_slot(address, length, found->second.gpu);
  segments_.erase(found);
}

bool AddressSpace::add_mapped(Allocation* allocation) {
  uint64_t length = round_up(allocation->bytes, kPage);
  if (length < allocation->bytes) return false;
  if (allocation->kind == MemoryKind::kHost && length > physical_memory()) return false;  // it could not be pinned
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  std::unique_lock lock(mutex_);
  allocation->address = reinterpret_cast<uint64_t>(memory);
  allocation->mapped = length;
  allocation->mapping = std::shared_ptr<void>(memory, [length](void* start) { munmap(start, length); });
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

// Under the mutex.
const Allocation* AddressSpace::at(uint64_t address) const {
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return nullptr;
  const Allocation& allocation = std::prev(next)->second;
  return address - allocation.address < allocation.bytes ? &allocation : nullptr;
}

std::optional<Allocation> AddressSpace::find(uint64_t address) const {
  std::shared_lock lock(mutex_);
  const Allocation* found = at(address);
  if (found == nullptr) return std::nullopt;
  return *found;
}

std::optional<Allocation> AddressSpace::find_for_work(uint64_t address) const {
  if (auto allocation = find(address)) return allocation;
  std::shared_lock lock(mutex_);
  auto next = segments_.upper_bound(address);
  if (next == segments_.begin()) return std::nullopt;
  const auto& [start, segment] = *std::prev(next);
  if (address - start >= segment.bytes) return std::nullopt;
  Allocation found;
  found.address = start;
  found.bytes = segment.bytes;
  found.gpu = segment.gpu;
  return found;
}

std::optional<Allocation> AddressSpace::remove(uint64_t address, uint64_t buffer_id) {
  std::unique_lock lock(mutex_);
  auto found = allocations_.find(address);
  if (found == allocations_.end()) return std::nullopt;
  if (buffer_id != 0 && found->second.buffer_id != buffer_id) return std::nullopt;
  Allocation allocation = std::move(found->second);
  allocations_.erase(found);
  return allocation;
}

bool AddressSpace::mark_freeing(uint64_t address, uint64_t buffer_id) {
  std::unique_lock lock(mutex_);
  auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.buffer_id != buffer_id || found->second.freeing) return false;
  found->second.freeing = true;
  return true;
}

void AddressSpace::unmark_freeing(uint64_t address, uint64_t buffer_id) {
  std::unique_lock lock(mutex_);
  auto found = allocations_.find(address);
  if (found != allocations_.end() && found->second.buffer_id == buffer_id) found->second.freeing = false;
}

bool AddressSpace::mark_shared(uint64_t address, uint64_t shared_id) {
  std::unique_lock lock(mutex_);
  auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.shared_id != 0) return false;
  found->second.shared_id = shared_id;
  found->second.charged = 0;
  return true;
}

void AddressSpace::unmap(const Allocation& allocation, AddressSpace* space, bool reuse) {
  // Managed and pinned memory is freed with the last copy of the record; registered memory belongs to the program.
  if (allocation.kind != MemoryKind::kDevice || !reuse) return;
  uint64_t start = allocation.address / kPage * kPage;
  std::unique_lock lock(space->mutex_);
  if (!allocation.imported) {
    madvise(reinterpret_cast<void*>(start + space->offset_), allocation.mapped, MADV_REMOVE);
  } else if (!space->show_own(start, allocation.mapped)) {
    return;
  }
  space->give_slot(start, allocation.mapped, allocation.gpu);
}

void* AddressSpace::storage(uint64_t address, uint64_t bytes, int gpu, bool write) const {
  std::shared_lock lock(mutex_);
  const Allocation* allocation = at(address);
  bool device = allocation == nullptr || allocation->kind == MemoryKind::kDevice;
  void* host = reinterpret_cast<void*>(device ? address + offset_ : address);
  for (uint64_t position = address, left = bytes; allocation != nullptr;) {
    if (!allocation->accessible(gpu, write)) return nullptr;
    uint64_t here = allocation->bytes - (position - allocation->address);
    if (left <= here) return host;
    if (!allocation->physical || mutated(Mutation::ranges_end_at_mappings)) break;
    position += here;
    left -= here;
    allocation = at(position);
    if (allocation == nullptr || !allocation->physical) return nullptr;
  }
  auto next = segments_.upper_bound(address);
  if (next == segments_.begin()) return nullptr;
  --next;
  uint64_t into = address - next->first;
  return into < next->second.bytes && bytes <= next->second.bytes - into ? host : nullptr;
}

bool AddressSpace::allowed(uint64_t address, uint64_t bytes, int gpu, bool write) const {
  std::shared_lock lock(mutex_);
  const Allocation* allocation = at(address);
  while (allocation != nullptr) {
    if (!allocation->accessible(gpu, write)) return false;
    uint64_t here = allocation->bytes - (address - allocation->address);
    if (bytes <= here || !allocation->physical) return true;
    address += here;
    bytes -= here;
    allocation = at(address);
  }
  return true;
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
