// See selection.h.
#include "tools/rota/trace/selection.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "runtime/trace/names.h"
#include "tools/rota/trace/call.h"
#include "tools/rota/trace/tables.h"

namespace rota::tool {
namespace {

// How many letters have to be changed, added or removed to turn one into the other, ignoring case.
std::size_t distance(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < other.size(); ++j) {
      const bool same = (one[i] | 0x20) == (other[j] | 0x20);
      const std::size_t best = std::min({row[j + 1] + 1, row[j] + 1, diagonal + (same ? 0 : 1)});
      diagonal = row[j + 1];
      row[j + 1] = best;
    }
  }
  return row.back();
}

template <class Visit>
void for_each_function(Visit&& visit) {
  for (const names::Api* api : {&names::driver(), &names::runtime()}) {
    for (const names::Function& function : api->functions) visit(std::string_view(function.name));
  }
}

}  // namespace

bool name_matches(std::string_view name, std::string_view function) {
  if (name.ends_with('*')) return function.starts_with(name.substr(0, name.size() - 1));
  return function == name || base_name(function) == name;
}

bool Selection::has(const TraceFile& file, const TraceCall& call) const {
  if (pid && *pid != file.pid()) return false;
  if (errors && !failed(call)) return false;
  const auto named = [&](const std::string& name) { return name_matches(name, function_name(call)); };
  if (!functions.empty() && std::ranges::none_of(functions, named)) return false;
  return std::ranges::none_of(excluded, named);
}

std::string name_problem(std::string_view name) {
  bool known = false;
  std::string_view nearest;
  std::size_t away = ~std::size_t{0};
  for_each_function([&](std::string_view function) {
    known = known || name_matches(name, function);
    const std::size_t steps = distance(name, base_name(function));
    if (steps < away) nearest = base_name(function), away = steps;
  });
  if (known) return {};
  if (name.ends_with('*')) {
    return fmt::format("no CUDA function's name begins with '{}'", name.substr(0, name.size() - 1));
  }
  constexpr std::size_t kTypingErrors = 3;
  if (away <= kTypingErrors) return fmt::format("no CUDA function is called '{}': did you mean {}?", name, nearest);
  return fmt::format("no CUDA function is called '{}': give a name such as cuMemAlloc, or a beginning such as cuMem*",
                     name);
}

std::string selection_problem(const Selection& selection, const std::vector<std::unique_ptr<TraceFile>>& files,
                              const std::string& path) {
  for (const std::vector<std::string>* names : {&selection.functions, &selection.excluded}) {
    for (const std::string& name : *names) {
      if (std::string problem = name_problem(name); !problem.empty()) return problem;
    }
  }
  if (!selection.pid) return {};
  std::set<std::uint32_t> processes;
  for (const auto& file : files) processes.insert(file->pid());
  if (processes.contains(*selection.pid)) return {};
  return fmt::format("no process {} in {}: it has {}", *selection.pid, path, fmt::join(processes, ", "));
}

}  // namespace rota::tool
