// The simulated GPU's profile: every figure that decides how long something takes or how large the device says it is.
// The figures are those measured on one NVIDIA H200 (driver 580.159, CUDA 13.0, PCIe gen 5); only ratios between them
// mean anything on another machine. Rates are bytes per second, durations nanoseconds.
#pragma once

#include <cstdint>

namespace rota::sim::profile {

using Rate = double;          // bytes per second
using Nanoseconds = int64_t;  // modelled time, before ROTA_SIM_TIME_SCALE

// Copy engines, one per direction. Pinned host memory; the sum of both directions reaches about 1.8 times one of them.
inline constexpr Rate kPinnedHostToDevice = 55.4e9;
inline constexpr Rate kPinnedDeviceToHost = 55.1e9;
// Pageable host memory goes through the driver's staging buffer.
inline constexpr Rate kPageableHostToDevice = 8.5e9;
inline constexpr Rate kPageableDeviceToHost = 16.4e9;

// Device memory as a kernel sees it: copies inside the device read and write, so they get half of it.
inline constexpr Rate kDeviceBandwidth = 3936e9;

// Unified Memory, in the driver's 2 MiB blocks.
inline constexpr uint64_t kManagedBlock = uint64_t{2} << 20;
inline constexpr Rate kFirstTouch = 19.9e9;           // fresh range touched by a kernel: 54 ms per GiB
inline constexpr Rate kFirstTouchPreferred = 46.7e9;  // the same with the preferred location set: 23 ms per GiB
inline constexpr Rate kFreshPrefetch = 346e9;         // fresh range prefetched to the device: 3.1 ms per GiB
inline constexpr Rate kFaultIn = 10.0e9;              // a kernel touches what lies in host memory
inline constexpr Rate kPrefetchIn = 50.3e9;           // host to device by cuMemPrefetchAsync
inline constexpr Rate kEviction = 16.0e9;             // device to host, prefetch or pushed out (15 to 17 GB/s)

// Launching.
inline constexpr Nanoseconds kLaunch = 3300;  // an empty kernel, back to back
// A long kernel lets the other processes in after this long. The driver's own slice is of this order.
inline constexpr Nanoseconds kTimeSlice = 2'000'000;
// Two compute-bound processes reached (8 750 + 8 770) / 19 180 of one alone: work takes this much longer while shared.
inline constexpr double kSharingFactor = 1.095;

// The device itself.
inline constexpr int kMultiprocessors = 132;
inline constexpr int kComputeMajor = 9;
inline constexpr int kComputeMinor = 0;
inline constexpr int kWarpSize = 32;
inline constexpr int kThreadsPerBlock = 1024;
inline constexpr int kThreadsPerMultiprocessor = 2048;
inline constexpr int kBlocksPerMultiprocessor = 32;
inline constexpr int kRegistersPerBlock = 65536;
inline constexpr int kSharedPerBlock = 48 << 10;
inline constexpr int kSharedPerBlockOptin = 227 << 10;
inline constexpr int kSharedPerMultiprocessor = 228 << 10;
inline constexpr int kConstantMemory = 64 << 10;
inline constexpr int kL2Cache = 50 << 20;
inline constexpr int kCopyEngines = 3;
inline constexpr int kClockKilohertz = 1'980'000;
inline constexpr int kMemoryClockKilohertz = 3'201'000;
inline constexpr int kMemoryBusBits = 6144;

// A context of a real H200 takes some 500 MiB of 140 GiB; a card of 1 GiB gets one of 16 MiB by the same idea.
inline constexpr uint64_t kContextShare = 64;  // a context takes capacity / kContextShare, and at most …
inline constexpr uint64_t kContextBytesAtMost = uint64_t{512} << 20;

}  // namespace rota::sim::profile
