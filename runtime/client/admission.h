// Under `rota ci` a test whose needs are known begins its GPU work when it fits: before a process's first context, and
// when a plugin says that the next test begins, the process asks `rota ci` and waits for its answer. With its
// option --gpus-per-test it also asks, before cuInit, which GPUs are its own.
//
// The conversation is one message each way on the socket that ROTA_ADMISSION names; `rota ci` itself finds out which
// process asks, and for which test. It answers within a minute, whether or not there is enough memory, and the end of
// the connection frees what was reserved for the process. Without an answer (`rota ci` has ended, or is unresponsive)
// the process goes on.
//
// GPUs are given by CUDA_VISIBLE_DEVICES, which the driver reads in cuInit. ROTA_CI_GPUS holds the value that rota
// expects there: the command's own at first, then the one that was given. A process in which the two differ has chosen
// for itself, and does not ask.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "scheduler/base/descriptor.h"

namespace rota::client {

struct AdmissionRequest {
  // First context; test begins; has ended; which GPUs are this process's?
  enum class What : std::uint32_t { kFirst = 1, kNext = 2, kDone = 3, kGpus = 4 };
  struct Gpu {
    unsigned char uuid[16];
    std::uint64_t total_bytes;
  };
  static constexpr std::size_t kMostGpus = 16;
  static constexpr std::size_t kMostText = 1024;
  What what;
  // Of kFirst: GPUs that the process sees, in its order, and which of them the context will be on.
  std::uint32_t gpu_count;
  std::uint32_t first;
  std::uint32_t padding;
  Gpu gpus[kMostGpus];
  // Of kGpus: ROTA_CI_GPUS, or "" from a process that takes no GPUs over from its parent.
  char inherited[kMostText];
};
// The answer to kFirst and kNext; that to kGpus is a value for CUDA_VISIBLE_DEVICES, of less than kMostText bytes.
inline constexpr char kAdmissionGranted = 'g';

class Admission {
 public:
  // Before a context is created on this GPU. Only the first call of a process waits, and calls that come meanwhile.
  void enter(int device) noexcept {
    if (!entered_.load(std::memory_order_acquire)) ask_first(device);
  }
  // Before cuInit. `own`: the GPUs must not be those of the process that started this one.
  void choose_gpus(bool own) noexcept {
    if (!chosen_.load(std::memory_order_acquire)) ask_for_gpus(own);
  }
  // next(): a test begins in this process. done(): one has ended. Both do nothing before enter().
  void next() noexcept;
  void done() noexcept;

  // In the child of a fork, before a new runtime is created: closes the parent's connection.
  static void forget_in_child() noexcept;

 private:
  void ask_first(int device) noexcept;
  void ask_for_gpus(bool own) noexcept;
  bool send(const AdmissionRequest& request) const noexcept;
  std::string ask(const AdmissionRequest& request);
  void hang_up() noexcept;
  void connect() noexcept;

  std::atomic<bool> entered_{false};
  std::atomic<bool> chosen_{false};
  std::mutex mutex_;
  Descriptor connection_;
};

}  // namespace rota::client
