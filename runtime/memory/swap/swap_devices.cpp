#include "runtime/memory/swap/swap_devices.h"

#include "generated/driver_real.h"
#include "runtime/memory/swap/hand_over.h"
#include "runtime/memory/swap/untried.h"

namespace rota::memory {

void SwapDevices::ask(int ordinal, Known& known) {
  const std::lock_guard lock(mutex_);
  if (known.known.load(std::memory_order_relaxed)) return;
  SwapDevice& device = known.device;
  int has_virtual_memory = 0;
  const api::CUmemAllocationProp wanted = physical_properties(ordinal, {});
  std::size_t total = 0;
  std::size_t granularity = 0;
  device.serves =
      real::cuDeviceGetAttribute(&has_virtual_memory, api::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                 ordinal) == api::CUDA_SUCCESS &&
      has_virtual_memory != 0 &&
      real::cuMemGetAllocationGranularity(&granularity, &wanted, api::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) ==
          api::CUDA_SUCCESS &&
      granularity != 0 && real::cuDeviceTotalMem_v2(&total, ordinal) == api::CUDA_SUCCESS;
  if (device.serves) {
    device.untried = untried(ordinal);
    device.exports = has_exportable_memory(ordinal);
    device.granularity = granularity;
    device.total = total;
  }
  known.known.store(true, std::memory_order_release);
}

}  // namespace rota::memory
