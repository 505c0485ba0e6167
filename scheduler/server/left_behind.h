// Ends a thread that owns its state and may be blocked by something outside rotad (a driver call, a file system).
#pragma once

#include <thread>

namespace rota::server {

// `ended`: the thread has ended, or is about to; otherwise it is left behind.
inline void join_or_leave_behind(std::thread& thread, bool ended) {
  if (!thread.joinable()) return;
  if (ended) {
    thread.join();
  } else {
    thread.detach();
  }
}

}  // namespace rota::server
