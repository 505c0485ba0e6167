// How people call a GPU: by nvidia-smi's number, which is its place in PCI order among all GPUs of the machine. A
// program may see only some of them, and in another order (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER).
#pragma once

#include <cstdint>

namespace rota::driver {

// Of the driver's ordinal, which it is itself until a number was found or set. Calls nothing.
std::uint32_t gpu_number(int device);
// Asks the driver and the kernel: what the latter lists in /proc, else its place among the GPUs that this process sees.
std::uint32_t find_gpu_number(int device);
// What rotad says.
void set_gpu_number(int device, std::uint32_t number);

}  // namespace rota::driver
