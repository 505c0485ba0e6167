// While one exists, its thread is not cancelled (pthread_cancel). A wait would be a point for that: in a function that
// must not throw the program would end, and in one that is used like a driver's its locks and files would be left.
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
