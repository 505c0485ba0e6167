// See groups.h.
#include "tools/rota/report/groups.h"

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/trace/names.h"
#include "tools/rota/trace/tables.h"

namespace rota::report {
namespace {

struct Effect {
  std::string made;   // kind of object; empty: none
  std::string ended;  //
};

bool is_counted(std::string_view kind) {
  constexpr std::string_view kLeftOut[] = {"node", "callback", "condition", "resource", "devicenode", "memory"};
  return !kind.empty() && std::ranges::find(kLeftOut, kind) == std::end(kLeftOut);
}

// The group of each symbol, by the types of its parameters.
const std::vector<Effect>& effects() {
  static const std::vector<Effect> all = [] {
    const names::Api& api = names::driver();
    std::vector<Effect> made(kSymbolCount);
    for (std::size_t i = 0; i < std::min(made.size(), api.functions.size()); ++i) {
      const names::Function& function = api.functions[i];
      const std::string_view base = tool::base_name(function.name);
      for (std::size_t p = 0; p < function.parameters; ++p) {
        const names::Parameter& parameter = api.parameters[function.first_parameter + p];
        std::string_view type = api.types[parameter.type].name;
        if (tool::ends_object(base, parameter.name)) {
          if (const auto kind = tool::handle_class(type); is_counted(kind)) made[i].ended = kind;
        }
        if (!tool::makes_object(base, parameter.name)) continue;
        while (type.ends_with('*') || type.ends_with(' ')) type.remove_suffix(1);
        if (const auto kind = tool::handle_class(type); is_counted(kind)) made[i].made = kind;
      }
    }
    return made;
  }();
  return all;
}

}  // namespace

bool is_error(std::uint32_t code) {
  constexpr std::uint32_t kSuccess = 0;
  constexpr std::uint32_t kNotReady = 600;
  return code != kSuccess && code != kNotReady;
}

std::map<std::string, ObjectCount> objects_left(const ProcessAccount& process) {
  std::vector<std::uint64_t> succeeded = process.calls;
  for (const ErrorRecord& error : process.errors) {
    if (error.function < succeeded.size()) {
      succeeded[error.function] -= std::min(succeeded[error.function], error.calls);
    }
  }
  std::map<std::string, ObjectCount> counts;
  for (std::size_t i = 0; i < succeeded.size(); ++i) {
    if (succeeded[i] == 0) continue;
    const Effect& effect = effects()[i];
    if (!effect.made.empty()) {
      counts[effect.made].created += succeeded[i];
      if (i < process.gone_with_context.size()) counts[effect.made].ended += process.gone_with_context[i];
    }
    if (!effect.ended.empty()) counts[effect.ended].ended += succeeded[i];
  }
  std::erase_if(counts, [](const auto& entry) { return entry.second.ended >= entry.second.created; });
  return counts;
}

}  // namespace rota::report
