// The tracing part of `rota-codegen generate`: rows of functions and types, and the schema number that a trace of them
// has.
#include "codegen/emit_trace.h"

#include <fmt/format.h>

namespace rota::codegen {

Result<std::vector<EmittedFile>> emit_trace(const Inputs& inputs) {
  auto plans = plan_traces(inputs.driver, inputs.policy.functions, 0, inputs.symbols);
  if (!plans) return plans.error();
  const std::vector<TraceSection> driver{
      {.api = &inputs.driver, .major = nullptr, .first = 0, .plans = std::move(*plans)}};
  std::vector<TraceSection> runtime;
  for (const RuntimeMajor& major : inputs.runtimes) {
    auto major_plans = plan_traces(major.api, inputs.policy.runtime, major.major, major.symbols);
    if (!major_plans) return Error{fmt::format("libcudart {}: {}", major.major, major_plans.error().text)};
    const std::size_t first = runtime.empty() ? 0 : runtime.back().first + runtime.back().plans.size();
    runtime.push_back({.api = &major.api, .major = &major, .first = first, .plans = std::move(*major_plans)});
  }
  auto symbols = emit_runtime_symbols(inputs, runtime);
  if (!symbols) return symbols.error();
  std::uint64_t driver_schema = 0;
  std::uint64_t runtime_schema = 0;
  const auto driver_rows = emit_trace_rows(inputs, driver, "driver", driver_schema);
  if (!driver_rows) return driver_rows.error();
  const auto runtime_rows = emit_trace_rows(inputs, runtime, "runtime", runtime_schema);
  if (!runtime_rows) return runtime_rows.error();
  std::vector<EmittedFile> files = std::move(*symbols);
  files.insert(files.end(), driver_rows->begin(), driver_rows->end());
  files.insert(files.end(), runtime_rows->begin(), runtime_rows->end());
  files.push_back(emit_trace_objects(inputs));
  files.push_back(emit_handles(inputs));
  files.push_back(
      {"trace_schema.h",
       banner(inputs) + fmt::format("// What a trace's function numbers and payloads mean; a reader compares them.\n"
                                    "#pragma once\n\n#include <cstdint>\n\nnamespace rota::trace {{\n"
                                    "inline constexpr std::uint64_t kDriverSchema = 0x{:016x};\n"
                                    "inline constexpr std::uint64_t kRuntimeSchema = 0x{:016x};\n"
                                    "}}  // namespace rota::trace\n",
                                    driver_schema, runtime_schema)});
  return files;
}

}  // namespace rota::codegen
