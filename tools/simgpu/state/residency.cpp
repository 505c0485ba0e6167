// Managed memory's residency. Each allocation is a row of 2 MiB blocks, each fresh, on the host or on the device.
// Using a block that is not on the device brings it there; where there is no room, the allocation that was brought in
// longest ago, of whichever process, loses its first resident blocks. Using what is resident does not count: a GPU
// does not report such uses to the driver. So working sets that together exceed the GPU push each other out, however
// busy they are.
#include "tools/simgpu/state/layout.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {
namespace {

int64_t at_rate(uint64_t bytes, profile::Rate rate) {
  return static_cast<int64_t>(static_cast<double>(bytes) / rate * 1e9);
}

}  // namespace

uint32_t SharedState::add_managed(int gpu, uint64_t bytes) {
  uint64_t wanted = (bytes + profile::kManagedBlock - 1) / profile::kManagedBlock;
  if (wanted == 0 || wanted > kMaxBlocks) return 0;
  auto blocks = static_cast<uint32_t>(wanted);
  lock();
  uint32_t id = 1;
  while (id < layout_->managed_end && layout_->managed[id].owner != 0) ++id;
  // Next fit: goes on where the last search ended, once around.
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
  entry.gpu = gpu;
  entry.first_block = position - blocks;
  entry.blocks = blocks;
  entry.bytes = bytes;
  for (uint32_t block = 0; block < blocks; ++block) layout_->blocks[entry.first_block + block] = kBlockFresh;
  entry.owner = layout_->processes[process_].serial;
  unlock();
  return id;
}

// Under the mutex.
void SharedState::release_managed(uint32_t id) {
  ManagedEntry& entry = layout_->managed[id];
  layout_->gpu[entry.gpu].managed_resident -= entry.resident;
  for (uint32_t block = 0; block < entry.blocks; ++block) layout_->blocks[entry.first_block + block] = kBlockFree;
  entry = ManagedEntry{};
}

void SharedState::remove_managed(uint32_t id) {
  lock();
  if (id != 0 && layout_->managed[id].owner == layout_->processes[process_].serial) release_managed(id);
  unlock();
}

void SharedState::set_preferred(uint32_t id, bool device) {
  lock();
  layout_->managed[id].preferred = device ? 1 : 0;
  unlock();
}

uint64_t SharedState::resident_bytes(uint32_t id) {
  lock();
  uint64_t bytes = layout_->managed[id].resident;
  unlock();
  return bytes;
}

// Moves resident blocks of one allocation to the host, first block first, until so many bytes are free; blocks in
// [spared_from, spared_to) stay. Returns the bytes moved. Under the mutex.
uint64_t SharedState::evict_from(uint32_t id, uint64_t bytes, uint32_t spared_from, uint32_t spared_to) {
  ManagedEntry& entry = layout_->managed[id];
  uint64_t moved = 0;
  for (uint32_t block = 0; block < entry.blocks && moved < bytes; ++block) {
    if (block >= spared_from && block < spared_to) continue;
    uint8_t& state = layout_->blocks[entry.first_block + block];
    if (state != kBlockOnDevice) continue;
    state = kBlockOnHost;
    moved += block_bytes(entry, block);
  }
  entry.resident -= moved;
  GpuState& gpu = layout_->gpu[entry.gpu];
  gpu.managed_resident -= moved;
  gpu.counters.evicted += moved;
  return moved;
}

// Pushes out managed memory of the GPU, the one brought in longest ago first, sparing one. Under the mutex.
void SharedState::evict(int gpu, uint64_t bytes, uint32_t spared, Migration* migration) {
  uint64_t moved = 0;
  while (moved < bytes) {
    uint32_t victim = 0;
    for (uint32_t id = 1; id < layout_->managed_end; ++id) {
      const ManagedEntry& entry = layout_->managed[id];
      if (entry.owner == 0 || entry.gpu != gpu || entry.resident == 0 || id == spared) continue;
      if (victim == 0 || entry.last_migration < layout_->managed[victim].last_migration) victim = id;
    }
    if (victim == 0) break;
    moved += evict_from(victim, bytes - moved, 0, 0);
  }
  migration->evicted += moved;
  migration->nanoseconds += at_rate(moved, profile::kEviction);
}

Migration SharedState::touch(uint32_t id, uint64_t offset, uint64_t bytes, Access access) {
  Migration migration;
  if (id == 0 || bytes == 0) return migration;
  lock();
  ManagedEntry& entry = layout_->managed[id];
  if (entry.owner == 0 || offset >= entry.bytes) {
    unlock();
    return migration;
  }
  if (bytes > entry.bytes - offset) bytes = entry.bytes - offset;
  auto first = static_cast<uint32_t>(offset / profile::kManagedBlock);
  auto end = static_cast<uint32_t>((offset + bytes - 1) / profile::kManagedBlock) + 1;
  GpuState& gpu = layout_->gpu[entry.gpu];
  bool reaped = false;
  if (entry.resident == entry.bytes && access != Access::kPrefetchToHost) end = first;  // all there: nothing to do
  for (uint32_t block = first; block < end; ++block) {
    uint8_t& state = layout_->blocks[entry.first_block + block];
    uint64_t size = block_bytes(entry, block);
    if (access == Access::kPrefetchToHost) {
      if (state == kBlockOnDevice) {
        entry.resident -= size;
        gpu.managed_resident -= size;
        gpu.counters.evicted += size;
        migration.evicted += size;
        migration.nanoseconds += at_rate(size, profile::kEviction);
      }
      state = kBlockOnHost;
      continue;
    }
    if (state == kBlockOnDevice) continue;
    auto room = [&] { return gpu.plain + gpu.managed_resident + size <= layout_->capacity; };
    if (!room() && !reaped) {
      reap();
      reaped = true;
    }
    if (!room()) evict(entry.gpu, size, id, &migration);
    if (!room()) {  // nobody else has any: our own, first outside this use, then what is yet to come, then what was
      uint64_t moved = evict_from(id, size, first, end);
      if (moved < size) moved += evict_from(id, size - moved, 0, block + 1);
      if (moved < size) moved += evict_from(id, size - moved, block, end);
      migration.evicted += moved;
      migration.nanoseconds += at_rate(moved, profile::kEviction);
    }
    bool fresh = state == kBlockFresh;
    if (access == Access::kPrefetchToDevice) {
      migration.prefetched_in += size;
      migration.nanoseconds += at_rate(size, fresh ? profile::kFreshPrefetch : profile::kPrefetchIn);
    } else if (!fresh) {
      migration.faulted_in += size;
      migration.nanoseconds += at_rate(size, profile::kFaultIn);
    } else {
      migration.first_touched += size;
      // A copy fills fresh memory at the copy's own speed; a kernel faults for it.
      if (access == Access::kKernel) {
        migration.nanoseconds += at_rate(size, entry.preferred ? profile::kFirstTouchPreferred : profile::kFirstTouch);
      }
    }
    if (room()) {
      state = kBlockOnDevice;
      entry.resident += size;
      gpu.managed_resident += size;
    } else {
      state = kBlockOnHost;  // plain memory fills the GPU: used across the bus, and paid again next time
    }
  }
  if (migration.first_touched + migration.faulted_in + migration.prefetched_in != 0) {
    entry.last_migration = ++layout_->migration_clock;
  }
  gpu.counters.first_touched += migration.first_touched;
  gpu.counters.faulted_in += migration.faulted_in;
  gpu.counters.prefetched_in += migration.prefetched_in;
  unlock();
  return migration;
}

}  // namespace rota::sim
