// Which GPUs tests and processes used, where there were several.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/rota/report/model.h"

namespace rota::report {

// UUIDs, each once, of the GPUs of the test's own processes, or of the process within which it ran.
inline std::vector<std::string> gpus_of(const Model& model, const TestReport& test) {
  std::set<std::string> gpus;
  const auto add = [&](std::size_t process) {
    for (const GpuRecord& gpu : model.processes[process].account.gpus) gpus.insert(gpu.uuid);
  };
  std::ranges::for_each(test.processes, add);
  if (test.host) add(*test.host);
  return {gpus.begin(), gpus.end()};
}

inline std::vector<std::string> gpus_of(const ProcessReport& process) {
  std::vector<std::string> gpus;
  for (const GpuRecord& gpu : process.account.gpus) gpus.push_back(gpu.uuid);
  return gpus;
}

inline bool has_several_gpus(const Model& model) {
  std::set<std::string> gpus;
  for (const ProcessReport& process : model.processes) {
    for (const GpuRecord& gpu : process.account.gpus) gpus.insert(gpu.uuid);
  }
  return gpus.size() > 1;
}

// The peak of the test's processes on each GPU, contexts included, by their number for it; empty unless there were
// several. A sum over processes that use the same number: they may have run at once.
inline std::vector<std::uint64_t> peaks_by_gpu(const Model& model, const TestReport& test) {
  if (gpus_of(model, test).size() < 2) return {};
  std::map<std::string, std::pair<std::size_t, std::uint64_t>> by_uuid;
  for (const std::size_t process : test.processes) {
    for (const GpuRecord& gpu : model.processes[process].account.gpus) {
      auto& [device, bytes] = by_uuid.try_emplace(gpu.uuid, gpu.device, 0).first->second;
      device = std::min(device, gpu.device);
      bytes += std::max(gpu.peak_bytes, gpu.reserved_peak_bytes);
    }
  }
  std::vector<std::pair<std::size_t, std::uint64_t>> in_order;
  for (const auto& [uuid, gpu] : by_uuid) in_order.push_back(gpu);
  std::ranges::sort(in_order);
  std::vector<std::uint64_t> peaks;
  for (const auto& [device, bytes] : in_order) {
    // Processes that see one GPU each all call it 0: then the next number is as good as any.
    peaks.resize(std::max(peaks.size(), device));
    peaks.push_back(bytes);
  }
  return peaks;
}

// As much of the UUID as distinguishes the GPUs of a machine; CUDA_VISIBLE_DEVICES accepts that, too.
inline std::string short_uuid(const std::string& uuid) {
  return uuid.substr(0, sizeof "GPU-12345678" - 1);
}

inline std::string short_uuids(const std::vector<std::string>& uuids) {
  std::string text;
  for (const std::string& uuid : uuids) text += " " + short_uuid(uuid);
  return text;
}

}  // namespace rota::report
