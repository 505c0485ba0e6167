// The tracing part of `rota-codegen generate`: tracers, name tables and the schema number that ties them together.
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
  auto driver_tracers = emit_driver_tracers(inputs, driver.front().plans);
  if (!driver_tracers) return driver_tracers.error();
  auto runtime_tracers = emit_runtime_tracers(inputs, runtime);
  if (!runtime_tracers) return runtime_tracers.error();
  std::uint64_t driver_schema = 0;
  std::uint64_t runtime_schema = 0;
  const auto driver_names = emit_name_tables(inputs, driver, "driver", driver_schema);
  if (!driver_names) return driver_names.error();
  const auto runtime_names = emit_name_tables(inputs, runtime, "runtime", runtime_schema);
  if (!runtime_names) return runtime_names.error();
  std::vector<EmittedFile> files = std::move(*driver_tracers);
  files.insert(files.end(), runtime_tracers->begin(), runtime_tracers->end());
  files.push_back(emit_trace_objects(inputs));
  files.push_back(emit_handles(inputs));
  files.push_back({"driver_names.cpp", *driver_names});
  files.push_back({"runtime_names.cpp", *runtime_names});
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
