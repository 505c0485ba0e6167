// CUDA_VISIBLE_DEVICES: which GPUs a process sees, and in which order.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace rota::sim {

using DeviceUuid = std::array<unsigned char, 16>;

// The GPUs (by their number in the machine) that the text names: numbers, or UUIDs ("GPU-…", "MIG-…") as far as needed
// to tell them apart, separated by commas. The first one that there is not ends the list; one that is named twice
// leaves nothing.
std::vector<int> visible_devices(const std::string& text, const std::vector<DeviceUuid>& uuids);

}  // namespace rota::sim
