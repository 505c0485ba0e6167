// rota's own streams and events in the program's contexts. They end with their contexts, as everything in a context
// does.
#pragma once

#include <map>
#include <mutex>

#include "generated/driver_real.h"

namespace rota::driver {

// One stream of rota's own per context, created at its first use. It waits for none of the program's streams and none
// waits for it. Any thread may call.
class OwnStreams {
 public:
  // The stream in `context`, which is current; null if the driver refused to make one.
  api::CUstream in(api::CUcontext context);
  // The context has ended, or is about to.
  void forget(api::CUcontext context);

 private:
  std::mutex mutex_;
  std::map<api::CUcontext, api::CUstream> streams_;
};

// An event without timing in the current context; null if the driver did not create one.
inline api::CUevent make_event() {
  api::CUevent event = nullptr;
  return real::cuEventCreate(&event, api::CU_EVENT_DISABLE_TIMING) == api::CUDA_SUCCESS ? event : nullptr;
}

// Records the event behind all work in the stream so far.
inline api::CUresult record(api::CUevent event, api::CUstream stream, bool per_thread) {
  return per_thread ? real::cuEventRecord_ptsz(event, stream) : real::cuEventRecord(event, stream);
}

// Also true for an event whose context has failed or ended: nothing runs there any more.
inline bool reached(api::CUevent event) {
  return real::cuEventQuery(event) != api::CUDA_ERROR_NOT_READY;
}

}  // namespace rota::driver
