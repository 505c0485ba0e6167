#include "runtime/memory/swap/reach.h"

#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string_view>

#include "generated/driver_real.h"
#include "runtime/memory/sharers.h"

namespace rota::memory {

namespace {

constexpr std::array<std::string_view, 4> kDevices = {"/dev/infiniband/", "/dev/gdrdrv", "/dev/nvidia-fs", "/dev/efa"};
// Decoding and encoding of video, optical flow, ray tracing: memory is handed to them by its address, and used later.
constexpr std::array<std::string_view, 4> kPrivately = {"libnvcuvid.so", "libnvidia-encode.so",
                                                        "libnvidia-opticalflow.so", "libnvoptix.so"};

// By which programs open such devices, and what those are called. Many programs load libcufile.so and never open
// GPUDirect Storage's device (PyTorch is linked with it), so that one is not among them.
struct Opener {
  std::string_view library;
  const char* folder;
  std::string_view device;
};
constexpr std::array<Opener, 2> kOpeners = {
    {{"libibverbs.so", "/dev/infiniband", "uverbs"}, {"libgdrapi.so", "/dev", "gdrdrv"}}};

bool begins_as_one_of(std::string_view text, const auto& beginnings) {
  for (const std::string_view beginning : beginnings) {
    if (text.substr(0, beginning.size()) == beginning) return true;
  }
  return false;
}

std::string open_device(const std::string& root) {
  const std::string folder = root + "/proc/self/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir(folder.c_str()), closedir);
  while (files) {
    const dirent* file = readdir(files.get());  // NOLINT(concurrency-mt-unsafe): a stream of our own
    if (file == nullptr) break;
    std::array<char, PATH_MAX> target{};
    const ssize_t length = readlink((folder + "/" + file->d_name).c_str(), target.data(), target.size());
    if (length <= 0) continue;
    const std::string_view path(target.data(), static_cast<std::size_t>(length));
    if (begins_as_one_of(path, kDevices)) return std::string(path) + " is open";
  }
  return "";
}

bool has_device(const std::string& folder, std::string_view beginning) {
  const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir(folder.c_str()), closedir);
  while (files) {
    const dirent* file = readdir(files.get());  // NOLINT(concurrency-mt-unsafe): a stream of our own
    if (file == nullptr) break;
    if (std::string_view(file->d_name).substr(0, beginning.size()) == beginning) return true;
  }
  return false;
}

std::string mapped_file(const std::string& root) {
  std::ifstream maps(root + "/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at == std::string::npos) continue;
    const std::string_view path = std::string_view(line).substr(at);
    if (begins_as_one_of(path, kDevices)) return std::string(path) + " is mapped";
    if (lets_reach(path, root)) return std::string(path.substr(path.rfind('/') + 1)) + " is loaded";
  }
  return "";
}

}  // namespace

bool lets_reach(std::string_view library, const std::string& root) {
  const std::string_view name = library.substr(library.rfind('/') + 1);
  if (begins_as_one_of(name, kPrivately) || Sharers::shares_here(name)) return true;
  return std::any_of(kOpeners.begin(), kOpeners.end(), [&](const Opener& opener) {
    return name.substr(0, opener.library.size()) == opener.library && has_device(root + opener.folder, opener.device);
  });
}

long traced_by(const std::string& root) {
  constexpr std::string_view kField = "TracerPid:";
  std::ifstream status(root + "/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, kField.size(), kField) == 0) return std::strtol(line.c_str() + kField.size(), nullptr, 10);
  }
  return 0;
}

std::string reached_from_outside(const std::string& root) {
  std::string found = open_device(root);
  if (found.empty()) found = mapped_file(root);
  if (found.empty()) {
    if (const long tracer = traced_by(root); tracer != 0) found = fmt::format("process {} traces this one", tracer);
  }
  return found;
}

bool being_checkpointed() {
  api::CUprocessState state = api::CU_PROCESS_STATE_RUNNING;
  return real::cuCheckpointProcessGetState(getpid(), &state) == api::CUDA_SUCCESS &&
         state != api::CU_PROCESS_STATE_RUNNING;
}

}  // namespace rota::memory
