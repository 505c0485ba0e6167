// What a listing needs and the headers say only in prose. The policy says which functions make and end objects and
// memory (generated/trace_objects.inc). Which types are handles, where a kernel gets its name, and which member of a
// union counts is written by hand, in the headers' own names: the unit tests walk the generated tables and name every
// handle type and union that is missing here.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace rota::tool {

// What a listing calls objects of this handle type: "stream" for CUstream and for cudaStream_t, since both APIs hand
// out the same objects. Empty if the type is no handle. It may begin with const.
std::string_view handle_class(std::string_view type);
// The name of a value of that class that is no object (CU_STREAM_LEGACY); empty if it is an object.
std::string_view special_handle(std::string_view handle_class, std::uint64_t value, bool runtime_api);
// CUdeviceptr in all its versions.
bool is_device_pointer(std::string_view type);

// A function's name without version and stream form: cuMemAlloc of cuMemAlloc_v2_ptsz.
std::string_view base_name(std::string_view function);
// A handle that this function writes through the parameter is a new object's, whatever had that address before.
bool makes_object(std::string_view base, std::string_view parameter);
// The object whose handle this parameter is, or the memory at its address, has ended once the function succeeds.
bool ends_object(std::string_view base, std::string_view parameter);

// The place of a value in a call: a parameter's name; with '*' before it, what the call wrote there; after a '.', a
// field of the struct behind (or in) the parameter. Empty: nowhere.
using Place = std::string_view;

// Memory that is allocated, or becomes known.
struct Allocation {
  std::string_view function;  // base name
  Place address;
  Place bytes;        // of the allocation, or of one row
  Place rows = {};    //
  bool host = false;  //
  bool fresh = true;  // false: it may have been known before
};
const Allocation* allocation_of(std::string_view base);
// Whether it allocates memory for the program, rather than another way to access some, or a range of addresses.
bool gives_memory(std::string_view base);

// Where the name of a kernel or of a device variable is said: `object` is its handle or its address in the host
// program; `name` is text, or another handle or address that has the name already.
struct Naming {
  std::string_view function;  // base name
  Place object;
  Place name;
};
std::span<const Naming> namings();
// Functions whose arguments say which kernel runs in which geometry, or will.
bool is_launch(std::string_view base);
// Of these, a call of the driver that puts the kernel into a stream.
bool is_direct_launch(std::string_view base);
// It hands out functions' addresses; programs call it some hundred times when they start.
bool is_lookup(std::string_view base);
// What this function writes there is a measured time.
bool is_measurement(std::string_view base, std::string_view parameter);

// Which member of a union field counts.
struct UnionCase {
  std::string_view enumerator;
  std::string_view shown;  // member
};
struct UnionRule {
  // The struct's tag; of a struct without one its parent's record and the field's name ("cudaResourceDesc.res").
  std::string_view record;
  std::string_view member;  // the union's field name; empty: anonymous
  // A field of the same struct. Empty: `otherwise` always counts.
  std::string_view selector;
  std::span<const UnionCase> cases;
  std::string_view otherwise = {};  // member where no case holds; empty: the bytes are shown
};
const UnionRule* union_rule(std::string_view record, std::string_view member);

}  // namespace rota::tool
