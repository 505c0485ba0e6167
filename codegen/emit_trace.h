// What tracing records for each function: derived once and emitted as one row, from which both the tracer that writes a
// payload and the tables that decode it are made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/emit.h"

namespace rota::codegen {

// What a pointer leads to.
struct TraceCapture {
  int parameter = -1;  // -1: the result
  bool at_return = false;
  bool text = false;              // zero-terminated, or characters within `count`
  bool text_behind = false;       // const char**: the text that the call made it point to
  bool list = false;              // a count is given
  TypeRef type;                   // of one element
  std::uint64_t bytes = 0;        // of one element
  std::string count = "1";        // elements: a number or a parameter's name
  bool count_is_pointer = false;  // read through the pointer
  // For an array whose pointer and count are fields of the struct that the parameter points to: the pointer's field
  // (empty for other captures), and offsets in the struct.
  struct Behind {
    std::string field;
    std::uint64_t pointer = 0;
    std::uint64_t count = 0;
    std::uint64_t count_bytes = 0;
  } behind;
};

struct TracePlan {
  const Function* function = nullptr;  // null: undeclared, no tracer
  std::string name;
  bool result_in_value = true;         // else the result is a capture, or void
  std::vector<TraceCapture> captures;  // at entry first
};

// One plan per symbol, in the symbols' order; `facts` is the policy's table for this API, `major` libcudart's (0: the
// driver).
Result<std::vector<TracePlan>> plan_traces(const Api& api, const FactTable& facts, int major,
                                           const std::vector<std::string>& symbols);

// What a trace calls the runtime API is several APIs: libcudart's majors in sequence, numbered consecutively.
struct TraceSection {
  const Api* api = nullptr;
  const RuntimeMajor* major = nullptr;  // null for the driver
  std::size_t first = 0;                // function number of plans[0]
  std::vector<TracePlan> plans;
};

// The enum whose enumerators an integer parameter takes, where the headers declare the parameter as a mere integer;
// empty if none is known. Names are enum tags of the model. A struct's field is looked up by the struct's tag.
std::string enumeration_of_parameter(const std::string& base, const std::string& parameter);
// The same as an enum of the model, or one built from macros; null if none is known.
const Enum* enumeration_meant(const Api& api, const std::string& owner, const std::string& name);

// The arrays that a captured struct points to (codegen/emit_trace_lists.cpp).
Result<std::vector<TraceCapture>> lists_behind(const Api& api, const TraceCapture& record);

// The parts of emit_trace.
// NAME_trace_functions.inc and NAME_trace_types.inc, and a hash of them.
Result<std::vector<EmittedFile>> emit_trace_rows(const Inputs& inputs, const std::vector<TraceSection>& sections,
                                                 const std::string& api, std::uint64_t& schema);
// codegen/emit_trace_objects.cpp
EmittedFile emit_trace_objects(const Inputs& inputs);
// driver_handles.inc: which functions return handles one by one.
EmittedFile emit_handles(const Inputs& inputs);
// codegen/emit_trace_runtime.cpp
Result<std::vector<EmittedFile>> emit_runtime_symbols(const Inputs& inputs, const std::vector<TraceSection>& sections);

}  // namespace rota::codegen
