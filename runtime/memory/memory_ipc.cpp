// Legacy IPC of memory that rota moves: handles, and what is opened by them, are rota's own, since the driver makes
// none of mapped memory.
#include <algorithm>

#include "runtime/driver/context.h"
#include "runtime/memory/memory.h"

namespace rota::memory {

bool Memory::exports(api::CUdeviceptr address) const {
  if (!swap_.any()) return false;
  const std::optional<Allocation> what = ledger_.find(address);
  return what && !what->freeing && what->kind.backing == Backing::kSwapped &&
         (what->kind.route == Route::kPlain || what->kind.route == Route::kShared) && swap_.find(what->address);
}

api::CUresult Memory::export_own(api::CUipcMemHandle* handle, api::CUdeviceptr address) {
  if (driver::current_context() == nullptr) return api::CUDA_ERROR_INVALID_CONTEXT;
  std::optional<Block> block;
  if (handle == nullptr || !find_block(address, &block) || !block) return api::CUDA_ERROR_INVALID_VALUE;
  if (!swap_.has_exportable_memory(block->device)) return api::CUDA_ERROR_NOT_SUPPORTED;
  const auto made = swap_.exports().handle_of(block->address, block->bytes, block->buffer_id);
  if (!made) return api::CUDA_ERROR_OPERATING_SYSTEM;
  *handle = *made;
  return api::CUDA_SUCCESS;
}

// Memory that others have open is freed once none of them has it open: until then the driver could not give it to
// anybody else, so it stays charged, and its addresses serve nothing. Returns whether the memory is held back.
bool Memory::hold_back(const Allocation& taken, const StreamOrdered::Behind& behind, bool captured) {
  const std::lock_guard lock(held_back_mutex_);
  const std::optional<std::uint64_t> serial = swap_.exports().ends(taken.address);
  if (serial) held_back_.emplace(*serial, HeldBack{taken, behind, captured});
  return serial.has_value();
}

// Captures may still refer to it: the monitor frees it once none does and the GPU is idle.
void Memory::defer_captured(const Allocation& taken) {
  deferred_.add(taken, nullptr, nullptr);
  ledger_.uncharge(taken);
}

void Memory::free_shared(const Allocation& taken, const StreamOrdered::Behind& behind) {
  if (taken.kind.route != Route::kShared || !hold_back(taken, behind)) stream_ordered_.free(taken, behind);
}

// Whether the stream has passed the free; if so, the event is given back. Called by a thread of rota's.
bool Memory::passed(const StreamOrdered::Behind& behind) {
  if (!driver::reached(behind.event)) return false;
  if (!events_.give_back(behind.context, behind.event)) real::cuEventDestroy_v2(behind.event);
  return true;
}

void Memory::give_up_extents(const Allocation& taken) {
  ledger_.finish_free(taken);
  swap_.free(taken.address);
}

// The lock keeps the memory's context from ending meanwhile: its address could then belong to another allocation.
void Memory::closed_by_others(std::uint64_t serial) {
  int device = kNobody;
  {
    const std::lock_guard lock(held_back_mutex_);
    const auto found = held_back_.extract(serial);
    if (!found) return;
    device = found.mapped().taken.device;
    const HeldBack& held = found.mapped();
    if (held.taken.kind.route == Route::kShared) {
      stream_ordered_.free(held.taken, held.behind);
    } else if (held.captured) {
      defer_captured(held.taken);
    } else if (held.behind.event == nullptr || passed(held.behind)) {
      give_up_extents(held.taken);
    } else {
      deferred_.add(held.taken, held.behind.event, held.behind.context, false);
    }
  }
  changed(device);
}

void Memory::opened_by_others(std::uint64_t address) {
  std::optional<Block> block;
  if (find_block(address, &block) && block && block->span_bytes != 0) stream_ordered_.opened_by_others(*block);
}

void Memory::forget_held_back(api::CUcontext context) {
  const std::lock_guard lock(held_back_mutex_);
  std::erase_if(held_back_, [&](const auto& each) { return each.second.taken.owner == Owner::of(context); });
}

std::optional<api::CUresult> Memory::open(api::CUdeviceptr* address, const api::CUipcMemHandle& handle, unsigned flags,
                                          const Introduce& introduce) {
  if (is_drivers(handle)) return std::nullopt;
  Place place;
  if (!here(place)) return api::CUDA_ERROR_INVALID_CONTEXT;
  if (address == nullptr || flags != api::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return api::CUDA_ERROR_INVALID_VALUE;
  if (const api::CUresult result = refused_by_driver(); result != api::CUDA_SUCCESS) return result;
  const std::optional<ExportedHandle> exported = read_handle(handle);
  if (!exported) return api::CUDA_ERROR_INVALID_VALUE;
  if (swap_.exports().is_own(*exported)) return api::CUDA_ERROR_INVALID_CONTEXT;
  protocol::ProcessNumber number{};
  std::copy(std::begin(exported->process), std::end(exported->process), number.words);
  ensure_a_byte(place);  // queries of the memory are answered by it
  return opened_.open(
      *exported, place, [&](Opened::Clock::time_point until) { return introduce(number, until); }, address);
}

// The driver's function waits for the context's work, as its cuMemFree does.
std::optional<api::CUresult> Memory::close(api::CUdeviceptr address) {
  if (!opened_.any()) return std::nullopt;
  return opened_.close(address, [this](api::CUcontext context) {
    if (const api::CUresult result = refused_by_driver(); result != api::CUDA_SUCCESS) return result;
    std::optional<api::CUresult> waited;
    if (!has_pool_of_driver_.load(std::memory_order_relaxed)) waited = turns_->synchronize(context);
    if (waited) return *waited;
    api::CUdevice device = -1;
    const driver::CurrentContext its_own(context);
    if (!its_own || real::cuCtxGetDevice(&device) != api::CUDA_SUCCESS) return api::CUDA_ERROR_INVALID_CONTEXT;
    return free_a_byte({.context = context, .device = device});
  });
}

}  // namespace rota::memory
