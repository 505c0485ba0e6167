// Lists where functions take device addresses, for a test with memory that is out of place: one line per address, and
// one for each other parameter whose memory must be in place, is exported or is captured according to the policy. Also
// lists where functions take handles of physical memory, which rota translates.
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
      "// ROTA_ADDRESS(symbol, place, parameter, offsets...): the function takes a device address in this parameter\n"
      "// (counted from 0), at the first offset in bytes. Each further offset follows the pointer at the place so far\n"
      "// and counts from its target.\n"
      "// ROTA_HOLDER(symbol, name, parameter): needs the memory behind this handle in place, or exports it.\n";
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
      "// ROTA_PHYSICAL_HANDLE(symbol, place, parameter, offsets...): takes a handle of physical memory or of a\n"
      "// multicast object at this place, given as for ROTA_ADDRESS in driver_addresses.inc.\n";
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
