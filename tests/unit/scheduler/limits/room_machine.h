// A RoomQueue with a clock, and requests of which most are a client's only thread's.
#pragma once

#include <string>

#include "scheduler/limits/room_queue.h"

namespace rota::scheduler::room {

using namespace std::chrono_literals;

inline constexpr Time kBegin = 1000s;

struct Machine {
  RoomQueue queue;
  Time now = kBegin;
  std::uint32_t number = 0;

  void has(ClientId client, Bytes bytes, std::uint32_t gang = 0, GpuIndex gpu = 0) {
    queue.has(client, gpu, gang, bytes, now);
  }
  // Whether all threads of the client's wait.
  void blocks(ClientId client, bool blocks, Time began = {}) { queue.blocks(client, blocks, began); }
  // A request that the driver has just refused; of `since` if it is an older one that has tried again. Of the client's
  // only thread.
  void await(ClientId client, Bytes bytes, Time since = {}, GpuIndex gpu = 0) {
    queue.await({.client = client,
                 .gpu = gpu,
                 .number = ++number,
                 .bytes = bytes,
                 .since = since == Time{} ? now : since,
                 .tried = now,
                 .most = 100});
    blocks(client, true);
  }
  // "3 again, 4 refused"
  std::string settle(Time later = {}) {
    now += later;
    std::string text;
    for (const RoomQueue::Answer& each : queue.decide(now)) {
      text += (text.empty() ? "" : ", ") + std::to_string(each.client) + (each.again ? " again" : " refused");
    }
    return text;
  }
};

}  // namespace rota::scheduler::room
