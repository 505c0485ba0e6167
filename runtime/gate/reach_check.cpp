#include "runtime/gate/reach_check.h"

#include <atomic>
#include <cstdlib>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/gate/scope.h"
#include "tools/simgpu/reach_check.h"

namespace rota::gate {

namespace {

std::atomic<bool> checks{false};

// Called on the thread that makes the call, inside its scope. Where the gates need not know its GPUs, its word names
// none.
void watch(std::uint64_t devices) {
  if (self == nullptr || self->exempt) return;
  const std::uint64_t word = self->word.load(std::memory_order_relaxed);
  const auto noted = (word & kDeviceMask) >> kDeviceShift;
  if ((word & kSubmittingMask) == 0 || noted == 0) return;
  const Devices counted = bit_of(static_cast<int>(noted) - 1);
  if ((devices & ~counted) == 0) return;
  log::error("a call reaches the GPUs {:#x}, and was let through for {:#x}", devices, counted);
  std::abort();
}

}  // namespace

void check_reached_calls() {
  if (std::getenv("ROTA_CHECK_REACHED") == nullptr) return;  // NOLINT(concurrency-mt-unsafe)
  const void* table = nullptr;
  if (real::cuGetExportTable(&table, &sim::kReachCheckId) != api::CUDA_SUCCESS || table == nullptr) return;
  static_cast<const sim::ReachCheck*>(table)->set(&watch);
  checks = true;
}

bool checks_reached_calls() {
  return checks.load(std::memory_order_relaxed);
}

}  // namespace rota::gate
