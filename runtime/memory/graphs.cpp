#include "runtime/memory/graphs.h"

#include "generated/driver_real.h"
#include "runtime/driver/capture_mode.h"

namespace rota::memory {

void Graphs::allocate_on(int device) {
  if (device < 0 || device >= kMaxDevices) return;
  const std::uint64_t bit = std::uint64_t{1} << device;
  if ((devices_.load(std::memory_order_relaxed) & bit) == 0) devices_.fetch_or(bit, std::memory_order_relaxed);
}

bool Graphs::poll(int device) {
  if (device < 0 || device >= kMaxDevices) return false;
  if ((devices_.load(std::memory_order_relaxed) >> device & 1) == 0) return false;
  const driver::RelaxedCapture relaxed;
  // The lock is held while the driver answers, so that the newest answer is the one that stays.
  const std::lock_guard lock(state_->mutex);
  api::cuuint64_t reserved = 0;
  if (real::cuDeviceGetGraphMemAttribute(device, api::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) !=
      api::CUDA_SUCCESS) {
    return false;
  }
  std::uint64_t& charged = state_->charged[static_cast<std::size_t>(device)];
  if (reserved == charged) return false;
  if (reserved > charged) ledger_.charge(device, reserved - charged, Kind::kGraph);
  if (reserved < charged) ledger_.release(device, charged - reserved, Kind::kGraph);
  charged = reserved;
  return true;
}

std::vector<int> Graphs::poll() {
  std::vector<int> changed;
  if (!any()) return changed;
  for (int device = 0; device < kMaxDevices; ++device) {
    if (poll(device)) changed.push_back(device);
  }
  return changed;
}

}  // namespace rota::memory
