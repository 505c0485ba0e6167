#include "tools/simgpu/device_figures.h"

#include <limits>

namespace rota::sim {
namespace {

struct Attribute {
  api::CUdevice_attribute which;
  std::string_view key;
  int value;
};

constexpr Attribute kAttributes[] = {
#define ROTA_DEVICE_ATTRIBUTE(name, key, value) {api::CU_DEVICE_ATTRIBUTE_##name, key, value},
#include "tools/simgpu/device_attributes.inc"
#undef ROTA_DEVICE_ATTRIBUTE
};

}  // namespace

DeviceFigures::DeviceFigures() {
  for (const Attribute& attribute : kAttributes) attributes_[static_cast<size_t>(attribute.which)] = attribute.value;
}

bool DeviceFigures::set_attribute(std::string_view key, int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) return false;
  for (const Attribute& attribute : kAttributes) {
    if (attribute.key != key) continue;
    attributes_[static_cast<size_t>(attribute.which)] = static_cast<int>(value);
    return true;
  }
  return false;
}

int known_attributes(int driver_version) {
  // CU_DEVICE_ATTRIBUTE_MAX from the releases' cuda.h, from 11.7 on; for older releases approximately, from their
  // documentation.
  struct Release {
    int version;
    int attributes;
  };
  constexpr Release kReleases[] = {{13040, 162}, {13030, 157}, {13010, 149}, {13000, 148}, {12080, 144}, {12050, 136},
                                   {12020, 135}, {12010, 133}, {12000, 130}, {11070, 125}, {11020, 120}, {11000, 112},
                                   {10000, 102}, {9000, 100},  {8000, 92},   {6000, 86},   {0, 75}};
  for (const Release& release : kReleases) {
    if (driver_version >= release.version) return release.attributes;
  }
  return 0;
}

}  // namespace rota::sim
