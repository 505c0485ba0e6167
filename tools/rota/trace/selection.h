// Which calls a listing has: --function, --exclude, --errors and --pid.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/rota/trace/file.h"

namespace rota::tool {

// A name is a function's (cuMemAlloc_v2), its base name, which means all versions and stream forms (cuMemAlloc), or a
// beginning that ends in '*'.
struct Selection {
  std::optional<std::uint32_t> pid;
  std::vector<std::string> functions;  // none: all
  std::vector<std::string> excluded;
  bool errors = false;  // only calls that failed

  bool has(const TraceFile& file, const TraceCall& call) const;
};

bool name_matches(std::string_view name, std::string_view function);
// Empty, or why no function of CUDA can be meant, with the nearest name.
std::string name_problem(std::string_view name);
// Empty, or the part of the selection that no file can contain.
std::string selection_problem(const Selection& selection, const std::vector<std::unique_ptr<TraceFile>>& files,
                              const std::string& path);

}  // namespace rota::tool
