// What tests used when they were in order, in a file that can be committed: rota-ci.json.
//
//   {"version": 1, "tests": {"tests/a.py::test_x": {
//     "peak_bytes": …, "reserved_peak_bytes": …, "time_ns": …, "gpu_ns": …, "waited_ns": …, "launches": …, "copies": …,
//     "copied_bytes": …, "synchronizations": …, "calls": …, "live_bytes": …,
//     "gpu_peak_bytes": […], "added_bytes": …, "functions": {"cuMemAlloc": 3},
//     "errors": {"cuMemAlloc CUDA_ERROR_OUT_OF_MEMORY": 1}}}}
//
// Sorted, so that a diff shows what has changed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/rota/report/model.h"
#include "tools/rota/report/rules.h"

namespace rota::report {

struct BaselineEntry {
  Use use;  // live_bytes without what is suppressed
  std::uint64_t time_ns = 0;
  // With contexts, by the program's number of the GPU; empty unless it used several.
  std::vector<std::uint64_t> gpu_peak_bytes;
  // For a test that shares its process, if that used one GPU: its peak beyond what was in use when it began.
  std::optional<std::uint64_t> added_bytes;
};

using Baseline = std::map<std::string, BaselineEntry>;

Result<Baseline> read_baseline(const std::string& path);
Result<Baseline> parse_baseline(const std::string& text, const std::string& path);
std::string baseline_text(const Baseline& baseline);

// Merges `fresh` into `kept`: entries of other tests stay. Times vary from run to run, and a file that changes with
// each run is of no use in a repository: a time stays as it is while the new one is within a quarter of it.
void update_baseline(Baseline& kept, const Baseline& fresh);

}  // namespace rota::report
