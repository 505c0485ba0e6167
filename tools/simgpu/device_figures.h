// What a simulated device reports about itself: its name, its memory and its attributes (cuDeviceGetAttribute). The
// default is an H200; a profile's [device] and [device.attributes] override what differs on another card.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "generated/driver_types.h"

namespace rota::sim {

class DeviceFigures {
 public:
  DeviceFigures();

  std::string name = "NVIDIA H200";
  uint64_t memory = 0;  // bytes of the whole card; 0: not given
  bool mig = false;  // a slice of a card: it has its own UUID, and returns the card's for cuDeviceGetUuid's first form

  // 0 for numbers that are not attributes.
  int attribute(api::CUdevice_attribute which) const {
    auto index = static_cast<size_t>(which);
    return index < attributes_.size() ? attributes_[index] : 0;
  }
  // Sets an attribute by its name in lower case without CU_DEVICE_ATTRIBUTE_. False: no such attribute, or the value
  // does not fit an int.
  bool set_attribute(std::string_view key, int64_t value);

  int compute_capability() const {  // 10 * major + minor
    return 10 * attribute(api::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
           attribute(api::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  }
  int multiprocessors() const { return attribute(api::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT); }
  int threads_per_block() const { return attribute(api::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK); }

 private:
  std::array<int, api::CU_DEVICE_ATTRIBUTE_MAX> attributes_{};
};

// The number of attributes that a driver of this version knows: it rejects numbers from there on.
int known_attributes(int driver_version);

}  // namespace rota::sim
