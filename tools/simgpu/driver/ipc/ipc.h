// Legacy interprocess handles: memory from cuMemAlloc, and events. Other processes open them with 64 bytes that name
// the exporting process, which must be alive, and the object's location in it.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "tools/simgpu/driver/api.h"
#include "tools/simgpu/driver/event/event.h"

namespace rota::sim {

struct Context;

// A new event that other processes can open; null: the machine has too many.
std::shared_ptr<InterprocessEvent> make_interprocess_event();

// The memory of other processes that this one has opened. Each allocation has one address, however often it is opened.
class ImportedMemory {
 public:
  CUresult open(Context& context, const CUipcMemHandle& handle, uint64_t* address);
  CUresult close(uint64_t address);

 private:
  struct Opened {
    uint64_t id = 0;  // in the shared state
    CUcontext context = nullptr;
    uint64_t buffer_id = 0;  // of the allocation here, which may have been freed with its context
    unsigned count = 0;
  };
  std::mutex mutex_;
  std::map<uint64_t, Opened> opened_;  // by address
};

// Invalid value: not memory from cuMemAlloc.
CUresult export_memory(uint64_t address, CUipcMemHandle* handle);
CUresult export_event(const Event& event, CUipcEventHandle* handle);
// Null: the handle does not name an event.
std::shared_ptr<InterprocessEvent> open_event(const CUipcEventHandle& handle);

}  // namespace rota::sim
