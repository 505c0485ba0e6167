#include "runtime/memory/swap/flight.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "runtime/core/log.h"

namespace rota::memory {

using namespace std::chrono_literals;

namespace {

// The longest time between two queries of an event. Another process waits for the extent behind it; copies of 128 MiB
// end every 2.7 ms (H200). Judgement.
constexpr std::chrono::nanoseconds kLongestPause = 100us;
// Far longer than any copy of an extent, or than the kernel takes that examines extents. A judgment.
constexpr std::chrono::nanoseconds kLongestCopy = 5s;

}  // namespace

void wait_for_stream(const Move& move) {
  real::cuStreamSynchronize(move.stream);
}

Answer wait_for(const Move& move, api::CUevent event) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::chrono::nanoseconds pause = 20us;;
       pause = std::min<std::chrono::nanoseconds>(pause * 3 / 2, kLongestPause)) {
    api::CUresult result = api::CUDA_SUCCESS;
    if (!move.while_alive([&] { result = real::cuEventQuery(event); })) return std::nullopt;
    if (result == api::CUDA_SUCCESS) return result;
    // If the driver keeps saying that a copy is not over, it is asked to synchronize the stream instead.
    if (result == api::CUDA_ERROR_NOT_READY && std::chrono::steady_clock::now() - begin > kLongestCopy) {
      if (!move.within([&] { result = real::cuStreamSynchronize(move.stream); })) return std::nullopt;
      return result;
    }
    if (result != api::CUDA_ERROR_NOT_READY) {
      move.within([&] { wait_for_stream(move); });
      return result;
    }
    move.stopping();  // serves other processes in the meantime; a copy under way is waited for in any case
    std::this_thread::sleep_for(pause);
  }
}

bool is_over(const Move& move, api::CUevent event) {
  bool over = true;
  move.while_alive([&] { over = real::cuEventQuery(event) != api::CUDA_ERROR_NOT_READY; });
  return over;
}

void CopyTimes::starts() {
  if (first_.count() == 0) first_ = std::chrono::steady_clock::now().time_since_epoch();
}

void CopyTimes::ended() {
  last_ = std::chrono::steady_clock::now().time_since_epoch();
}

void CopyTimes::say(const char* way, int device, std::uint64_t bytes) const {
  if (first_.count() == 0 || bytes == 0) return;
  log::debug("GPU {}: {} bytes copied {} between {} and {} ns", device, bytes, way, first_.count(), last_.count());
}

}  // namespace rota::memory
