#include "runtime/memory/swap/hand_over.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"

namespace rota::memory {

namespace {

// Further ones are given back to the driver. With extents of 128 MiB this is 64 GiB.
constexpr std::size_t kMostDescriptors = 512;

// Numbers of the descriptors of GPU memory that this process has; 0: free place.
constinit std::array<std::atomic<int>, kMostDescriptors> descriptors{};

// Whether the program has descriptors enough for itself beside one of this number.
bool leaves_enough(int number) {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(number) < limit.rlim_cur / 4 * 3;
}

// Of memory on this GPU, or 0. What another process says of a piece is not believed: one of another size cannot be
// mapped.
PhysicalHandle import_from(const MemoryDescriptor& memory, int device) {
  PhysicalHandle handle = 0;
  api::CUresult result =
      real::cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(memory.get())),
                                           api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != api::CUDA_SUCCESS) {
    log::debug("memory that was handed over cannot be used: error {}", static_cast<int>(result));
    return 0;
  }
  api::CUmemAllocationProp properties{};
  result = real::cuMemGetAllocationPropertiesFromHandle(&properties, handle);
  if (result == api::CUDA_SUCCESS && properties.type == api::CU_MEM_ALLOCATION_TYPE_PINNED &&
      properties.location.type == api::CU_MEM_LOCATION_TYPE_DEVICE && properties.location.id == device) {
    return handle;
  }
  real::cuMemRelease(handle);
  return 0;
}

}  // namespace

api::CUmemAllocationProp physical_properties(int device, bool exportable) {
  api::CUmemAllocationProp wanted{};
  wanted.type = api::CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes =
      exportable ? api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : api::CU_MEM_HANDLE_TYPE_NONE;
  wanted.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return wanted;
}

bool has_exportable_memory(int device) {
  int exports = 0;
  return real::cuDeviceGetAttribute(&exports, api::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                    device) == api::CUDA_SUCCESS &&
         exports != 0;
}

MemoryDescriptor::MemoryDescriptor(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  if (descriptor_ && leaves_enough(descriptor_.get())) {
    for (; place_ < descriptors.size(); ++place_) {
      int free = 0;
      if (descriptors[place_].compare_exchange_strong(free, descriptor_.get())) return;
    }
  }
  descriptor_ = Descriptor();
}

MemoryDescriptor::~MemoryDescriptor() {
  // Before it is closed: a child forked in between must not close what has the same number by then.
  if (descriptor_) descriptors[place_].store(0);
}

void MemoryDescriptor::close_inherited() {
  for (std::atomic<int>& each : descriptors) {
    if (const int inherited = each.exchange(0); inherited != 0) close(inherited);
  }
}

void hand_over(const Piece& piece, std::uint64_t bytes, const Exchange& exchange) {
  if (!exchange.give || bytes < kLeastHandedOver) return;
  if (piece.memory) {
    exchange.give(piece.memory->get(), bytes);
    return;
  }
  int number = -1;
  if (real::cuMemExportToShareableHandle(&number, piece.handle, api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
      api::CUDA_SUCCESS) {
    const MemoryDescriptor memory{Descriptor(number)};
    if (memory) exchange.give(memory.get(), bytes);
  }
}

void HandedOver::collect() {
  if (!exchange_.take) return;
  while (const std::optional<Handed> handed = exchange_.take()) {
    any_came_ = true;
    const PhysicalHandle handle = import_from(*handed->memory, device_);
    if (handle != 0) pieces_.push_back({handed->bytes, {handle, handed->memory}});
  }
}

bool HandedOver::has(std::uint64_t bytes) const {
  return std::any_of(pieces_.begin(), pieces_.end(), [bytes](const Arrived& each) { return each.bytes == bytes; });
}

Piece HandedOver::take(std::uint64_t bytes) {
  const auto found =
      std::find_if(pieces_.begin(), pieces_.end(), [bytes](const Arrived& each) { return each.bytes == bytes; });
  if (found == pieces_.end()) return {};
  Piece piece = std::move(found->piece);
  pieces_.erase(found);
  return piece;
}

bool HandedOver::release() {
  const bool any = !pieces_.empty();
  for (const Arrived& each : pieces_) real::cuMemRelease(each.piece.handle);
  pieces_.clear();
  return any;
}

}  // namespace rota::memory
