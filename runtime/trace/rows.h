// What is recorded of a function is one row of generated/*_trace_functions.inc, with types from *_trace_types.inc. Both
// the tracers (tracer.h) and the reader's tables (names.h) are made from these rows, so that what one writes the other
// can read.
//
//   ROTA_TRACED(226, cuGraphGetNodes, 0, ({"hGraph", 191}, {"nodes", 190}, {"numNodes", 55}), in(2, 9),
//       out_list(1, 209, times_at(2, 8)), out(2, 9))
//
// The function's number, its name and the type of its result; its parameters by name and type, whose own values are
// recorded at entry; and the captures at entry (in) and at return (out): of which parameter (-1: the result), and the
// type of an element. This one writes an array, and how many elements it has is the 8-byte number that the third
// parameter points to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "runtime/trace/names.h"

namespace rota::names {

// How many elements there are.
struct Count {
  enum class Kind : std::uint8_t { kFixed, kParameter, kBehindParameter };
  Kind kind = Kind::kFixed;
  std::uint8_t bytes = 0;    // of the number behind the parameter
  std::uint16_t number = 1;  // the count itself, or the parameter
};

// How an address is found, and how long what lies there is.
enum class Source : std::uint8_t {
  kElements,    // at the parameter's value
  kText,        // the same, up to a zero
  kTextWithin,  // the same, or as many characters as are counted
  kTextBehind,  // at the address that the parameter points to, up to a zero
  kListBehind,  // address and count are fields of the struct that the parameter points to
};

// What a tracer has to know, without names.
struct Recipe {
  Source source = Source::kElements;
  std::uint8_t count_bytes = 0;  // kListBehind: of the count's field
  Count count = {};
  std::uint32_t pointer_offset = 0;
  std::uint32_t count_offset = 0;
};

struct CaptureRow : Capture {
  Recipe recipe;
};

consteval Count fixed(std::uint16_t count) {
  return {Count::Kind::kFixed, 0, count};
}
consteval Count times(std::uint16_t parameter) {
  return {Count::Kind::kParameter, 0, parameter};
}
consteval Count times_at(std::uint16_t parameter, std::uint8_t bytes) {
  return {Count::Kind::kBehindParameter, bytes, parameter};
}

consteval CaptureRow in(std::int8_t parameter, std::uint32_t type) {
  return {{parameter, false, CaptureKind::kElements, false, type, nullptr}, {}};
}
consteval CaptureRow in_list(std::int8_t parameter, std::uint32_t type, Count count) {
  return {{parameter, false, CaptureKind::kElements, true, type, nullptr}, {Source::kElements, 0, count}};
}
consteval CaptureRow in_text(std::int8_t parameter, std::uint32_t type) {
  return {{parameter, false, CaptureKind::kText, false, type, nullptr}, {Source::kText}};
}
consteval CaptureRow in_text(std::int8_t parameter, std::uint32_t type, Count count) {
  return {{parameter, false, CaptureKind::kText, false, type, nullptr}, {Source::kTextWithin, 0, count}};
}
// An array that the parameter's struct points to in `field`.
consteval CaptureRow in_list_behind(std::int8_t parameter, std::uint32_t type, const char* field,
                                    std::uint32_t pointer_offset, std::uint32_t count_offset,
                                    std::uint8_t count_bytes) {
  return {{parameter, false, CaptureKind::kElements, true, type, field},
          {Source::kListBehind, count_bytes, {}, pointer_offset, count_offset}};
}
consteval CaptureRow at_return(CaptureRow row) {
  row.at_return = true;
  return row;
}
consteval CaptureRow out(std::int8_t parameter, std::uint32_t type) {
  return at_return(in(parameter, type));
}
consteval CaptureRow out_list(std::int8_t parameter, std::uint32_t type, Count count) {
  return at_return(in_list(parameter, type, count));
}
consteval CaptureRow out_text(std::int8_t parameter, std::uint32_t type) {
  return at_return(in_text(parameter, type));
}
consteval CaptureRow out_text(std::int8_t parameter, std::uint32_t type, Count count) {
  return at_return(in_text(parameter, type, count));
}
// The text that the call made a const char* point to.
consteval CaptureRow out_text_behind(std::int8_t parameter, std::uint32_t type) {
  return {{parameter, true, CaptureKind::kText, false, type, nullptr}, {Source::kTextBehind}};
}

// The row of a function, except where its parameters and captures begin.
consteval Function traced(const char* name, std::uint32_t result, std::initializer_list<Parameter> parameters,
                          std::initializer_list<CaptureRow> captures) {
  bool result_in_value = true;
  for (const CaptureRow& capture : captures) result_in_value = result_in_value && capture.parameter >= 0;
  return {name,
          0,
          0,
          static_cast<std::uint8_t>(parameters.size()),
          static_cast<std::uint8_t>(captures.size()),
          true,
          result_in_value,
          result};
}
consteval Function untraced(const char* name) {
  return {name, 0, 0, 0, 0, false, true, 0};
}

template <std::size_t kCount>
consteval std::array<Function, kCount> placed(std::array<Function, kCount> functions) {
  std::uint32_t parameter = 0;
  std::uint32_t capture = 0;
  for (Function& function : functions) {
    function.first_parameter = parameter;
    function.first_capture = capture;
    parameter += function.parameters;
    capture += function.captures;
  }
  return functions;
}

// The rows of one API as tables.
struct Rows {
  std::span<const Function> functions;
  std::span<const Parameter> parameters;
  std::span<const CaptureRow> captures;
  std::span<const Type> types;
};

}  // namespace rota::names
