// cuda_headers/policy.toml: what each driver function does, and how both APIs use their pointers. CUDA's headers do not
// say it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/model.h"
#include "scheduler/base/result.h"

namespace rota::codegen {

enum class Direction { kIn, kOut, kInOut };

// How a pointer parameter is used.
struct ParameterUse {
  Direction direction = Direction::kIn;
  bool opaque = false;            // never read
  bool string = false;            // zero-terminated
  std::string count;              // element count: a parameter's name, a number, or empty for one element
  bool count_is_pointer = false;  // "out[*count]": the count is read through the pointer, after the call
  bool reviewed = false;          // false: only derived from the type
};

// Memory that a call creates or makes known: parameters, "*parameter" for what was written there, and fields of either.
// For trace listings.
struct MemoryPlace {
  std::string address;
  std::string bytes;   // of the whole, or of one row; empty: not known
  std::string rows;    // empty: one
  bool host = false;   // host memory
  bool known = false;  // the memory may have been known before
};

// The facts of one base name (every version and stream form inherits them). An empty fact does not apply.
struct FunctionPolicy {
  std::string base;
  int line = 0;         // in policy.toml
  std::string submits;  // parameter, "parameter.field" or "current"
  std::vector<std::string> needs_mapping;
  bool needs_room = false;
  bool may_block = false;
  bool waits_for_others = false;  // may_block = "others": it may wait for another process
  std::string captures;
  std::vector<std::string> allocates;
  std::vector<std::string> frees;
  std::vector<std::string> exports;
  std::string context;
  bool query = false;
  bool undeclared = false;
  std::string reason;
  std::string passes;
  std::string untouched;           // why memory need not be in place although the call takes its address
  std::string redirected;          // allocates or frees memory that rota itself may provide: how it is counted
  std::string counted;             // allocates or frees the driver's own memory: how it is counted
  std::vector<std::string> makes;  // parameters that return a new object's handle
  std::vector<std::string> ends;   // parameters whose object or memory has ended afterwards
  std::optional<MemoryPlace> memory;
  std::map<std::string, ParameterUse> parameters;
  bool states_a_fact() const;
  // The facts that rota must act on, in words: allocates, frees, exports, begins, ends or changes a capture, creates or
  // ends a context. Empty: none.
  std::vector<std::string> binding_facts() const;
};

using FactTable = std::map<std::string, FunctionPolicy, std::less<>>;

// A private table of the driver (cuGetExportTable). As far as its users have been observed, nothing allocates or
// shares memory through it, nor launches unless it is gated.
struct ExportTable {
  std::string uuid;  // as spelled in policy.toml
  int line = 0;
  std::array<unsigned char, 16> id = {};
  bool gated = false;                 // its functions submit work: programs get a copy whose functions pass the gate
  std::uint64_t bytes = 0;            // its length, read from its first word; 0: it does not begin with one
  std::vector<std::string> asked_by;  // libraries that have been seen to ask for it
  std::string evidence;
};

struct Policy {
  FactTable functions;  // of the driver, by base name
  // Of the runtime API, by base name, or by symbol and libcudart's major ("cudaGetDeviceProperties@12") where that one
  // differs. They state only how parameters are used, since the runtime does everything through the driver.
  FactTable runtime;
  std::vector<ExportTable> export_tables;
  std::vector<std::string> collective_kernels;  // how names begin of kernels that wait for other processes
  const FunctionPolicy* find(std::string_view base) const;
};

// The entry for a function, or null. `major`: libcudart's, 0 for the driver.
const FunctionPolicy* find_facts(const FactTable& table, const Function& function, int major);

Result<Policy> load_policy(const std::string& path);
Result<Policy> parse_policy(std::string_view text, const std::string& path_for_errors);

// What the policy says about a parameter, else a guess from its type: a typed non-const pointer is an output, a pointer
// to const an input, const char* a string, void* opaque. Values that are not pointers are inputs.
ParameterUse parameter_use(const Api& api, const FunctionPolicy* policy, const Function& function,
                           const Parameter& parameter);

}  // namespace rota::codegen
