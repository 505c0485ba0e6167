#include "runtime/memory/swap/reach.h"

#include <dirent.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <fstream>
#include <memory>
#include <string_view>

namespace rota::memory {

namespace {

constexpr std::array<std::string_view, 4> kDevices = {"/dev/infiniband/", "/dev/gdrdrv", "/dev/nvidia-fs", "/dev/efa"};

bool reaches(std::string_view path) {
  for (const std::string_view device : kDevices) {
    if (path.substr(0, device.size()) == device) return true;
  }
  return false;
}

}  // namespace

std::string opened_for_direct_access(const std::string& root) {
  const std::string folder = root + "/proc/self/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir(folder.c_str()), closedir);
  while (files) {
    const dirent* file = readdir(files.get());  // NOLINT(concurrency-mt-unsafe): a stream of our own
    if (file == nullptr) break;
    std::array<char, PATH_MAX> target{};
    const ssize_t length = readlink((folder + "/" + file->d_name).c_str(), target.data(), target.size());
    if (length <= 0) continue;
    const std::string_view path(target.data(), static_cast<std::size_t>(length));
    if (reaches(path)) return std::string(path);
  }
  std::ifstream maps(root + "/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t path = line.find('/');
    if (path != std::string::npos && reaches(std::string_view(line).substr(path))) return line.substr(path);
  }
  return "";
}

}  // namespace rota::memory
