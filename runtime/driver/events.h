// Reuses events: creating and destroying one costs two calls under the driver's own lock, for which all threads of a
// process queue.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "generated/driver_types.h"

namespace rota::driver {

// Events that keep no time, of any context. Any thread may call.
class SpareEvents {
 public:
  // One of `context`, which is current; null if none is spare and the driver would not make one.
  api::CUevent take(api::CUcontext context);
  // No thread queries it or waits for it any more. False: there are enough, and the caller destroys it. Does not call
  // the driver.
  bool give_back(api::CUcontext context, api::CUevent event);
  // The context has ended, and its events with it.
  void forget(api::CUcontext context);

 private:
  // A program that is some thousand frees ahead of the GPU is so again in its next round.
  static constexpr std::size_t kMost = 4096;

  std::mutex mutex_;
  std::map<api::CUcontext, std::vector<api::CUevent>> spare_;
};

}  // namespace rota::driver
