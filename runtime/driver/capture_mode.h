// rota's own calls in the middle of the program's stream capture. An event query from a thread that is not in RELAXED
// mode invalidates a global capture (measured on an H200, driver 580.159), and so does an allocation or a free: in
// RELAXED mode a thread's calls are no part of any capture and do it no harm.
#pragma once

#include "generated/driver_real.h"

namespace rota::driver {

// The calling thread is in RELAXED mode while this lives.
class RelaxedCapture {
 public:
  RelaxedCapture() { active_ = real::cuThreadExchangeStreamCaptureMode(&mode_) == api::CUDA_SUCCESS; }
  ~RelaxedCapture() {
    if (active_) real::cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  api::CUstreamCaptureMode mode_ = api::CU_STREAM_CAPTURE_MODE_RELAXED;
  bool active_;
};

// For rota's own thread, which stays in RELAXED mode to its end.
inline void relax_this_thread() {
  api::CUstreamCaptureMode mode = api::CU_STREAM_CAPTURE_MODE_RELAXED;
  real::cuThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace rota::driver
