// Managed memory's residency. Each allocation is a row of 2 MiB blocks, each fresh, on the host or on one GPU. When a
// GPU uses a block that is not resident there, the block moves to it, unless advice keeps it in place. If the GPU is
// full, the first resident blocks are evicted of the allocation that was brought in longest ago, of any process. Using
// resident blocks does not count as recent use: a GPU does not report such accesses to the driver. So working sets that
// together exceed the GPU evict each other, however busy they are.
#include "tools/simgpu/state/layout.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {

uint32_t SharedState::add_managed(int gpu, uint64_t bytes) {
  if (bytes == 0 || bytes > uint64_t{kMaxBlocks} * kManagedBlock) return 0;
  auto blocks = static_cast<uint32_t>((bytes + kManagedBlock - 1) / kManagedBlock);
  lock();
  uint32_t id = 1;
  while (id < layout_->managed_end && layout_->managed[id].owner != 0) ++id;
  // Next fit: continues where the last search ended, once around.
  uint32_t run = 0;
  uint32_t position = layout_->next_block;
  bool found = false;
  for (uint32_t seen = 0; id < kMaxAllocations && seen < kMaxBlocks + blocks; ++seen) {
    if (position == kMaxBlocks) position = run = 0;
    run = layout_->blocks[position++] == kBlockFree ? run + 1 : 0;
    if (run == blocks) {
      found = true;
      break;
    }
  }
  if (!found) {
    unlock();
    return 0;
  }
  layout_->next_block = position;
  if (id == layout_->managed_end) ++layout_->managed_end;
  ManagedEntry& entry = layout_->managed[id];
  entry = ManagedEntry{};
  entry.gpu = physical(gpu);
  entry.first_block = position - blocks;
  entry.blocks = blocks;
  entry.bytes = bytes;
  for (uint32_t block = entry.first_block; block < position; ++block) {
    layout_->blocks[block] = kBlockFresh;
    layout_->advice[block] = BlockAdvice{};
  }
  entry.owner = layout_->processes[process_].serial;
  unlock();
  return id;
}

// Under the mutex.
void SharedState::release_managed(uint32_t id) {
  ManagedEntry& entry = layout_->managed[id];
  for (int gpu = 0; gpu < kMaxGpus; ++gpu) layout_->gpu[gpu].managed_resident -= entry.resident[gpu];
  for (uint32_t block = 0; block < entry.blocks; ++block) layout_->blocks[entry.first_block + block] = kBlockFree;
  entry = ManagedEntry{};
}

void SharedState::remove_managed(uint32_t id) {
  lock();
  if (id != 0 && layout_->managed[id].owner == layout_->processes[process_].serial) release_managed(id);
  unlock();
}

// Calls f(entry, block) for the blocks of a range, under the mutex; `whole`: only for blocks entirely inside it.
template <class Function>
void SharedState::for_blocks(uint32_t id, uint64_t offset, uint64_t bytes, bool whole, Function function) {
  if (id == 0 || id >= kMaxAllocations || bytes == 0) return;
  ManagedEntry& entry = layout_->managed[id];
  if (entry.owner == 0 || offset >= entry.bytes) return;
  if (bytes > entry.bytes - offset) bytes = entry.bytes - offset;
  uint64_t end = offset + bytes;
  auto first = static_cast<uint32_t>(offset / kManagedBlock);
  auto last = static_cast<uint32_t>((end - 1) / kManagedBlock);
  for (uint32_t block = first; block <= last; ++block) {
    uint64_t start = uint64_t{block} * kManagedBlock;
    if (whole && (start < offset || start + block_bytes(entry, block) > end)) continue;
    function(entry, block);
  }
}

void SharedState::set_preferred(uint32_t id, uint64_t offset, uint64_t bytes, int gpu) {
  lock();
  auto location = static_cast<int8_t>(gpu >= 0 ? physical(gpu) : gpu);
  for_blocks(id, offset, bytes, false, [&](ManagedEntry& entry, uint32_t block) {
    layout_->advice[entry.first_block + block].preferred = location;
  });
  unlock();
}

void SharedState::set_accessed_by(uint32_t id, uint64_t offset, uint64_t bytes, int gpu, bool mapped) {
  if (gpu < 0) return;  // the host's accesses are not modelled
  lock();
  auto bit = static_cast<uint8_t>(1U << physical(gpu));
  for_blocks(id, offset, bytes, false, [&](ManagedEntry& entry, uint32_t block) {
    uint8_t& mask = layout_->advice[entry.first_block + block].accessed_by;
    mask = mapped ? static_cast<uint8_t>(mask | bit) : static_cast<uint8_t>(mask & ~bit);
  });
  unlock();
}

void SharedState::discard(uint32_t id, uint64_t offset, uint64_t bytes) {
  lock();
  for_blocks(id, offset, bytes, true,
             [&](ManagedEntry& entry, uint32_t block) { leave_device(entry, block, kBlockFresh); });
  unlock();
}

int SharedState::location(uint32_t id, uint64_t offset) {
  int where = kNowhere;
  lock();
  for_blocks(id, offset, 1, false, [&](ManagedEntry& entry, uint32_t block) {
    uint8_t state = layout_->blocks[entry.first_block + block];
    if (state == kBlockOnHost) where = kOnHost;
    if (state >= kBlockOnDevice) where = visible(state - kBlockOnDevice);
  });
  unlock();
  return where;
}

uint64_t SharedState::resident_bytes(uint32_t id) {
  uint64_t bytes = 0;
  lock();
  for (uint64_t resident : layout_->managed[id].resident) bytes += resident;
  unlock();
  return bytes;
}

// Removes a block from its location. Returns the bytes that left a GPU; 0: it was on none. Under the mutex.
uint64_t SharedState::leave_device(ManagedEntry& entry, uint32_t block, uint8_t becomes) {
  uint8_t& state = layout_->blocks[entry.first_block + block];
  uint64_t left = 0;
  if (state >= kBlockOnDevice) {
    int gpu = state - kBlockOnDevice;
    left = block_bytes(entry, block);
    entry.resident[gpu] -= left;
    layout_->gpu[gpu].managed_resident -= left;
    if (becomes == kBlockOnHost) layout_->gpu[gpu].counters.evicted += left;
  }
  state = becomes;
  return left;
}

// Moves blocks of one allocation from the GPU to the host, in order, until this many bytes are free; blocks in
// [spared_from, spared_to) stay. Returns the bytes moved. Under the mutex.
uint64_t SharedState::evict_from(uint32_t id, int gpu, uint64_t bytes, uint32_t spared_from, uint32_t spared_to) {
  ManagedEntry& entry = layout_->managed[id];
  uint64_t moved = 0;
  for (uint32_t block = 0; block < entry.blocks && moved < bytes; ++block) {
    if (block >= spared_from && block < spared_to) continue;
    if (layout_->blocks[entry.first_block + block] != kBlockOnDevice + gpu) continue;
    moved += leave_device(entry, block, kBlockOnHost);
  }
  return moved;
}

// Evicts managed memory from the GPU, the allocation brought in longest ago first, except one. Under the mutex.
void SharedState::evict(int gpu, uint64_t bytes, uint32_t spared, Migration* migration) {
  uint64_t moved = 0;
  while (moved < bytes) {
    uint32_t victim = 0;
    for (uint32_t id = 1; id < layout_->managed_end; ++id) {
      const ManagedEntry& entry = layout_->managed[id];
      if (entry.owner == 0 || entry.resident[gpu] == 0 || id == spared) continue;
      if (victim == 0 || entry.last_migration[gpu] < layout_->managed[victim].last_migration[gpu]) victim = id;
    }
    if (victim == 0) break;
    moved += evict_from(victim, gpu, bytes - moved, 0, 0);
  }
  migration->evicted += moved;
  migration->nanoseconds += nanoseconds_at(moved, profile_->cost.eviction());
}

Migration SharedState::touch(uint32_t id, uint64_t offset, uint64_t bytes, Access access, int used_by) {
  Migration migration;
  if (id == 0 || id >= kMaxAllocations || bytes == 0) return migration;
  const CostFigures& cost = profile_->cost;
  const double fault_in = cost.fault_in();
  int gpu = physical(used_by);
  lock();
  ManagedEntry& whole = layout_->managed[id];
  GpuState& device = layout_->gpu[gpu];
  bool nothing_to_do = access != Access::kPrefetchToHost && whole.resident[gpu] == whole.bytes;
  bool reaped = false;
  bool arrived = false;
  auto end = static_cast<uint32_t>(
      (std::min(whole.bytes, bytes > UINT64_MAX - offset ? UINT64_MAX : offset + bytes) + kManagedBlock - 1) /
      kManagedBlock);
  auto first = static_cast<uint32_t>(std::min<uint64_t>(offset / kManagedBlock, kMaxBlocks));
  for_blocks(id, offset, nothing_to_do ? 0 : bytes, false, [&](ManagedEntry& entry, uint32_t block) {
    uint8_t state = layout_->blocks[entry.first_block + block];
    uint64_t size = block_bytes(entry, block);
    if (access == Access::kPrefetchToHost) {
      uint64_t left = leave_device(entry, block, kBlockOnHost);
      migration.evicted += left;
      migration.nanoseconds += nanoseconds_at(left, cost.eviction());
      return;
    }
    if (state == kBlockOnDevice + gpu) return;
    const BlockAdvice& advice = layout_->advice[entry.first_block + block];
    int lies = state == kBlockOnHost ? kOnHost : state >= kBlockOnDevice ? state - kBlockOnDevice : kNowhere;
    double link = lies == kOnHost ? cost.pinned_host_to_device : cost.peer;
    if (access != Access::kPrefetchToDevice && lies != kNowhere) {
      // Advised to stay there, or mapped from this GPU: accessed over the bus.
      if (advice.preferred == lies || (advice.accessed_by & 1U << gpu) != 0) {
        migration.nanoseconds += nanoseconds_at(size, link);
        return;
      }
    }
    auto room = [&] { return device.plain + device.managed_resident + size <= layout_->capacity; };
    if (!room() && !reaped) {
      reap();
      reaped = true;
    }
    if (!room()) evict(gpu, size, id, &migration);
    // Only this allocation's blocks are left: first those outside this use, then those yet to come, then those used.
    if (!room()) {
      uint64_t moved = evict_from(id, gpu, size, first, end);
      if (moved < size) moved += evict_from(id, gpu, size - moved, 0, block + 1);
      if (moved < size) moved += evict_from(id, gpu, size - moved, block, end);
      migration.evicted += moved;
      migration.nanoseconds += nanoseconds_at(moved, cost.eviction());
    }
    if (access == Access::kPrefetchToDevice) {
      migration.prefetched_in += size;
      double rate = lies == kNowhere ? cost.fresh_prefetch : lies == kOnHost ? cost.prefetch_in : cost.peer;
      migration.nanoseconds += nanoseconds_at(size, rate);
    } else if (lies != kNowhere) {
      migration.faulted_in += size;
      // From another GPU, the faults cost the same and the pieces come over another link.
      migration.nanoseconds += nanoseconds_at(size, fault_in);
      if (lies >= 0)
        migration.nanoseconds += nanoseconds_at(size, link) - nanoseconds_at(size, cost.pinned_host_to_device);
    } else {
      migration.first_touched += size;
      // A copy fills fresh memory at the copy's speed; a kernel takes faults.
      if (access == Access::kKernel) {
        bool preferred = advice.preferred == gpu;
        migration.nanoseconds += nanoseconds_at(size, preferred ? cost.first_touch_preferred : cost.first_touch);
      }
    }
    leave_device(entry, block, kBlockFresh);
    uint8_t& now = layout_->blocks[entry.first_block + block];
    if (room()) {
      now = static_cast<uint8_t>(kBlockOnDevice + gpu);
      entry.resident[gpu] += size;
      device.managed_resident += size;
    } else {
      now = kBlockOnHost;  // plain memory fills the GPU: accessed over the bus, and charged again next time
    }
    arrived = true;
  });
  if (arrived) whole.last_migration[gpu] = ++layout_->migration_clock;
  device.counters.first_touched += migration.first_touched;
  device.counters.faulted_in += migration.faulted_in;
  device.counters.prefetched_in += migration.prefetched_in;
  unlock();
  return migration;
}

}  // namespace rota::sim
