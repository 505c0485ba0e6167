// trace_objects.inc: which functions create and destroy objects and memory, for trace listings.
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

}  // namespace rota::codegen
