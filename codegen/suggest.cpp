#include "codegen/suggest.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "codegen/policy.h"

namespace rota::codegen {
namespace {

struct NameHint {
  std::string_view word;
  std::string_view fact;
};

// Words in function names, and what functions with such a name usually do.
constexpr std::array kNameHints = {
    NameHint{"Launch", "submits"},        NameHint{"Memcpy", "submits"},
    NameHint{"Memset", "submits"},        NameHint{"Prefetch", "submits"},
    NameHint{"Discard", "submits"},       NameHint{"Alloc", "allocates"},
    NameHint{"Create", "allocates"},      NameHint{"Map", "allocates"},
    NameHint{"Import", "allocates"},      NameHint{"Retain", "allocates"},
    NameHint{"Open", "allocates"},        NameHint{"Free", "frees"},
    NameHint{"Destroy", "frees"},         NameHint{"Unmap", "frees"},
    NameHint{"Release", "frees"},         NameHint{"Close", "frees"},
    NameHint{"Unbind", "may_block"},      NameHint{"Destroy", "may_block"},
    NameHint{"Synchronize", "may_block"}, NameHint{"Export", "exports"},
    NameHint{"Ipc", "exports"},           NameHint{"Bind", "exports"},
    NameHint{"Ctx", "context"},           NameHint{"Capture", "captures"},
    NameHint{"Recapture", "captures"},    NameHint{"Register", "needs_mapping"},
};

}  // namespace

bool is_stream(const TypeRef& type) {
  return type.base == "CUstream" && type.pointers.empty() && type.extents.empty();
}

std::map<std::string, std::vector<const Function*>> functions_by_base(const Api& api) {
  std::map<std::string, std::vector<const Function*>> bases;
  for (const Function& function : api.functions) bases[function.base].push_back(&function);
  return bases;
}

std::vector<Suggestion> suggest_facts(const std::vector<const Function*>& versions) {
  std::vector<Suggestion> suggestions;
  std::set<std::string> said;
  const auto suggest = [&](const std::string& fact, const std::string& why) {
    if (said.insert(fact + why).second) suggestions.push_back({fact, why});
  };
  const Function& newest = *versions.back();
  for (const Function* function : versions) {
    for (const Parameter& parameter : function->parameters) {
      if (is_stream(parameter.type)) suggest(fmt::format("submits = \"{}\"", parameter.name), "a stream parameter");
      if (parameter.type.base == "CUdeviceptr" && parameter.type.pointers.empty())
        suggest(fmt::format("needs_mapping = \"{}\"", parameter.name), "a device address");
    }
  }
  const Documentation& documentation = newest.documentation;
  if (documentation.has("async") || documentation.has("says_asynchronous"))
    suggest("submits", "asynchronous by its documentation");
  if (documentation.has("says_enqueues")) suggest("submits", "enqueues by its documentation");
  if (documentation.has("sync") || documentation.has("says_blocks")) suggest("may_block", "by its documentation");
  for (const NameHint& hint : kNameHints) {
    if (newest.base.find(hint.word) != std::string::npos)
      suggest(std::string(hint.fact), fmt::format("{} in its name", hint.word));
  }
  return suggestions;
}

std::string suggestion_text(const std::vector<Suggestion>& suggestions) {
  if (suggestions.empty()) return "nothing beyond query = true";
  std::string text;
  for (const auto& [fact, why] : suggestions) text += fmt::format("{}{}? ({})", text.empty() ? "" : "; ", fact, why);
  return text;
}

std::string suggest_use(const Api& api, const Function& function, const Parameter& parameter) {
  const ParameterUse use = parameter_use(api, nullptr, function, parameter);
  if (use.opaque) return "opaque";
  if (use.string) return "string";
  if (!parameter.direction.empty()) return parameter.direction;
  return use.direction == Direction::kOut ? "out" : "in";
}

}  // namespace rota::codegen
