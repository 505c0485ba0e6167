#include "tools/simgpu/driver/device/visible_devices.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

namespace rota::sim {
namespace {

// 8-4-4-4-12 hexadecimal digits.
std::string text_of(const DeviceUuid& uuid) {
  std::string text;
  for (size_t index = 0; index < uuid.size(); ++index) {
    if (index == 4 || index == 6 || index == 8 || index == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", uuid[index]);
    text += digits;
  }
  return text;
}

// The only GPU whose UUID starts with this; -1: none, or several.
int by_uuid(const std::string& start, const std::vector<DeviceUuid>& uuids) {
  int found = -1;
  for (size_t index = 0; index < uuids.size(); ++index) {
    if (text_of(uuids[index]).compare(0, start.size(), start) != 0) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(index);
  }
  return found;
}

int device_of(std::string word, const std::vector<DeviceUuid>& uuids) {
  word.erase(0, word.find_first_not_of(" \t"));
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char letter) { return std::tolower(letter); });
  if (word.compare(0, 4, "gpu-") == 0 || word.compare(0, 4, "mig-") == 0) return by_uuid(word.substr(4), uuids);
  char* end = nullptr;
  long number = std::strtol(word.c_str(), &end, 10);  // anything after the digits is ignored
  if (end == word.c_str() || number < 0 || number >= static_cast<long>(uuids.size())) return -1;
  return static_cast<int>(number);
}

}  // namespace

std::vector<int> visible_devices(const std::string& text, const std::vector<DeviceUuid>& uuids) {
  std::vector<int> devices;
  for (size_t start = 0; start <= text.size();) {
    size_t comma = std::min(text.find(',', start), text.size());
    int device = device_of(text.substr(start, comma - start), uuids);
    if (device < 0) break;
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) return {};
    devices.push_back(device);
    start = comma + 1;
  }
  return devices;
}

}  // namespace rota::sim
