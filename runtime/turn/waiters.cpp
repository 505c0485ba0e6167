#include "runtime/turn/waiters.h"

#include <time.h>

#include <cerrno>

namespace rota::gate {

namespace {

// There only has to be a limit; what it is does not matter.
constexpr time_t kHour = 3600;

}  // namespace

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

bool Waiters::Waiter::sleep() {
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += kHour;
  lock_.unlock();
  const int error = errno;  // the program's
  const bool interrupted = sem_timedwait(&semaphore_, &until) != 0 && errno == EINTR;
  errno = error;
  lock_.lock();
  return interrupted;
}

}  // namespace rota::gate
