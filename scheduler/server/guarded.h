// An exception in a handler of the event loop (std::bad_alloc, or asio's errors when the kernel is out of memory) ends
// the work of that handler, and not rotad.
#pragma once

#include <exception>

#include "scheduler/server/log.h"

namespace rota::server {

// What was begun last, as the log says it.
inline thread_local const char* latest_work = "";

// False: it threw, and the log says what if that is possible.
template <typename Work>
bool guarded(const char* what, const Work& work) noexcept {
  latest_work = what;
  try {
    work();
    return true;
  } catch (const std::exception& problem) {
    try {
      log::warn("cannot {}: {}", what, problem.what());
    } catch (...) {  // no memory for the line either
    }
  } catch (...) {
  }
  return false;
}

}  // namespace rota::server
