// The simulated card: every figure that decides how long something takes, and what the device reports about itself.
// Each card has a TOML file (profiles/) that gives each figure with its unit and source. Some cards are built in;
// ROTA_SIM_PROFILE names one of them or a file of the same form. Rates are bytes per second, durations modelled
// nanoseconds (before ROTA_SIM_TIME_SCALE). The first process decides for all that share its state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/base/result.h"
#include "tools/simgpu/device_figures.h"

namespace rota::sim {

// Unified Memory moves in the driver's 2 MiB blocks; residency is kept per block.
inline constexpr uint64_t kManagedBlock = uint64_t{2} << 20;

struct CostFigures {
  // [copy]: large copies in one direction only; pageable memory goes through the driver's staging buffer.
  double pinned_host_to_device;
  double pinned_device_to_host;
  double pageable_host_to_device;
  double pageable_device_to_host;
  double peer;                        // from one GPU to another
  int64_t copy_fixed_host_to_device;  // fixed cost of each copy on its engine, also for copies to other GPUs
  int64_t copy_fixed_device_to_host;
  // [link]: PCI Express. Both directions together reach less than twice one of them. Sizes are bytes per packet.
  double link_raw;               // bytes per second and direction on the wire
  int64_t link_payload;          // data of one packet
  int64_t link_completion;       // header and framing of a packet that answers a read
  int64_t link_write;            // … of a packet that writes
  int64_t link_request;          // a read request
  int64_t link_request_bytes;    // bytes requested by one read request
  int64_t link_acknowledgement;  // sent by the other side for each packet: acknowledgement and credits
  // [memory]
  double device_bandwidth;  // as seen by a kernel: reads and writes together
  // [managed]
  double first_touch;            // fresh memory touched by a kernel
  double first_touch_preferred;  // the same with the preferred location set to the device
  double fresh_prefetch;         // fresh memory prefetched to the device
  double prefetch_in;            // from host to device by a prefetch
  int64_t fault_piece;           // bytes moved by one fault of a kernel
  // [compute]
  int64_t launch;          // an empty kernel, back to back
  int64_t launch_latency;  // from the call to the kernel's start on an idle GPU
  int64_t slice;           // how long a context computes while another one waits
  int64_t context_switch;  // saving one context's state and loading the other's
  // [host]
  int64_t call;  // one call of the driver, on a virtual clock
  // [context]
  int64_t context_bytes;  // device memory that a context takes on a whole card
  int64_t context_share;  // with less memory (ROTA_SIM_MEMORY): a context takes one part in this many

  // Derived figures, by the model described in profiles/README.md.
  double fault_in() const;               // a kernel touches memory that is on the host: bytes per second
  double eviction() const;               // managed memory pushed out or prefetched to the host
  double duplex_host_to_device() const;  // pinned, while the other direction is busy too
  double duplex_device_to_host() const;
};

struct Profile {
  std::string name;  // as requested
  CostFigures cost;
  DeviceFigures device;
};

// Names of the profiles that are built in; the first is the default.
std::vector<std::string> profile_names();
// A built-in profile, or a TOML file (anything with a slash, or that ends in .toml). A file need not give every figure:
// the others come from the profile that `base` names, by default h200. An error is one line that names file, line and
// key: unreadable, not TOML, an unknown key, a wrong type or a value out of range.
Result<Profile> load_profile(const std::string& name_or_path);
// The default profile.
const Profile& default_profile();

// Modelled nanoseconds for a number of bytes at a rate in bytes per second.
int64_t nanoseconds_at(uint64_t bytes, double rate);

}  // namespace rota::sim
