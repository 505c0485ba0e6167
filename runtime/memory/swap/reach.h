// Who may reach this process's GPU memory without any CUDA call: network cards (nvidia-peermem registers memory by an
// ioctl of the RDMA stack), GDRCopy and GPUDirect Storage. Their drivers keep physical addresses, so nothing may move
// from under them.
#pragma once

#include <string>

namespace rota::memory {

// The device file that this process has open for that, or has mapped, or nothing. Reads /proc/self; some tens of
// microseconds. `root` in front of /proc is a test's.
std::string opened_for_direct_access(const std::string& root = "");

}  // namespace rota::memory
