// Which mutations ROTA_SIM_MUTATIONS names: part of simgpu_mutants, the driver that tests break, and of no other.
#include "tools/simgpu/driver/entry/mutations.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace rota::sim {
namespace {

constexpr const char* kMutationNames[] = {
#define ROTA_MUTATION(name, text) #name,
#include "tools/simgpu/driver/entry/mutations.inc"
#undef ROTA_MUTATION
    nullptr};

// Written when the library is loaded, before the program's first call.
std::array<Broken, kSymbolCount> broken_functions{};

bool read_mutation(std::string_view text) {
  size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    for (size_t index = 0; kMutationNames[index] != nullptr; ++index) {
      if (text != kMutationNames[index]) continue;
      mutation_switches[index] = true;
      return true;
    }
    return false;
  }
  std::string_view way = text.substr(0, colon);
  Broken how = way == "lenient"  ? Broken::kLenient
               : way == "idle"   ? Broken::kIdle
               : way == "refuse" ? Broken::kRefuse
               : way == "waits"  ? Broken::kWaits
                                 : Broken::kNo;
  for (size_t index = 0; index < kSymbolCount && how != Broken::kNo; ++index) {
    if (text.substr(colon + 1) != kSymbolNames[index]) continue;
    broken_functions[index] = how;
    return true;
  }
  return false;
}

}  // namespace

Broken broken(Symbol symbol) {
  return broken_functions[static_cast<size_t>(symbol)];
}

bool any_broken() {
  return std::any_of(broken_functions.begin(), broken_functions.end(), [](Broken how) { return how != Broken::kNo; });
}

std::string read_mutations() {
  const char* text = std::getenv("ROTA_SIM_MUTATIONS");  // NOLINT(concurrency-mt-unsafe): read once
  std::string_view left = text != nullptr ? text : "";
  while (!left.empty()) {
    std::string_view item = left.substr(0, left.find(','));
    left.remove_prefix(item.size() < left.size() ? item.size() + 1 : left.size());
    if (!item.empty() && !read_mutation(item)) {
      return "ROTA_SIM_MUTATIONS names '" + std::string(item) +
             "': give names of tools/simgpu/driver/entry/mutations.inc, or lenient:, idle:, refuse: or waits: and a "
             "function";
    }
  }
  return {};
}

}  // namespace rota::sim
