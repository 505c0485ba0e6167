// The machine: host memory for what does not fit on a GPU, limits of the process, what the kernel offers.
#include <fmt/format.h>

#include <algorithm>

#include "tools/rota/doctor/findings.h"

namespace rota::doctor {
namespace {

// A CUDA program opens some hundred files per process (device files, event descriptors, libraries).
constexpr std::uint64_t kFewFiles = 256;

std::string limit_text(std::uint64_t bytes) {
  return bytes == kUnlimited ? "unlimited" : size_text(bytes);
}

// Unified Memory that does not fit on the GPU is in host memory.
void judge_memory(const Facts& facts, Findings& findings) {
  const HostFacts& host = facts.host;
  if (host.memory == 0) return;
  std::uint64_t room = host.memory_free;
  const bool limited = host.cgroup_limit != 0;
  if (limited) room = std::min(room, host.cgroup_limit - std::min(host.cgroup_limit, host.cgroup_used));
  const nlohmann::json values = {{"room_bytes", room},
                                 {"memory_bytes", host.memory},
                                 {"available_bytes", host.memory_free},
                                 {"cgroup_limit_bytes", host.cgroup_limit},
                                 {"cgroup_used_bytes", host.cgroup_used}};
  const std::string text = fmt::format("{} of host memory for what does not fit on the GPUs ({} of RAM{})",
                                       size_text(room), size_text(host.memory),
                                       limited ? fmt::format(", cgroup limit {}", size_text(host.cgroup_limit)) : "");
  std::uint64_t largest = 0;
  for (const GpuFacts& gpu : facts.probe.gpus) {
    if (gpu.concurrent_managed) largest = std::max(largest, gpu.bytes);
  }
  const auto memory = facts.variables.find("ROTA_MEMORY");
  const bool native = memory != facts.variables.end() && memory->second == "native";
  if (native || room >= largest) {
    findings.push_back({"host.memory", Level::kOk, text, "", values});
    return;
  }
  // A second program usually needs more than a quarter of a GPU.
  findings.push_back(
      {"host.memory", room < largest / 4 ? Level::kWarning : Level::kNote,
       fmt::format("{}: less than a GPU's {}; programs that together exceed both are killed for lack of memory", text,
                   size_text(largest)),
       limited ? "raise the container's limit on memory (docker --memory, Kubernetes limits.memory), or set "
                 "ROTA_GPU_MEM_LIMIT so that the programs that run together fit"
               : "set ROTA_GPU_MEM_LIMIT so that the programs that run together fit, or run fewer at once",
       values});
}

void judge_limits(const HostFacts& host, Findings& findings) {
  const nlohmann::json values = {{"open_files", host.open_files},
                                 {"open_files_max", host.open_files_max},
                                 {"locked_memory_bytes", host.locked_memory},
                                 {"address_space_bytes", host.address_space}};
  bool fine = true;
  if (host.open_files < kFewFiles) {
    fine = false;
    findings.push_back(
        {"limits.open_files", Level::kWarning, fmt::format("only {} open files per process", host.open_files),
         fmt::format("ulimit -n {}", std::min<std::uint64_t>(host.open_files_max, 4096)) +
             (host.open_files_max < kFewFiles ? " after raising the hard limit (limits.conf, docker --ulimit)" : ""),
         values});
  }
  // CUDA reserves addresses for all GPU and host memory at start.
  if (host.address_space != kUnlimited) {
    fine = false;
    findings.push_back({"limits.address_space", Level::kWarning,
                        fmt::format("the address space is limited to {}: CUDA reserves far more when it starts",
                                    size_text(host.address_space)),
                        "ulimit -v unlimited", values});
  }
  // Locked memory is only shown: the driver's pinned memory does not count against it.
  if (fine) {
    findings.push_back({"limits", Level::kOk,
                        fmt::format("{} open files, address space unlimited, locked memory {}", host.open_files,
                                    limit_text(host.locked_memory)),
                        "", values});
  }
}

void judge_kernel(const HostFacts& host, Findings& findings) {
  const nlohmann::json values = {{"release", host.kernel},
                                 {"membarrier", host.membarrier},
                                 {"pidfd", host.pidfd},
                                 {"sealed_memory", host.sealed_memory}};
  if (!host.proc) {
    findings.push_back({"kernel.proc", Level::kWarning,
                        "there is no /proc: rota does not see what other programs do, and the driver may not work",
                        "mount -t proc proc /proc", values});
  }
  if (host.membarrier && host.pidfd && host.sealed_memory) {
    findings.push_back({"kernel", Level::kOk,
                        fmt::format("Linux {} has membarrier, pidfd and sealed memory", host.kernel), "", values});
    return;
  }
  const std::string filtered = host.container.empty() ? "" : "; in a container its seccomp profile may forbid it";
  if (!host.membarrier) {
    findings.push_back({"kernel.membarrier", Level::kNote, "no membarrier: each launch costs some nanoseconds more",
                        "Linux 4.14 or newer" + filtered, values});
  }
  if (!host.pidfd) {
    findings.push_back({"kernel.pidfd", Level::kWarning,
                        "no pidfd: a rotad here takes a closed connection for a program's death",
                        "Linux 5.3 or newer" + filtered, values});
  }
  if (!host.sealed_memory) {
    findings.push_back({"kernel.sealed_memory", Level::kProblem,
                        "no memfd with seals: a rotad here cannot serve programs", "Linux 5.1 or newer" + filtered,
                        values});
  }
}

// Measured on an H200 with driver 580: the restore is refused, and the process never runs again.
void judge_checkpoints(const HostFacts& host, Findings& findings) {
  if (host.checkpoint_program.empty()) return;
  findings.push_back({"host.checkpoint",
                      Level::kNote,
                      fmt::format("{}: the driver does not restore a process to which other programs have handed "
                                  "memory over",
                                  host.checkpoint_program),
                      "start rotad with --trust none where programs are checkpointed",
                      {{"path", host.checkpoint_program}}});
}

}  // namespace

void judge_host(const Facts& facts, Findings& findings) {
  judge_memory(facts, findings);
  judge_limits(facts.host, findings);
  judge_kernel(facts.host, findings);
  judge_checkpoints(facts.host, findings);
}

}  // namespace rota::doctor
