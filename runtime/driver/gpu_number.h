// How people call a GPU: by nvidia-smi's number, which is its place in PCI order among all GPUs of the machine. A
// program may see only some of them, and in another order (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER).
#pragma once

#include <cstdint>

namespace rota::driver {

// The number for the driver's ordinal; the ordinal itself until a number was found or set. Calls nothing.
std::uint32_t gpu_number(int device);
// Asks the driver and the kernel: the place in the kernel's list in /proc, else among the GPUs that this process sees.
std::uint32_t find_gpu_number(int device);
// Sets the number that rotad has sent.
void set_gpu_number(int device, std::uint32_t number);

}  // namespace rota::driver
