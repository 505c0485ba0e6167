// Objects that several processes hold: memory that one exported and others opened, and interprocess events. An id
// contains the entry's index (low bits) and is never reused, so a stale one is detected.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "tools/simgpu/state/layout.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {
namespace {

constexpr uint64_t kIndexBits = 16;
static_assert(kMaxShared <= 1U << kIndexBits && kMaxEvents <= 1U << kIndexBits);

uint32_t index_of(uint64_t id) {
  return static_cast<uint32_t>(id & ((1U << kIndexBits) - 1));
}

// The index of a free entry in a table, or the table's size. Under the mutex.
template <class Entry>
uint32_t free_entry(Entry* table, uint32_t size, uint32_t* end) {
  uint32_t index = 0;
  while (index < *end && table[index].id != 0) ++index;
  if (index == *end && index < size) ++*end;
  return index;
}

// How long a sleeper waits before it checks again that the other process is alive and that it still has to wait.
constexpr timespec kPatience{0, 20'000'000};

}  // namespace

uint64_t SharedState::share(int gpu, uint64_t bytes, bool taken, Migration* migration) {
  gpu = physical(gpu);
  lock();
  uint32_t index = free_entry(layout_->shared, kMaxShared, &layout_->shared_end);
  if (index == kMaxShared || (!taken && !take_locked(gpu, bytes, migration))) {
    unlock();
    return 0;
  }
  if (taken) layout_->processes[process_].plain[gpu] -= bytes;
  SharedEntry& entry = layout_->shared[index];
  entry = SharedEntry{};
  entry.bytes = bytes;
  entry.gpu = gpu;
  entry.counted_for = process_;
  entry.legacy = taken ? 1 : 0;
  entry.holders.add(process_);
  entry.id = layout_->next_serial++ << kIndexBits | index;
  uint64_t id = entry.id;
  held_[id] = 1;
  unlock();
  return id;
}

bool SharedState::hold(uint64_t id, int gpu, uint64_t bytes, bool revive, Migration* migration) {
  uint32_t index = index_of(id);
  if (id == 0 || index >= kMaxShared || gpu < 0 || gpu >= gpus()) return false;
  gpu = physical(gpu);
  lock();
  SharedEntry& entry = layout_->shared[index];
  bool known = entry.id == id;
  // The entry was freed with its last holder, but a descriptor in transit kept the memory.
  if (revive && !known && entry.id == 0 && take_locked(gpu, bytes, migration)) {
    entry = SharedEntry{};
    entry.id = id;
    entry.bytes = bytes;
    entry.gpu = gpu;
    entry.counted_for = -1;
    if (index >= layout_->shared_end) layout_->shared_end = index + 1;
    known = true;
  }
  if (known) {
    entry.holders.add(process_);
    ++held_[id];
  }
  unlock();
  return known;
}

// Under the mutex. What others still have once its maker has let it go counts for nobody if it was made with a
// descriptor, and for one that has opened it if with a legacy IPC handle (tests/gpu/nvml_facts.py: H200, 580.159.04).
void SharedState::leave_shared(uint32_t index, int process) {
  SharedEntry& entry = layout_->shared[index];
  entry.holders.remove(process);
  if (!entry.holders.none()) {
    if (entry.counted_for == process) entry.counted_for = entry.legacy != 0 ? entry.holders.first() : -1;
    return;
  }
  layout_->gpu[entry.gpu].plain -= entry.bytes;
  entry = SharedEntry{};
}

bool SharedState::let_go(uint64_t id) {
  lock();
  auto held = held_.find(id);
  bool last = false;
  if (held != held_.end() && --held->second == 0) {
    held_.erase(held);
    leave_shared(index_of(id), process_);
    last = layout_->shared[index_of(id)].id != id;
  }
  unlock();
  return last;
}

void SharedState::unshare(uint64_t id) {
  lock();
  SharedEntry& entry = layout_->shared[index_of(id)];
  if (entry.id == id && held_.erase(id) != 0) {
    layout_->processes[process_].plain[entry.gpu] += entry.bytes;
    entry = SharedEntry{};
  }
  unlock();
}

// A process is dead. Under the mutex.
void SharedState::forget_holder(int process) {
  uint64_t serial = layout_->processes[process].serial;
  for (uint32_t index = 0; index < layout_->shared_end; ++index) {
    if (layout_->shared[index].id != 0) leave_shared(index, process);
  }
  for (uint32_t index = 0; index < layout_->events_end; ++index) {
    EventEntry& entry = layout_->events[index];
    if (entry.id == 0) continue;
    if (entry.recorder == serial && entry.completed != entry.recorded) {
      entry.completed = entry.recorded;
      entry.completed_at = 0;
      ++entry.changes;
    }
    entry.holders.remove(process);
    if (entry.holders.none()) entry.id = 0;
  }
}

EventEntry* SharedState::event(uint64_t id) {
  uint32_t index = index_of(id);
  return id != 0 && index < kMaxEvents && layout_->events[index].id == id ? &layout_->events[index] : nullptr;
}

uint64_t SharedState::add_event() {
  lock();
  uint32_t index = free_entry(layout_->events, kMaxEvents, &layout_->events_end);
  uint64_t id = 0;
  if (index < kMaxEvents) {
    EventEntry& entry = layout_->events[index];
    entry = EventEntry{};
    id = entry.id = layout_->next_serial++ << kIndexBits | index;
    entry.holders.add(process_);
  }
  unlock();
  return id;
}

bool SharedState::hold_event(uint64_t id) {
  lock();
  EventEntry* entry = event(id);
  if (entry != nullptr) entry->holders.add(process_);
  unlock();
  return entry != nullptr;
}

void SharedState::let_go_event(uint64_t id) {
  lock();
  if (EventEntry* entry = event(id)) {
    entry->holders.remove(process_);
    if (entry->holders.none()) entry->id = 0;
  }
  unlock();
}

uint64_t SharedState::record_event(uint64_t id) {
  lock();
  uint64_t record = 0;
  if (EventEntry* entry = event(id)) {
    entry->recorder = layout_->processes[process_].serial;
    record = ++entry->recorded;
  }
  unlock();
  return record;
}

void SharedState::complete_event(uint64_t id, uint64_t record, int64_t at) {
  lock();
  EventEntry* entry = event(id);
  if (entry != nullptr && record > entry->completed) {
    entry->completed = record;
    entry->completed_at = at;
    __atomic_fetch_add(&entry->changes, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &entry->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  unlock();
}

uint64_t SharedState::last_record(uint64_t id) {
  lock();
  EventEntry* entry = event(id);
  uint64_t record = entry == nullptr ? 0 : entry->recorded;
  unlock();
  return record;
}

bool SharedState::event_done(uint64_t id, uint64_t record) {
  lock();
  EventEntry* entry = event(id);
  bool done = entry == nullptr || entry->completed >= record;
  unlock();
  return done;
}

int64_t SharedState::completion_time(uint64_t id) {
  lock();
  EventEntry* entry = event(id);
  int64_t time = entry == nullptr ? 0 : entry->completed_at;
  unlock();
  return time;
}

void SharedState::wait_for_event(uint64_t id, uint64_t record) {
  uint32_t* changes = &layout_->events[index_of(id) % kMaxEvents].changes;
  uint32_t seen = __atomic_load_n(changes, __ATOMIC_ACQUIRE);
  if (event_done(id, record)) return;
  if (syscall(SYS_futex, changes, FUTEX_WAIT, seen, &kPatience, nullptr, 0) == 0) return;
  lock();
  reap();
  unlock();
}

}  // namespace rota::sim
