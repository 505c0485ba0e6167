// What may access this process's GPU memory without any CUDA call that rota sees: network cards, where the kernel has a
// peer-memory client (nvidia-peermem registers memory by an ioctl of the RDMA stack), GDRCopy and GPUDirect Storage,
// whose drivers keep physical addresses; libraries that talk to the driver privately; a debugger. Nothing may move from
// under them.
#pragma once

#include <string>
#include <string_view>

namespace rota::memory {

// Which of these this process has open, mapped or loaded, or which process traces it, as the beginning of a sentence;
// or nothing. Reads /proc/self; some tens of microseconds. Tests put `root` in front of /proc, /dev and /sys.
std::string reached_from_outside(const std::string& root = "");

// Whether a library of this name or path, once it is loaded, may let others reach this process's GPU memory without any
// CUDA call: one of the private ones, and one by which a program opens such a device, where the machine has it.
bool lets_reach(std::string_view library, const std::string& root = "");

// The process that traces this one, as a debugger does; 0: none.
long traced_by(const std::string& root = "");

// Whether a checkpoint of this process is being taken or restored from outside, without a call of this process: nothing
// may move during that. False if the driver cannot do this.
bool being_checkpointed();

}  // namespace rota::memory
