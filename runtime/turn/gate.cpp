// The gate's slow side: registering threads, closing, waiting. scope.h has the fast path and gate.h the protocol.
#include "runtime/turn/gate.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <thread>

#include "runtime/turn/left.h"
#include "runtime/turn/own_tid.h"

namespace rota::gate {

constinit std::atomic<std::uint32_t> state{kOpen};
constinit std::atomic<bool> out_of_place{false};
constinit std::atomic<api::CUresult> refusal{api::CUDA_SUCCESS};
[[gnu::tls_model("initial-exec")]] constinit thread_local Thread* self = nullptr;

namespace {

using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

constinit std::atomic<Thread*> threads{nullptr};
constinit std::atomic<Gate*> the_gate{nullptr};
constinit std::atomic<Stood*> stood{nullptr};
// For threads whose records could not be allocated. Not in the list, and its word means nothing, since several threads
// may share it.
constinit Thread no_memory;

// What a thread is inside of, as far as its record tells.
std::uint64_t depth_of_own(const Thread& thread) {
  return &thread == &no_memory ? 0 : thread.word.load(memory_order_relaxed) & kDepthMask;
}

long membarrier(int command) {
  return syscall(SYS_membarrier, command, 0, 0);
}

bool register_membarrier() {
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
         membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;
}

void release(Thread& thread) {
  thread.word.store(thread.word.load(memory_order_relaxed) & ~kDepthMask, memory_order_release);
  thread.tid.store(0, memory_order_release);
}

// Runs in the ending thread, even if it was cancelled inside a call: its word must not stay raised. If a later
// destructor of that thread submits again, it registers again, and this runs again.
void thread_ends(void* record) {
  self = nullptr;
  release(*static_cast<Thread*>(record));
}

// The key whose destructor is thread_ends. A process has a limited number of keys; if none is left, rota is not told
// when a thread ends and finds the records of ended threads by their thread ids instead.
enum class Key : int { kUnmade, kMade, kNone };
constinit std::atomic<Key> key_state{Key::kUnmade};
constinit pthread_key_t thread_end_key{};

// Called by the gate's constructor, before any thread can register.
void make_thread_end_key() {
  if (key_state.load(memory_order_acquire) != Key::kUnmade) return;
  const bool made = pthread_key_create(&thread_end_key, thread_ends) == 0;
  key_state.store(made ? Key::kMade : Key::kNone, memory_order_release);
}

bool is_dead(pid_t tid) {
  return syscall(SYS_tgkill, getpid(), tid, 0) != 0 && errno == ESRCH;
}

bool refuses() {
  return refusal.load(memory_order_seq_cst) != api::CUDA_SUCCESS;
}

std::uint64_t depth(const Thread& thread) {
  return thread.word.load(memory_order_seq_cst) & kDepthMask;
}

}  // namespace

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
    record->word.store(record->word.load(memory_order_relaxed) & ~kDepthMask, memory_order_release);
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
  thread.word.fetch_and(~kDepthMask, memory_order_seq_cst);
  return true;
}

namespace {

// The same for a scope of this thread which has raised the word by `own` itself.
void forget_left_before(Thread& thread, const void* frame, std::uint64_t own) {
  if (depth_of_own(thread) == own || &thread == &no_memory || !forget_left(thread, frame)) return;
  thread.outermost.store(frame, memory_order_relaxed);
  thread.word.fetch_add(own, memory_order_seq_cst);
}

std::uint64_t word_of(const Thread& thread) {
  return thread.word.load(memory_order_relaxed);
}

// A thread that waits is not inside. Handlers of signals run in it meanwhile, and may make calls of their own.
class Lowered {
 public:
  Lowered(Thread& thread, std::uint64_t inside)
      : thread_(thread), inside_(inside), outermost_(thread.outermost.load(memory_order_relaxed)) {
    thread_.word.fetch_sub(inside_, memory_order_seq_cst);
  }
  ~Lowered() {
    thread_.outermost.store(outermost_, memory_order_relaxed);
    thread_.word.fetch_add(inside_, memory_order_seq_cst);
  }
  Lowered(const Lowered&) = delete;
  Lowered& operator=(const Lowered&) = delete;

 private:
  Thread& thread_;
  std::uint64_t inside_;
  const void* outermost_;
};

// Between two looks at the stack of a thread that does not come out.
constexpr std::chrono::nanoseconds kLooksAtStack = std::chrono::milliseconds(10);

// Whether a thread with its word raised has left its call, unnoticed by itself; then its word is lowered. For the
// closer, in its thread.
bool has_left(Thread& thread, pid_t tid) {
  static constinit std::chrono::steady_clock::time_point next{};
  const auto now = std::chrono::steady_clock::now();
  if (now < next) return false;
  next = now + kLooksAtStack;
  std::uint64_t word = thread.word.load(memory_order_seq_cst);
  const void* const outermost = thread.outermost.load(memory_order_relaxed);
  if (outermost == nullptr || !left_by(tid, outermost)) return false;
  // A call that it has begun since has changed its word.
  return thread.word.compare_exchange_strong(word, word & ~kDepthMask, memory_order_seq_cst);
}

}  // namespace

std::uint64_t enter_slowly(Thread& thread, const void* frame, Symbol symbol, api::CUstream stream, bool has_stream,
                           bool per_thread) {
  const Call call{symbol, stream, has_stream, per_thread};
  bool interrupted = false;
  for (;;) {
    // With the fence, all threads see the store of the word and the load of the state in one order.
    thread.word.fetch_add(0, memory_order_seq_cst);
    const std::uint32_t now = state.load(memory_order_seq_cst);
    if ((now & (kClosedBit | kMeteredBit)) == 0 || thread.exempt) return word_of(thread);
    forget_left_before(thread, frame, kEnter);
    // A call inside a call: the outer one is already counted, and the closer waits for it. Waiting here would mean
    // waiting for ourselves.
    const std::uint64_t inside = depth_of_own(thread);
    if ((inside & kSubmittingMask) > 1) return word_of(thread);
    Gate* gate = the_gate.load(memory_order_acquire);
    if ((now & kClosedBit) == 0) {
      if (gate == nullptr || gate->may_submit(call)) return word_of(thread);
      const std::uint64_t resumed = gate->resumed_.load(memory_order_acquire);
      // Ask once more, since the answer may be different by now.
      if (gate->may_submit(call)) return word_of(thread);
      const Lowered lowered(thread, inside);
      interrupted |= gate->wait_metered(resumed);
      continue;
    }
    if (refuses()) return kRefused;
    if (gate == nullptr) return word_of(thread);
    Attendant* attendant = gate->attendant_.load(memory_order_acquire);
    if (attendant != nullptr && attendant->submits_nothing(call)) return word_of(thread);
    // Lower all of it, even if this is a profiler's callback within a call that only holds memory in place: that call
    // does not continue before this one returns, and when the gate opens everything is where it was.
    const Lowered lowered(thread, inside);
    interrupted = gate->wait_outside(interrupted);
  }
}

std::uint64_t hold_slowly(Thread& thread, const void* frame) {
  bool interrupted = false;
  for (;;) {
    // As in enter_slowly().
    thread.word.fetch_add(0, memory_order_seq_cst);
    if ((state.load(memory_order_seq_cst) & kClosedBit) == 0 || !out_of_place.load(memory_order_seq_cst))
      return word_of(thread);
    forget_left_before(thread, frame, kEnterMapping);
    // Inside another call nothing moves.
    const std::uint64_t inside = depth_of_own(thread);
    if ((inside != kEnterMapping && inside != 0) || thread.exempt) return word_of(thread);
    if (refuses()) return kRefused;
    Gate* gate = the_gate.load(memory_order_acquire);
    if (gate == nullptr) return word_of(thread);
    const Lowered lowered(thread, inside);
    interrupted = gate->wait_outside(interrupted);
  }
}

void exempt_this_thread() {
  Thread* const own = self != nullptr ? self : register_this_thread();
  if (own != &no_memory) own->exempt = true;
}

bool wait_in_place() {
  Gate* gate = the_gate.load(memory_order_acquire);
  while (gate != nullptr && out_of_place.load(memory_order_seq_cst) && !may_not_wait()) {
    if (refuses()) return false;
    gate->pass();
  }
  return true;
}

void make_room(FunctionRef<bool()> again) {
  if (may_not_wait()) return;
  Gate* gate = the_gate.load(memory_order_acquire);
  Attendant* attendant = gate != nullptr ? gate->attendant_.load(memory_order_acquire) : nullptr;
  if (attendant != nullptr) attendant->make_room(again);
}

Gate::Gate(Barrier barrier) {
  fenced_ = barrier == Barrier::kFenced || !register_membarrier();
  make_thread_end_key();
  the_gate.store(this, memory_order_release);
  state.store(fenced_ ? kFencedBit : kOpen, memory_order_seq_cst);
}

Gate::~Gate() {
  the_gate.store(nullptr, memory_order_release);
  refusal.store(api::CUDA_SUCCESS, memory_order_seq_cst);
  state.store(kOpen, memory_order_seq_cst);
}

void Gate::close() {
  {
    const std::lock_guard lock(mutex_);
    if (for_good_) return;
    state.fetch_or(kClosedBit, memory_order_seq_cst);
    held_.wake_all();  // from now on they wait at the closed gate
  }
  if (fenced_) return;
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  // membarrier was registered and tested but is refused now (a sandbox that was switched on later): from here on every
  // call is fenced. A call that read "open" just before may not be visible yet; a pause much longer than the lifetime
  // of a store buffer rules that out.
  fenced_ = true;
  state.fetch_or(kFencedBit, memory_order_seq_cst);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool Gate::wait_until_empty(std::chrono::steady_clock::time_point deadline) {
  auto pause = std::chrono::microseconds(5);
  for (Thread* thread = threads.load(memory_order_acquire); thread != nullptr;) {
    if (depth(*thread) == 0) {
      thread = thread->next;
      continue;
    }
    const pid_t tid = thread->tid.load(memory_order_acquire);
    if (tid != 0 && is_dead(tid)) {
      release(*thread);
      continue;
    }
    if (tid != 0 && has_left(*thread, tid)) continue;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    // Leaving the gate rings no bell, so that it costs nothing: poll, at growing intervals.
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(500));
  }
  return true;
}

bool Gate::may_submit(const Call& call) const {
  Attendant* attendant = attendant_.load(memory_order_acquire);
  return attendant == nullptr || attendant->may_submit(call);
}

void Gate::set_metered(bool metered) {
  if (metered) {
    state.fetch_or(kMeteredBit, memory_order_seq_cst);
    return;
  }
  state.fetch_and(~kMeteredBit, memory_order_seq_cst);
  resume();
}

void Gate::resume() {
  const std::lock_guard lock(mutex_);
  resumed_.fetch_add(1, memory_order_seq_cst);
  held_.wake_all();
}

template <typename MayGo, typename Interrupted>
void Gate::stand(Waiters& waiters, Waiters::Place& place, Attendant* attendant, MayGo may_go, Interrupted interrupted) {
  if (Stood* const told = stood.load(memory_order_acquire)) told(std::nullopt);
  struct Stay {  // however it ends
    ~Stay() {
      if (Stood* const told = stood.load(memory_order_acquire)) told(so_far());
    }
    std::chrono::nanoseconds so_far() const { return std::chrono::steady_clock::now() - begin; }
    const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  } const stay;
  for (std::chrono::nanoseconds so_far{0};; so_far = stay.so_far()) {
    if (attendant != nullptr) attendant = attendant_.load(memory_order_acquire);
    const auto next = attendant != nullptr ? attendant->stands(so_far) : std::nullopt;
    const auto until = next ? stay.begin + *next : std::chrono::steady_clock::time_point::max();
    std::unique_lock lock(mutex_);
    if (waiters.wait(place, lock, until, [&] { return may_go(lock); }, interrupted)) return;
  }
}

// True: a signal handler has run meanwhile.
bool Gate::wait_metered(std::uint64_t resumed) {
  Waiters::Place place(held_, mutex_);
  if (Attendant* attendant = attendant_.load(memory_order_acquire)) attendant->arrived();
  bool interrupted = false;
  // Its own work is in the way, not another program's turn: there is nothing to report.
  stand(
      held_, place, nullptr,
      [&](auto&) { return resumed_.load(memory_order_relaxed) != resumed || closed() || !metered(); },
      [&] { interrupted = true; });
  return interrupted;
}

void Gate::open() {
  const std::lock_guard lock(mutex_);
  state.fetch_and(~kClosedBit, memory_order_seq_cst);
  outside_.wake_all();
}

void Gate::open_for_good() {
  {
    const std::lock_guard lock(mutex_);
    for_good_ = true;
  }
  open();
}

void Gate::refuse(api::CUresult error) {
  const std::lock_guard lock(mutex_);
  refusal.store(error, memory_order_seq_cst);
  outside_.wake_all();
}

bool Gate::run_if_open(FunctionRef<void()> work) {
  Thread* thread = self != nullptr ? self : register_this_thread();
  if (self == nullptr) {
    if ((state.load(memory_order_seq_cst) & kClosedBit) != 0) return false;
    work();
    return true;
  }
  if (depth_of_own(*thread) == 0) thread->outermost.store(__builtin_dwarf_cfa(), memory_order_relaxed);
  thread->word.fetch_add(kEnter, memory_order_seq_cst);
  if ((state.load(memory_order_seq_cst) & kClosedBit) != 0) {
    thread->word.fetch_sub(kEnter, memory_order_seq_cst);
    return false;
  }
  struct Inside {  // however the work ends
    explicit Inside(Thread& thread) : thread_(thread) {}
    ~Inside() { thread_.word.fetch_add(kLeave, memory_order_release); }
    Thread& thread_;
  } inside(*thread);
  work();
  return true;
}

Gate::Traffic Gate::traffic() const {
  Traffic sum{0, 0};
  for (const Thread* thread = threads.load(memory_order_acquire); thread != nullptr; thread = thread->next) {
    const std::uint64_t word = thread->word.load(memory_order_acquire);
    sum.calls += word >> 16;
    sum.inside += (word & kDepthMask) != 0 ? 1 : 0;
  }
  return sum;
}

void Gate::pass() {
  if (closed()) wait_outside();
}

// `interrupted`, and what this returns: a signal handler has run since the call began to wait. That is told again
// whenever the thread finds the gate closed: it may have been open for too short a time for this thread to pass.
bool Gate::wait_outside(bool interrupted) {
  Waiters::Place place(outside_, mutex_);
  if (Attendant* attendant = attendant_.load(memory_order_acquire)) attendant->arrived();
  const auto tell = [&] {
    interrupted = true;
    if (Attendant* attendant = attendant_.load(memory_order_acquire)) attendant->interrupted();
  };
  const auto done = [&](std::unique_lock<std::mutex>& lock) {
    while (closed() && !refuses() && wait_awake(place.signals(), lock)) tell();
    if (!closed() || refuses()) return true;
    if (interrupted) tell();
    return false;
  };
  stand(outside_, place, attendant_.load(memory_order_acquire), done, tell);
  return interrupted;
}

void tell_of_waits(Stood* told) {
  stood.store(told, memory_order_release);
}

void Gate::rouse(std::chrono::steady_clock::time_point until) {
  const std::lock_guard lock(mutex_);
  if (until <= roused_until_) return;
  roused_until_ = until;
  if (awake_until_ <= std::chrono::steady_clock::now()) outside_.wake_all();
}

// Returns true if the gate is still closed and a signal handler has run in this thread. Most of the time is spent in a
// system call that a handler interrupts, and which takes a fraction of a microsecond: one that happens to run between
// two of them is missed.
bool Gate::wait_awake(const HeldSignals& signals, std::unique_lock<std::mutex>& lock) {
  constexpr int kUntilYield = 128;
  const auto begin = std::chrono::steady_clock::now();
  if (awake_until_ > begin || roused_until_ <= begin) return false;
  const auto until = awake_until_ = roused_until_;
  lock.unlock();
  bool interrupted = false;
  const auto go_on = [&] { return closed() && !refuses() && !interrupted; };
  while (go_on() && std::chrono::steady_clock::now() < until) {
    for (int i = 0; i < kUntilYield && go_on(); ++i) {
      interrupted = interrupted_sleep(std::chrono::nanoseconds{0}, &signals.programs());
    }
    std::this_thread::yield();
  }
  lock.lock();
  if (awake_until_ == until) awake_until_ = {};
  return interrupted && closed();
}

void forget_other_threads() {
  the_gate.store(nullptr, memory_order_relaxed);
  out_of_place.store(false, memory_order_relaxed);
  refusal.store(api::CUDA_SUCCESS, memory_order_relaxed);
  const Thread* own = self;
  for (Thread* thread = threads.load(memory_order_acquire); thread != nullptr; thread = thread->next) {
    if (thread == own) {
      thread->tid.store(own_tid(), memory_order_relaxed);
    } else {
      release(*thread);
    }
  }
  state.store(kOpen, memory_order_seq_cst);
}

}  // namespace rota::gate
