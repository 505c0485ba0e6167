// Extraction from small headers: what libclang must be held to.
#include "codegen/extract.h"

#include <catch2/catch.hpp>

#include "tests/unit/codegen/support.h"

using namespace rota::codegen;
using namespace rota::codegen::test;
using Catch::Matchers::Contains;

namespace {

constexpr const char* kVersions = R"(
#include <stddef.h>
#pragma once
typedef enum CUresult_enum { CUDA_SUCCESS = 0 } CUresult;
extern "C" {
#if defined(__CUDA_API_VERSION_INTERNAL)
CUresult cuCopy_v2(void* target, size_t bytes);
CUresult cuCopy_v4(void* target, size_t bytes, int flags);
CUresult cuCopy_v2_ptds(void* target, size_t bytes);
#else
#define cuCopy cuCopy_v4
/** \brief Copies. \param[out] target where to \note_async
 * \sa ::cuOtherAsynchronous */
__attribute__((deprecated)) CUresult cuCopy(void* target, size_t bytes, int flags);
#endif
typedef CUresult (*PFN_cuCopy_v12000)(void* target, size_t bytes, int flags);
typedef CUresult (*PFN_cuCopy_v3020)(void* target, size_t bytes);
typedef CUresult (*PFN_cuCopy_v7000_ptds)(void* target, size_t bytes);
}
)";

Api must_extract(std::string_view header, bool versions = false) {
  auto api = extract_tiny(header, versions);
  if (!api) FAIL(api.error().text);
  return std::move(*api);
}

std::string error_of(std::string_view header, bool versions = false) {
  const auto api = extract_tiny(header, versions);
  return api ? "no error" : api.error().text;
}

}  // namespace

TEST_CASE("versions go to the symbols that exist, not to those that a number would suggest") {
  const Api api = must_extract(kVersions, true);
  REQUIRE(api.functions.size() == 3);
  CHECK(api.find_function("cuCopy_v2")->version == 3020);
  CHECK(api.find_function("cuCopy_v4")->version == 12000);
  CHECK(api.find_function("cuCopy_v2_ptds")->version == 7000);
  CHECK(api.find_function("cuCopy_v2_ptds")->form == StreamForm::kPerThreadDefault);
  CHECK(api.find_function("cuCopy_v2_ptds")->base == "cuCopy");
}

TEST_CASE("documentation belongs to all versions of a function, a deprecation to one of them") {
  const Api api = must_extract(kVersions, true);
  CHECK(api.find_function("cuCopy_v2")->documentation.has("async"));
  CHECK(api.find_function("cuCopy_v2")->parameters[0].direction == "out");
  CHECK_FALSE(api.find_function("cuCopy_v2")->deprecated);
  CHECK(api.find_function("cuCopy_v4")->deprecated);
}

TEST_CASE("the names of related functions do not make a function asynchronous") {
  const Api api = must_extract(kVersions, true);
  CHECK_FALSE(api.find_function("cuCopy_v4")->documentation.has("says_asynchronous"));
}

TEST_CASE("a function without a version typedef is an error that names it") {
  CHECK_THAT(error_of("extern \"C\" int cuLonely(void);\n", true),
             Contains("cuLonely: 1 exported versions but 0 PFN_"));
}

TEST_CASE("a version typedef of another type is an error with file and line") {
  CHECK_THAT(error_of("extern \"C\" int cuA(int x);\ntypedef int (*PFN_cuA_v2000)(long x);\n", true),
             Contains("tiny.h:2: PFN_cuA_v2000 does not have the type of cuA"));
}

TEST_CASE("a truncated header is an error with file and line") {
  CHECK_THAT(error_of("extern \"C\" {\nint cuA(int x);\nint cuB(int"), Contains("tiny.h:3: "));
  CHECK_THAT(error_of("#ifndef TINY\nint cuA(int x);\n"), Contains("tiny.h:1: unterminated"));
}

TEST_CASE("an unknown type is an error with file and line") {
  CHECK_THAT(error_of("extern \"C\" int cuA(\n  CUnknown x);\n"), Contains("tiny.h:2: unknown type name 'CUnknown'"));
}

TEST_CASE("functions that a macro hides are an error with file and line, however they are hidden") {
  constexpr const char* kHeader =
      "#define CUDAAPI\n/* CUresult CUDAAPI cuCommented(void); */\n"
      "extern \"C\" int CUDAAPI cuA(void);\n#ifndef TINY_LITE\nextern \"C\" int CUDAAPI cuB(\n  int x);\n#endif\n";
  CHECK(must_extract(kHeader).functions.size() == 2);
  CHECK_THAT(
      error_of(std::string("#define TINY_LITE\n") + kHeader),
      Contains("tiny.h:6: cuB is declared here, but the preprocessor leaves it out") && !Contains("cuCommented"));
}

TEST_CASE("the real headers with half of a file hidden are refused, and no model is written") {
  const std::string headers = ROTA_TEST_HEADERS;
  if (headers.empty()) {
    WARN("the newest release's headers are not fetched (tools/dev setup): nothing tried");
    return;
  }
  ExtractOptions options;
  options.include_directory = headers;
  REQUIRE(extract_model(options, ""));
  // As if the header had been included already, which is what an include guard of the same name does.
  options.arguments = {"-D__CUDA_GL_INTEROP_H__"};
  const auto hidden = extract_model(options, "");
  REQUIRE_FALSE(hidden);
  CHECK_THAT(hidden.error().text, Contains("cuda_gl_interop.h:") && Contains("cudaG"));
  // A macro of a user that empties the driver's own marker of functions.
  options.arguments = {"-DcuMemAlloc_v2=cuMemAlloc_hidden"};
  CHECK_FALSE(extract_model(options, ""));
}

TEST_CASE("a model that lacks functions which an earlier one has is a loss, whatever hid them") {
  const Model before = model_from("extern \"C\" int cuA(void);\nextern \"C\" int cuB(void);\n", "12.9");
  const Model now = model_from("extern \"C\" int cuA(void);\n", "13.0");
  CHECK(lost_declarations(before, now) == std::vector<std::string>{"cuB"});
  CHECK(lost_declarations(now, before).empty());
  // The runtime may drop what its library drops as well.
  Model runtime_before = model_from("extern \"C\" int cuA(void);\n", "12.9");
  Model runtime_now = runtime_before;
  runtime_before.runtime = before.driver;
  runtime_now.runtime = now.driver;
  runtime_now.release = "13.0";
  CHECK(lost_declarations(runtime_before, runtime_now).empty());
  runtime_now.library.undeclared = {"cuB"};
  CHECK(lost_declarations(runtime_before, runtime_now) == std::vector<std::string>{"cuB"});
  runtime_now.library.undeclared.clear();
  runtime_now.release = "12.9";
  CHECK(lost_declarations(runtime_before, runtime_now) == std::vector<std::string>{"cuB"});
}

TEST_CASE("a version typedef without a function is an error, and so is one form of two") {
  CHECK_THAT(error_of("extern \"C\" int cuA(void);\ntypedef int (*PFN_cuA_v2000)(void);\n"
                      "typedef int (*PFN_cuA_v7000_ptsz)(void);\n",
                      true),
             Contains("tiny.h:3: PFN_cuA_v7000_ptsz names a version of cuA_ptsz, which is declared nowhere"));
  CHECK_THAT(error_of("extern \"C\" int cuA(void);\n#ifndef __CUDA_API_VERSION_INTERNAL\n"
                      "extern \"C\" int cuB(void);\n#endif\n"),
             Contains("tiny.h:3: cuB is declared for programs, but not where all versions"));
}

TEST_CASE("an enumerator or a field that the same release's earlier model has is a loss") {
  const Model before = model_from(
      "typedef enum CUe_st { CU_A, CU_B } CUe;\ntypedef struct CUs_st { int x; int y; } CUs;\n"
      "extern \"C\" int cuA(CUe e, CUs* s);\n");
  const Model now = model_from(
      "typedef enum CUe_st { CU_A } CUe;\ntypedef struct CUs_st { int x; } CUs;\n"
      "extern \"C\" int cuA(CUe e, CUs* s);\n");
  CHECK(lost_declarations(before, now) == std::vector<std::string>{"CU_B", "CUs_st.y"});
  CHECK(lost_declarations(now, before).empty());
}

TEST_CASE("a header that is not there is an error that names it") {
  CHECK_THAT(error_of("#include <stdio.h>\n#include \"missing/GL.h\"\n"),
             Contains("tiny.h:2: 'missing/GL.h' file not found"));
}

TEST_CASE("clang's own headers missing is an error, not size_t turned into int") {
  Folder empty;
  Folder folder;
  folder.write("tiny.h", "#include <stddef.h>\nextern \"C\" int cuA(size_t x);\n");
  ExtractOptions options;
  options.include_directory = folder.path();
  options.resource_directory = empty.path();
  const auto api = extract_api({.source = "#include <tiny.h>\n", .function_prefix = "cu"}, options);
  REQUIRE_FALSE(api);
  CHECK_THAT(api.error().text, Contains("stddef.h is missing"));
}

TEST_CASE("a folder without cuda.h is an error even if the compiler knows another cuda.h") {
  Folder empty;
  ExtractOptions options;
  options.include_directory = empty.path();
  const auto model = extract_model(options, "");
  REQUIRE_FALSE(model);
  CHECK_THAT(model.error().text, Contains(empty.path() + ": holds no cuda.h"));
}

TEST_CASE("a header that is missing is not taken from another CUDA installation") {
  Folder folder;
  Folder other;
  folder.write("cuda.h", "#include <cudaGL.h>\nextern \"C\" int cuA(void);\n");
  other.write("cuda_runtime_api.h", "");
  other.write("cudaGL.h", "extern \"C\" int cuGL(void);\n");
  ExtractOptions options;
  options.include_directory = folder.path();
  options.arguments = {"-I", other.path()};
  const auto api = extract_api({.source = "#include <cuda.h>\n", .function_prefix = "cu"}, options);
  REQUIRE_FALSE(api);
  CHECK_THAT(api.error().text, Contains(other.path() + "/cudaGL.h: not in " + folder.path()));
}

TEST_CASE("headers of another release than the one asked for are refused") {
  Folder folder;
  folder.write("cuda.h", "#define CUDA_VERSION 12090\n");
  ExtractOptions options;
  options.include_directory = folder.path() + "/";
  const auto model = extract_model(options, "13.0");
  REQUIRE_FALSE(model);
  CHECK_THAT(model.error().text, Contains("is of release 12.9, not 13.0"));
}

TEST_CASE("size_t stays size_t") {
  const Api api = must_extract("#include <stddef.h>\nextern \"C\" int cuA(const size_t* x);\n");
  CHECK(api.functions[0].parameters[0].type.spelling() == "const size_t*");
}

TEST_CASE("a file without any of the API's functions is an error") {
  CHECK_THAT(error_of("int other(void);\n"), Contains("no function"));
}

TEST_CASE("inline and static functions are no exports") {
  const Api api = must_extract("extern \"C\" int cuA(void);\nstatic inline int cuB(void) { return 0; }\n");
  REQUIRE(api.functions.size() == 1);
  CHECK(api.functions[0].name == "cuA");
}

TEST_CASE("a type that cannot be represented is an error rather than something near it") {
  CHECK_THAT(error_of("extern \"C\" int cuA(int (*callback)(void));\n"),
             Contains("tiny.h:1: a function pointer without a typedef"));
  CHECK_THAT(error_of("extern \"C\" int cuA(long double x);\n"), Contains("tiny.h:1: type 'long double'"));
}

TEST_CASE("layouts come from the compiler: bit-fields, unions without a name, alignment") {
  const Api api = must_extract(R"(
typedef struct alignas(32) CUthing_st {
  char tag;
  union { int word; struct { short low, high; } halves; };
  unsigned first : 3, second : 5;
  struct CUinner_st { double value; } inner[2];
} CUthing;
extern "C" int cuA(CUthing thing);
)");
  const Record* thing = api.find_record("CUthing_st");
  REQUIRE(thing);
  CHECK(thing->size == 32);
  CHECK(thing->align == 32);
  REQUIRE(thing->fields.size() == 5);
  CHECK(thing->fields[1].name.empty());
  CHECK(thing->fields[1].offset == 4);
  REQUIRE(thing->fields[1].nested.size() == 1);
  CHECK(thing->fields[1].nested[0].is_union);
  CHECK(thing->fields[3].bits == 5);
  CHECK(thing->fields[3].bit_offset == 67);
  CHECK(thing->fields[4].offset == 16);
  CHECK(thing->fields[4].type.extents == std::vector<std::uint64_t>{2});
  CHECK(thing->fields[4].nested[0].name == "CUinner_st");
}

TEST_CASE("what an API's functions use is part of it, wherever it was declared") {
  const Api api = must_extract(R"(
typedef unsigned int GLuint;
typedef struct CUhandle_st* CUhandle;
typedef int (*CUcallback)(CUhandle handle, void* data);
struct other { int unused; };
extern "C" int cuA(CUcallback callback, GLuint buffer);
)");
  CHECK(api.find_typedef("GLuint"));
  CHECK_FALSE(api.find_record("other"));
  REQUIRE(api.find_callback("CUcallback"));
  CHECK(api.find_callback("CUcallback")->parameters[0].type.spelling() == "CUhandle");
  CHECK(api.is_handle(api.find_callback("CUcallback")->parameters[0].type));
}
