// While one exists, its thread is not cancelled (pthread_cancel). A wait is a cancellation point: in a function that
// must not throw, a cancellation would end the program, and in a function of the driver it would leave locks held and
// files open.
#pragma once

#include <pthread.h>

namespace rota {

class NotCancelled {
 public:
  NotCancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NotCancelled() { pthread_setcancelstate(before_, nullptr); }
  NotCancelled(const NotCancelled&) = delete;
  NotCancelled& operator=(const NotCancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace rota
