// Where functions take device addresses: a list for a test with memory that is out of place. One line per address; and
// one for each other parameter for which the policy says that its memory has to be in place, that it is exported, or
// that it begins a capture. And where they take handles of physical memory, which rota translates.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/addresses.h"
#include "codegen/emit.h"
#include "codegen/suggest.h"

namespace rota::codegen {
namespace {

// Whether the policy requires memory in place because of this parameter.
bool is_named(const FunctionPolicy& policy, const Parameter& parameter) {
  const auto names = [&](const std::vector<std::string>& list) {
    return std::ranges::find(list, parameter.name) != list.end();
  };
  return names(policy.needs_mapping) || names(policy.exports) ||
         (policy.captures == "begin" && is_stream(parameter.type));
}

}  // namespace

Result<EmittedFile> emit_address_list(const Inputs& inputs) {
  std::string text =
      banner(inputs) +
      "// ROTA_ADDRESS(symbol, place, parameter, offsets...): takes a device address there: in its so manyth "
      "parameter, so\n"
      "// many bytes behind its start; and for each further offset behind what the pointer there leads to.\n"
      "// ROTA_HOLDER(symbol, name, parameter): needs the memory behind this handle in place, or hands it out.\n";
  for (const Function& function : inputs.driver.functions) {
    const FunctionPolicy* policy = inputs.policy.find(function.base);
    if (policy == nullptr) continue;
    const auto places = addresses_taken(inputs.driver, function, policy);
    if (!places) return places.error();
    for (const AddressPlace& place : *places) {
      text += fmt::format("ROTA_ADDRESS({}, \"{}\", {}, {})\n", function.name, place.text, place.parameter,
                          fmt::join(place.offsets, ", "));
    }
    for (std::size_t index = 0; index < function.parameters.size(); ++index) {
      const Parameter& parameter = function.parameters[index];
      const bool listed = std::ranges::find(*places, index, &AddressPlace::parameter) != places->end();
      if (listed || !is_named(*policy, parameter)) continue;
      text += fmt::format("ROTA_HOLDER({}, \"{}\", {})\n", function.name, parameter.name, index);
    }
  }
  return EmittedFile{"driver_addresses.inc", text};
}

Result<EmittedFile> emit_physical_handle_list(const Inputs& inputs) {
  std::string text =
      banner(inputs) +
      "// ROTA_PHYSICAL_HANDLE(symbol, place, parameter, offsets...): takes a handle of physical memory, or "
      "of a multicast\n"
      "// object, there: as ROTA_ADDRESS of driver_addresses.inc has it.\n";
  for (const Function& function : inputs.driver.functions) {
    const auto places = physical_handles_taken(inputs.driver, function, inputs.policy.find(function.base));
    if (!places) return places.error();
    for (const AddressPlace& place : *places) {
      text += fmt::format("ROTA_PHYSICAL_HANDLE({}, \"{}\", {}, {})\n", function.name, place.text, place.parameter,
                          fmt::join(place.offsets, ", "));
    }
  }
  return EmittedFile{"driver_physical.inc", text};
}

}  // namespace rota::codegen
