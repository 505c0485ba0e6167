#include "runtime/memory/swap/hand_over.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/core/undo.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

namespace {

// The handle of memory on this GPU, or 0. What another process says about an extent is not trusted: if it states a
// wrong size, the memory cannot be mapped.
PhysicalHandle import_from(const MemoryDescriptor& memory, int device) {
  PhysicalHandle handle = 0;
  api::CUresult result =
      real::cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(memory.get())),
                                           api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != api::CUDA_SUCCESS) {
    log::debug("memory from another program cannot be used: error {}", static_cast<int>(result));
    return 0;
  }
  Rollback imported([&] { real::cuMemRelease(handle); });
  api::CUmemAllocationProp properties{};
  result = real::cuMemGetAllocationPropertiesFromHandle(&properties, handle);
  const bool fits = result == api::CUDA_SUCCESS && properties.type == api::CU_MEM_ALLOCATION_TYPE_PINNED &&
                    properties.location.type == api::CU_MEM_LOCATION_TYPE_DEVICE && properties.location.id == device;
  if (!fits) return 0;
  imported.commit();
  return handle;
}

// CU_MEM_CREATE_USAGE_HW_DECOMPRESS, a macro of cuda.h.
constexpr unsigned short kForDecompression = 2;

enum class Decompression : std::uint8_t { kNotAsked, kNo, kYes };
constinit std::array<std::atomic<Decompression>, kMaxDevices> decompression{};

}  // namespace

bool made_for_decompression(int device) {
  if (device < 0 || device >= kMaxDevices) return false;
  std::atomic<Decompression>& known = decompression[static_cast<std::size_t>(device)];
  if (known.load() == Decompression::kNotAsked) {
    int algorithms = 0;
    const bool told = real::cuDeviceGetAttribute(&algorithms, api::CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
                                                 device) == api::CUDA_SUCCESS;
    Decompression not_asked = Decompression::kNotAsked;
    known.compare_exchange_strong(not_asked, told && algorithms != 0 ? Decompression::kYes : Decompression::kNo);
  }
  return known.load() == Decompression::kYes;
}

void make_without_decompression(int device) {
  if (device >= 0 && device < kMaxDevices) decompression[static_cast<std::size_t>(device)] = Decompression::kNo;
}

api::CUmemAllocationProp physical_properties(int device, const Making& making) {
  api::CUmemAllocationProp wanted{};
  wanted.type = api::CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes =
      making.exportable ? api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : api::CU_MEM_HANDLE_TYPE_NONE;
  wanted.allocFlags.gpuDirectRDMACapable = making.for_rdma ? 1 : 0;
  wanted.allocFlags.usage = made_for_decompression(device) ? kForDecompression : 0;
  wanted.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return wanted;
}

bool has_exportable_memory(int device) {
  int exports = 0;
  return real::cuDeviceGetAttribute(&exports, api::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                    device) == api::CUDA_SUCCESS &&
         exports != 0;
}

SharedDescriptor descriptor_of(const PhysicalMemory& physical, std::uint64_t bytes, const Exchange& exchange) {
  if (!exchange.give || bytes < kLeastHandedOver || !exchange.gives()) return nullptr;
  if (physical.memory) return physical.memory;
  int number = -1;
  if (real::cuMemExportToShareableHandle(&number, physical.handle, api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) !=
      api::CUDA_SUCCESS) {
    return nullptr;
  }
  auto memory = std::make_shared<const MemoryDescriptor>(Descriptor(number));
  return *memory ? memory : nullptr;
}

void HandedOver::collect() {
  if (!exchange_.take) return;
  while (const std::optional<Handed> handed = exchange_.take()) {
    any_came_ = true;
    const PhysicalHandle handle = import_from(*handed->memory, device_);
    if (handle != 0) arrived_.push_back({handed->bytes, {handle, handed->memory}});
  }
}

bool HandedOver::has(std::uint64_t bytes) const {
  return std::any_of(arrived_.begin(), arrived_.end(), [bytes](const Arrived& each) { return each.bytes == bytes; });
}

PhysicalMemory HandedOver::take(std::uint64_t bytes) {
  const auto found =
      std::find_if(arrived_.begin(), arrived_.end(), [bytes](const Arrived& each) { return each.bytes == bytes; });
  if (found == arrived_.end()) return {};
  PhysicalMemory physical = std::move(found->physical);
  arrived_.erase(found);
  return physical;
}

bool HandedOver::release() {
  const bool any = !arrived_.empty();
  for (Arrived& each : arrived_) release_(each.bytes, std::move(each.physical));
  arrived_.clear();
  return any;
}

}  // namespace rota::memory
