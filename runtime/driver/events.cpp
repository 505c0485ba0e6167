#include "runtime/driver/events.h"

#include "runtime/driver/capture_mode.h"
#include "runtime/driver/own_streams.h"

namespace rota::driver {

api::CUevent SpareEvents::take(api::CUcontext context) {
  {
    const std::lock_guard lock(mutex_);
    const auto spare = spare_.find(context);
    if (spare != spare_.end() && !spare->second.empty()) {
      const api::CUevent event = spare->second.back();
      spare->second.pop_back();
      return event;
    }
  }
  const RelaxedCapture relaxed;
  return make_event();
}

bool SpareEvents::give_back(api::CUcontext context, api::CUevent event) {
  const std::lock_guard lock(mutex_);
  std::vector<api::CUevent>& spare = spare_[context];
  if (spare.size() >= kMost) return false;
  spare.push_back(event);
  return true;
}

void SpareEvents::forget(api::CUcontext context) {
  const std::lock_guard lock(mutex_);
  spare_.erase(context);
}

}  // namespace rota::driver
