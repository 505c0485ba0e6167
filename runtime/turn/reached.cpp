#include "runtime/turn/reached.h"

#include <cstring>

#include "generated/driver_real.h"
#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"

namespace rota::turn {

namespace {

std::uint64_t address_in(const void* record, std::uintptr_t place) {
  std::uint64_t address = 0;
  std::memcpy(&address, static_cast<const char*>(record) + place, sizeof address);
  return address;
}

}  // namespace

Reached::Answer Reached::by(const gate::Call& call) {
  Answer answer;
  if (call.reaches == gate::Reaches::kAll) return answer;
  const bool current = !call.has_stream || driver::of_current_context(call.stream);
  const int device = current ? of_context(driver::current_context(), answer) : of_stream(call.stream, answer);
  if (device < 0) return answer;
  answer.devices = gate::bit_of(device);
  if (call.reaches == gate::Reaches::kAddresses) answer.devices |= at(call.first, call.second);
  if (call.reaches == gate::Reaches::kRecord && call.first != nullptr) {
    const auto places = reinterpret_cast<std::uintptr_t>(call.second);
    answer.devices |= at(address_in(call.first, places >> 16)) | at(address_in(call.first, places & 0xffff));
  }
  return answer;
}

gate::Devices Reached::at(const void* first, const void* second) {
  return at(reinterpret_cast<std::uintptr_t>(first)) | at(reinterpret_cast<std::uintptr_t>(second));
}

gate::Devices Reached::at(std::uint64_t address) {
  if (address == 0) return 0;
  return gate::bit_of(memory_.device_of(address));
}

int Reached::of_context(api::CUcontext context, Answer& answer) {
  if (context == nullptr) return -1;
  if (const int known = remembered(context); known >= 0) return known;
  const std::uint64_t ended = contexts_.ended();
  int device = contexts_.device_of(context);
  if (device < 0) {
    const driver::CurrentContext current(context);
    if (!current || real::cuCtxGetDevice(&device) != api::CUDA_SUCCESS) return -1;
    answer.context = context;
    answer.device = device;
  }
  remember(context, device, ended);
  return device;
}

int Reached::of_stream(api::CUstream stream, Answer& answer) {
  if (const int known = remembered(stream); known >= 0) return known;
  const std::uint64_t ended = contexts_.ended();
  api::CUcontext context = nullptr;
  if (real::cuStreamGetCtx(stream, &context) != api::CUDA_SUCCESS) return -1;
  const int device = of_context(context, answer);
  if (device >= 0) remember(stream, device, ended);
  return device;
}

Reached::Known& Reached::place_of(const void* handle) {
  constexpr std::uint64_t kSpreads = 0x9e3779b97f4a7c15;
  return known_[reinterpret_cast<std::uintptr_t>(handle) * kSpreads >> 56];
}

int Reached::remembered(const void* handle) {
  const Known& known = place_of(handle);
  const std::uint32_t before = known.change.load(std::memory_order_acquire);
  const bool same = known.handle.load(std::memory_order_acquire) == handle &&
                    known.ended.load(std::memory_order_acquire) == contexts_.ended();
  const int device = known.device.load(std::memory_order_acquire);
  return same && (before & 1) == 0 && known.change.load(std::memory_order_acquire) == before ? device : -1;
}

// `ended`: from before it was looked up.
void Reached::remember(const void* handle, int device, std::uint64_t ended) {
  Known& known = place_of(handle);
  std::uint32_t before = known.change.load(std::memory_order_relaxed) & ~1U;
  if (!known.change.compare_exchange_strong(before, before + 1, std::memory_order_acq_rel)) return;
  known.handle.store(handle, std::memory_order_release);
  known.device.store(device, std::memory_order_release);
  known.ended.store(ended, std::memory_order_release);
  known.change.store(before + 2, std::memory_order_release);
}

}  // namespace rota::turn
