// What programs have done on GPUs, summed up over all that have been there since rotad started. Rows of a Snapshot for
// views within rotad (scheduler/metrics): they have texts of any length, and are never sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "scheduler/base/uuid.h"
#include "scheduler/protocol/pins.h"

namespace rota::protocol {

// What refuses memory: the GPU, the host, or a limit on either.
enum class RefusalReason : std::uint8_t {
  kGpuFull,
  kHostMemory,
  kProcessGpuLimit,
  kProcessHostLimit,
  kSessionGpuLimit,
  kSessionHostLimit,
  kUserGpuLimit,
  kUserHostLimit,
  kCgroupGpuLimit,
  kCgroupHostLimit,
};
inline constexpr std::array<const char*, 10> kRefusalReasons = {
    "gpu_full",           "host_memory",    "process_gpu_limit", "process_host_limit", "session_gpu_limit",
    "session_host_limit", "user_gpu_limit", "user_host_limit",   "cgroup_gpu_limit",   "cgroup_host_limit"};

struct Totals {
  std::uint64_t held_ns = 0;
  std::uint64_t waited_ns = 0;
  std::uint64_t out_bytes = 0;  // evicted to the host
  std::uint64_t in_bytes = 0;   // and restored
  std::uint64_t revocations = 0;
  std::array<std::uint64_t, kRefusalReasons.size()> refusals{};  // by RefusalReason
};

// What programs have at the moment.
struct Gauges {
  std::uint32_t programs = 0;
  std::uint64_t allocated_bytes = 0;
  std::uint64_t resident_bytes = 0;
  bool all_resident_known = true;  // false: Unified Memory is among it, of which the driver does not say where it is
  // Of what is allocated, what cannot leave the GPU: allocated so, pinned, or only for now.
  std::uint64_t native_bytes = 0;
  std::array<std::uint64_t, kPins> pinned_bytes{};  // by Pin
  std::uint64_t process_bytes = 0;                  // all that a process has, for reasons of its own
  std::uint64_t for_now_bytes = 0;
};

// The owner. An empty text: not known, or there is none.
struct SeriesKey {
  std::string user;
  std::string session;    // its name; sessions without a name count together
  std::string cgroup;     // its path
  std::string container;  // the beginning of its id
  auto operator<=>(const SeriesKey&) const = default;
};

struct SeriesRow {
  Uuid gpu;
  SeriesKey key;
  Totals totals;
  Gauges now;
};

// A histogram of durations: how many were at most as long as each bound and longer than the one before, and longer than
// all.
inline constexpr std::size_t kBuckets = 11;
using Bounds = std::array<std::uint64_t, kBuckets>;  // nanoseconds
struct Histogram {
  std::array<std::uint64_t, kBuckets + 1> counts{};
  std::uint64_t sum_ns = 0;

  void add(const Bounds& bounds, std::uint64_t ns, std::uint64_t times = 1) {
    std::size_t at = 0;
    while (at < kBuckets && ns > bounds[at]) ++at;
    counts[at] += times;
    sum_ns += ns * times;
  }
};

// A judgment: a burst takes less than the first bounds of a wait, a turn that moves memory about as long as the last
// ones (scheduler/README.md, how long programs wait).
inline constexpr Bounds kWaitBounds = {1'000'000,      5'000'000,       20'000'000,       100'000'000,
                                       500'000'000,    1'000'000'000,   5'000'000'000,    15'000'000'000,
                                       60'000'000'000, 300'000'000'000, 1'800'000'000'000};
inline constexpr Bounds kHandOverBounds = {100'000,       250'000,       500'000,       1'000'000,
                                           5'000'000,     20'000'000,    100'000'000,   500'000'000,
                                           1'000'000'000, 2'500'000'000, 10'000'000'000};
inline constexpr Bounds kMoveBounds = {1'000'000,     5'000'000,     20'000'000,    50'000'000,
                                       100'000'000,   250'000'000,   500'000'000,   1'000'000'000,
                                       2'500'000'000, 5'000'000'000, 15'000'000'000};

struct GpuTotals {
  Uuid gpu;
  std::uint32_t number = 0;  // as nvidia-smi numbers it
  Histogram waits;           // from a request for the GPU until it is granted
  Histogram hand_overs;      // from a grant until its holder runs
  Histogram moves_out;
  Histogram moves_in;
  std::uint64_t handed_over_bytes = 0;  // from program to program
};

}  // namespace rota::protocol
