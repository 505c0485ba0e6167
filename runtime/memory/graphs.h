// Memory of graphs: what allocation nodes and captured allocations take. It belongs to the graph and the driver, begins
// and ends with launches and trims that name no bytes, and outlives contexts. So it is counted as a whole: the driver
// is asked how much a GPU's graphs have reserved whenever that matters. Programs whose graphs allocate nothing pay for
// one load.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/memory/ledger.h"

namespace rota::memory {

class Graphs {
 public:
  explicit Graphs(Ledger& ledger) : ledger_(ledger), state_(std::make_unique<State>()) {}

  // A graph of the program's allocates on this GPU when it runs. Any thread.
  void allocate_on(int device);
  // Whether any does.
  bool any() const { return devices_.load(std::memory_order_relaxed) != 0; }
  // Asks the driver what a GPU's graphs have reserved, and charges that. Returns whether it has changed. Needs no
  // context. Does nothing if no graph allocates there.
  bool poll(int device);
  // The same for every GPU on which graphs allocate: those where it has changed.
  std::vector<int> poll();

 private:
  struct State {
    std::mutex mutex;
    std::array<std::uint64_t, kMaxDevices> charged{};
  };

  Ledger& ledger_;
  std::atomic<std::uint64_t> devices_{0};  // a bit each
  std::unique_ptr<State> state_;
};

static_assert(kMaxDevices <= 64, "a bit each");

}  // namespace rota::memory
