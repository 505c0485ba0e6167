#include "runtime/turn/bring_back.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "generated/driver_real.h"

namespace rota::turn {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

bool bring_back(gate::Contexts& contexts, memory::Memory& memory, const std::vector<Destination>& destinations,
                const std::function<bool()>& stopping) {
  struct Move {
    api::CUcontext context;
    api::CUstream stream = nullptr;
    api::CUevent event = nullptr;
  };
  std::vector<Move> moves;
  std::uint64_t bytes = 0;
  for (const auto& [device, most] : destinations) {
    if (memory.ledger().live_bytes(device) == memory.ledger().fixed_bytes(device)) continue;
    Move move{.context = contexts.any(device)};
    if (move.context == nullptr) continue;
    contexts.within(move.context, [&, device = device, most = most] {
      if (real::cuStreamCreate(&move.stream, api::CU_STREAM_NON_BLOCKING) != api::CUDA_SUCCESS) return;
      bytes += memory.bring(device, move.stream, most);
      if (real::cuEventCreate(&move.event, api::CU_EVENT_DISABLE_TIMING) == api::CUDA_SUCCESS) {
        real::cuEventRecord(move.event, move.stream);
      }
    });
    if (move.stream != nullptr) moves.push_back(move);
  }
  // 20 GB/s: well below what the link does, well above faults.
  const auto until = Clock::now() + 20ms + std::chrono::nanoseconds(bytes / 20);
  for (const Move& move : moves) {
    bool waiting = move.event != nullptr;
    for (std::chrono::nanoseconds pause = 50us; waiting && !stopping() && Clock::now() < until;) {
      // Under the lock each time: the context may be destroyed while we wait, and stream and event with it.
      const auto looked =
          contexts.within(move.context, [&] { waiting = real::cuEventQuery(move.event) == api::CUDA_ERROR_NOT_READY; });
      if (looked == gate::Contexts::Within::kGone) break;
      if (waiting) std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::nanoseconds>(pause * 2, 1ms);
    }
    contexts.within(move.context, [&] {
      if (move.event != nullptr) real::cuEventDestroy_v2(move.event);
      real::cuStreamDestroy_v2(move.stream);
    });
  }
  return true;
}

}  // namespace rota::turn
