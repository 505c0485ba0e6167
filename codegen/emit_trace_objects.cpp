// trace_objects.inc: which functions create and destroy objects and memory, for trace listings and accounts; and
// driver_handles.inc.
#include <map>
#include <string>

#include <fmt/format.h>

#include "codegen/emit.h"
#include "codegen/emit_trace.h"

namespace rota::codegen {

EmittedFile emit_trace_objects(const Inputs& inputs) {
  std::string text = banner(inputs);
  text +=
      "// By base name, of both APIs, as policy.toml says:\n"
      "// ROTA_TRACE_MAKES(function, parameter): the parameter returns a new object's handle.\n"
      "// ROTA_TRACE_ENDS(function, parameter): the object with this handle, or the memory at this address, is gone.\n"
      "// ROTA_TRACE_MEMORY(function, address, bytes, rows, host, fresh): memory is created (fresh) or becomes "
      "known.\n";
  std::map<std::string, std::string> lines;  // a symbol of one major shares its base name's line
  for (const FactTable* table : {&inputs.policy.functions, &inputs.policy.runtime}) {
    for (const auto& [key, policy] : *table) {
      const std::string base = key.substr(0, key.find('@'));
      std::string rows;
      for (const std::string& name : policy.makes) rows += fmt::format("ROTA_TRACE_MAKES({}, \"{}\")\n", base, name);
      for (const std::string& name : policy.ends) rows += fmt::format("ROTA_TRACE_ENDS({}, \"{}\")\n", base, name);
      if (policy.memory) {
        rows += fmt::format("ROTA_TRACE_MEMORY({}, \"{}\", \"{}\", \"{}\", {}, {})\n", base, policy.memory->address,
                            policy.memory->bytes, policy.memory->rows, policy.memory->host, !policy.memory->known);
      }
      if (!rows.empty()) lines.emplace(base, rows);
    }
  }
  for (const auto& [base, rows] : lines) text += rows;
  return {"trace_objects.inc", text};
}

EmittedFile emit_handles(const Inputs& inputs) {
  std::string text = banner(inputs);
  text +=
      "// ROTA_RETURNS_HANDLE(function): by base name, functions of the driver that return handles one by one, of new\n"
      "// objects or of others. Functions that fill an array of handles are none of them.\n";
  for (const auto& [base, policy] : inputs.policy.functions) {
    bool single = false;
    bool array = false;
    for (const Function* function : inputs.driver.versions_of(base)) {
      for (const Parameter& parameter : function->parameters) {
        if (!parameter.type.is_pointer() || !inputs.driver.is_handle(parameter.type.pointee())) continue;
        const auto use = policy.parameters.find(parameter.name);
        if (use == policy.parameters.end() || use->second.direction == Direction::kIn) continue;
        (use->second.count.empty() ? single : array) = true;
      }
    }
    if (single && !array) text += fmt::format("ROTA_RETURNS_HANDLE({})\n", base);
  }
  return {"driver_handles.inc", text};
}

}  // namespace rota::codegen
