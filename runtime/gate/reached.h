// Which GPUs a call reaches: that of its stream or current context, and those of the addresses that it names. Asked at
// each call while the gates of several GPUs differ or calls are counted by GPU (gate.h), so the answers are remembered.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "runtime/driver/contexts.h"
#include "runtime/gate/scope.h"

namespace rota::gate {

// On which GPU memory lies. Any thread.
class MemoryPlaces {
 public:
  virtual ~MemoryPlaces() = default;
  // Changes whenever the GPU of an address that was `booked` may have changed.
  virtual std::uint64_t changes() const = 0;
  // Negative: host memory, or unknown to the driver. `booked`: it is remembered until changes() does.
  virtual int device_of(std::uint64_t address, bool* booked) const = 0;
  virtual int device_of_array(const void* handle) const = 0;
};

class Reached {
 public:
  Reached(const MemoryPlaces& memory, driver::Contexts& contexts) : memory_(memory), contexts_(contexts) {}

  struct Answer {
    Devices devices = kAllDevices;
    // Of these, that of the stream or the current context, and those of the addresses.
    Devices works = kAllDevices;
    Devices memory = 0;
    // Of the stream, or the current one, where it has just been looked up; null: it is known.
    api::CUcontext context = nullptr;
    int device = -1;
  };
  Answer by(const driver::Call& call);
  // The same with at most one question to the driver, and one that it answers at once; 0: more are needed.
  Devices at_once(const driver::Call& call);
  // The GPU of a context (null: the current one); all GPUs, where the driver does not say.
  Devices of(api::CUcontext context);
  // The GPUs of the device memory at these addresses; null: no address.
  Devices at(const void* first, const void* second);
  Devices at(std::uint64_t address);
  // The GPU of an array (null: no array); all GPUs, where it is not known.
  Devices of_array(const void* handle);

 private:
  // The GPU of a key: a stream or context by its handle, memory by aligned ranges of kPiece. A writer raises `change`
  // to an odd number, and a reader that sees one asks the driver.
  class Table {
   public:
    // Nothing: not known. `as_of`: a number that changes before the answer may be different.
    std::optional<int> find(std::uint64_t key, std::uint64_t as_of) const;
    void add(std::uint64_t key, int device, std::uint64_t as_of);

   private:
    struct Known {
      std::atomic<std::uint32_t> change{0};
      std::atomic<int> device{0};
      std::atomic<std::uint64_t> key{0};
      std::atomic<std::uint64_t> as_of{0};
    };
    static std::size_t place_of(std::uint64_t key);
    std::array<Known, 256> known_;
  };
  Devices memory_of(const driver::Call& call);
  // Of one side of a copy: the address lies at `place` in the record.
  Devices side_of(const void* record, std::uintptr_t place);
  // Negative: the driver does not say.
  int of_context(api::CUcontext context, Answer& answer);
  int of_stream(api::CUstream stream, Answer& answer);

  const MemoryPlaces& memory_;
  driver::Contexts& contexts_;
  Table handles_;
  Table pieces_;
};

}  // namespace rota::gate
