#include "runtime/memory/swap/untried.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "generated/driver_real.h"

namespace rota::memory {

using protocol::MemoryMode;

namespace {

std::optional<bool> attribute(api::CUdevice_attribute which, int device) {
  int value = 0;
  if (real::cuDeviceGetAttribute(&value, which, device) != api::CUDA_SUCCESS) return std::nullopt;
  return value != 0;
}

bool exists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

bool under_mps(int device, const std::string& root) {
  if (const auto known = attribute(api::CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device)) return *known;
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");  // NOLINT(concurrency-mt-unsafe)
  return exists(root + (folder != nullptr ? folder : "/tmp/nvidia-mps") + "/control");
}

// "NVIDIA A100-SXM4-40GB MIG 1g.5gb". The UUID, which begins with MIG as text, has no such mark in CUDA's form.
bool is_instance(int device) {
  std::array<char, 256> name{};
  return real::cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device) == api::CUDA_SUCCESS &&
         std::string_view(name.data()).find(" MIG ") != std::string_view::npos;
}

// CUDA does not report this. A GPU in this mode is used from a confidential virtual machine, which the kernel reports.
bool is_confidential(const std::string& root) {
  return exists(root + "/sys/class/misc/sev-guest") || exists(root + "/sys/class/misc/tdx_guest");
}

}  // namespace

MemoryMode untried(int device, const std::string& root) {
  if (under_mps(device, root)) return MemoryMode::kUnifiedMps;
  if (is_instance(device)) return MemoryMode::kUnifiedMig;
  if (is_confidential(root)) return MemoryMode::kUnifiedConfidential;
  if (attribute(api::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, device).value_or(false)) {
    return MemoryMode::kUnifiedCoherent;
  }
  return MemoryMode::kUnknown;
}

}  // namespace rota::memory
