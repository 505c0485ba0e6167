// What the numbers in a trace mean: functions, parameters, types, enumerators and fields by name, as plain tables made
// from generated rows (rows.h). For readers; the traced process needs none of it.
#pragma once

#include <cstdint>
#include <span>

namespace rota::names {

enum class Kind : std::uint8_t {
  kOpaque,     // bytes
  kBool,       //
  kCharacter,  // one char; arrays of it are text
  kSigned,     //
  kUnsigned,   //
  kFloat,      //
  kEnum,       // detail: index into enums
  kFlags,      // detail: index into enums; values are joined with |
  kRecord,     // detail: index into records
  kAddress,    // pointers, handles, device addresses: shown in hexadecimal
  kArray,      // detail: the element's type, `count` of them
};

struct Type {
  const char* name;
  std::uint32_t bytes;
  Kind kind;
  std::uint32_t detail = 0;
  std::uint32_t count = 0;
};

struct Enumerator {
  const char* name;
  std::int64_t value;
};

struct Enum {
  const char* name;
  std::uint32_t first;  // in enumerators
  std::uint32_t count;
};

struct Field {
  const char* name;          // empty: an anonymous struct or union
  std::uint32_t type;        // in types
  std::uint32_t offset = 0;  // bytes
  std::uint8_t bits = 0;     // 0: not a bit-field
  std::uint8_t bit = 0;      // first bit, from the storage unit at `offset`
};

struct Record {
  const char* name;
  bool is_union;
  std::uint32_t first;  // in fields
  std::uint32_t count;
};

struct Parameter {
  const char* name;
  std::uint32_t type;  // in types; its bytes lie in the entry's payload
};

enum class CaptureKind : std::uint8_t {
  kText,      // characters, without the terminating zero
  kElements,  // as many of `type` as the length says
};

struct Capture {
  std::int8_t parameter;  // -1: the result
  bool at_return;
  CaptureKind kind;
  bool list;           // shown in [ ] even if it is one element
  std::uint32_t type;  // of one element
  const char* behind;  // what the parameter's struct, captured before, has this field point to; null: the parameter
};

struct Function {
  const char* name;
  std::uint32_t first_parameter;
  std::uint32_t first_capture;  // those at entry, then those at return
  std::uint8_t parameters;
  std::uint8_t captures;
  bool typed;            // false: exported, but no header declares it; never recorded
  bool result_in_value;  // the result is the return record's value
  std::uint32_t result;  // its type
};

struct Api {
  std::uint64_t schema;  // changes whenever function numbers or payloads do
  std::uint32_t success;
  std::span<const Function> functions;
  std::span<const Parameter> parameters;
  std::span<const Capture> captures;
  std::span<const Type> types;
  std::span<const Enum> enums;
  std::span<const Enumerator> enumerators;
  std::span<const Record> records;
  std::span<const Field> fields;
};

const Api& driver();
const Api& runtime();

}  // namespace rota::names
