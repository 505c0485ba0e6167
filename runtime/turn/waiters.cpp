#include "runtime/turn/waiters.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace rota::gate {

namespace {

// There must always be a time limit.
constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(1);

}  // namespace

// A system call of its own: the libraries' functions sleep on, or are cancellation points.
bool interrupted_sleep(std::chrono::nanoseconds time) {
  const int error = errno;  // the program's
  timespec wait{.tv_sec = static_cast<time_t>(time / std::chrono::seconds(1)),
                .tv_nsec = static_cast<long>((time % std::chrono::seconds(1)).count())};  // written to
  const bool interrupted = syscall(SYS_ppoll, nullptr, 0, &wait, nullptr, 0) != 0 && errno == EINTR;
  errno = error;
  return interrupted;
}

Waiters::Waiter::Waiter(Waiters& all, std::unique_lock<std::mutex>& lock) : all_(all), lock_(lock) {
  sem_init(&semaphore_, 0, 0);
  next_ = all_.first_;
  if (next_ != nullptr) next_->previous_ = this;
  all_.first_ = this;
}

Waiters::Waiter::~Waiter() {
  if (!lock_.owns_lock()) lock_.lock();
  (previous_ != nullptr ? previous_->next_ : all_.first_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  sem_destroy(&semaphore_);
}

bool Waiters::Waiter::sleep(std::chrono::nanoseconds most) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const std::chrono::nanoseconds end =
      std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec) + std::min(most, kLongest);
  const timespec until = {.tv_sec = static_cast<time_t>(end / std::chrono::seconds(1)),
                          .tv_nsec = static_cast<long>((end % std::chrono::seconds(1)).count())};
  lock_.unlock();
  const int error = errno;  // the program's
  const bool interrupted = sem_timedwait(&semaphore_, &until) != 0 && errno == EINTR;
  errno = error;
  lock_.lock();
  return interrupted;
}

}  // namespace rota::gate
