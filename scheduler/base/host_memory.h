// How much memory the host has left, in total and for a process within its cgroups.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace rota {

// What a process has in the host's memory; 0 if it is not known.
inline std::uint64_t resident_bytes(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  return process > 0 && file >> size >> resident ? resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// In all other functions here, `root` is a prefix of /proc and /sys, for tests.

// MemAvailable in bytes; UINT64_MAX if the machine does not report it.
inline std::uint64_t available_to_all(const std::string& root = "") {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  std::uint64_t kilobytes = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> name >> kilobytes && name == "MemAvailable:") return kilobytes << 10;
  }
  return UINT64_MAX;
}

// A process's place in one hierarchy of cgroups.
struct Cgroup {
  std::string path;  // from the hierarchy's root, as in /proc
  // For the memory controller: where its folders are, and the names of its files. Empty for any other hierarchy.
  std::string mount;
  const char* limit_file = "";
  const char* use_file = "";
};

// Version 2's hierarchy and that of version 1's memory controller, at their roots; a machine may have either or both.
inline std::vector<Cgroup> memory_hierarchies(const std::string& root = "") {
  return {{.path = {}, .mount = root + "/sys/fs/cgroup", .limit_file = "memory.max", .use_file = "memory.current"},
          {.path = {},
           .mount = root + "/sys/fs/cgroup/memory",
           .limit_file = "memory.limit_in_bytes",
           .use_file = "memory.usage_in_bytes"}};
}

// `process`: a pid, or "self".
inline std::vector<Cgroup> cgroups_of(const std::string& process, const std::string& root = "") {
  const auto names_memory = [](std::string_view controllers) {
    for (;;) {
      const auto end = controllers.find(',');
      if (controllers.substr(0, end) == "memory") return true;
      if (end == std::string_view::npos) return false;
      controllers.remove_prefix(end + 1);
    }
  };
  std::vector<Cgroup> all;
  std::ifstream file(root + "/proc/" + process + "/cgroup");
  // hierarchy:controllers:folder
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    Cgroup cgroup;
    if (controllers.empty()) {
      cgroup = memory_hierarchies(root).front();
    } else if (names_memory(controllers)) {
      cgroup = memory_hierarchies(root).back();
    }
    cgroup.path = line.substr(second + 1);
    all.push_back(cgroup);
  }
  return all;
}

// Bytes left under this cgroup's own limit; nothing if it has none.
inline std::optional<std::uint64_t> left_in(const Cgroup& cgroup) {
  if (cgroup.mount.empty()) return std::nullopt;
  const auto number_in = [&](const char* name) -> std::optional<std::uint64_t> {
    std::ifstream file(cgroup.mount + cgroup.path + "/" + name);
    std::uint64_t number = 0;
    if (file >> number) return number;
    return std::nullopt;  // "max" is not a number
  };
  const auto limit = number_in(cgroup.limit_file);
  const auto use = number_in(cgroup.use_file);
  // Version 1 writes "no limit" as the largest number of whole pages.
  if (!limit || !use || *limit >= std::uint64_t{1} << 62) return std::nullopt;
  return *limit - std::min(*limit, *use);
}

// The parent; nothing above the root.
inline std::optional<Cgroup> parent_of(Cgroup cgroup) {
  if (cgroup.path.empty() || cgroup.path == "/") return std::nullopt;
  cgroup.path.erase(cgroup.path.rfind('/'));
  return cgroup;
}

// Bytes that a process may still use: what the machine has available, or less if its cgroup or a parent has a lower
// limit.
inline std::uint64_t available_to(const std::string& process, const std::string& root = "") {
  std::uint64_t left = available_to_all(root);
  for (const Cgroup& own : cgroups_of(process, root)) {
    for (std::optional<Cgroup> cgroup = own; cgroup; cgroup = parent_of(*cgroup)) {
      if (const auto here = left_in(*cgroup)) left = std::min(left, *here);
    }
  }
  return left;
}

}  // namespace rota
