// The records of the program's threads (Thread in scope.h), as the closer of the gates sees them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "runtime/gate/gate.h"
#include "runtime/gate/scope.h"

namespace rota::gate {

// The gates of this process; null: there are none.
[[gnu::visibility("hidden")]] extern constinit std::atomic<Gate*> the_gate;
// All records, in a list that only grows.
[[gnu::visibility("hidden")]] extern constinit std::atomic<Thread*> threads;
// For threads whose records could not be allocated. Not in the list, and its word means nothing, since several threads
// may share it.
[[gnu::visibility("hidden")]] extern constinit Thread no_memory;

inline bool refuses() {
  return refusal.load(std::memory_order_seq_cst) != api::CUDA_SUCCESS;
}
// The calls that a thread is inside of, as its record shows.
inline std::uint64_t depth_of_own(const Thread& thread) {
  return &thread == &no_memory ? 0 : thread.word.load(std::memory_order_relaxed) & kDepthMask;
}
inline std::uint64_t word_of(const Thread& thread) {
  return thread.word.load(std::memory_order_relaxed);
}
// Whether a thread with this word may reach one of these GPUs.
bool may_reach(std::uint64_t word, Devices devices);

// Called by the gates' constructor, before any thread can register.
void make_thread_end_key();
// The record is free for another thread.
void release_record(Thread& thread);
bool is_dead(pid_t tid);
// Whether a thread with its word raised has left its call, unnoticed by itself; then its word is lowered. For the
// closer, in its thread.
bool has_left(Thread& thread, pid_t tid);

}  // namespace rota::gate
