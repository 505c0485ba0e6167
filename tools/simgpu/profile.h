// The simulated card: every figure that decides how long something takes, and what the device says of itself. The
// figures lie in one TOML file per card (profiles/), each with its unit and where it comes from; some are built
// in, and ROTA_SIM_PROFILE names one of them or a file of the same form. Rates are bytes per second, durations modelled
// nanoseconds (before ROTA_SIM_TIME_SCALE). The process that comes first decides for all that share its state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/protocol/result.h"
#include "tools/simgpu/device_figures.h"

namespace rota::sim {

// Unified Memory moves in the driver's 2 MiB blocks; residency is kept per block.
inline constexpr uint64_t kManagedBlock = uint64_t{2} << 20;

struct CostFigures {
  // [copy]: one direction alone, at large sizes; pageable memory goes through the driver's staging buffer.
  double pinned_host_to_device;
  double pinned_device_to_host;
  double pageable_host_to_device;
  double pageable_device_to_host;
  double peer;                        // from one GPU to another
  int64_t copy_fixed_host_to_device;  // what each copy takes of its engine besides; copies to other GPUs too
  int64_t copy_fixed_device_to_host;
  // [link]: PCI Express, of which both directions at once leave less than twice one of them; bytes of a packet.
  double link_raw;               // bytes per second and direction on the wire
  int64_t link_payload;          // data of one packet
  int64_t link_completion;       // header and framing of a packet that answers a read
  int64_t link_write;            // … of a packet that writes
  int64_t link_request;          // a read request
  int64_t link_request_bytes;    // how much one asks for
  int64_t link_acknowledgement;  // what each packet makes the other side send: acknowledgement and credits
  // [memory]
  double device_bandwidth;  // as a kernel sees it: reads and writes together
  // [managed]
  double first_touch;            // fresh memory that a kernel touches
  double first_touch_preferred;  // the same with the preferred location set to the device
  double fresh_prefetch;         // fresh memory prefetched to the device
  double prefetch_in;            // from host to device by a prefetch
  int64_t fault_piece;           // bytes that one fault of a kernel moves
  // [compute]
  int64_t launch;          // an empty kernel, back to back
  int64_t launch_latency;  // from the call to its start on an idle GPU
  int64_t slice;           // a context computes so long while another one waits
  int64_t context_switch;  // saving one context's state and loading the other's
  // [host]
  int64_t call;  // one call of the driver, on a virtual clock
  // [context]
  int64_t context_bytes;  // device memory that a context takes of the whole card
  int64_t context_share;  // of a card of less memory (ROTA_SIM_MEMORY), one part in so many

  // What follows from others, by the model that README.md describes.
  double fault_in() const;               // a kernel touches what lies in host memory: bytes per second
  double eviction() const;               // managed memory pushed out or prefetched to the host
  double duplex_host_to_device() const;  // pinned, while the other direction is busy too
  double duplex_device_to_host() const;
};

struct Profile {
  std::string name;  // as it was asked for
  CostFigures cost;
  DeviceFigures device;
};

// Names of the profiles that are built in; the first is the default.
std::vector<std::string> profile_names();
// A built-in profile, or a TOML file (anything with a slash, or that ends in .toml). A file need not give every figure:
// the others are those of the profile that `base` names, h200 without. Fails in one line that names file, line and key:
// unreadable, no TOML, an unknown key, a wrong type or a value out of range.
Result<Profile> load_profile(const std::string& name_or_path);
// The default profile.
const Profile& default_profile();

// Modelled nanoseconds of so many bytes at so many bytes per second.
int64_t nanoseconds_at(uint64_t bytes, double rate);

}  // namespace rota::sim
