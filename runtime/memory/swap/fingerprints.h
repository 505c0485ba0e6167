// What memory of the GPU holds, told by the GPU itself: a kernel of rota's reads it at the speed of the GPU's memory,
// some fifty times that of the bus, and leaves a *print* of each chunk (fingerprint_kernel.h). Memory whose prints are
// those of its copy on the host need not be copied again.
//
// Nothing that rota sees tells what a kernel of the program wrote, so this is the only way to know.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/memory/swap/fingerprint_kernel.h"

namespace rota::memory {

class Fingerprints {
 public:
  using Sums = std::array<std::uint64_t, fingerprint::kSums>;
  struct Seen {
    std::vector<Sums> chunks;  // of fingerprint::kChunkBytes, the last one shorter; empty: not known
    bool zero = false;         // known, and there is nothing but zeros
  };
  struct Memory {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // multiple of 16
  };
  // At most so many bytes are looked at at a time.
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 30;

  // Runs a step with the context current, if there still is one.
  using Within = std::function<bool(const std::function<void()>& step)>;
  // Until the event is reached.
  using WaitFor = std::function<api::CUresult(api::CUevent event)>;

  // Draws keys: prints of one process mean nothing to another.
  Fingerprints();

  // What each piece holds, as of when nothing that was submitted before is left to run; nothing of this process may run
  // meanwhile, and all of it stays mapped. Where the kernel cannot run, nothing is known of any.
  std::vector<Seen> look(const std::vector<Memory>& all, api::CUcontext context, const Within& within,
                         const WaitFor& wait_for);
  // The context has ended, or is about to.
  void forget(api::CUcontext context);

 private:
  using Clock = std::chrono::steady_clock;
  struct Loaded {
    api::CUfunction kernel = nullptr;
    api::CUdeviceptr prints = 0;
    bool failed = false;
    Clock::time_point again = Clock::time_point::max();  // when to try it once more
  };
  Loaded load(api::CUcontext context);
  void give_up(api::CUcontext context, const char* what, api::CUresult result);

  fingerprint::Keys keys_{};
  std::mutex mutex_;  // the field below
  std::map<api::CUcontext, Loaded> loaded_;
};

}  // namespace rota::memory
