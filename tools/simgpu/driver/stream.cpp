// A stream's thread.
#include "tools/simgpu/driver/stream.h"

#include <signal.h>
#include <sys/prctl.h>

#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {
namespace {
std::atomic<uint64_t> next_stream_id{8};  // the driver's own small numbers stand for the default streams
}

Stream::Stream(Context* context, unsigned flags, int priority)
    : context(context), flags(flags), priority(priority), id(next_stream_id.fetch_add(1)) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (worker_.joinable()) {
    // The last reference may be dropped by the stream's own thread (a callback that destroys it).
    if (worker_.get_id() == std::this_thread::get_id()) {
      worker_.detach();
    } else {
      worker_.join();
    }
  }
}

void Stream::push(TaskPointer task) {
  {
    std::lock_guard lock(mutex_);
    last_ = task;
    queue_.push_back(std::move(task));
    if (!worker_.joinable()) {
      // The program's signals are the program's threads' business.
      sigset_t all;
      sigset_t before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      worker_ = std::thread([this] { run(); });
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }
  wake_.notify_one();
}

TaskPointer Stream::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

void Stream::run() {
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);  // modelled times of microseconds are waited for; the default adds 50
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    TaskPointer task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    for (const TaskPointer& earlier : task->after) earlier->wait();
    task->after.clear();
    if (task->work) {
      task->work();
      task->work = nullptr;
    }
    task->finished_at = monotonic_nanoseconds();
    task->finished.store(1, std::memory_order_release);
    task->finished.notify_all();
    task.reset();
    lock.lock();
  }
}

}  // namespace rota::sim
