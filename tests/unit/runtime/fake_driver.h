// A driver for unit tests: fills real::table with functions that keep just enough state (contexts, memory, streams, the
// progress of the "GPU") for a test to say what happens and to see what rota asked for. Everything not set answers
// CUDA_ERROR_NOT_SUPPORTED, as a driver without that function does. At most one exists at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "generated/driver_functions.h"
#include "generated/driver_symbols.h"
#include "generated/driver_types.h"

namespace rota::test {

class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  static FakeDriver& the();

  // Replaces one function: set<api::cuX_fn>(Symbol::k_cuX, [](…) -> api::CUresult {…}).
  template <typename Function>
  void set(Symbol symbol, Function* function) {
    set_entry(symbol, reinterpret_cast<void*>(function));
  }

  // A context on a device, made current in the calling thread.
  api::CUcontext enter_context(int device);
  void leave_context();
  void destroy(api::CUcontext context);
  // Ends everything in it; its handle is valid afterwards.
  void reset(api::CUcontext context);

  // The GPU: `submitted` counts work, `finished` how much of it is done.
  std::atomic<std::uint64_t> submitted{0};
  std::atomic<std::uint64_t> finished{0};

  std::uint64_t device_bytes = std::uint64_t{1} << 30;
  std::atomic<int> launches{0};
  std::atomic<int> allocation_calls{0};  // every allocating call that reached the driver
  std::atomic<int> managed_allocations{0};
  std::atomic<int> synchronizations{0};
  std::atomic<int> prefetches{0};
  std::atomic<int> marks{0};
  std::atomic<int> mark_result{0};      // what cuCtxRecordEvent answers
  std::atomic<int> dead_uses{0};        // calls on a context or event that has ended
  std::atomic<int> broken_captures{0};  // context events recorded while a stream there captures
  std::atomic<bool> capturing{false};
  std::atomic<int> launch_result{0};
  std::atomic<bool> in_exclusive_hands{false};
  std::atomic<int> intrusions{0};  // launches while `in_exclusive_hands`

  std::mutex mutex;
  std::set<api::CUcontext> contexts;
  std::map<api::CUcontext, int> device_of;
  std::map<std::uint64_t, std::uint64_t> memory;  // address -> bytes
  std::map<api::CUevent, std::uint64_t> events;   // event -> submitted when recorded
  std::map<api::CUevent, api::CUcontext> event_context;
  std::uint64_t next_address = 0x700000000000;
  std::uint64_t next_handle = 0x1000;
  std::set<std::uint64_t> converted_addresses;

  api::CUresult give_memory(api::CUdeviceptr* address, std::uint64_t bytes);
  api::CUresult take_memory(std::uint64_t address);

 private:
  void set_entry(Symbol symbol, void* function);
};

}  // namespace rota::test
