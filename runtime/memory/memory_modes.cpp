// Which memory each GPU of the process has, and why.
#include "runtime/core/log.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/memory/memory.h"
#include "runtime/memory/swap/untried.h"

namespace rota::memory {

using protocol::MemoryMode;

void Memory::set_served(bool served) {
  // What was decided before this was known is decided again.
  for (int ordinal = 0; ordinal < kMaxDevices; ++ordinal) set_served(ordinal, served);
}

void Memory::set_served(int ordinal, bool served) {
  if (ordinal < 0 || ordinal >= kMaxDevices) return;
  Device& entry = devices_[static_cast<std::size_t>(ordinal)];
  entry.served.store(served, std::memory_order_relaxed);
  entry.mode.store(MemoryMode::kUnknown, std::memory_order_relaxed);
}

Backend& Memory::backend_for_allocation(int ordinal) {
  if (settings_.backend == Choice::kAuto) turns_->wait_until_served_is_known(ordinal);
  return backend(ordinal);
}

MemoryMode Memory::decide(int ordinal) {
  const Choice choice = settings_.backend;
  if (choice == Choice::kNative) return MemoryMode::kNativeChosen;
  if (exports_.load(std::memory_order_relaxed)) return MemoryMode::kNativeRefused;
  const bool served = devices_[static_cast<std::size_t>(ordinal)].served.load(std::memory_order_relaxed);
  // Memory is the driver's own as long as no rotad serves the process.
  if (choice == Choice::kAuto && !served) return MemoryMode::kUnknown;
  if (choice != Choice::kManaged && sharers_.watched()) return MemoryMode::kNativeWatched;
  const bool larger = choice == Choice::kAuto && settings_.oversubscribe;
  MemoryMode managed = larger ? MemoryMode::kUnifiedLarger : MemoryMode::kUnified;
  using Suitability = ManagedBackend::Suitability;
  const Suitability suitability = managed_.suitability(ordinal);
  // Without managed memory that pages itself it is WSL or a vGPU, where swap has not been tested.
  const bool virtualized = suitability == Suitability::kNoManaged || suitability == Suitability::kNoPaging;
  if (choice == Choice::kSwap || (choice == Choice::kAuto && !larger && !virtualized)) {
    if (sharers_.debugged()) return MemoryMode::kNativeWatched;
    if (swap_.serves(ordinal)) {
      const MemoryMode instead = swap_.untried(ordinal);
      if (instead == MemoryMode::kUnknown) return MemoryMode::kSwap;
      managed = instead;
    }
  }
  // Unified Memory cannot be handed to other processes.
  if (choice == Choice::kAuto && sharers_.found()) return MemoryMode::kNativeShared;
  switch (suitability) {
    case Suitability::kNoManaged:
      return MemoryMode::kNativeNoManaged;
    case Suitability::kNoPaging:
      return MemoryMode::kNativeNoPaging;
    case Suitability::kUnknown:
    case Suitability::kSuitable:
      break;
  }
  return managed;
}

// The one place that says which backend serves plain memory.
Backend& Memory::backend(int ordinal) {
  const MemoryMode mode = decide(ordinal);
  std::atomic<MemoryMode>& known = devices_[static_cast<std::size_t>(ordinal)].mode;
  if (known.load(std::memory_order_relaxed) != mode && known.exchange(mode) != mode) {
    const char* limitation = mode == MemoryMode::kNativeNoManaged ? "has no managed memory"
                             : mode == MemoryMode::kNativeNoPaging
                                 ? "cannot page managed memory by itself (no concurrent "
                                   "managed access, as under WSL and on some vGPUs)"
                                 : nullptr;
    if (limitation != nullptr) {
      // A user who requested Unified Memory should know that there is none.
      log::message(settings_.backend == Choice::kManaged ? log::Level::kWarn : log::Level::kInfo,
                   "GPU {} {}: memory there stays native and cannot be evicted for other programs",
                   driver::gpu_number(ordinal), limitation);
    }
    const bool refuses = settings_.backend == Choice::kSwap && mode != MemoryMode::kSwap && swap_.serves(ordinal);
    if (const char* where = refuses ? protocol::untested_where(swap_.untried(ordinal)) : nullptr; where != nullptr) {
      log::warn("GPU {}: ROTA_MEMORY=swap has not been tested {}: memory there is {}", driver::gpu_number(ordinal),
                where, limitation != nullptr ? "native" : "Unified Memory");
    }
    changed(ordinal);
  }
  if (protocol::is_unified(mode)) return managed_;
  if (mode == MemoryMode::kSwap) return swap_;
  return native_;
}

MemoryMode Memory::mode(int ordinal) {
  if (ordinal < 0 || ordinal >= kMaxDevices) return MemoryMode::kUnknown;
  const std::atomic<MemoryMode>& known = devices_[static_cast<std::size_t>(ordinal)].mode;
  if (known.load(std::memory_order_relaxed) == MemoryMode::kUnknown) backend(ordinal);
  return known.load(std::memory_order_relaxed);
}

// Whether the driver has refused Unified Memory on a GPU that reports it, so that this call and all later ones must be
// made natively.
bool Memory::turned_native(api::CUresult result, const Backend& asked, int ordinal) {
  return result == api::CUDA_ERROR_NOT_SUPPORTED && asked.backing() != Backing::kDevice &&
         backend(ordinal).backing() == Backing::kDevice;
}

}  // namespace rota::memory
