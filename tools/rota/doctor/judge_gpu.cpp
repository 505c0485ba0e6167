// Each GPU, and what keeps a program from using all of it: compute mode, MIG, MPS, CUDA_VISIBLE_DEVICES.
#include <fmt/format.h>

#include <algorithm>

#include "generated/driver_types.h"
#include "tools/rota/doctor/findings.h"

namespace rota::doctor {
namespace {

const char* compute_mode_name(int mode) {
  switch (mode) {
    case api::CU_COMPUTEMODE_DEFAULT:
      return "default";
    case api::CU_COMPUTEMODE_PROHIBITED:
      return "prohibited";
    case 1:  // no longer in the headers: one thread of one process
    case api::CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return "exclusive process";
    default:
      return "unknown";
  }
}

// CUDA and NVML write the same UUID with different prefixes for MIG instances ("GPU-", "MIG-").
bool same_uuid(const std::string& left, const std::string& right) {
  constexpr std::size_t kPrefix = 4;
  return left.size() > kPrefix && right.size() > kPrefix && left.substr(kPrefix) == right.substr(kPrefix);
}

void judge_gpu(const GpuFacts& gpu, Findings& findings) {
  nlohmann::json values = {{"index", gpu.index},
                           {"name", gpu.name},
                           {"uuid", gpu.uuid},
                           {"bytes", gpu.bytes},
                           {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                           {"compute_mode", compute_mode_name(gpu.compute_mode)},
                           {"managed_memory", gpu.managed},
                           {"concurrent_managed_access", gpu.concurrent_managed},
                           {"pageable_memory_access", gpu.pageable},
                           {"virtual_memory_management", gpu.virtual_memory},
                           {"memory_pools", gpu.memory_pools}};
  const nlohmann::json which = {{"index", gpu.index}, {"uuid", gpu.uuid}};
  std::string can;
  const auto add = [&can](bool has, const char* what) {
    if (has) can += fmt::format("{}{}", can.empty() ? "; " : ", ", what);
  };
  add(gpu.concurrent_managed, "Unified Memory");
  add(gpu.virtual_memory, "virtual memory management");
  add(gpu.memory_pools, "memory pools");
  findings.push_back({"gpu", Level::kOk,
                      fmt::format("GPU {}: {}, {}, compute capability {}.{}, {}{}", gpu.index, gpu.name,
                                  size_text(gpu.bytes), gpu.major, gpu.minor, gpu.uuid, can),
                      "", values});
  if (!gpu.concurrent_managed) {
    findings.push_back(
        {"gpu.managed", Level::kWarning,
         fmt::format("GPU {} {}: programs' memory stays on it and has to fit together", gpu.index,
                     gpu.managed ? "cannot page Unified Memory by itself" : "has no Unified Memory"),
         "keep the programs that run together below the GPU's memory, e.g. with ROTA_GPU_MEM_LIMIT; a vGPU needs a "
         "profile with Unified Memory; WSL cannot page it",
         which});
  }
  if (!gpu.virtual_memory) {
    findings.push_back({"gpu.virtual_memory", Level::kNote,
                        fmt::format("GPU {} has no virtual memory management", gpu.index),
                        "nothing to do: rota does not need it; programs that do (PyTorch's expandable_segments) "
                        "fail there without rota, too",
                        which});
  }
  if (gpu.compute_mode == api::CU_COMPUTEMODE_PROHIBITED) {
    findings.push_back({"gpu.compute_mode", Level::kProblem,
                        fmt::format("GPU {} is in compute mode prohibited: no program may use it", gpu.index),
                        fmt::format("nvidia-smi -i {} -c 0 (as root)", gpu.uuid), which});
  } else if (gpu.compute_mode != api::CU_COMPUTEMODE_DEFAULT) {
    findings.push_back({"gpu.compute_mode", Level::kProblem,
                        fmt::format("GPU {} is in compute mode {}: the driver refuses a second program", gpu.index,
                                    compute_mode_name(gpu.compute_mode)),
                        fmt::format("nvidia-smi -i {} -c 0 (as root)", gpu.uuid), which});
  }
}

void judge_mig(const Facts& facts, Findings& findings) {
  for (const NvmlGpu& gpu : facts.probe.nvml.gpus) {
    const nlohmann::json values = {{"uuid", gpu.uuid}, {"now", gpu.mig_now}, {"later", gpu.mig_later}};
    if (gpu.mig_now == 1) {
      findings.push_back(
          {"gpu.mig", Level::kNote,
           fmt::format("{} is split by MIG: a program sees one instance, and rota shares that one", gpu.uuid),
           "choose the instance with CUDA_VISIBLE_DEVICES=MIG-<uuid>; `nvidia-smi -mig 0` makes it one GPU "
           "again",
           values});
    } else if (gpu.mig_later == 1) {
      findings.push_back(
          {"gpu.mig", Level::kNote,
           fmt::format("{} enters MIG mode at its next reset, and is then unusable without instances", gpu.uuid),
           "`nvidia-smi -mig 0` undoes that", values});
    }
  }
}

// GPUs that nvidia-smi lists and CUDA does not show.
void judge_visible(const Facts& facts, Findings& findings) {
  const auto variable = facts.variables.find("CUDA_VISIBLE_DEVICES");
  const std::size_t shown = facts.probe.gpus.size();
  if (variable == facts.variables.end() || shown == 0) return;
  const auto& all = facts.probe.nvml.gpus;
  const std::size_t hidden = static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [&](const NvmlGpu& gpu) {
    return gpu.mig_now != 1 && std::none_of(facts.probe.gpus.begin(), facts.probe.gpus.end(),
                                            [&](const GpuFacts& seen) { return same_uuid(seen.uuid, gpu.uuid); });
  }));
  if (hidden == 0) return;
  findings.push_back({"gpu.hidden",
                      Level::kNote,
                      fmt::format("CUDA_VISIBLE_DEVICES={} shows {} and hides {}", variable->second, shown, hidden),
                      "unset CUDA_VISIBLE_DEVICES to use every GPU",
                      {{"shown", shown}, {"hidden", hidden}}});
}

void judge_mps(const Facts& facts, Findings& findings) {
  const MpsFacts& mps = facts.host.mps;
  if (!mps.alive) {
    findings.push_back({"mps", Level::kOk, "no MPS", "", {{"alive", false}, {"directory", mps.directory}}});
    return;
  }
  findings.push_back(
      {"mps",
       Level::kWarning,
       fmt::format("an MPS control daemon{} serves {}: programs under rota become its clients, and a fault in one ends "
                   "all of them",
                   mps.pid > 0 ? fmt::format(" (pid {})", mps.pid) : "", mps.directory),
       "`echo quit | nvidia-cuda-mps-control`, or set CUDA_MPS_PIPE_DIRECTORY to an empty folder for these programs",
       {{"alive", true}, {"directory", mps.directory}, {"pid", mps.pid}}});
  for (const char* name : {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}) {
    const auto limit = facts.variables.find(name);
    if (limit == facts.variables.end() || limit->second.empty()) continue;
    findings.push_back({"mps.limit",
                        Level::kWarning,
                        fmt::format("{}={} limits each program even while it has the GPU alone", name, limit->second),
                        fmt::format("unset {}", name),
                        {{"variable", name}, {"value", limit->second}}});
  }
}

}  // namespace

void judge_gpus(const Facts& facts, Findings& findings) {
  for (const GpuFacts& gpu : facts.probe.gpus) judge_gpu(gpu, findings);
  judge_mig(facts, findings);
  judge_visible(facts, findings);
  judge_mps(facts, findings);
  const auto forced = facts.variables.find("CUDA_MANAGED_FORCE_DEVICE_ALLOC");
  if (forced != facts.variables.end() && !forced->second.empty() && forced->second != "0") {
    findings.push_back({"cuda.force_device_alloc",
                        Level::kWarning,
                        fmt::format("CUDA_MANAGED_FORCE_DEVICE_ALLOC={} keeps Unified Memory on the GPU: programs have "
                                    "to fit together",
                                    forced->second),
                        "unset CUDA_MANAGED_FORCE_DEVICE_ALLOC",
                        {{"value", forced->second}}});
  }
}

}  // namespace rota::doctor
