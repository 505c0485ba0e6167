// The calling thread's current context: reading it, and replacing it for a while.
#pragma once

#include "generated/driver_real.h"

namespace rota::driver {

// Null where there is none, and where the driver does not even say (a forked child's, or one that is shut down).
inline api::CUcontext current_context() {
  api::CUcontext context = nullptr;
  return real::cuCtxGetCurrent(&context) == api::CUDA_SUCCESS ? context : nullptr;
}

// `context` is current while this object lives, if it converts to true: a context that no longer exists cannot be
// pushed. The caller ensures that the context is not destroyed during that time.
class PushedContext {
 public:
  explicit PushedContext(api::CUcontext context)
      : pushed_(context != nullptr && real::cuCtxPushCurrent_v2(context) == api::CUDA_SUCCESS) {}
  ~PushedContext() {
    api::CUcontext popped = nullptr;
    if (pushed_) real::cuCtxPopCurrent_v2(&popped);
  }
  PushedContext(const PushedContext&) = delete;
  PushedContext& operator=(const PushedContext&) = delete;

  explicit operator bool() const { return pushed_; }

 private:
  bool pushed_;
};

// The same with only one driver call if `context` is already current, as it nearly always is.
class CurrentContext {
 public:
  explicit CurrentContext(api::CUcontext context)
      : is_(context != nullptr && current_context() == context), pushed_(is_ ? nullptr : context) {}
  explicit operator bool() const { return is_ || pushed_; }

 private:
  bool is_;
  PushedContext pushed_;
};

}  // namespace rota::driver
