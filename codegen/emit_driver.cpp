// The driver's part of generated/: symbols, types, signatures, real functions and the cuGetProcAddress table.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "codegen/emit.h"
#include "codegen/emit_driver.h"
#include "codegen/emit_types.h"

namespace rota::codegen {
namespace {

EmittedFile emit_symbols_inc(const Inputs& inputs) {
  std::string text = banner(inputs);
  text += "// ROTA_SYMBOL(name): every driver symbol, sorted bytewise. Also read by the assembler's preprocessor.\n";
  for (const std::string& symbol : inputs.symbols) text += fmt::format("ROTA_SYMBOL({})\n", symbol);
  return {"driver_symbols.inc", text};
}

EmittedFile emit_undeclared_inc(const Inputs& inputs) {
  std::string text = banner(inputs);
  text +=
      "// ROTA_UNDECLARED(name): the symbols that drivers export and no header declares. Their parameters are not\n"
      "// known, so they cannot have gates: a call marks the process before it is passed on.\n";
  for (const auto& [name, policy] : inputs.policy.functions) {
    if (policy.undeclared) text += fmt::format("ROTA_UNDECLARED({})\n", name);
  }
  return {"driver_undeclared.inc", text};
}

EmittedFile emit_export_tables_inc(const Inputs& inputs) {
  std::string text = banner(inputs);
  text +=
      "// ROTA_EXPORT_TABLE(bytes, gated, identifier…): the driver's private tables that are known, from policy.toml:\n"
      "// the length that the recorded table states, whether work is submitted through it, and the 16 bytes of its\n"
      "// identifier.\n";
  for (const ExportTable& table : inputs.policy.export_tables) {
    text += fmt::format("ROTA_EXPORT_TABLE({}, {}", table.bytes, table.gated);
    for (const unsigned char byte : table.id) text += fmt::format(", 0x{:02x}", byte);
    text += ")\n";
  }
  return {"driver_export_tables.inc", text};
}

EmittedFile emit_collective_kernels_inc(const Inputs& inputs) {
  std::string text = banner(inputs);
  text +=
      "// ROTA_COLLECTIVE_KERNEL(prefix): with what the names of kernels begin that wait for those of other "
      "processes,\n"
      "// from policy.toml.\n";
  for (const std::string& prefix : inputs.policy.collective_kernels) {
    text += fmt::format("ROTA_COLLECTIVE_KERNEL(\"{}\")\n", prefix);
  }
  return {"driver_collective_kernels.inc", text};
}

// The enumerators of one enum, as in the header.
Result<EmittedFile> emit_errors(const Inputs& inputs, const Api& api, const std::string& name,
                                const std::string& file) {
  const auto errors = std::ranges::find(api.enums, name, &Enum::name);
  if (errors == api.enums.end()) return Error{fmt::format("no enum {}, whose names {} is to list", name, file)};
  std::string text = banner(inputs);
  text += fmt::format("// ROTA_ERROR(name, value): every enumerator of {}, in the header's order.\n", name);
  for (const Enumerator& error : errors->enumerators) {
    text += fmt::format("ROTA_ERROR({}, {})\n", error.name, error.value);
  }
  return EmittedFile{file, text};
}

EmittedFile emit_symbols_h(const Inputs& inputs) {
  std::string text = banner(inputs);
  text += R"(// The driver's symbols by number and by name. A symbol's number is its position in driver_symbols.inc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rota {

// cuda.h renames functions with macros; the prefix k_ keeps these names unaffected.
#define ROTA_SYMBOL(name) k_##name,
enum class Symbol : std::uint16_t {
#include "generated/driver_symbols.inc"
  kCount
};
#undef ROTA_SYMBOL

inline constexpr std::size_t kSymbolCount = static_cast<std::size_t>(Symbol::kCount);

)";
  // Spelled out, so that debuggers and `strings` find the names.
  text += "inline constexpr const char* kSymbolNames[kSymbolCount] = {\n";
  for (const std::string& symbol : inputs.symbols) text += fmt::format("    \"{}\",\n", symbol);
  text += R"(};

// The symbol with exactly this export name. Any thread; takes no lock.
inline std::optional<Symbol> find_symbol(std::string_view name) {
  std::size_t low = 0;
  std::size_t high = kSymbolCount;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    const int order = name.compare(kSymbolNames[middle]);
    if (order == 0) return static_cast<Symbol>(middle);
    if (order < 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return std::nullopt;
}

}  // namespace rota
)";
  return {"driver_symbols.h", text};
}

EmittedFile emit_releases_h(const Inputs& inputs) {
  std::string text = banner(inputs);
  text +=
      R"(// Which CUDA releases this build knows, and which one added each symbol. Versions as in CUDA_VERSION: 12040 is 12.4.
#pragma once

#include <array>
#include <cstdint>

#include "generated/driver_symbols.h"

namespace rota {

// Oldest first. Functions of older releases are covered too: the driver never drops one.
inline constexpr int kCoveredReleases[] = {)";
  for (std::size_t i = 0; i < inputs.releases.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", release_number(inputs.releases[i].release));
  }
  text += fmt::format("}};\ninline constexpr int kOldestCovered = {};\ninline constexpr int kNewestCovered = {};\n\n",
                      release_number(inputs.releases.front().release), release_number(inputs.newest().release));
  text +=
      R"(// The first version for which cuGetProcAddress returns the symbol (from *Typedefs.h); 0 if no header declares it.
inline constexpr auto kSymbolSince = [] {
  std::array<std::uint16_t, kSymbolCount> since{};
#define ROTA_LOOKUP(base, version, form, symbol) since[static_cast<std::size_t>(Symbol::k_##symbol)] = version;
#include "generated/driver_lookup.inc"
#undef ROTA_LOOKUP
  return since;
}();

}  // namespace rota
)";
  return {"driver_releases.h", text};
}

std::string parameter_list(const std::vector<Parameter>& parameters) {
  std::string text;
  for (const Parameter& parameter : parameters) {
    if (!text.empty()) text += ", ";
    text += parameter.type.declare(parameter.name);
  }
  return text;
}

EmittedFile emit_functions_h(const Inputs& inputs) {
  std::string text = banner(inputs);
  text +=
      R"(// The type of every declared driver function, as NAME_fn: `using cuInit_fn = CUresult(unsigned int Flags);`
#pragma once

#include "generated/driver_types.h"

namespace rota::api {

)";
  for (const Function& function : inputs.driver.functions) {
    text += fmt::format("using {}_fn = {}({});\n", function.name, function.result.spelling(),
                        parameter_list(function.parameters));
  }
  text += "\n}  // namespace rota::api\n";
  return {"driver_functions.h", text};
}

EmittedFile emit_real_h(const Inputs& inputs) {
  std::string text = banner(inputs);
  text += R"(// The real driver's functions: a table by symbol, and a typed callable for every declared function.
// Filled once at attach. No entry is ever null: the entry of a function that the real driver lacks reports that.
// Do not include together with cuda.h: its macros rename functions (cuMemAlloc becomes cuMemAlloc_v2).
#pragma once

#ifdef CUDA_VERSION
#error "driver_real.h and cuda.h do not go together: cuda.h renames functions with macros"
#endif

#include "generated/driver_functions.h"
#include "generated/driver_symbols.h"

namespace rota::real {

extern void* table[kSymbolCount];

)";
  for (const Function& function : inputs.driver.functions) {
    text += fmt::format(
        "inline {0} {1}({2}) {{ return "
        "reinterpret_cast<api::{1}_fn*>(table[static_cast<std::size_t>(Symbol::k_{1})])({3}); "
        "}}\n",
        qualify(function.result), function.name, qualified_parameters(function), argument_names(function));
  }
  text += "\n}  // namespace rota::real\n";
  return {"driver_real.h", text};
}

// One row per (name, stream form, CUDA version) at which the answer changes.
struct LookupRow {
  std::string base;
  int version;
  std::string symbol;
};

EmittedFile emit_lookup_inc(const Inputs& inputs) {
  std::set<std::string> bases;
  for (const Function& function : inputs.driver.functions) bases.insert(function.base);
  std::string text = banner(inputs);
  text +=
      "// ROTA_LOOKUP(base, version, form, symbol): what cuGetProcAddress(base, version) returns from this CUDA "
      "version\n"
      "// (3020 is 3.2) up to the next row of the same base and form. form: 0 for flags 0 and 1 (legacy), 2 for\n"
      "// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; both forms are listed in full. Sorted by base, form, "
      "version.\n";
  for (const std::string& base : bases) {
    std::vector<LookupRow> plain;
    std::vector<LookupRow> per_thread;
    for (const Function* function : inputs.driver.versions_of(base)) {
      const LookupRow row{base, function->version, function->name};
      (function->form == StreamForm::kDefault ? plain : per_thread).push_back(row);
    }
    const auto emit = [&](std::vector<LookupRow> rows, int form) {
      std::ranges::sort(rows, {}, &LookupRow::version);
      for (const LookupRow& row : rows) {
        text += fmt::format("ROTA_LOOKUP({}, {}, {}, {})\n", row.base, row.version, form, row.symbol);
      }
    };
    emit(plain, 0);
    // If a base name has any per-thread form, only such forms are returned under that flag, not even its older plain
    // versions.
    emit(per_thread.empty() ? plain : per_thread, 2);
  }
  return {"driver_lookup.inc", text};
}

}  // namespace

std::string qualified_parameters(const Function& function) {
  std::string text;
  for (const Parameter& parameter : function.parameters) {
    text += (text.empty() ? "" : ", ") + qualify(parameter.type) + " " + parameter.name;
  }
  return text;
}

std::string argument_names(const Function& function) {
  std::string text;
  for (const Parameter& parameter : function.parameters) text += (text.empty() ? "" : ", ") + parameter.name;
  return text;
}

std::string banner(const Inputs& inputs) {
  return fmt::format(
      "// Generated by rota-codegen from cuda_headers/api (CUDA {} to {}) and cuda_headers/policy.toml; do not edit.\n",
      inputs.releases.front().release, inputs.newest().release);
}

Result<std::vector<EmittedFile>> emit_driver(const Inputs& inputs) {
  auto types = emit_types_h(inputs);
  if (!types) return types.error();
  std::vector<EmittedFile> files{emit_symbols_inc(inputs),
                                 emit_symbols_h(inputs),
                                 emit_releases_h(inputs),
                                 *types,
                                 emit_functions_h(inputs),
                                 emit_real_h(inputs),
                                 emit_lookup_inc(inputs),
                                 emit_signatures_test(inputs),
                                 emit_export_tables_inc(inputs),
                                 emit_undeclared_inc(inputs),
                                 emit_collective_kernels_inc(inputs)};
  auto errors = emit_errors(inputs, inputs.driver, "cudaError_enum", "driver_errors.inc");
  if (!errors) return errors.error();
  files.push_back(*errors);
  if (!inputs.runtimes.empty()) {
    errors = emit_errors(inputs, inputs.runtimes.back().api, "cudaError", "runtime_errors.inc");
    if (!errors) return errors.error();
    files.push_back(*errors);
  }
  auto gates = emit_gates(inputs);
  if (!gates) return gates.error();
  files.insert(files.end(), gates->begin(), gates->end());
  return files;
}

}  // namespace rota::codegen
