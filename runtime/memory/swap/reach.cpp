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
#include <optional>
#include <string_view>

#include "generated/driver_real.h"

namespace rota::memory {

namespace {

constexpr std::array<std::string_view, 2> kDevices = {"/dev/gdrdrv", "/dev/nvidia-fs"};
// RDMA devices. The part that registers GPU memory with them by its address is in the kernel: a peer-memory client,
// which is one of these modules or listed by the RDMA stack; EFA's driver has one built in. Without one, such a device
// gets GPU memory as a dma-buf only, for which the program calls the driver (cuMemGetHandleForAddressRange).
constexpr std::string_view kVerbs = "/dev/infiniband/uverbs";
constexpr std::string_view kPeers = "/sys/kernel/mm/memory_peers";
constexpr std::string_view kModules = "/sys/module";
constexpr std::array<std::string_view, 4> kPeerModules = {"nvidia_peermem", "nv_peer_mem", "efa_nv_peermem", "efa"};
// Decoding and encoding of video, optical flow, ray tracing: memory is handed to them by its address, and used later.
constexpr std::array<std::string_view, 4> kPrivately = {"libnvcuvid.so", "libnvidia-encode.so",
                                                        "libnvidia-opticalflow.so", "libnvoptix.so"};

// The libraries by which programs open such devices. Many programs load libcufile.so and never open GPUDirect Storage's
// device (PyTorch is linked with it), so that one is not among them. Nor are NCCL, MPI, UCX and NVSHMEM: they share
// memory by calls of the driver that rota sees, or open one of these devices.
constexpr std::string_view kVerbsLibrary = "libibverbs.so";
constexpr std::string_view kGdrLibrary = "libgdrapi.so";

bool begins_as_one_of(std::string_view text, const auto& beginnings) {
  for (const std::string_view beginning : beginnings) {
    if (text.starts_with(beginning)) return true;
  }
  return false;
}

// Whether any file of the folder begins so; nothing: the folder cannot be read.
std::optional<bool> has_file(const std::string& folder, std::string_view beginning) {
  const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir(folder.c_str()), closedir);
  if (!files) return std::nullopt;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): a stream of our own
  while (const dirent* file = readdir(files.get())) {
    const std::string_view name = file->d_name;
    if (name != "." && name != ".." && name.starts_with(beginning)) return true;
  }
  return false;
}

// Whether the kernel lets RDMA devices have GPU memory by its address. Where it does not show its modules, it may.
bool peers_get_memory(const std::string& root) {
  if (has_file(root + std::string(kPeers), "").value_or(false)) return true;
  const std::string modules = root + std::string(kModules) + "/";
  if (!has_file(modules, "").value_or(false)) return true;
  return std::ranges::any_of(kPeerModules, [&](std::string_view module) {
    return access((modules + std::string(module)).c_str(), F_OK) == 0;
  });
}

bool reaches(std::string_view path, const std::string& root) {
  return begins_as_one_of(path, kDevices) || (path.starts_with(kVerbs) && peers_get_memory(root));
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
    if (reaches(path, root)) return std::string(path) + " is open";
  }
  return "";
}

std::string mapped_file(const std::string& root) {
  std::ifstream maps(root + "/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at == std::string::npos) continue;
    const std::string_view path = std::string_view(line).substr(at);
    if (reaches(path, root)) return std::string(path) + " is mapped";
    if (lets_reach(path, root)) return std::string(path.substr(path.rfind('/') + 1)) + " is loaded";
  }
  return "";
}

}  // namespace

bool lets_reach(std::string_view library, const std::string& root) {
  const std::string_view name = library.substr(library.rfind('/') + 1);
  if (begins_as_one_of(name, kPrivately)) return true;
  if (name.starts_with(kVerbsLibrary)) {
    return has_file(root + "/dev/infiniband", "uverbs").value_or(false) && peers_get_memory(root);
  }
  return name.starts_with(kGdrLibrary) && has_file(root + "/dev", "gdrdrv").value_or(false);
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
