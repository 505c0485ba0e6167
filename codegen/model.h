// The CUDA API of one release as plain data: what the headers declare, without a word of their text.
//
// `extract` fills it from the headers, cuda_headers/api/<release>.json keeps it. Two Api objects make a Model, because
// the driver's and the runtime's headers use the same names for different things. The emitters read the union of all
// releases (unite.h). Types are kept as the header spells them (typedef names included); Api::resolve() says what a
// spelling comes down to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/result.h"

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
  // The element of the outermost array; only if extents is not empty.
  TypeRef element() const;
  // C spelling without a declared name; arrays as in "char[16]".
  std::string spelling() const;
  // As a declaration: "const char* name", "char name[16]".
  std::string declare(std::string_view name) const;
  static Result<TypeRef> parse(std::string_view spelling);
  bool operator==(const TypeRef&) const = default;
};

struct Parameter {
  std::string name;  // as in the header; "argN" where it names none
  TypeRef type;
  std::string direction;  // what the documentation tags: "in", "out", "inout" or nothing
  // In a union of releases, of a pointer: bytes of what it leads to in the release that has the least, where the
  // releases differ; else 0. Not written to models.
  std::uint64_t smallest = 0;
};

// What the documentation comment says, as flags: the comment's text is the vendor's and is not kept.
// Notes are the names of the documentation macros without "note_" (async, sync, null_stream, memcpy, memset, callback,
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
  int version =
      0;  // CUDA version from which cuGetProcAddress answers with it (3020); 0 where no typedef says (runtime)
  std::string header;  // file name of the declaration
  TypeRef result;
  std::vector<Parameter> parameters;
  bool deprecated = false;
  Documentation documentation;  // of the base name's plain declaration, in every version of it

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
  TypeRef type;                // base is empty if `nested` says what it is
  std::uint64_t offset = 0;    // bytes from the start of the record that holds it; of the storage unit for bit-fields
  unsigned bit_offset = 0;     // bit-fields: from the start of the record, in bits
  unsigned bits = 0;           // 0: not a bit-field
  std::vector<Record> nested;  // none, or exactly one: a struct or union defined in place
};

struct Record {
  std::string name;  // tag, or the typedef's name where it has none; may be empty for a nested one
  std::string header;
  bool is_union = false;
  bool complete = false;    // false: only declared (what handles point to); then size, align, fields are empty
  std::uint64_t size = 0;   // bytes
  std::uint64_t align = 0;  // bytes
  std::vector<Field> fields;

  const Field* find_field(std::string_view field_name) const;
};

// A function type or pointer to one with a name: CUstreamCallback, CUhostFn.
struct Callback {
  std::string name;
  std::string header;
  bool pointer = true;  // false: the typedef names the function type itself
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

// What a TypeRef comes down to once every typedef is looked through.
struct Resolved {
  TypeKind kind = TypeKind::kVoid;
  std::uint64_t size = 0;  // bytes; 0 for void and incomplete records
  bool is_const = false;
  TypeRef pointee = {};                // kPointer, kArray: the element
  const Enum* enumeration = nullptr;   // kEnum
  const Record* record = nullptr;      // kRecord
  const Callback* callback = nullptr;  // kCallback
};

// The order in which a compiler wants the types: each stands before its use. It follows from the types themselves.
enum class DeclarationKind { kEnum, kRecord, kCallback, kTypedef };
struct Declaration {
  DeclarationKind kind;
  std::size_t index;  // into the vector of that kind
};

struct Api {
  // All sorted by name, bytewise; no two types share a name.
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
  // Looks through typedefs. Unknown names are an error that names them.
  Result<Resolved> resolve(const TypeRef& type) const;
  // A pointer to a record that is only declared: CUstream, CUcontext, …
  bool is_handle(const TypeRef& type) const;

  // Must be called after the vectors were changed: sorts them, and derives what the find functions and emitters use.
  void index();

 private:
  std::map<std::string, Declaration, std::less<>> names_;
  std::map<std::string, std::size_t, std::less<>> function_names_;
};

// What a release's libcudart exports, as far as it differs from what the headers declare.
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

// 13000 for "13.0", as CUDA_VERSION counts; 0 for what is no release.
int release_number(std::string_view release);
std::string release_name(int number);

// Whether a type's name needs no declaration: C's own and <stdint.h>'s.
bool is_builtin_type(std::string_view name);

// cuda_headers/api/<release>.json: one declaration per line, so that a difference reads well. A release's file holds
// what it added, changed or removed against the release before it (`before`; null: everything).
std::string model_to_json(const Model& model, const Model* before = nullptr);
// `before` is the release that the file says it comes after, or null if it says none; another one is an error.
Result<Model> parse_model(std::string_view text, const std::string& path_for_errors, const Model* before = nullptr);

// All models of a folder, oldest release first. At least one, or an error.
Result<std::vector<Model>> load_models(const std::string& directory);
// What `now` lacks although `before` has it and nothing explains it. Compared with an earlier release: functions, since
// the driver never drops one, and the headers must still declare what libcudart still exports. Compared with an earlier
// model of the same release: functions, types, enumerators and fields.
std::vector<std::string> lost_declarations(const Model& before, const Model& now);

// Writes the model's file into a folder of models, and rewrites the file of the next release, which lists the changes
// since it. Returns the files written.
Result<std::vector<std::string>> save_model(const std::string& directory, const Model& model);

}  // namespace rota::codegen
