// Detects on the GPU what its memory contains: a kernel of rota's reads it at the speed of the GPU's memory, some fifty
// times that of the bus, and writes a *print* of each chunk (fingerprint_kernel.h). Memory with the same prints as its
// copy on the host need not be copied again.
//
// Nothing else tells rota what the program's kernels wrote.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/core/function_ref.h"
#include "runtime/memory/swap/fingerprint_kernel.h"

namespace rota::memory {

class Fingerprints {
 public:
  using Sums = std::array<std::uint64_t, fingerprint::kSums>;
  struct Seen {
    std::vector<Sums> chunks;  // of fingerprint::kChunkBytes, the last one shorter; empty: not known
    bool zero = false;         // known, and all bytes are zero
  };
  struct Memory {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // multiple of 16
  };
  // At most this many bytes are examined at a time.
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 30;

  // Runs a step with the context current, if there still is one.
  using Within = std::function<bool(FunctionRef<void()> step)>;
  // Waits until the event is reached. Nothing: its context has ended.
  using WaitFor = std::function<std::optional<api::CUresult>(api::CUevent event)>;

  // Draws random keys: prints of one process mean nothing to another.
  Fingerprints();

  // What each part of memory contains once all work submitted before has finished. No work of this process may run
  // during that, and all of the memory stays mapped. If the kernel cannot run, nothing is known about any part.
  std::vector<Seen> examine(const std::vector<Memory>& all, api::CUcontext context, const Within& within,
                            const WaitFor& wait_for);
  // The context has ended, or is about to.
  void forget(api::CUcontext context);

 private:
  using Clock = std::chrono::steady_clock;
  struct Loaded {
    api::CUfunction kernel = nullptr;
    // Pinned memory of the host's, which ends with the context, and where the GPU sees it.
    const fingerprint::Print* prints = nullptr;
    api::CUdeviceptr prints_on_gpu = 0;
    bool failed = false;
    Clock::time_point again = Clock::time_point::max();  // when to try again
  };
  Loaded load(api::CUcontext context);
  void give_up(api::CUcontext context, const char* what, api::CUresult result);

  fingerprint::Keys keys_{};
  std::mutex mutex_;  // the field below
  std::map<api::CUcontext, Loaded> loaded_;
};

}  // namespace rota::memory
