// Reuses events: creating and destroying one costs two calls under the driver's own lock, for which all threads of a
// process queue.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "generated/driver_types.h"

namespace rota::driver {

// Events without timing, of any context. Any thread may call.
class SpareEvents {
 public:
  // An event of `context`, which is current; null if none is unused and the driver refused to make one.
  api::CUevent take(api::CUcontext context);
  // Takes an event back that no thread queries or waits for any more. False: there are enough, and the caller destroys
  // it. Does not call the driver.
  bool give_back(api::CUcontext context, api::CUevent event);
  // The context has ended, and its events with it.
  void forget(api::CUcontext context);

 private:
  // A program that is some thousand frees ahead of the GPU is likely to be so again in its next iteration.
  static constexpr std::size_t kMost = 4096;

  std::mutex mutex_;
  std::map<api::CUcontext, std::vector<api::CUevent>> spare_;
};

}  // namespace rota::driver
