#include "runtime/memory/memory.h"

#include <algorithm>
#include <new>
#include <utility>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/core/one_allocation.h"
#include "runtime/driver/capture_mode.h"
#include "runtime/driver/context.h"
#include "runtime/driver/own_streams.h"
#include "runtime/driver/stream.h"
#include "runtime/memory/round_up.h"
#include "scheduler/base/host_memory.h"

namespace rota::memory {

namespace {

// Converted plain memory of less than this is cut from spans that several allocations share: the driver creates each
// allocation of Unified Memory separately and moves it in blocks of 2 MiB.
constexpr std::uint64_t kOwnAllocation = std::uint64_t{1} << 20;
// The same where extents back it, which have this granularity.
constexpr std::uint64_t kOwnExtent = std::uint64_t{2} << 20;

// What rows are rounded up to, as far as is known in advance (measured on an H200 for every element size).
constexpr std::uint64_t kUsualPitch = 512;

std::uint64_t less(std::uint64_t bytes, std::uint64_t part) {
  return bytes - std::min(bytes, part);
}

// Whether there is anything to pitch and its size can be computed. If not, the driver answers.
bool has_pitch(std::size_t width, std::size_t height) {
  return width != 0 && height != 0 && width <= SIZE_MAX - kUsualPitch &&
         height <= SIZE_MAX / round_up(width, kUsualPitch);
}

}  // namespace

Memory::Memory(Ledger& ledger, Settings settings)
    : ledger_(ledger),
      settings_(settings),
      peers_(ledger, [this](int accessing, int owner, bool may) { swap_.set_peer(accessing, owner, may); }),
      physical_(ledger),
      own_physical_(swap_, ledger),
      graphs_(ledger),
      deferred_(ledger, events_,
                [this](api::CUdeviceptr address) {
                  if (swap_.begins(address)) {
                    swap_.free(address);
                  } else {
                    real::cuMemFree_v2(address);
                  }
                }),
      stream_ordered_(ledger, deferred_, events_) {
  swap_.set_contents(*this);
}

void Memory::set_turns(Turns* turns) {
  turns_ = turns != nullptr ? turns : &WithoutTurns::instance();
  managed_.set_turns(*turns_);
  swap_.set_turns(*turns_);
}

bool Memory::here(Place& place) {
  api::CUdevice device = 0;
  place.context = driver::current_context();
  if (place.context == nullptr || real::cuCtxGetDevice(&device) != api::CUDA_SUCCESS) return false;
  place.device = device;
  return device >= 0 && device < kMaxDevices;
}

bool Memory::here(Place& place, const driver::KnownStream& stream) {
  if (stream.context == nullptr || stream.device < 0) return here(place);
  place = {.context = stream.context, .device = stream.device};
  return stream.device < kMaxDevices;
}

Memory::Device& Memory::device(int ordinal) {
  Device& entry = devices_[static_cast<std::size_t>(ordinal)];
  if (!entry.known.load(std::memory_order_acquire)) {
    const std::lock_guard lock(devices_mutex_);
    if (!entry.known.load(std::memory_order_relaxed)) {
      std::size_t total = 0;
      real::cuDeviceTotalMem_v2(&total, ordinal);
      entry.total_bytes = total;
      entry.known.store(true, std::memory_order_release);
    }
  }
  return entry;
}

// A program can have the whole GPU except for what its contexts take there, and no more: where the driver itself no
// longer refuses (managed memory may be larger than the GPU), the ledger refuses instead, so that programs which
// allocate until it fails come to an end. This does not apply to the program's own managed memory, which the driver
// would not refuse either. If the user allows more, nine tenths of what the host had left when this was first needed
// are added.
std::uint64_t Memory::capacity(int ordinal) {
  const Backing backing = backend(ordinal).backing();
  if (backing == Backing::kDevice) return kNoLimit;
  Device& entry = device(ordinal);
  if (entry.total_bytes == 0) return kNoLimit;
  // Swapped memory must all fit on the GPU at once.
  if (backing == Backing::kSwapped) return less(entry.total_bytes, all_contexts(ordinal));
  if (!settings_.oversubscribe) return less(entry.total_bytes, contexts(ordinal));
  const std::lock_guard lock(devices_mutex_);
  if (!host_bytes_) host_bytes_ = available_to("self");
  const std::uint64_t usable = *host_bytes_ / 10 * 9;
  return usable > kNoLimit - entry.total_bytes ? kNoLimit : entry.total_bytes + usable;
}

std::uint64_t Memory::contexts(int ordinal) const {
  return turns_->context_bytes(ordinal);
}

std::uint64_t Memory::all_contexts(int ordinal) const {
  return std::max(contexts(ordinal), turns_->all_context_bytes(ordinal));
}

// Reserves the bytes, calls the driver, and then adds the allocation to the ledger.
api::CUresult Memory::allocate_counted(const Allocation& what, const RealCall& call, const GivenAddress& address) {
  return with_waiting(what.device, what.bytes, what.kind.backing, [&](bool first, RefusedBy& by) {
    // A pool's allocation went through its gate, which has already retried.
    return attempt_counted(what, call, address, !first || what.kind.route == Route::kPool, RefusedBy::kDriver, by);
  });
}

api::CUresult Memory::attempt_counted(const Allocation& what, const RealCall& call, const GivenAddress& address,
                                      bool once, RefusedBy full, RefusedBy& by) {
  Charge charge = reserve_or_wait(what.device, what.bytes, what.kind, by);
  if (!charge) return api::CUDA_ERROR_OUT_OF_MEMORY;
  const api::CUresult result = once ? call() : with_room(what.device, what.kind.movable() ? 0 : what.bytes, call);
  if (result == api::CUDA_ERROR_OUT_OF_MEMORY) by = full;
  if (result != api::CUDA_SUCCESS) return result;
  charge.commit();
  Allocation made = what;
  made.address = address();
  ledger_.add(made);
  changed(what.device);
  return result;
}

api::CUresult Memory::allocate_native(std::uint64_t bytes, Kind kind, const RealCall& call,
                                      const GivenAddress& address) {
  Place place;
  if (bytes == 0 || !here(place)) return call();  // the driver reports the error
  const std::uint64_t most = device(place.device).total_bytes;
  if (kind.bound_to_gpu() && most != 0 && bytes > most) {
    // If no GPU of this size could hold it, the driver refuses, which may find an invalid argument first.
    const api::CUresult result = call();
    if (result != api::CUDA_SUCCESS) return result;
    ledger_.charge(place.device, bytes, kind);
    ledger_.add({.address = address(),
                 .bytes = bytes,
                 .owner = Owner::of(place.context),
                 .device = place.device,
                 .kind = kind});
    changed(place.device);
    return result;
  }
  return allocate_counted({.bytes = bytes, .owner = Owner::of(place.context), .device = place.device, .kind = kind},
                          call, address);
}

api::CUresult Memory::allocate(api::CUdeviceptr* address, std::size_t bytes, bool may_reuse) {
  Place place;
  if (address == nullptr || bytes == 0 || !here(place)) return real::cuMemAlloc_v2(address, bytes);
  const OneAllocation one;
  Backend& server = backend_for_allocation(place.device);
  // Small enough to stay native. The total is checked first: a few bytes too many, if threads check at the same time,
  // do no harm.
  if (server.backing() == Backing::kUnified && bytes <= settings_.small_bytes &&
      ledger_.small_bytes(place.device) + bytes <= settings_.small_total_bytes) {
    return allocate_counted(
        {.bytes = bytes, .owner = Owner::of(place.context), .device = place.device, .kind = Kind::kSmall},
        [&] { return real::cuMemAlloc_v2(address, bytes); }, [&] { return *address; });
  }
  const api::CUresult result = allocate_from(server, place, address, bytes, may_reuse);
  if (!turned_native(result, server, place.device)) return result;
  return allocate_from(native_, place, address, bytes, may_reuse);
}

api::CUresult Memory::allocate_from(Backend& backend, const Place& place, api::CUdeviceptr* address,
                                    std::uint64_t bytes, bool may_reuse) {
  const Kind kind{Route::kPlain, backend.backing()};
  if (kind.converted()) {
    if (!has_converted_.load(std::memory_order_relaxed)) has_converted_.store(true, std::memory_order_relaxed);
    const api::CUresult refused = refused_by_driver();  // the code below may not call it at all
    if (refused != api::CUDA_SUCCESS) return refused;
  }
  if (kind.backing == Backing::kSwapped) ensure_a_byte(place);
  const bool shares = kind.backing == Backing::kSwapped ? bytes < kOwnExtent : may_reuse && bytes < kOwnAllocation;
  if (shares && kind.converted()) {
    const OneAllocation::FirstWay alone_is_next;
    const api::CUresult result = stream_ordered_.allocate(
        {.place = place, .gpu_bytes = device(place.device).total_bytes, .bytes = bytes, .backing = kind.backing},
        backend,
        [&](std::uint64_t more, const void* frame) {
          RefusedBy by = RefusedBy::kNobody;
          return reserve_or_wait(place.device, more, Kind::kShared, by, frame);
        },
        address);
    if (result == api::CUDA_SUCCESS) {
      changed(place.device);
      if (kind.backing == Backing::kUnified) peers_.placed(place, *address, bytes);
    }
    // The driver was asked for a whole span. It may grant the allocation by itself, or others may free memory.
    if (result != api::CUDA_ERROR_OUT_OF_MEMORY) return result;
  }
  const Allocation what{.bytes = bytes, .owner = Owner::of(place.context), .device = place.device, .kind = kind};
  const api::CUresult result = with_waiting(place.device, bytes, kind.backing, [&](bool first, RefusedBy& by) {
    BackendReservation room(backend, place.device, bytes, bytes);
    const RefusedBy full = refused_by(room);  // before an allocation takes it over
    if (!first && !room && !deferred_.any()) {
      by = full;
      return api::CUDA_ERROR_OUT_OF_MEMORY;
    }
    const auto call = [&] {
      // Memory that was freed and has not been returned to the driver yet has its bytes on the GPU already.
      if (may_reuse && kind.converted() && deferred_.any()) {
        if (const auto again = deferred_.reuse(place, bytes)) {
          *address = *again;
          return api::CUDA_SUCCESS;
        }
      }
      return room.allocate(place, address);
    };
    return attempt_counted(what, call, [&] { return *address; }, !first || !room, full, by);
  });
  if (result != api::CUDA_SUCCESS) return result;
  backend.place_allocation(place, *address, bytes);
  if (kind.backing == Backing::kUnified) peers_.placed(place, *address, bytes);
  return result;
}

// Asks the driver for its own rule: a row of one byte gets the pitch that every width is rounded up to.
std::size_t Memory::pitch_unit(const Place& place, unsigned element_bytes) {
  Device& entry = device(place.device);
  {
    const std::lock_guard lock(devices_mutex_);
    if (const auto known = entry.pitch_unit.find(element_bytes); known != entry.pitch_unit.end()) return known->second;
  }
  api::CUdeviceptr probe = 0;
  std::size_t pitch = 0;
  if (real::cuMemAllocPitch_v2(&probe, &pitch, 1, 1, element_bytes) != api::CUDA_SUCCESS) return 0;
  // Not freed here: that would wait for the GPU.
  deferred_.add_unused(probe, place);
  const std::lock_guard lock(devices_mutex_);
  return entry.pitch_unit[element_bytes] = pitch;
}

// The driver reports the pitch afterwards; until then the usual rule is assumed.
api::CUresult Memory::allocate_pitch_native(std::size_t width, std::size_t height, const RealCall& call,
                                            const GivenAddress& address, const GivenPitch& pitch) {
  Place place;
  if (!has_pitch(width, height) || !here(place)) return call();
  const std::uint64_t guess = round_up(width, kUsualPitch) * height;
  return with_waiting(place.device, guess, Backing::kDevice, [&](bool first, RefusedBy& by) {
    Charge charge = reserve_or_wait(place.device, guess, Kind::kPlain, by);
    if (!charge) return api::CUDA_ERROR_OUT_OF_MEMORY;
    const api::CUresult result = first ? with_room(place.device, guess, call) : call();
    if (result == api::CUDA_ERROR_OUT_OF_MEMORY) by = RefusedBy::kDriver;
    if (result != api::CUDA_SUCCESS) return result;
    charge.commit();
    const std::uint64_t taken = pitch() * height;
    if (taken > guess) ledger_.charge(place.device, taken - guess, Kind::kPlain);
    if (taken < guess) ledger_.release(place.device, guess - taken, Kind::kPlain);
    ledger_.add({.address = address(),
                 .bytes = taken,
                 .owner = Owner::of(place.context),
                 .device = place.device,
                 .kind = Kind::kPlain});
    changed(place.device);
    return result;
  });
}

api::CUresult Memory::allocate_pitch(api::CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                     std::size_t height, unsigned element_bytes, bool may_reuse) {
  const auto call = [&] { return real::cuMemAllocPitch_v2(address, pitch, width, height, element_bytes); };
  Place place;
  if (address == nullptr || pitch == nullptr || !has_pitch(width, height) || !here(place)) return call();
  const OneAllocation one;
  Backend& server = backend_for_allocation(place.device);
  const auto native = [&] {
    return allocate_pitch_native(width, height, call, [&] { return *address; }, [&] { return *pitch; });
  };
  if (server.backing() == Backing::kDevice) return native();
  const std::size_t unit = pitch_unit(place, element_bytes);
  if (unit == 0 || width > SIZE_MAX - unit) return call();  // an element size that the driver refuses, and so on
  const std::size_t row = round_up(width, unit);
  if (height > SIZE_MAX / row) return call();
  const api::CUresult result = allocate_from(server, place, address, row * height, may_reuse);
  if (turned_native(result, server, place.device)) return native();
  if (result == api::CUDA_SUCCESS) *pitch = row;
  return result;
}

api::CUresult Memory::free(std::uint64_t address, const RealCall& call, bool capturing) {
  StreamOrdered::Claim claim = stream_ordered_.claim(address);
  if (claim.twice()) return api::CUDA_ERROR_INVALID_VALUE;
  const api::CUresult result = free_claimed(address, call, capturing);
  if (result == api::CUDA_SUCCESS) claim.commit();
  return result;
}

api::CUresult Memory::free_claimed(std::uint64_t address, const RealCall& call, bool capturing) {
  // The ledger is updated before the driver is called: once it has freed the memory, another thread may get the same
  // address.
  Freeing taken(ledger_, address);
  // Already freed in the order of a stream: the driver, which still has it, would free it, and rota would free it
  // again.
  if (!taken && is_kept(address)) return api::CUDA_ERROR_INVALID_VALUE;
  if (taken && taken->kind.route == Route::kServed) return free_stream_ordered(taken);
  const bool ours = taken && (taken->kind.route == Route::kShared ||
                              (taken->kind.converted() && taken->kind.backing == Backing::kSwapped));
  if (ours) return free_plain(taken, capturing);
  const api::CUresult result = call();
  if (!taken || result != api::CUDA_SUCCESS) return result;
  taken.commit();
  ledger_.finish_free(*taken);
  changed(taken->device);
  return result;
}

// Whether the driver would free what begins at this address although the program does not own it. The driver itself
// refuses addresses inside an allocation.
bool Memory::is_kept(std::uint64_t address) const {
  return (deferred_.any() && deferred_.holds(address)) || stream_ordered_.holds(address);
}

api::CUresult Memory::free_waiting(api::CUdeviceptr address, bool capturing, const RealCall& call) {
  if (!deferred_.any()) return free(address, call, capturing);
  const std::optional<Allocation> freed = ledger_.find(address);
  const api::CUresult result = free(address, call, capturing);
  // The call has just waited for the work of its memory's context, so what was freed there before can be freed in the
  // driver, too; for the rest of the program it is as if this call had come a moment later. Other contexts may still be
  // busy.
  if (result == api::CUDA_SUCCESS && freed && !freed->kind.stream_ordered()) collect_deferred(freed->owner);
  return result;
}

bool Memory::sweep_deferred() {
  if (!has_unused()) return false;
  for (const int ordinal : deferred_.sweep()) changed(ordinal);
  for (const int ordinal : stream_ordered_.sweep()) changed(ordinal);
  for (int ordinal = 0; swap_.any() && ordinal < kMaxDevices; ++ordinal) {
    const bool swaps = devices_[static_cast<std::size_t>(ordinal)].mode.load() == protocol::MemoryMode::kSwap;
    if (swaps && turns_->overcommitted(ordinal)) stream_ordered_.give_back_grown(ordinal);
  }
  return true;
}

bool Memory::in_use(std::uint64_t address, std::uint64_t bytes) {
  return stream_ordered_.in_use(address, bytes);
}

bool Memory::lives(std::uint64_t address, std::uint64_t id) {
  std::optional<Block> block;
  return find_block(address, &block) && block && block->address == address && block->buffer_id == id;
}

bool Memory::free_unused(int ordinal) {
  const driver::RelaxedCapture relaxed;
  sweep_deferred();
  stream_ordered_.trim_all(ordinal);
  return deferred_.free_extents([this](api::CUdeviceptr address) { return swap_.begins(address); });
}

void Memory::collect_deferred(const std::optional<Owner>& owner) {
  if (!deferred_.any()) return;
  sweep_deferred();
  const driver::RelaxedCapture relaxed;
  deferred_.free_unused(owner);
}

api::CUresult Memory::explained(api::CUresult result, api::CUdeviceptr address, const char* function) {
  if (result == api::CUDA_SUCCESS || !has_converted_.load(std::memory_order_relaxed)) return result;
  const std::optional<Allocation> owner = ledger_.find(address);
  if (!owner || !owner->kind.converted()) return result;
  exports_.store(true, std::memory_order_relaxed);
  backend(owner->device);  // which reports that
  {
    const std::lock_guard lock(devices_mutex_);
    if (!explained_.insert(function).second) return result;
  }
  const bool unified = owner->kind.backing == Backing::kUnified;
  log::warn("{} was refused for memory that rota {}: run this program with {}; what it allocates from now on is native",
            function, unified ? "made Unified Memory" : "maps in extents",
            unified ? "--memory swap, or --memory native" : "--memory native");
  return result;
}

api::CUresult Memory::explained_with(api::CUdevice_attribute attribute, api::CUresult result, api::CUdeviceptr address,
                                     const char* function) {
  if (result == api::CUDA_SUCCESS || !has_converted_.load(std::memory_order_relaxed)) return result;
  const std::optional<Allocation> owner = ledger_.find(address);
  int has = 0;
  if (!owner || real::cuDeviceGetAttribute(&has, attribute, owner->device) != api::CUDA_SUCCESS || has == 0) {
    return result;
  }
  return explained(result, address, function);
}

bool Memory::only_converted_makes_it_wait(api::CUdeviceptr destination) const {
  if (!has_converted_.load(std::memory_order_relaxed)) return false;
  const std::optional<Allocation> found = ledger_.find(destination);
  return found && found->kind.converted() && found->kind.backing == Backing::kUnified && !found->synchronous;
}

bool Memory::only_converted_makes_it_wait(api::CUdeviceptr destination, api::CUdeviceptr source) const {
  if (!has_converted_.load(std::memory_order_relaxed)) return false;
  const std::optional<Allocation> to = ledger_.find(destination);
  const std::optional<Allocation> from = ledger_.find(source);
  if (!to || !from || to->synchronous || from->synchronous || to->device != from->device) return false;
  const auto of_gpu = [](const Kind& kind) { return kind.backing == Backing::kDevice || kind.converted(); };
  const auto unified = [](const Kind& kind) { return kind.converted() && kind.backing == Backing::kUnified; };
  return of_gpu(to->kind) && of_gpu(from->kind) && (unified(to->kind) || unified(from->kind));
}

void Memory::set_synchronous(api::CUdeviceptr address, bool synchronous) {
  ledger_.set_synchronous(address, synchronous);
  if (synchronous && swap_.any()) has_synchronous_.store(true, std::memory_order_relaxed);
}

bool Memory::has_to_wait(api::CUdeviceptr address) const {
  if (!has_synchronous_.load(std::memory_order_relaxed)) return false;
  const std::optional<Allocation> found = ledger_.find(address);
  return found && found->synchronous && found->kind.backing == Backing::kSwapped;
}

std::optional<bool> Memory::synchronous(api::CUdeviceptr address) const {
  if (!has_converted_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::optional<Allocation> found = ledger_.find(address);
  if (!found || !found->kind.converted()) return std::nullopt;
  return found->synchronous;
}

Memory::ContextEnd::ContextEnd(Memory& memory, api::CUcontext context) : memory_(memory), context_(context) {
  if (context_ == nullptr) return;
  memory_.streams_.forget(context_);  // before another one can have its handle
  memory_.deferred_.context_ending(context_);
  memory_.stream_ordered_.context_ending(context_);
}

Memory::ContextEnd::~ContextEnd() {
  if (gone_) memory_.trim_to_thresholds();
  if (context_ == nullptr) return;
  memory_.deferred_.context_ended(context_, false);
  memory_.stream_ordered_.context_ended(context_, false);
}

void Memory::ContextEnd::gone() {
  if (context_ == nullptr) return;
  memory_.stream_ordered_.context_ended(context_, true);
  memory_.deferred_.context_ended(context_, true);
  memory_.context_ended(context_);
  context_ = nullptr;
  gone_ = true;
}

void Memory::context_ended(api::CUcontext context) {
  managed_.context_ended(context);
  forget_held_back(context);
  swap_.context_ended(context);
  opened_.context_ended(context);
  peers_.context_ended(context);
  streams_.forget(context);
  events_.forget(context);
  {
    const std::lock_guard lock(devices_mutex_);
    if (const auto kept = kept_bytes_.find(context); kept != kept_bytes_.end()) {
      swap_.take_overhead(kept->second.device, kGranularity);
      kept_bytes_.erase(kept);
    }
    last_with_a_byte_.store(nullptr, std::memory_order_relaxed);
  }
  ledger_.drop(Owner::of(context));
  for (int ordinal = 0; ordinal < kMaxDevices; ++ordinal) {
    if (devices_[static_cast<std::size_t>(ordinal)].known.load(std::memory_order_relaxed)) changed(ordinal);
  }
}

}  // namespace rota::memory
