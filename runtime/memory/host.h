// How much memory the host has left for this process.
#pragma once

#include <cstdint>
#include <string>

namespace rota::memory {

// Bytes: what the machine says is available (MemAvailable), or less where a cgroup of this process or one above it has
// a lower limit (memory.max less memory.current; of version 1 the memory controller's). UINT64_MAX where neither is
// told. `root` stands before /proc and /sys: for tests.
std::uint64_t available_host_bytes(const std::string& root = "");

}  // namespace rota::memory
