// Decodes the payloads of a call: which bytes are which argument, and what it pointed to before and after the call.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/trace/names.h"
#include "tools/rota/trace/file.h"
#include "tools/rota/trace/tables.h"

namespace rota::tool {

// The value behind a pointer.
struct Captured {
  const names::Capture* capture = nullptr;
  std::span<const std::byte> bytes;
  bool cut_off = false;
};

struct Argument {
  const names::Parameter* parameter = nullptr;
  std::optional<std::span<const std::byte>> bytes;  // its own value; none if the record is damaged
  std::vector<Captured> before;                     // the value behind it at entry
  std::optional<Captured> after;                    // what the call wrote there
};

// A typed value somewhere in a call.
struct TypedBytes {
  std::uint32_t type = 0;
  std::span<const std::byte> bytes;
  bool text = false;
};

// Refers to the call, which must outlive it.
struct DecodedCall {
  explicit DecodedCall(const TraceCall& call);

  const Argument* argument(std::string_view name) const;
  // A field of an argument, or of what it points to (tables.h), through the active union members; none if it was not
  // recorded.
  std::optional<TypedBytes> at(Place place) const;

  const TraceCall& call;
  const names::Api& api;
  const names::Function& function;
  std::string_view base;  // the function's base name
  std::vector<Argument> arguments;
  std::optional<Captured> result;  // if it is not the return record's value
  bool result_absent = false;      // a null pointer was returned
};

const names::Api& names_of(const TraceCall& call);
std::string_view function_name(const TraceCall& call);
// The function returns a status and it is not success.
bool failed(const TraceCall& call);
// The first field of that name in a struct, its nested structs and the active union members.
std::optional<TypedBytes> find_field(const names::Api& api, const TypedBytes& value, std::string_view name);

}  // namespace rota::tool
