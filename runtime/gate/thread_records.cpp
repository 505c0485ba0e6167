#include "runtime/gate/thread_records.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <new>

#include "runtime/core/left.h"
#include "runtime/core/own_tid.h"

namespace rota::gate {

[[gnu::tls_model("initial-exec")]] constinit thread_local Thread* self = nullptr;
constinit std::atomic<Gate*> the_gate{nullptr};
constinit std::atomic<Thread*> threads{nullptr};
constinit Thread no_memory;

namespace {

using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

// Runs in the ending thread, even if it was cancelled inside a call: its word must not stay raised. If a later
// destructor of that thread submits again, it registers again, and this runs again.
void thread_ends(void* record) {
  self = nullptr;
  release_record(*static_cast<Thread*>(record));
}

// The key whose destructor is thread_ends. A process has a limited number of keys; if none is left, rota is not told
// when a thread ends and finds the records of ended threads by their thread ids instead.
enum class Key : int { kUnmade, kMade, kNone };
constinit std::atomic<Key> key_state{Key::kUnmade};
constinit pthread_key_t thread_end_key{};

// The interval of checks of the stack of a thread that stays inside.
constexpr std::chrono::nanoseconds kLooksAtStack = std::chrono::milliseconds(10);

}  // namespace

void release_record(Thread& thread) {
  thread.word.store(thread.word.load(memory_order_relaxed) & ~(kDepthMask | kDeviceMask), memory_order_release);
  thread.tid.store(0, memory_order_release);
}

void make_thread_end_key() {
  if (key_state.load(memory_order_acquire) != Key::kUnmade) return;
  const bool made = pthread_key_create(&thread_end_key, thread_ends) == 0;
  key_state.store(made ? Key::kMade : Key::kNone, memory_order_release);
}

bool is_dead(pid_t tid) {
  return syscall(SYS_tgkill, getpid(), tid, 0) != 0 && errno == ESRCH;
}

bool may_reach(std::uint64_t word, Devices devices) {
  const std::uint64_t depth = word & kDepthMask;
  if (depth == 0) return false;
  const std::uint64_t device = (word & kDeviceMask) >> kDeviceShift;
  return device == 0 || depth != kEnter || (devices >> (device - 1) & 1) != 0;
}

Thread* register_this_thread() {
  const pid_t tid = own_tid();
  const bool told_of_ends = key_state.load(memory_order_acquire) == Key::kMade;
  Thread* record = threads.load(memory_order_acquire);
  for (; record != nullptr; record = record->next) {
    pid_t owner = 0;
    if (record->tid.compare_exchange_strong(owner, tid, memory_order_acquire)) break;
    // A record with this thread's own id belonged to a thread that has ended: this thread has none yet.
    if (told_of_ends || (owner != tid && !is_dead(owner))) continue;
    if (!record->tid.compare_exchange_strong(owner, tid, memory_order_acquire)) continue;
    record->word.store(record->word.load(memory_order_relaxed) & ~(kDepthMask | kDeviceMask), memory_order_release);
    break;
  }
  if (record == nullptr) {
    record = new (std::nothrow) Thread;
    if (record == nullptr) {
      Gate* gate = the_gate.load(memory_order_acquire);
      Attendant* attendant = gate != nullptr ? gate->attendant_.load(memory_order_acquire) : nullptr;
      if (attendant != nullptr) attendant->unseen();
      return &no_memory;
    }
    record->tid.store(tid, memory_order_relaxed);
    Thread* head = threads.load(memory_order_relaxed);
    do {
      record->next = head;
    } while (!threads.compare_exchange_weak(head, record, memory_order_release, memory_order_relaxed));
  }
  record->metered = {};
  record->exempt = false;
  self = record;
  // If that fails, the record stays this thread's until another thread finds that this one is dead.
  if (told_of_ends) pthread_setspecific(thread_end_key, record);
  return record;
}

bool forget_left(Thread& thread, const void* frame) {
  if (&thread == &no_memory) return true;  // its word means nothing
  const void* const outermost = thread.outermost.load(memory_order_relaxed);
  if (outermost == nullptr || !left_behind(outermost, frame)) return false;
  thread.word.fetch_and(~(kDepthMask | kDeviceMask), memory_order_seq_cst);
  return true;
}

bool has_left(Thread& thread, pid_t tid) {
  static constinit std::chrono::steady_clock::time_point next{};
  const auto now = std::chrono::steady_clock::now();
  if (now < next) return false;
  next = now + kLooksAtStack;
  std::uint64_t word = thread.word.load(memory_order_seq_cst);
  const void* const outermost = thread.outermost.load(memory_order_relaxed);
  if (outermost == nullptr || !left_by(tid, outermost)) return false;
  // Its word has changed if it has begun another call since.
  return thread.word.compare_exchange_strong(word, word & ~(kDepthMask | kDeviceMask), memory_order_seq_cst);
}

}  // namespace rota::gate
