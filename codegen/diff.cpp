#include "codegen/diff.h"

#include <map>
#include <optional>

#include <fmt/format.h>

namespace rota::codegen {
namespace {

// A name's meaning as text: two texts are equal if a program compiled with one works with the other.
using Facts = std::map<std::string, std::string>;

std::string parameters_of(const std::vector<Parameter>& parameters) {
  std::string text;
  for (const Parameter& parameter : parameters) {
    text += (text.empty() ? "" : ", ") + parameter.type.declare(parameter.name);
  }
  return text;
}

std::string layout_of(const Record& record) {
  if (!record.complete) return "(only declared)";
  std::string text = fmt::format("{} bytes, aligned to {}: {{", record.size, record.align);
  for (const Field& field : record.fields) {
    text += ' ';
    if (field.nested.empty()) {
      text += field.type.declare(field.name);
    } else {
      text += fmt::format("{} {} ({})", field.nested.front().is_union ? "union" : "struct", field.name,
                          layout_of(field.nested.front()));
    }
    text += field.bits != 0 ? fmt::format(" : {} @bit {};", field.bits, field.bit_offset)
                            : fmt::format(" @{};", field.offset);
  }
  return text + " }";
}

// The name under which programs know a type: the newest typedef of a tag, else the tag itself.
std::map<std::string, std::string> public_names(const Api& api) {
  std::map<std::string, std::string> names;
  for (const Typedef& alias : api.typedefs) {
    if (alias.type.pointers.empty() && alias.type.extents.empty()) names[alias.type.base] = alias.name;
  }
  return names;
}

Facts facts_of(const Api& api) {
  const auto names = public_names(api);
  const auto public_name = [&](const std::string& tag) {
    const auto found = names.find(tag);
    return found == names.end() ? tag : found->second;
  };
  Facts facts;
  for (const Function& function : api.functions) {
    facts["function " + function.name] =
        fmt::format("{} ({}){}", function.result.spelling(), parameters_of(function.parameters),
                    function.version != 0 ? fmt::format(" since {}", function.version) : "") +
        (function.deprecated ? ", deprecated" : "");
  }
  for (const Enum& enumeration : api.enums) {
    for (const Enumerator& enumerator : enumeration.enumerators) {
      facts[fmt::format("enum {} {}", public_name(enumeration.name), enumerator.name)] =
          std::to_string(enumerator.value);
    }
  }
  for (const Record& record : api.records) {
    facts[fmt::format("{} {}", record.is_union ? "union" : "struct", public_name(record.name))] = layout_of(record);
  }
  for (const Callback& callback : api.callbacks) {
    facts["callback " + callback.name] =
        fmt::format("{} ({})", callback.result.spelling(), parameters_of(callback.parameters));
  }
  for (const Typedef& alias : api.typedefs) {
    // For structs and enums only the tag would show here, and tags do not count.
    if (const auto resolved = api.resolve(alias.type); resolved && (resolved->record || resolved->enumeration))
      continue;
    facts["typedef " + alias.name] = alias.type.spelling();
  }
  return facts;
}

void append(std::vector<std::string>& lines, std::string_view which, const Api& before, const Api& after) {
  const Facts old_facts = facts_of(before);
  const Facts new_facts = facts_of(after);
  for (const auto& [name, fact] : old_facts) {
    const auto found = new_facts.find(name);
    if (found == new_facts.end()) {
      lines.push_back(fmt::format("- {} {}", which, name));
    } else if (found->second != fact) {
      lines.push_back(fmt::format("~ {} {}: {} -> {}", which, name, fact, found->second));
    }
  }
  for (const auto& [name, fact] : new_facts) {
    if (!old_facts.contains(name)) lines.push_back(fmt::format("+ {} {}: {}", which, name, fact));
  }
}

}  // namespace

std::vector<std::string> diff_models(const Model& before, const Model& after) {
  std::vector<std::string> lines;
  append(lines, "driver", before.driver, after.driver);
  append(lines, "runtime", before.runtime, after.runtime);
  return lines;
}

}  // namespace rota::codegen
