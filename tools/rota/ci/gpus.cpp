#include "tools/rota/ci/gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>

#include "tools/rota/doctor/gather.h"

namespace rota::ci {

namespace {

constexpr auto kProbeLimit = std::chrono::seconds(30);
constexpr char kInstance[] = "MIG-";

std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  std::istringstream text(list);
  for (std::string entry; std::getline(text, entry, ',');) entries.push_back(entry);
  return entries;
}

std::string names_of(const std::vector<VisibleGpu>& gpus) {
  std::string names;
  for (const VisibleGpu& gpu : gpus) names += (names.empty() ? "" : ",") + gpu.name;
  return names;
}

bool same(const std::vector<VisibleGpu>& left, const std::vector<VisibleGpu>& right) {
  return std::ranges::equal(left, right, {}, &VisibleGpu::uuid, &VisibleGpu::uuid);
}

// The same GPUs with names under which the driver shows exactly them.
Result<std::vector<VisibleGpu>> named(std::vector<VisibleGpu> gpus, const ShowGpus& show) {
  for (const char* prefix : {"GPU-", kInstance}) {
    for (VisibleGpu& gpu : gpus) gpu.name = prefix + gpu.uuid.substr(std::min<std::size_t>(4, gpu.uuid.size()));
    const auto shown = show(names_of(gpus));
    if (shown && same(*shown, gpus)) return gpus;
  }
  return Error{"the driver does not show its GPUs by their UUIDs in CUDA_VISIBLE_DEVICES"};
}

std::string count_of(std::size_t gpus) {
  return gpus == 0 ? "no GPU" : fmt::format("{} GPU{}", gpus, gpus == 1 ? "" : "s");
}

}  // namespace

Result<std::vector<VisibleGpu>> find_gpus(const std::optional<std::string>& visible, std::size_t each,
                                          const ShowGpus& show, const WhoSees& who) {
  const std::vector<std::string> entries = entries_of(visible.value_or(""));
  const bool instances = !entries.empty() && std::ranges::all_of(entries, [](const std::string& entry) {
    return entry.starts_with(kInstance);
  });
  if (instances && each > 1) {
    return Error{
        fmt::format("{} {}: CUDA_VISIBLE_DEVICES names MIG instances, and a process sees 1 of "
                    "them at most; use 1",
                    who.option, each)};
  }
  std::vector<VisibleGpu> gpus;
  if (instances) {
    for (const std::string& entry : entries) {
      auto shown = show(entry);
      // As for the driver, the list ends at the first invalid entry.
      if (!shown || shown->size() != 1) break;
      const bool again = std::ranges::find(gpus, shown->front().uuid, &VisibleGpu::uuid) != gpus.end();
      if (!again) gpus.push_back({shown->front().uuid, entry, shown->front().bytes});
    }
  } else {
    auto shown = show(visible);
    if (!shown) return Error{fmt::format("{} {}: {}", who.option, each, shown.error().text)};
    gpus = std::move(*shown);
  }
  if (gpus.size() < each) {
    return Error{fmt::format("{} {}: the {} sees {}{}", who.option, each, who.whose, count_of(gpus.size()),
                             gpus.empty()
                                 ? "; `rota doctor` says why"
                                 : fmt::format("; use {}{}", gpus.size() == 1 ? "" : "at most ", gpus.size()))};
  }
  if (instances) return gpus;
  auto made = named(std::move(gpus), show);
  if (!made) return Error{fmt::format("{} {}: {}", who.option, each, made.error().text)};
  return made;
}

Result<std::vector<VisibleGpu>> gpus_for_tests(std::size_t each, const WhoSees& who) {
  const doctor::DriverFacts driver = doctor::gather_driver();
  if (driver.search != doctor::Search::kFound) {
    return Error{
        fmt::format("{} {}: the {} finds no CUDA driver; `rota doctor` says why", who.option, each, who.whose)};
  }
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
  return find_gpus(
      visible != nullptr ? std::optional<std::string>(visible) : std::nullopt, each,
      [&driver](const std::optional<std::string>& names) -> Result<std::vector<VisibleGpu>> {
        const auto found = doctor::gather_probe(driver.path, "", kProbeLimit, {{"CUDA_VISIBLE_DEVICES", names}});
        if (found.end != doctor::End::kFinished) {
          return Error{"the GPUs cannot be counted: " +
                       (found.load_error.empty() ? "the driver fails at " + found.step : found.load_error)};
        }
        std::vector<VisibleGpu> gpus;
        for (const doctor::GpuFacts& gpu : found.gpus) gpus.push_back({gpu.uuid, "", gpu.bytes});
        return gpus;
      },
      who);
}

std::string too_many_text(std::size_t seen, std::size_t most, const WhoSees& who) {
  if (seen <= most) return {};
  return fmt::format("the {} sees {}, and rota chooses among {} at most; name up to {} of them in CUDA_VISIBLE_DEVICES",
                     who.whose, count_of(seen), most, most);
}

}  // namespace rota::ci
