#include "runtime/gate/reached.h"

#include <cstddef>
#include <cstring>

#include "generated/driver_real.h"
#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"

namespace rota::gate {

namespace {

// No aligned range of this size has memory of two GPUs: their allocations are further apart.
constexpr std::uint64_t kPiece = 64 << 10;

template <typename Value>
Value value_in(const void* record, std::uintptr_t place) {
  Value value{};
  std::memcpy(&value, static_cast<const char*>(record) + place, sizeof value);
  return value;
}

// Offsets of the memory type and of the array from the address, in each of the records that describe copies.
constexpr std::uintptr_t kTypeBefore =
    offsetof(api::CUDA_MEMCPY2D, srcDevice) - offsetof(api::CUDA_MEMCPY2D, srcMemoryType);
constexpr std::uintptr_t kArrayBehind =
    offsetof(api::CUDA_MEMCPY2D, srcArray) - offsetof(api::CUDA_MEMCPY2D, srcDevice);
template <typename Copy>
constexpr bool kIsLaidOutSo = offsetof(Copy, srcDevice) - offsetof(Copy, srcMemoryType) == kTypeBefore &&
                              offsetof(Copy, dstDevice) - offsetof(Copy, dstMemoryType) == kTypeBefore &&
                              offsetof(Copy, srcArray) - offsetof(Copy, srcDevice) == kArrayBehind &&
                              offsetof(Copy, dstArray) - offsetof(Copy, dstDevice) == kArrayBehind;
static_assert(kIsLaidOutSo<api::CUDA_MEMCPY2D> && kIsLaidOutSo<api::CUDA_MEMCPY3D> &&
              kIsLaidOutSo<api::CUDA_MEMCPY3D_PEER>);

}  // namespace

Reached::Answer Reached::by(const driver::Call& call) {
  Answer answer;
  if (call.reaches == driver::Reaches::kAll) return answer;
  const bool current = !call.has_stream || driver::of_current_context(call.stream);
  const int device = current ? of_context(driver::current_context(), answer) : of_stream(call.stream, answer);
  if (device < 0) return answer;
  answer.works = bit_of(device);
  answer.memory = memory_of(call);
  answer.devices = answer.works | answer.memory;
  return answer;
}

// The driver is asked for the current GPU at each call: a library can make a context current through private tables of
// the driver, past all functions that rota sees.
Devices Reached::at_once(const driver::Call& call) {
  const bool addresses = call.reaches == driver::Reaches::kAddresses;
  if (!addresses && call.reaches != driver::Reaches::kNoOther) return 0;
  int device = -1;
  if (!call.has_stream || driver::of_current_context(call.stream)) {
    if (real::cuCtxGetDevice(&device) != api::CUDA_SUCCESS) return 0;
  } else {
    const auto known = handles_.find(reinterpret_cast<std::uintptr_t>(call.stream),
                                     driver::handles_ended.load(std::memory_order_acquire));
    if (!known) return 0;
    device = *known;
  }
  return bit_of(device) | (addresses ? at(call.first, call.second) : 0);
}

Devices Reached::memory_of(const driver::Call& call) {
  switch (call.reaches) {
    case driver::Reaches::kAddresses:
      return at(call.first, call.second);
    case driver::Reaches::kArrays:
      return of_array(call.first) | of_array(call.second);
    case driver::Reaches::kAddressAndArray:
      return at(call.first, nullptr) | of_array(call.second);
    case driver::Reaches::kCopy: {
      if (call.first == nullptr) return 0;
      const auto places = reinterpret_cast<std::uintptr_t>(call.second);
      return side_of(call.first, places >> 16) | side_of(call.first, places & 0xffff);
    }
    default:
      return 0;
  }
}

Devices Reached::side_of(const void* record, std::uintptr_t place) {
  switch (value_in<api::CUmemorytype>(record, place - kTypeBefore)) {
    case api::CU_MEMORYTYPE_HOST:
      return 0;
    case api::CU_MEMORYTYPE_ARRAY:
      return of_array(value_in<api::CUarray>(record, place + kArrayBehind));
    default:
      return at(value_in<std::uint64_t>(record, place));
  }
}

Devices Reached::of_array(const void* handle) {
  if (handle == nullptr) return 0;
  const int device = memory_.device_of_array(handle);
  return device >= 0 ? bit_of(device) : kAllDevices;
}

Devices Reached::of(api::CUcontext context) {
  Answer unused;
  const int device = of_context(context != nullptr ? context : driver::current_context(), unused);
  return device >= 0 ? bit_of(device) : kAllDevices;
}

Devices Reached::at(const void* first, const void* second) {
  return at(reinterpret_cast<std::uintptr_t>(first)) | at(reinterpret_cast<std::uintptr_t>(second));
}

Devices Reached::at(std::uint64_t address) {
  if (address == 0) return 0;
  // What the ledger knows changes with the ledger; otherwise the driver is asked each time.
  const std::uint64_t as_of = memory_.changes();
  const std::uint64_t piece = address / kPiece;
  if (const auto known = pieces_.find(piece, as_of)) return bit_of(*known);
  bool booked = false;
  const int device = memory_.device_of(address, &booked);
  if (booked) pieces_.add(piece, device, as_of);
  return bit_of(device);
}

int Reached::of_context(api::CUcontext context, Answer& answer) {
  if (context == nullptr) return -1;
  const std::uint64_t ended = driver::handles_ended.load(std::memory_order_acquire);
  const auto key = reinterpret_cast<std::uintptr_t>(context);
  if (const auto known = handles_.find(key, ended)) return *known;
  int device = contexts_.device_of(context);
  if (device < 0) {
    const driver::CurrentContext current(context);
    if (!current || real::cuCtxGetDevice(&device) != api::CUDA_SUCCESS) return -1;
    answer.context = context;
    answer.device = device;
  }
  handles_.add(key, device, ended);
  return device;
}

int Reached::of_stream(api::CUstream stream, Answer& answer) {
  const std::uint64_t ended = driver::handles_ended.load(std::memory_order_acquire);
  const auto key = reinterpret_cast<std::uintptr_t>(stream);
  if (const auto known = handles_.find(key, ended)) return *known;
  api::CUcontext context = nullptr;
  if (real::cuStreamGetCtx(stream, &context) != api::CUDA_SUCCESS) return -1;
  const int device = of_context(context, answer);
  if (device >= 0) handles_.add(key, device, ended);
  return device;
}

std::size_t Reached::Table::place_of(std::uint64_t key) {
  constexpr std::uint64_t kSpreads = 0x9e3779b97f4a7c15;
  return key * kSpreads >> 56;
}

std::optional<int> Reached::Table::find(std::uint64_t key, std::uint64_t as_of) const {
  const Known& known = known_[place_of(key)];
  const std::uint32_t before = known.change.load(std::memory_order_acquire);
  const bool same =
      known.key.load(std::memory_order_acquire) == key && known.as_of.load(std::memory_order_acquire) == as_of;
  const int device = known.device.load(std::memory_order_acquire);
  if (!same || before == 0 || (before & 1) != 0) return std::nullopt;
  return known.change.load(std::memory_order_acquire) == before ? std::optional(device) : std::nullopt;
}

// `as_of`: from before it was looked up.
void Reached::Table::add(std::uint64_t key, int device, std::uint64_t as_of) {
  Known& known = known_[place_of(key)];
  std::uint32_t before = known.change.load(std::memory_order_relaxed) & ~1U;
  if (!known.change.compare_exchange_strong(before, before + 1, std::memory_order_acq_rel)) return;
  known.key.store(key, std::memory_order_release);
  known.device.store(device, std::memory_order_release);
  known.as_of.store(as_of, std::memory_order_release);
  known.change.store(before + 2, std::memory_order_release);
}

}  // namespace rota::gate
