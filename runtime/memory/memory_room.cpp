// Whether an allocation may be made: by the ledger, by limits that processes share, by room on the GPU.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/memory/memory.h"

namespace rota::memory {

namespace {

// How often an allocation waits for the answer that another thread's gets, before it is refused. Judgement.
constexpr int kMostOthers = 64;

// How long the driver's free memory may stay as it is until nobody is taken to be clearing it. Judgement.
constexpr auto kNoProgress = std::chrono::milliseconds(200);

}  // namespace

bool Memory::reserve(int ordinal, std::uint64_t bytes, Kind kind) {
  if (ordinal < 0 || ordinal >= kMaxDevices) return true;
  const std::uint64_t limit = settings_.limit_bytes;
  const std::uint64_t most = capacity(ordinal);
  if (ledger_.limit(ordinal) != limit) ledger_.set_limit(ordinal, limit);
  if (ledger_.capacity(ordinal) != most) ledger_.set_capacity(ordinal, most);
  if (graphs_.any()) graphs_.look(ordinal);
  // What was freed in a stream and has not been reached is in use: the driver refuses then, too, and does not wait
  // (measured on an H200 for cuMemAlloc and cuMemAllocAsync after a cuMemFreeAsync of plain memory).
  // And what other threads are only asking for may be refused.
  bool swept = false;
  bool alone = false;  // nobody asks, so what is in the way is in use
  for (int tries = 0; tries < kMostOthers; ++tries) {
    const bool fits = ledger_.reserve(ordinal, bytes, kind);
    if (fits && admitted(ordinal, bytes, kind)) return true;
    if (!std::exchange(swept, true) && sweep_deferred()) continue;
    if (fits) {
      if (room_.explain) room_.explain(ordinal);
      return false;
    }
    if (alone) break;
    alone = !room_.wait_for_others || !room_.wait_for_others(ordinal);
  }
  static log::Once once;
  if (!once.first()) return false;
  const std::uint64_t live = ledger_.live_bytes(ordinal);
  if (limit <= most) {
    log::warn(
        "{} bytes on GPU {} refused: this process has {} of the {} that ROTA_GPU_MEM_LIMIT or `rota run --gpu-mem` "
        "allows: raise it, or let the program need less",
        bytes, ordinal, live, limit);
  } else if (backend(ordinal).backing() == Backing::kSwapped) {
    log::warn(
        "{} bytes on GPU {} refused: this process has {} of the {} that the GPU has for it, all of which has to be "
        "there at once",
        bytes, ordinal, live, most);
  } else if (settings_.oversubscribe) {
    log::warn("{} bytes on GPU {} refused: {} of {} are in use, which is the GPU and what the host had left", bytes,
              ordinal, live, most);
  } else {
    log::warn(
        "{} bytes on GPU {} refused: this process has {} of the GPU's {}, its contexts {}. `rota run "
        "--oversubscribe` (or ROTA_OVERSUBSCRIBE=1) lets a process have more than the GPU; it is slow where all of it "
        "is used at once",
        bytes, ordinal, live, device(ordinal).total_bytes, contexts(ordinal));
  }
  return false;
}

// Of bytes that are reserved, and are given up if they may not be taken, or if the thread is cancelled while it waits.
bool Memory::admitted(int ordinal, std::uint64_t bytes, Kind kind) {
  struct Reserved {
    ~Reserved() {
      if (ledger != nullptr) ledger->release(ordinal, bytes, kind);
    }
    Ledger* ledger;
    int ordinal;
    std::uint64_t bytes;
    Kind kind;
  } reserved{&ledger_, ordinal, bytes, kind};
  if (room_.allowed && !room_.allowed(ordinal, bytes, kind)) {
    reserved.ledger = nullptr;
    return false;
  }
  if (room_.wait) room_.wait(ordinal);
  reserved.ledger = nullptr;
  return true;
}

// Limits shared with others are known once rotad has told of them.
Room::Limit Memory::shared_limit(int ordinal) const {
  return room_.limit ? room_.limit(ordinal) : Room::Limit{};
}

std::uint64_t Memory::limit(int ordinal) const {
  return std::min(settings_.limit_bytes, shared_limit(ordinal).total);
}

// Tried once more, if others have made room.
api::CUresult Memory::with_room(int ordinal, const RealCall& call) {
  const auto more = [&](api::CUresult result) {
    if (result != api::CUDA_ERROR_OUT_OF_MEMORY || !served_.load(std::memory_order_relaxed)) return result;
    return backend(ordinal).backing() == Backing::kSwapped ? wait_for_driver(ordinal, call) : result;
  };
  const api::CUresult result = more(call());
  if (result != api::CUDA_ERROR_OUT_OF_MEMORY || !room_.make || !room_.make(ordinal)) return result;
  return more(call());
}

// rotad has promised the room, and those who are to clear it may be at it still. Not for longer than the driver's free
// memory stays as it is.
api::CUresult Memory::wait_for_driver(int ordinal, const RealCall& call) {
  using Clock = std::chrono::steady_clock;
  const auto free_now = [] {
    std::size_t free = 0;
    std::size_t total = 0;
    return real::cuMemGetInfo_v2(&free, &total) == api::CUDA_SUCCESS ? free : 0;
  };
  std::size_t free = free_now();
  for (Clock::time_point grown = Clock::now(); Clock::now() - grown < kNoProgress;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const api::CUresult result = call();
    if (result != api::CUDA_ERROR_OUT_OF_MEMORY) return result;
    if (const std::size_t now = free_now(); std::exchange(free, now) < now) grown = Clock::now();
  }
  return api::CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace rota::memory
