// The bytes of the shared state file. Plain data only; every field but the header's first is under the mutex.
#pragma once

#include <pthread.h>

#include <cstdint>

#include "tools/simgpu/profile.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {

inline constexpr uint64_t kStateMagic = 0x3175706773'61746fULL;
inline constexpr uint32_t kStateVersion = 8;
inline constexpr uint32_t kMaxProcesses = 128;
inline constexpr uint32_t kMaxAllocations = 65536;
inline constexpr uint32_t kMaxBlocks = 1 << 20;  // 2 TiB of managed memory
inline constexpr uint32_t kMaxShared = 8192;     // memory objects that several processes may hold
inline constexpr uint32_t kMaxEvents = 4096;     // interprocess events

inline constexpr uint32_t kMaxWaiters = 32;  // contexts waiting for their slice of one GPU

enum BlockState : uint8_t { kBlockFree = 0, kBlockFresh, kBlockOnHost, kBlockOnDevice };  // … + the GPU

struct BlockAdvice {
  int8_t preferred = kNowhere;  // GPU, kOnHost or kNowhere
  uint8_t accessed_by = 0;      // one bit for each GPU
};

// Times are modelled nanoseconds.
struct Waiter {
  uint64_t key;  // of a context; 0 = free
  int64_t since;
  int64_t seen;  // when it last asked
};

struct ComputeEngine {
  int64_t busy_until;
  uint64_t owner;  // key of the context that computes
  int64_t slice_end;
  Waiter waiters[kMaxWaiters];
};

struct CopyEngine {
  int64_t busy_until;
  int64_t link_until;  // a copy under way will use the link until then
};

struct GpuState {
  ComputeEngine compute;
  CopyEngine copies[3];  // in the order of EngineKind
  Counters counters;
  uint64_t plain;
  uint64_t managed_resident;
  uint32_t lost;  // fell off the bus; until the state is created again
};

struct ProcessEntry {
  int32_t pid;          // 0 = free
  uint64_t start_time;  // from /proc/PID/stat: tells processes with a reused pid apart
  uint64_t serial;
  uint64_t plain[kMaxGpus];
};

struct ManagedEntry {
  uint64_t owner;  // serial of the process, 0 = free
  int32_t gpu;     // where it was allocated
  uint32_t first_block;
  uint32_t blocks;
  uint64_t bytes;
  uint64_t resident[kMaxGpus];
  uint64_t last_migration[kMaxGpus];  // from migration_clock; the smallest is evicted first
};

// Which processes hold an object: one bit for each process entry.
struct Holders {
  uint64_t bits[kMaxProcesses / 64];

  void add(int process) { bits[process / 64] |= uint64_t{1} << (process % 64); }
  bool has(int process) const { return (bits[process / 64] >> (process % 64) & 1) != 0; }
  void remove(int process) { bits[process / 64] &= ~(uint64_t{1} << (process % 64)); }
  bool none() const {
    for (uint64_t word : bits) {
      if (word != 0) return false;
    }
    return true;
  }
  // The one with the smallest index. There must be one.
  int first() const {
    int word = 0;
    while (bits[word] == 0) ++word;
    return word * 64 + __builtin_ctzll(bits[word]);
  }
};

// Plain device memory that more than one process may hold: charged once, until its last holder releases it or dies.
struct SharedEntry {
  uint64_t id;  // 0 = free
  uint64_t bytes;
  int32_t gpu;
  int32_t counted_for;  // the process whose memory it is for NVML, by its index; -1: nobody's
  uint32_t legacy;      // not 0: it has a legacy IPC handle, and is no physical memory of its own
  Holders holders;
};

// An event that several processes record and wait for. Records are numbered from 1.
struct EventEntry {
  uint64_t id;        // 0 = free
  uint64_t recorder;  // serial of the process that recorded last
  uint64_t recorded;
  uint64_t completed;    // this record and all before it are over
  int64_t completed_at;  // modelled time; 0: its recorder died
  uint32_t changes;      // a futex: incremented with `completed`
  Holders holders;
};

struct SharedLayout {
  uint64_t magic;
  uint32_t version;
  int32_t gpus;
  uint64_t capacity;
  char profile[4096];  // as passed to load_profile(); a file's path is absolute
  double time_scale;
  int64_t epoch;             // CLOCK_MONOTONIC when modelled time was 0
  uint64_t virtual_process;  // serial of the one process that runs on a virtual clock
  pthread_mutex_t mutex;
  uint64_t migration_clock;
  uint64_t next_serial;
  uint32_t managed_end;  // entries at and above were never used
  uint32_t next_block;   // where the search for free blocks goes on
  GpuState gpu[kMaxGpus];
  ProcessEntry processes[kMaxProcesses];
  uint32_t shared_end;  // entries at and above were never used
  uint32_t events_end;
  SharedEntry shared[kMaxShared];
  EventEntry events[kMaxEvents];
  ManagedEntry managed[kMaxAllocations];  // entry 0 is not used
  uint8_t blocks[kMaxBlocks];
  BlockAdvice advice[kMaxBlocks];
};

// The last block of an allocation may be shorter.
inline uint64_t block_bytes(const ManagedEntry& entry, uint32_t block) {
  uint64_t start = uint64_t{block} * kManagedBlock;
  uint64_t left = entry.bytes - start;
  return left < kManagedBlock ? left : kManagedBlock;
}

}  // namespace rota::sim
