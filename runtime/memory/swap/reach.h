// Who may reach this process's GPU memory without any CUDA call that rota sees: network cards (nvidia-peermem registers
// memory by an ioctl of the RDMA stack), GDRCopy and GPUDirect Storage, whose drivers keep physical addresses;
// libraries that talk to the driver privately, or register memory with other processes; a debugger. Nothing may move
// from under them.
#pragma once

#include <string>

namespace rota::memory {

// What of that this process has open, mapped or loaded, or who traces it, as the beginning of a sentence; or nothing.
// Reads /proc/self; some tens of microseconds. `root` in front of /proc is a test's.
std::string reached_from_outside(const std::string& root = "");

// Whether a checkpoint of this process is being made or restored from outside, which passes no call of its own: nothing
// moves meanwhile. False where the driver lacks that.
bool being_checkpointed();

}  // namespace rota::memory
