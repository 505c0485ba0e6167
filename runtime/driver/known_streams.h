// A cache of what never changes about a stream, its context and its GPU, by its handle and its number. The handle alone
// is not a key: the driver reuses it once its stream is destroyed, but never a number. A context's legacy stream lives
// as long as the context, which is its key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "generated/driver_types.h"

namespace rota::driver {

struct KnownStream {
  std::uint64_t number = 0;          // 0: the driver does not say (before CUDA 12.0)
  api::CUcontext context = nullptr;  // null: the driver does not say, or there is none
  int device = -1;                   // of the context; -1: the driver does not say
};

// Any thread may call.
class KnownStreams {
 public:
  KnownStreams() : slots_(std::make_unique<Slots>()) {}

  // Asks the driver for the number, or for a legacy stream which context is current, and for the rest if the stream is
  // not known.
  KnownStream identify(api::CUstream stream, bool per_thread);
  // The context has ended or is about to, and its streams with it.
  void forget(api::CUcontext context);
  // The same for the null streams of all contexts, where it is not known which one ends.
  void forget_null_streams();

 private:
  struct alignas(64) Slot {
    std::mutex mutex;
    api::CUstream handle = nullptr;
    KnownStream stream;
  };
  using Slots = std::array<Slot, 64>;  // the last one seen of those that share it

  Slot& slot_of(std::uint64_t key) { return (*slots_)[(key * 0x9e3779b97f4a7c15u) >> 58]; }
  KnownStream legacy_of_current();

  std::unique_ptr<Slots> slots_;
};

}  // namespace rota::driver
