// The end of a thread that owns its state: something outside rotad (a driver's call, a file system) may keep it.
#pragma once

#include <thread>

namespace rota::server {

// `ended`: it has, or is about to; otherwise it is left behind.
inline void join_or_leave_behind(std::thread& thread, bool ended) {
  if (!thread.joinable()) return;
  if (ended) {
    thread.join();
  } else {
    thread.detach();
  }
}

}  // namespace rota::server
