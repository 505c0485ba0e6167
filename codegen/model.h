// The CUDA API of one release as plain data: what the headers declare, without any of their text.
//
// `extract` fills it from the headers, and cuda_headers/api/<release>.json stores it. A Model has two Api objects,
// because the driver's and the runtime's headers use the same names for different things. The emitters read the union
// of all releases (unite.h). Types are stored as the header spells them (typedef names included); Api::resolve()
// resolves a spelling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::codegen {

// `const CUlaunchConfig* const* [4]`: a named base, pointers to it, then array extents (fields only).
struct TypeRef {
  std::string base;  // "unsigned int", "size_t", "CUstream", "CUDA_MEMCPY2D_st": no const, no struct keyword
  bool base_const = false;
  std::vector<bool> pointers;          // one per '*', innermost first; true: that pointer itself is const
  std::vector<std::uint64_t> extents;  // outermost first

  bool is_pointer() const { return !pointers.empty() && extents.empty(); }
  // The type pointed to; only if is_pointer().
  TypeRef pointee() const;
  // The element type of the outermost array; only if extents is not empty.
  TypeRef element() const;
  // C spelling without a declared name; arrays as in "char[16]".
  std::string spelling() const;
  // As a declaration: "const char* name", "char name[16]".
  std::string declare(std::string_view name) const;
  static Result<TypeRef> parse(std::string_view spelling);
  bool operator==(const TypeRef&) const = default;
};

struct Parameter {
  std::string name;  // as in the header; "argN" if the header gives no name
  TypeRef type;
  std::string direction;  // the documentation's tag: "in", "out", "inout" or nothing
  // For a pointer in a union of releases: the smallest size in bytes that its target has in any release, if the
  // releases differ; else 0. Not written to models.
  std::uint64_t smallest = 0;
};

// What the documentation comment says, as flags: the comment's text belongs to the vendor and is not stored. Notes are
// the names of the documentation macros without "note_" (async, sync, null_stream, memcpy, memset, callback,
// graph_thread_safety, …) plus "says_asynchronous" when the description itself uses that word. Sorted, unique.
struct Documentation {
  bool present = false;
  std::vector<std::string> notes;
  bool has(std::string_view note) const;
};

enum class StreamForm { kDefault, kPerThreadStream, kPerThreadDefault };  // "", "_ptsz", "_ptds"
std::string_view stream_form_suffix(StreamForm form);

// One exported symbol.
struct Function {
  std::string name;  // exact export: cuMemcpyHtoDAsync_v2_ptsz
  std::string base;  // what cuGetProcAddress and policy.toml call it: cuMemcpyHtoDAsync
  StreamForm form = StreamForm::kDefault;
  int version = 0;  // first CUDA version for which cuGetProcAddress returns it (3020); 0 if no typedef says (runtime)
  std::string header;  // file name of the declaration
  TypeRef result;
  std::vector<Parameter> parameters;
  bool deprecated = false;
  Documentation documentation;  // from the base name's plain declaration; the same in every version

  const Parameter* find_parameter(std::string_view parameter_name) const;
};

struct Enumerator {
  std::string name;
  std::int64_t value = 0;
};

struct Enum {
  std::string name;  // tag, or the typedef's name where it has none
  std::string header;
  std::string underlying;               // "unsigned int" or "int"
  std::vector<Enumerator> enumerators;  // in the header's order; values may repeat
};

struct Record;

struct Field {
  std::string name;            // empty for an anonymous struct or union
  TypeRef type;                // base is empty if `nested` holds the type
  std::uint64_t offset = 0;    // bytes from the start of the enclosing record; for bit-fields, of the storage unit
  unsigned bit_offset = 0;     // bit-fields: from the start of the record, in bits
  unsigned bits = 0;           // 0: not a bit-field
  std::vector<Record> nested;  // none, or exactly one: a struct or union defined in place
};

struct Record {
  std::string name;  // tag, or the typedef's name if it has none; may be empty for a nested one
  std::string header;
  bool is_union = false;
  bool complete = false;  // false: only declared (handles point to such records); size, align and fields are then empty
  std::uint64_t size = 0;   // bytes
  std::uint64_t align = 0;  // bytes
  std::vector<Field> fields;

  const Field* find_field(std::string_view field_name) const;
};

// A named function type or function pointer type: CUstreamCallback, CUhostFn.
struct Callback {
  std::string name;
  std::string header;
  bool pointer = true;  // false: the typedef names the function type, not a pointer to it
  TypeRef result;
  std::vector<Parameter> parameters;
};

struct Typedef {
  std::string name;
  std::string header;
  TypeRef type;
};

enum class TypeKind {
  kVoid,
  kBool,
  kCharacter,
  kSigned,
  kUnsigned,
  kFloat,
  kEnum,
  kRecord,
  kPointer,
  kCallback,
  kArray
};

// A TypeRef with every typedef resolved.
struct Resolved {
  TypeKind kind = TypeKind::kVoid;
  std::uint64_t size = 0;  // bytes; 0 for void and incomplete records
  bool is_const = false;
  TypeRef pointee = {};                // kPointer, kArray: the element
  const Enum* enumeration = nullptr;   // kEnum
  const Record* record = nullptr;      // kRecord
  const Callback* callback = nullptr;  // kCallback
};

// The order in which a compiler needs the types: each is declared before its use. Derived from the types themselves.
enum class DeclarationKind { kEnum, kRecord, kCallback, kTypedef };
struct Declaration {
  DeclarationKind kind;
  std::size_t index;  // in the vector of that kind
};

struct Api {
  // All vectors are sorted by name, bytewise; no two types share a name.
  std::vector<Function> functions;
  std::vector<Enum> enums;
  std::vector<Record> records;
  std::vector<Callback> callbacks;
  std::vector<Typedef> typedefs;
  std::vector<Declaration> declarations;  // derived by index()

  const Function* find_function(std::string_view name) const;
  const Enum* find_enum(std::string_view name) const;
  const Record* find_record(std::string_view name) const;  // top-level ones
  const Callback* find_callback(std::string_view name) const;
  const Typedef* find_typedef(std::string_view name) const;
  bool has_type(std::string_view name) const { return names_.find(name) != names_.end(); }
  // All versions and stream forms of a base name, sorted by name.
  std::vector<const Function*> versions_of(std::string_view base) const;
  // Resolves typedefs. An unknown name is an error that gives the name.
  Result<Resolved> resolve(const TypeRef& type) const;
  // A pointer to a record that is only declared: CUstream, CUcontext, …
  bool is_handle(const TypeRef& type) const;

  // Must be called after the vectors change: sorts them, and derives what the find functions and emitters use.
  void index();

 private:
  std::map<std::string, Declaration, std::less<>> names_;
  std::map<std::string, std::size_t, std::less<>> function_names_;
};

// How the exports of a release's libcudart differ from what the headers declare.
struct RuntimeLibrary {
  std::string name;                     // its SONAME, which is also its version node: "libcudart.so.11.0"
  std::vector<std::string> undeclared;  // exported, but in no header; sorted
  std::vector<std::string> unexported;  // declared, but not exported; sorted
  bool operator==(const RuntimeLibrary&) const = default;
};

struct Model {
  std::string release;  // "13.0"
  Api driver;
  Api runtime;
  RuntimeLibrary library;
};

// 13000 for "13.0", in the form of CUDA_VERSION; 0 for text that is not a release.
int release_number(std::string_view release);
std::string release_name(int number);

// Whether a type's name needs no declaration: those of C and of <stdint.h>.
bool is_builtin_type(std::string_view name);

// cuda_headers/api/<release>.json: one declaration per line, so that diffs are readable. A release's file holds what it
// added, changed or removed compared with the previous release (`before`; null: everything).
std::string model_to_json(const Model& model, const Model* before = nullptr);
// `before` must be the release that the file names as its predecessor, or null if it names none.
Result<Model> parse_model(std::string_view text, const std::string& path_for_errors, const Model* before = nullptr);

// All models of a folder, oldest release first. At least one, or an error.
Result<std::vector<Model>> load_models(const std::string& directory);
// What `before` has and `now` is missing without an explanation. Compared with an earlier release: functions, since the
// driver never removes one, and the headers must declare what libcudart exports. Compared with an earlier model of the
// same release: functions, types, enumerators and fields.
std::vector<std::string> lost_declarations(const Model& before, const Model& now);

// Writes the model's file into a folder of models, and rewrites the file of the next release, which lists the changes
// since it. Returns the files written.
Result<std::vector<std::string>> save_model(const std::string& directory, const Model& model);

}  // namespace rota::codegen
