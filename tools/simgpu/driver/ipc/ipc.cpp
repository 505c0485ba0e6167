// The content of the handles, and how another process's memory gets into this one's window: its memfd is opened through
// /proc, so no descriptor is passed and nothing remains when processes die.
#include "tools/simgpu/driver/ipc/ipc.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "scheduler/base/descriptor.h"
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/state/clock.h"

namespace rota::sim {
namespace {

constexpr uint64_t kMemoryMark = 0x6d70697570676d73;
constexpr uint64_t kEventMark = 0x6570697570676d73;

struct MemoryHandle {
  uint64_t mark;
  uint64_t id;      // in the shared state
  uint64_t offset;  // in the exporter's memfd
  uint64_t bytes;
  uint64_t charged;
  int32_t process;
  int32_t file;  // the memfd's descriptor number in that process
  int32_t gpu;   // the GPU's number in the machine
};
static_assert(sizeof(MemoryHandle) <= sizeof(CUipcMemHandle));

struct EventHandle {
  uint64_t mark;
  uint64_t id;
  int32_t process;
};
static_assert(sizeof(EventHandle) <= sizeof(CUipcEventHandle));

// False: the context that the thread works for is being destroyed, or all contexts, if the thread works for none
// (null).
bool can_wait(const Context* running) {
  return running != nullptr ? !is_destroyed(running) : !driver().contexts.empty();
}

class SharedEvent : public InterprocessEvent {
 public:
  explicit SharedEvent(uint64_t id) : id_(id) {}
  ~SharedEvent() override { driver().state().let_go_event(id_); }
  uint64_t begin() override { return driver().state().record_event(id_); }
  void end(uint64_t record) override {
    int64_t timeline = thread_timeline();
    driver().state().complete_event(id_, record, timeline != 0 ? timeline : process_clock().now());
  }
  uint64_t last() const override { return driver().state().last_record(id_); }
  bool done(uint64_t record) const override {
    return driver().state().event_done(id_, record) || mutated(Mutation::shared_events_are_always_complete);
  }
  void wait(uint64_t record) const override {
    auto over = [this, record, running = running_context()] { return done(record) || !can_wait(running); };
    if (process_clock().is_virtual()) {
      process_clock().wait(over);  // a record of this process: no other can use the machine
    } else {
      while (!over()) driver().state().wait_for_event(id_, record);
    }
    int64_t& timeline = thread_timeline();
    if (timeline == 0 || record == 0) return;
    // It may have been reached long before this query.
    int64_t reached = driver().state().completion_time(id_);
    timeline = std::max(timeline, reached != 0 ? reached : process_clock().now());
  }
  uint64_t id() const { return id_; }

 private:
  const uint64_t id_;
};

constexpr uint64_t charge_of(uint64_t bytes) {
  return round_up(bytes, AddressSpace::kGranularity);
}

}  // namespace

std::shared_ptr<InterprocessEvent> make_interprocess_event() {
  uint64_t id = driver().state().add_event();
  return id == 0 ? nullptr : std::make_shared<SharedEvent>(id);
}

CUresult export_event(const Event& event, CUipcEventHandle* handle) {
  auto shared = std::dynamic_pointer_cast<SharedEvent>(event.shared);
  if (!shared) return CUDA_ERROR_INVALID_HANDLE;
  EventHandle told{kEventMark, shared->id(), getpid()};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &told, sizeof told);
  return CUDA_SUCCESS;
}

std::shared_ptr<InterprocessEvent> open_event(const CUipcEventHandle& handle) {
  EventHandle told;
  std::memcpy(&told, &handle, sizeof told);
  if (told.mark != kEventMark || !driver().state().hold_event(told.id)) return nullptr;
  return std::make_shared<SharedEvent>(told.id);
}

CUresult export_memory(uint64_t address, CUipcMemHandle* handle) {
  auto allocation = driver().memory.find(address);
  bool plain = allocation && allocation->kind == MemoryKind::kDevice && !allocation->pool && !allocation->physical &&
               !allocation->imported && !allocation->graph && !allocation->freeing;
  if (!plain || allocation->context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SharedState& state = driver().state();
  if (allocation->shared_id == 0) {
    Migration migration;
    uint64_t id = state.share(allocation->gpu, charge_of(allocation->bytes), true, &migration);
    if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!driver().memory.mark_shared(allocation->address, id)) {
      // Another thread was first, or has freed it: undo.
      state.unshare(id);
    }
    allocation = driver().memory.find(address);
    if (!allocation || allocation->shared_id == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  Pages pages = driver().memory.pages(allocation->address);
  uint64_t id = mutated(Mutation::handles_stay_with_addresses) ? 0 : allocation->shared_id;
  MemoryHandle told{kMemoryMark,
                    id,
                    pages.offset,
                    allocation->bytes,
                    charge_of(allocation->bytes),
                    getpid(),
                    pages.fd,
                    state.physical(allocation->gpu)};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &told, sizeof told);
  return CUDA_SUCCESS;
}

CUresult ImportedMemory::open(Context& context, const CUipcMemHandle& handle, uint64_t* address) {
  MemoryHandle told;
  std::memcpy(&told, &handle, sizeof told);
  if (told.mark != kMemoryMark || told.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (told.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  int gpu = driver().state().visible(told.gpu);
  if (gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(mutex_);
  for (auto& [start, opened] : opened_) {
    if (opened.id != told.id || opened.context != context.handle()) continue;
    auto allocation = driver().memory.find(start);
    if (!allocation || allocation->buffer_id != opened.buffer_id) continue;
    if (!mutated(Mutation::opened_memory_is_not_counted)) ++opened.count;
    *address = start;
    return CUDA_SUCCESS;
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", told.process, told.file);
  Descriptor file(::open(path, O_RDWR | O_CLOEXEC));
  if (!file) return CUDA_ERROR_INVALID_VALUE;
  Migration migration;
  // Without `revive`: the handle is only a name, and freed memory may have a new owner by now.
  bool held = file_name(file.get()).compare(0, std::strlen(AddressSpace::kFileName), AddressSpace::kFileName) == 0 &&
              driver().state().hold(told.id, gpu, told.charged, false, &migration);
  if (!held) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  allocation.bytes = told.bytes;
  allocation.gpu = gpu;
  allocation.context = context.handle();
  allocation.shared_id = told.id;
  allocation.imported = true;
  if (mutated(Mutation::every_holder_is_charged) && driver().state().take(gpu, told.charged, &migration)) {
    allocation.charged = told.charged;
  }
  Pages pages{file.get(), told.offset};
  if (mutated(Mutation::opened_memory_is_other_memory)) pages = driver().memory.take_pages(AddressSpace::kLargePage);
  bool mapped = driver().memory.add_foreign(&allocation, pages);
  if (!mapped) {
    driver().state().let_go(told.id);
    return CUDA_ERROR_MAP_FAILED;
  }
  opened_[allocation.address] = {told.id, context.handle(), allocation.buffer_id, 1};
  *address = allocation.address;
  return CUDA_SUCCESS;
}

CUresult ImportedMemory::close(uint64_t address) {
  std::optional<Allocation> closed;
  {
    std::lock_guard lock(mutex_);
    auto found = opened_.find(address);
    if (found == opened_.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.count != 0) return CUDA_SUCCESS;
    auto allocation = driver().memory.find(address);
    closed = driver().memory.remove(address, found->second.buffer_id);
    opened_.erase(found);
  }
  if (!closed) return CUDA_ERROR_INVALID_VALUE;
  if (ContextPointer context = driver().contexts.find(closed->context)) driver().wait_for(*context);
  if (mutated(Mutation::closing_clears_the_memory)) {
    std::memset(driver().memory.storage_of(*closed), 0, closed->bytes);
  }
  driver().release(*closed);
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
