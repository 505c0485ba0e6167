// CUDA_VISIBLE_DEVICES: which GPUs a process sees, and in which order.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace rota::sim {

using DeviceUuid = std::array<unsigned char, 16>;

// The GPUs (by their number in the machine) that the text names: numbers or unique UUID prefixes ("GPU-…", "MIG-…"),
// separated by commas. The first one that does not exist ends the list; if one is named twice, the list is empty.
std::vector<int> visible_devices(const std::string& text, const std::vector<DeviceUuid>& uuids);

}  // namespace rota::sim
