// What a simulated device says of itself: its name, its memory and its attributes (cuDeviceGetAttribute). A
// default-made one is an H200; a profile's [device] and [device.attributes] change what is different on another card.
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
  uint64_t memory = 0;  // bytes of the whole card; 0: not said
  bool mig = false;     // a slice of a card: it has a UUID of its own, and the card's for cuDeviceGetUuid's first form

  // 0 for numbers that are no attribute.
  int attribute(api::CUdevice_attribute which) const {
    auto index = static_cast<size_t>(which);
    return index < attributes_.size() ? attributes_[index] : 0;
  }
  // By its name in lower case without CU_DEVICE_ATTRIBUTE_. False: no such attribute, or a value that is no int.
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

// How many attributes a driver of this version knows: numbers from there on are invalid to it.
int known_attributes(int driver_version);

}  // namespace rota::sim
