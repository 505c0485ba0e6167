#include "runtime/memory/host.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace rota::memory {

namespace {

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // "max" is no number
}

std::uint64_t machine_bytes(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  std::uint64_t kilobytes = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> name >> kilobytes && name == "MemAvailable:") return kilobytes << 10;
  }
  return UINT64_MAX;
}

// What is left in a folder of a memory controller and in those above it.
std::uint64_t left_below(const std::string& mount, std::string folder, const char* limit_file, const char* use_file) {
  std::uint64_t left = UINT64_MAX;
  for (;;) {
    const std::string here = mount + folder + "/";
    const auto limit = number_in(here + limit_file);
    const auto use = number_in(here + use_file);
    if (limit && use) left = std::min(left, *limit - std::min(*limit, *use));
    if (folder.empty() || folder == "/") return left;
    folder.erase(folder.rfind('/'));
  }
}

// Of a list as "cpu,memory".
bool names_memory(std::string_view controllers) {
  for (;;) {
    const auto end = controllers.find(',');
    if (controllers.substr(0, end) == "memory") return true;
    if (end == std::string_view::npos) return false;
    controllers.remove_prefix(end + 1);
  }
}

}  // namespace

std::uint64_t available_host_bytes(const std::string& root) {
  std::uint64_t left = machine_bytes(root);
  std::ifstream file(root + "/proc/self/cgroup");
  // hierarchy:controllers:folder
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const std::string folder = line.substr(second + 1);
    if (controllers.empty()) {
      left = std::min(left, left_below(root + "/sys/fs/cgroup", folder, "memory.max", "memory.current"));
    } else if (names_memory(controllers)) {
      left = std::min(
          left, left_below(root + "/sys/fs/cgroup/memory", folder, "memory.limit_in_bytes", "memory.usage_in_bytes"));
    }
  }
  return left;
}

}  // namespace rota::memory
