// The calling thread's current context, looked at and exchanged for a while.
#pragma once

#include "generated/driver_real.h"

namespace rota::driver {

// Null where there is none, and where the driver does not even say (a forked child's, or one that is shut down).
inline api::CUcontext current_context() {
  api::CUcontext context = nullptr;
  return real::cuCtxGetCurrent(&context) == api::CUDA_SUCCESS ? context : nullptr;
}

// `context` is current while this lives, if it says yes: a context that is no more cannot be pushed. The caller sees to
// it that the context is not destroyed meanwhile.
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

// The same in one call of the driver where `context` is current already, as it is nearly always.
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
