// Facts of a machine without problems, for tests that add one problem.
#pragma once

#include <catch2/catch.hpp>
#include <limits>

#include "tools/rota/doctor/findings.h"
#include "tools/rota/run/preload.h"

namespace rota::doctor {

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

inline GpuFacts good_gpu(int index) {
  return {.index = index,
          .name = "NVIDIA Test",
          .uuid = "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(index),
          .bytes = 80 * kGiB,
          .major = 9,
          .minor = 0,
          .compute_mode = 0,
          .managed = true,
          .concurrent_managed = true,
          .pageable = false,
          .virtual_memory = true,
          .memory_pools = true};
}

inline Facts healthy() {
  Facts facts;
  facts.version = "0.1.0";
  facts.oldest_covered = 11070;
  facts.newest_covered = 13050;
  facts.known_functions = 700;
  facts.driver.search = Search::kFound;
  facts.driver.path = "/usr/lib/libcuda.so.1";
  facts.driver.file = "/usr/lib/libcuda.so.580.1";
  facts.driver.place = tool::kPlaceLoaderCache;
  facts.driver.compared = true;
  facts.driver.exports = 700;
  facts.probe.end = End::kFinished;
  facts.probe.limit_seconds = 30;
  facts.probe.version = 13000;
  facts.probe.init = 0;
  facts.probe.count = 2;
  facts.probe.gpus = {good_gpu(0), good_gpu(1)};
  facts.probe.nvml = {.asked = true,
                      .error = 0,
                      .driver_version = "580.1",
                      .gpus = {{.uuid = good_gpu(0).uuid, .mig_now = 0, .mig_later = 0},
                               {.uuid = good_gpu(1).uuid, .mig_now = 0, .mig_later = 0}}};
  facts.preload.directory = "/usr/local/lib/rota";
  facts.preload.files = {{.name = "librota.so", .error = 0, .required = true},
                         {.name = "librota-core.so", .error = 0, .required = true},
                         {.name = "librota-cudart.so", .error = 0, .required = false, .without = "no runtime API"},
                         {.name = "librota-nvml.so", .error = 0, .required = false, .without = "no NVML"}};
  facts.preload.library = "/usr/local/lib/rota/librota.so";
  facts.preload.trial.end = End::kFinished;
  facts.preload.trial.preloaded = facts.preload.trial.attached = facts.preload.trial.asked_driver = true;
  facts.preload.trial.version = 13000;
  facts.daemon = {.skipped = {},
                  .places = {"/run/rota/rotad.sock"},
                  .socket = "/run/rota/rotad.sock",
                  .error = 0,
                  .answered = true,
                  .program = "/usr/local/bin/rotad",
                  .program_error = 0,
                  .other_protocol = 0,
                  .protocol = 1,
                  .version = "0.1.0",
                  .mode = "automatic",
                  .pid = 7,
                  .quantum_ns = 2'000'000'000,
                  .clients = 1,
                  .uncovered = {},
                  .elsewhere = {}};
  facts.host.kernel = "6.1.0";
  facts.host.kernel_module = "580.1";
  facts.host.devices = {{"/dev/nvidia-uvm", true}, {"/dev/nvidia0", true}, {"/dev/nvidiactl", true}};
  facts.host.memory = 512 * kGiB;
  facts.host.memory_free = 400 * kGiB;
  facts.host.open_files = 1024;
  facts.host.open_files_max = 1 << 20;
  facts.host.locked_memory = 8 << 20;
  facts.host.address_space = std::numeric_limits<std::uint64_t>::max();
  facts.host.mps.directory = "/tmp/nvidia-mps";
  return facts;
}

// All findings. Each is checked to have an id, one line of text, and a remedy unless it is ok.
inline Findings judged(const Facts& facts) {
  Findings findings = judge(facts);
  for (const Finding& finding : findings) {
    INFO(finding.id << ": " << finding.text << " -> " << finding.remedy);
    CHECK_FALSE(finding.id.empty());
    CHECK_FALSE(finding.text.empty());
    CHECK(finding.remedy.empty() == (finding.level == Level::kOk));
    CHECK(finding.text.find('\n') == std::string::npos);
    CHECK(finding.remedy.find('\n') == std::string::npos);
    CHECK(finding.values.is_object());
  }
  return findings;
}

// The findings that are not ok.
inline Findings complaints(const Facts& facts) {
  Findings findings = judged(facts);
  std::erase_if(findings, [](const Finding& finding) { return finding.level == Level::kOk; });
  return findings;
}

// The only finding that is not ok.
inline Finding only(const Facts& facts) {
  const Findings findings = complaints(facts);
  std::string list;
  for (const Finding& finding : findings) list += finding.id + ": " + finding.text + "\n";
  INFO(list);
  REQUIRE(findings.size() == 1);
  return findings.front();
}

inline Finding find(const Facts& facts, const std::string& id) {
  for (const Finding& finding : judged(facts)) {
    if (finding.id == id) return finding;
  }
  FAIL("no finding " << id);
  return {};
}

inline bool says(const Finding& finding, const std::string& words) {
  return finding.text.find(words) != std::string::npos;
}

inline bool advises(const Finding& finding, const std::string& words) {
  return finding.remedy.find(words) != std::string::npos;
}

}  // namespace rota::doctor
