// A stream's thread.
#include "tools/simgpu/driver/stream/stream.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/state/blocked_signals.h"
#include "tools/simgpu/state/clock.h"

namespace rota::sim {
namespace {
// This thread has destroyed its own stream.
thread_local bool own_stream_is_gone = false;

// Tasks that streams' threads wait for on behalf of other contexts. Each entry's task is alive: its waiter holds it.
struct ForeignWaits {
  using Map = std::multimap<const Context*, Task*>;
  using Entry = Map::iterator;
  std::mutex mutex;
  Map waits;

  // Never destroyed: streams' threads outlive static destructors.
  static ForeignWaits& get() {
    static auto* all = new ForeignWaits;
    return *all;
  }
};

std::atomic<uint64_t> next_stream_id{8};  // the driver's own small numbers mean the default streams

// simgpu itself may run out of memory; kernels (kernel.h) and functions of the program throw nothing.
void run_work(const Task& task) {
  try {
    task.work();
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "simgpu: work of a stream failed: %s\n", exception.what());
    if (task.context != nullptr) task.context->fail(CUDA_ERROR_LAUNCH_FAILED);
  }
}

}  // namespace

Stream::Stream(Context* context, unsigned flags, int priority)
    : context(context), flags(flags), priority(priority), id(next_stream_id.fetch_add(1)) {}

Context*& running_context() {
  thread_local Context* context = nullptr;
  return context;
}

bool is_destroyed(const Context* context) {
  return context != nullptr && context->destroyed.load(std::memory_order_acquire);
}

void end_foreign_waits(const Context& context) {
  {
    std::lock_guard lock(ForeignWaits::get().mutex);
    for (const auto& [waiting, task] : ForeignWaits::get().waits) {
      if (waiting != &context) continue;
      task->finished.fetch_add(Task::kWoken, std::memory_order_acq_rel);
      task->finished.notify_all();
    }
  }
  process_clock().kick();
}

void Task::wait() const {
  // Work of the same context ends by itself when the context is destroyed; it is waited for, to keep the order.
  Context* waiting = running_context();
  bool foreign = waiting != nullptr && waiting != context && !done();
  ForeignWaits& waits = ForeignWaits::get();
  ForeignWaits::Entry entry;
  if (foreign) {
    std::lock_guard lock(waits.mutex);
    entry = waits.waits.emplace(waiting, const_cast<Task*>(this));
  }
  auto over = [this, foreign, waiting] { return done() || (foreign && is_destroyed(waiting)); };
  Clock& clock = process_clock();
  if (clock.is_virtual()) {
    clock.wait(over);
  } else {
    for (uint32_t seen = finished.load(std::memory_order_acquire); !over();
         seen = finished.load(std::memory_order_acquire)) {
      finished.wait(seen, std::memory_order_acquire);
    }
  }
  if (foreign) {
    std::lock_guard lock(waits.mutex);
    waits.waits.erase(entry);
  }
  if (!done()) return;
  int64_t& timeline = thread_timeline();
  if (timeline != 0) timeline = std::max(timeline, finished_at);
}

void Task::finish() {
  int64_t timeline = thread_timeline();
  finished_at = timeline != 0 ? timeline : process_clock().now();
  finished.fetch_or(kDone, std::memory_order_release);
  finished.notify_all();
}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  process_clock().kick();
  if (worker_.joinable()) {
    // The stream's own thread may drop the last reference (a callback that destroys the stream).
    if (worker_.get_id() == std::this_thread::get_id()) {
      own_stream_is_gone = true;
      worker_.detach();
    } else {
      // On a virtual clock other threads run until this thread has done its work, but none runs while it is joined.
      if (process_clock().is_virtual()) process_clock().wait([this] { return over_.load(); });
      worker_.join();
    }
  }
}

void Stream::push(TaskPointer task) {
  if (task->context == nullptr) task->context = context;
  if (activity_is_recorded() && running_origin() == nullptr && context != nullptr) {
    const bool legacy = context->legacy.get() == this;
    task->origin.stream = legacy ? 0 : driver().streams.find(handle()) ? reinterpret_cast<uintptr_t>(this) : 2;
  }
  Clock& clock = process_clock();
  // Work submitted by the program takes a moment to reach the GPU; work submitted on the GPU does not.
  task->arrives_at = thread_timeline();
  if (task->arrives_at == 0) {
    task->arrives_at = clock.now() + (driver().state().waits() ? driver().profile().cost.launch_latency : 0);
  }
  {
    std::lock_guard lock(mutex_);
    // Each step may throw (no thread or no memory) and then leaves no task behind that would never run.
    start_locked();
    queue_.push_back(task);
    last_ = std::move(task);
    queued_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_one();
  clock.kick();
}

void Stream::start() {
  std::lock_guard lock(mutex_);
  start_locked();
}

// Under the mutex, which the thread takes before it reads its number. Throws if no thread can be created.
void Stream::start_locked() {
  if (worker_.joinable()) return;
  BlockedSignals blocked;
  worker_ = std::thread([this] { run(); });
  participant_ = process_clock().enlist();
}

TaskPointer Stream::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

// Null: the stream ends.
TaskPointer Stream::next_task() {
  if (process_clock().is_virtual()) {
    process_clock().wait([this] { return ending_.load() || queued_.load(std::memory_order_acquire) != 0; });
  }
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return ending_.load() || !queue_.empty(); });
  if (queue_.empty()) return nullptr;
  TaskPointer task = std::move(queue_.front());
  queue_.pop_front();
  queued_.fetch_sub(1);
  return task;
}

void Stream::run() {
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);  // waits for modelled times of microseconds; the default adds 50
  Clock& clock = process_clock();
  uint64_t participant = 0;
  {
    std::lock_guard lock(mutex_);
    participant = participant_;
  }
  clock.enter(participant);
  int64_t& timeline = thread_timeline();
  timeline = 1;  // the first task has its own arrival time
  while (TaskPointer task = next_task()) {
    running_context() = task->context;
    running_origin() = &task->origin;
    for (const TaskPointer& earlier : task->after) earlier->wait();
    task->after.clear();
    timeline = std::max(timeline, task->arrives_at);
    if (!driver().state().waits()) timeline = std::max(timeline, clock.now());
    if (clock.is_virtual()) clock.sleep_until(timeline);
    if (task->work) {
      run_work(*task);
      task->work = nullptr;
    }
    if (!driver().state().waits()) timeline = std::max(timeline, clock.now());
    running_origin() = nullptr;
    task->finish();
    task.reset();
    if (own_stream_is_gone) break;
  }
  if (!own_stream_is_gone) over_ = true;
  clock.leave();
}

}  // namespace rota::sim
