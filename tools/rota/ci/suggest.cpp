#include "tools/rota/ci/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tools/rota/report/format.h"

namespace rota::ci {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::uint64_t with_reserve(std::uint64_t bytes) {
  return bytes + bytes / 10;
}

// Of CMake: a quoted argument.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\' || letter == '$' || letter == '@') out += '\\';
    out += letter;
  }
  return out + '"';
}

std::uint64_t largest_gpu(const report::Model& model) {
  std::uint64_t bytes = 0;
  for (const auto& process : model.processes) {
    for (const auto& gpu : process.account.gpus) bytes = std::max(bytes, gpu.total_bytes);
  }
  return bytes;
}

}  // namespace

std::string suggestions(const report::Model& model) {
  const std::uint64_t total = largest_gpu(model);
  std::map<std::string, std::map<std::string, std::uint64_t>> peaks;  // by runner and test
  for (const auto& test : model.tests) {
    const std::uint64_t needs =
        std::max({test.use.peak_bytes, test.use.peak_at_most_bytes, test.use.reserved_peak_bytes});
    if (needs == 0) continue;
    std::uint64_t& peak = peaks[test.record.runner][test.record.name];
    peak = std::max(peak, needs);
  }
  if (peaks.empty() || total == 0) return "No test used a GPU, so there is nothing to suggest.\n";
  std::string text;
  if (const auto ctest = peaks.find("ctest"); ctest != peaks.end()) {
    text += "# CMakeLists.txt: MiB of GPU memory that each test needs\n";
    for (const auto& [name, bytes] : ctest->second) {
      text += fmt::format("set_tests_properties({} PROPERTIES RESOURCE_GROUPS \"gpu_mib:{}\")\n", quoted(name),
                          with_reserve(bytes) / kMiB + 1);
    }
    text += fmt::format(
        "# ctest -j8 --resource-spec-file FILE, with this in FILE:\n"
        "{{\"version\": {{\"major\": 1, \"minor\": 0}}, \"local\": [{{\"gpu_mib\": [{{\"id\": \"0\", \"slots\": "
        "{}}}]}}]}}\n",
        total / kMiB);
  }
  text += "# The part of the GPU that the largest test of each runner needs:\n";
  for (const auto& [runner, tests] : peaks) {
    const auto largest = std::ranges::max_element(tests, {}, [](const auto& entry) { return entry.second; });
    const double part = std::min(1.0, static_cast<double>(with_reserve(largest->second)) / static_cast<double>(total));
    text += fmt::format(
        "# {} ({})\n"
        "torch.cuda.set_per_process_memory_fraction({:.3f})  # PyTorch\n"
        "XLA_PYTHON_CLIENT_MEM_FRACTION={:.3f}  # JAX, in the environment\n",
        report::printable(largest->first), runner, part, part);
  }
  return text;
}

}  // namespace rota::ci
