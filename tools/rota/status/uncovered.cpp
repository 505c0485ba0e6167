#include "tools/rota/status/uncovered.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

namespace rota::tool {
namespace {

namespace fs = std::filesystem;

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The value of a variable in a block of NAME=VALUE, each ended by a zero; "" if it is not set.
std::string_view variable(std::string_view block, std::string_view name) {
  while (!block.empty()) {
    const std::string_view one = block.substr(0, block.find('\0'));
    if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=')
      return one.substr(name.size() + 1);
    block.remove_prefix(std::min(block.size(), one.size() + 1));
  }
  return {};
}

struct Mapped {
  bool driver = false;
  bool preload = false;
};

// By the files' names: rota's own preload poses as the driver to the loader, but not in its file's name.
Mapped mapped_in(const std::string& folder) {
  Mapped mapped;
  std::ifstream maps(folder + "/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::string::size_type slash = line.rfind('/');
    if (slash == std::string::npos) continue;
    const std::string_view name = std::string_view(line).substr(slash + 1);
    mapped.driver = mapped.driver || name.starts_with("libcuda.so");
    mapped.preload = mapped.preload || name.starts_with("librota.so");
  }
  return mapped;
}

}  // namespace

bool is_uncovered(pid_t process, Uncovered& found) {
  const std::string folder = "/proc/" + std::to_string(process);
  const std::string environment = content(folder + "/environ");
  const std::string_view limit = variable(environment, "ROTA_GPU_MEM_LIMIT");
  if (limit.empty() && variable(environment, "ROTA_SESSION").empty()) return false;
  // Most have it, and are not looked into any further.
  if (variable(environment, "LD_PRELOAD").find("/librota.so") != std::string_view::npos) return false;
  const std::string_view off = variable(environment, "ROTA_OFF");
  if (!off.empty() && off != "0") return false;
  const Mapped mapped = mapped_in(folder);
  if (!mapped.driver || mapped.preload) return false;
  found.process = process;
  found.socket = variable(environment, "ROTA_SOCKET");
  found.limited = !limit.empty();
  found.command = content(folder + "/cmdline");
  while (found.command.ends_with('\0')) found.command.pop_back();
  std::ranges::replace(found.command, '\0', ' ');
  return true;
}

std::vector<Uncovered> uncovered_programs(const std::string& socket) {
  std::vector<Uncovered> all;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t process = 0;
    const auto [rest, failed] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (failed != std::errc{} || rest != name.data() + name.size()) continue;
    if (Uncovered found; is_uncovered(process, found) && found.socket == socket) all.push_back(std::move(found));
  }
  std::ranges::sort(all, {}, &Uncovered::process);
  return all;
}

}  // namespace rota::tool
