// cuInit failed or found no GPU: which error it is, and how to fix each.
#include <fmt/format.h>

#include <algorithm>

#include "generated/driver_types.h"
#include "tools/rota/doctor/findings.h"

namespace rota::doctor {
namespace {

struct Advice {
  int error;
  const char* name;
  const char* text;
  const char* remedy;
};

constexpr const char* kMpsRemedy =
    "restart the MPS control daemon, or end it with `echo quit | nvidia-cuda-mps-control`: rota does not need it";

constexpr Advice kAdvice[] = {
    {api::CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "there is no memory for the driver itself",
     "raise the limit on memory of this process or container (ulimit -v, memory cgroup)"},
    {api::CUDA_ERROR_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "this is the CUDA Toolkit's stub, not a driver",
     "remove the toolkit's stubs folder from LD_LIBRARY_PATH, or set ROTA_REAL_LIBCUDA to the driver's libcuda.so.1"},
    {35, "CUDA_ERROR_INSUFFICIENT_DRIVER", "the driver is older than the program's CUDA", "update the driver"},
    {api::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
     "the kernel module is older than this library", "update the driver, and reboot or reload its module"},
    {api::CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "the GPU is in use or in a bad state",
     "nvidia-smi shows which programs use it and its compute mode: `nvidia-smi -c 0` allows several programs"},
    {api::CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "the chosen GPU does not exist",
     "correct CUDA_VISIBLE_DEVICES: `nvidia-smi -L` lists the GPUs"},
    {api::CUDA_ERROR_DEVICE_NOT_LICENSED, "CUDA_ERROR_DEVICE_NOT_LICENSED", "this vGPU has no licence",
     "have the virtual machine obtain a vGPU licence (nvidia-gridd)"},
    {api::CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "the operating system refused a call of the driver",
     "see whether /dev/nvidia* can be opened and whether limits (ulimit -v, seccomp, cgroup devices) are in the way"},
    {api::CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "this process may not use the driver",
     "see whether MPS, confidential computing or a security module forbids it for this user"},
    {api::CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "this driver does not support the GPU",
     "install a driver that does: `nvidia-smi` and dmesg (NVRM) say which GPU this is"},
    {api::CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "the machine's GPUs are not ready yet",
     "on machines with NVSwitch, start the fabric manager of the driver's version: `systemctl start "
     "nvidia-fabricmanager`"},
    {api::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
     "this is CUDA's forward-compatibility driver, which this GPU does not allow",
     "remove /usr/local/cuda/compat from LD_LIBRARY_PATH and /etc/ld.so.conf.d, or remove the cuda-compat package"},
    {api::CUDA_ERROR_MPS_CONNECTION_FAILED, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS does not answer", kMpsRemedy},
    {api::CUDA_ERROR_MPS_RPC_FAILURE, "CUDA_ERROR_MPS_RPC_FAILURE", "MPS does not answer", kMpsRemedy},
    {api::CUDA_ERROR_MPS_SERVER_NOT_READY, "CUDA_ERROR_MPS_SERVER_NOT_READY", "the MPS server is not ready",
     kMpsRemedy},
    {api::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "MPS accepts no more programs",
     kMpsRemedy},
    {api::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
     "MPS accepts no more connections", kMpsRemedy},
    {api::CUDA_ERROR_MPS_CLIENT_TERMINATED, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "MPS ended this program", kMpsRemedy},
};

bool is_gpu_file(const DeviceFile& file) {
  constexpr std::string_view kPrefix = "/dev/nvidia";
  return file.path == "/dev/dxg" || (file.path.rfind(kPrefix, 0) == 0 && file.path.size() > kPrefix.size() &&
                                     file.path.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos);
}

const DeviceFile* find_file(const HostFacts& host, const std::string& path) {
  const auto found =
      std::find_if(host.devices.begin(), host.devices.end(), [&](const DeviceFile& file) { return file.path == path; });
  return found == host.devices.end() ? nullptr : &*found;
}

// Why there is no GPU, according to the device files and the kernel module; empty if they do not show it.
struct Cause {
  std::string text, remedy;
};

Cause cause_in_devices(const HostFacts& host) {
  const bool any = std::any_of(host.devices.begin(), host.devices.end(), is_gpu_file);
  if (host.kernel_module.empty() && find_file(host, "/dev/dxg") == nullptr) {
    return {"the NVIDIA kernel module is not loaded",
            host.container.empty()
                ? "`modprobe nvidia`; if that fails, dmesg (NVRM) says why; a new kernel needs the module "
                  "built for it; a machine without an NVIDIA GPU can use `rota sim`"
                : "on the host: `modprobe nvidia`; if that fails, dmesg (NVRM) says why"};
  }
  if (!any) {
    return {"there is no /dev/nvidia0",
            host.container.empty() ? "`nvidia-modprobe -c=0`, or start nvidia-persistenced; dmesg (NVRM) says whether "
                                     "the GPU was found"
                                   : "start the container with --gpus all (Kubernetes: ask for nvidia.com/gpu and "
                                     "install the device plugin)"};
  }
  for (const DeviceFile& file : host.devices) {
    if (file.usable || !(is_gpu_file(file) || file.path == "/dev/nvidiactl" || file.path == "/dev/nvidia-uvm"))
      continue;
    return {fmt::format("this user may not open {}", file.path),
            host.container.empty()
                ? fmt::format("`chmod a+rw {}`, or join the group that owns it (often video)", file.path)
                : "start the container with --gpus all, so that its cgroup allows the device, and as a user that may "
                  "open it"};
  }
  if (find_file(host, "/dev/dxg") == nullptr && find_file(host, "/dev/nvidia-uvm") == nullptr) {
    return {"there is no /dev/nvidia-uvm, which CUDA needs",
            host.container.empty() ? "`nvidia-modprobe -u -c=0` (as root)"
                                   : "`nvidia-modprobe -u -c=0` on the host, then start the container again"};
  }
  return {};
}

const NvmlGpu* split_gpu(const NvmlFacts& nvml) {
  const auto found =
      std::find_if(nvml.gpus.begin(), nvml.gpus.end(), [](const NvmlGpu& gpu) { return gpu.mig_now == 1; });
  return found == nvml.gpus.end() ? nullptr : &*found;
}

// No device, or an error that does not say what is wrong.
Cause cause_of_nothing(const Facts& facts) {
  const auto hidden = facts.variables.find("CUDA_VISIBLE_DEVICES");
  Cause cause = cause_in_devices(facts.host);
  // If there are GPUs, what hides them; if there are none, hiding them needs no remedy.
  if (!cause.text.empty()) return cause;
  if (hidden != facts.variables.end()) {
    return {fmt::format("CUDA_VISIBLE_DEVICES={} shows none", hidden->second.empty() ? "''" : hidden->second),
            "unset CUDA_VISIBLE_DEVICES, or name a GPU that `nvidia-smi -L` lists"};
  }
  if (const NvmlGpu* gpu = split_gpu(facts.probe.nvml); gpu != nullptr) {
    return {fmt::format("{} is in MIG mode and has no instance", gpu->uuid),
            "create instances with `nvidia-smi mig -cgi PROFILE -C`, or leave MIG mode with `nvidia-smi -mig 0`"};
  }
  return {};
}

}  // namespace

void judge_init_error(const Facts& facts, Findings& findings) {
  const ProbeFacts& probe = facts.probe;
  const int error = probe.init.value_or(0);
  Finding finding{"driver.init", Level::kProblem, "", "", {{"error", error}, {"count", probe.count.value_or(0)}}};
  if (!probe.init) {
    finding.text = "the driver has no working cuInit";
    finding.remedy = "set ROTA_REAL_LIBCUDA to the path of the NVIDIA driver's libcuda.so.1";
    findings.push_back(finding);
    return;
  }
  if (error == api::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) {
    finding.text =
        fmt::format("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): the kernel module has version {}, the library {}",
                    facts.host.kernel_module.empty() ? "another version" : facts.host.kernel_module,
                    facts.driver.file.empty() ? facts.driver.path : facts.driver.file);
    finding.remedy = facts.host.container.empty()
                         ? "after an update of the driver, reboot or reload the nvidia modules; make sure that no "
                           "older libcuda.so.1 is in LD_LIBRARY_PATH"
                         : "remove the libcuda.so.1 that is part of the image: the driver's comes from the host";
    findings.push_back(finding);
    return;
  }
  const auto* advice = std::find_if(std::begin(kAdvice), std::end(kAdvice),
                                    [&](const Advice& candidate) { return candidate.error == error; });
  if (advice != std::end(kAdvice)) {
    finding.text = fmt::format("cuInit: {} ({}): {}", advice->name, error, advice->text);
    finding.remedy = advice->remedy;
    findings.push_back(finding);
    return;
  }
  const Cause cause = cause_of_nothing(facts);
  const std::string reason = cause.text.empty() ? "" : ": " + cause.text;
  if (error == 0 || error == api::CUDA_ERROR_NO_DEVICE) {
    finding.text = error == 0 ? "the driver starts but shows no GPU" + reason
                              : "cuInit: CUDA_ERROR_NO_DEVICE (100): the driver sees no GPU" + reason;
    finding.remedy = "see whether nvidia-smi lists a GPU and what dmesg says (NVRM)";
  } else if (error == api::CUDA_ERROR_UNKNOWN) {
    finding.text = "cuInit: CUDA_ERROR_UNKNOWN (999)" + reason;
    finding.remedy =
        "reload the Unified Memory module, which often fails after a suspend: `rmmod nvidia_uvm; modprobe "
        "nvidia_uvm`; otherwise reboot";
  } else {
    finding.text = fmt::format("cuInit returns error {}{}", error, reason);
    finding.remedy = "see whether nvidia-smi works and what dmesg says (NVRM, Xid)";
  }
  if (!cause.remedy.empty()) finding.remedy = cause.remedy;
  findings.push_back(finding);
}

}  // namespace rota::doctor
