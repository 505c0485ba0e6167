// The core's time, as opposed to real time. With a simulated GPU whose time is stretched (ROTA_SIM_TIME_SCALE real
// seconds per modelled second, as simgpu reads it) quanta and patience have to be stretched like the work that they
// measure, so the core uses modelled time. With a real GPU both are the same. The time within which a lost connection
// may come back, and the idle time after which a daemon ends, are always real time.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdlib>

#include "scheduler/core/settings.h"

namespace rota::server {

class ModelledTime {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  // `from`: any CLOCK_MONOTONIC time; both times are the same then.
  explicit ModelledTime(double scale = 1, Nanoseconds from = std::chrono::steady_clock::now().time_since_epoch())
      : scale_(scale), from_(from) {}

  scheduler::Time modelled(Nanoseconds real) const {
    if (scale_ == 1) return real;
    return from_ + Nanoseconds(std::llround(static_cast<double>((real - from_).count()) / scale_));
  }
  // Never too early: at the returned time modelled() has reached `time`.
  Nanoseconds real(scheduler::Time time) const {
    if (scale_ == 1) return time;
    return from_ + Nanoseconds(std::llround(static_cast<double>((time - from_).count()) * scale_)) +
           std::chrono::microseconds(1) + Nanoseconds(std::llround(scale_));
  }

  // The value of ROTA_SIM_TIME_SCALE; 1 if it is unset, 0 (nothing waits) or invalid.
  static double scale_of(const char* text) {
    if (text == nullptr) return 1;
    char* end = nullptr;
    const double scale = std::strtod(text, &end);
    return end != text && *end == '\0' && scale >= 0.001 && scale <= 1e6 ? scale : 1;
  }

 private:
  double scale_;
  Nanoseconds from_;
};

}  // namespace rota::server
