// Types as text, and the model as a file.
#include "codegen/model.h"

#include <catch2/catch.hpp>

#include "codegen/diff.h"
#include "tests/unit/codegen/support.h"

using namespace rota::codegen;
using namespace rota::codegen::test;
using Catch::Matchers::Contains;

namespace {

constexpr const char* kHeader = R"(
#include <stddef.h>
typedef enum CUresult_enum { CUDA_SUCCESS = 0, CUDA_ERROR = -1 } CUresult;
typedef struct CUstream_st* CUstream;
typedef struct { CUstream hStream; char name[16]; unsigned flag : 1; union { int x; }; } CUconfig;
typedef void (*CUhostFn)(void* data);
/** \brief A. \param[in,out] config both */
extern "C" CUresult cuA(const CUconfig* const* config, CUhostFn fn, size_t count);
)";

Model model_of(std::string_view header) {
  auto api = extract_tiny(header);
  if (!api) FAIL(api.error().text);
  return {.release = "13.0", .driver = std::move(*api), .runtime = {}};
}

bool has_line(const std::vector<std::string>& lines, const std::string& beginning) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.starts_with(beginning); });
}

}  // namespace

TEST_CASE("a type's spelling can be read back") {
  for (const char* spelling :
       {"int", "const char*", "const CUlaunchConfig* const*", "void**", "char[16]", "unsigned long long[2][3]"}) {
    const auto type = TypeRef::parse(spelling);
    REQUIRE(type);
    CHECK(type->spelling() == spelling);
  }
  CHECK(TypeRef::parse("char[16]")->declare("name") == "char name[16]");
  for (const char* nonsense : {"", "*", "int[", "int[]", "int[2]*", "int* x", "int&"})
    CHECK_FALSE(TypeRef::parse(nonsense));
}

TEST_CASE("const on a typedef of a pointer is the pointer's") {
  Api api;
  api.typedefs.push_back({.name = "CUptr", .header = "", .type = *TypeRef::parse("int*")});
  api.index();
  const auto resolved = api.resolve(*TypeRef::parse("const CUptr"));
  REQUIRE(resolved);
  CHECK(resolved->kind == TypeKind::kPointer);
  CHECK(resolved->is_const);
  CHECK_FALSE(resolved->pointee.base_const);
}

TEST_CASE("typedefs that go round in a circle are an error") {
  Api api;
  api.typedefs.push_back({.name = "A", .header = "", .type = *TypeRef::parse("B")});
  api.typedefs.push_back({.name = "B", .header = "", .type = *TypeRef::parse("A")});
  api.index();
  CHECK_FALSE(api.resolve(*TypeRef::parse("A")));
}

TEST_CASE("a model that was written and read again is the same, byte for byte") {
  const std::string text = model_to_json(model_of(kHeader));
  const auto again = parse_model(text, "13.0.json");
  REQUIRE(again);
  CHECK(model_to_json(*again) == text);
  CHECK(again->driver.functions[0].parameters[0].direction == "inout");
  CHECK(diff_models(model_of(kHeader), *again).empty());
}

TEST_CASE("two extractions of the same headers give the same bytes") {
  CHECK(model_to_json(model_of(kHeader)) == model_to_json(model_of(kHeader)));
}

TEST_CASE("a damaged model is an error that names the file and the remedy") {
  const std::string text = model_to_json(model_of(kHeader));
  for (const std::string& damaged : {text.substr(0, text.size() / 2), std::string("{}"), std::string("[1, 2]"),
                                     std::string(R"({"release": 13, "driver": {}, "runtime": {}})")}) {
    const auto model = parse_model(damaged, "api/13.0.json");
    REQUIRE_FALSE(model);
    CHECK_THAT(model.error().text, Contains("api/13.0.json") && Contains("rota-codegen extract"));
  }
}

TEST_CASE("diff names what was added, removed and changed, and calls a renamed tag no change") {
  const Model before = model_of(R"(
typedef enum CUmode_enum { CU_ONE = 1, CU_TWO = 2 } CUmode;
typedef struct CUbox_st { int width; int height; } CUbox;
extern "C" int cuSame(CUbox* box);
extern "C" int cuGone(void);
extern "C" int cuChanged(int x);
)");
  const Model after = model_of(R"(
typedef enum CUmode_other { CU_ONE = 1, CU_TWO = 3, CU_THREE = 4 } CUmode;
typedef struct CUbox_other { int width; long height; } CUbox;
extern "C" int cuSame(CUbox* box);
extern "C" int cuNew(void);
extern "C" int cuChanged(long x);
)");
  const auto lines = diff_models(before, after);
  CHECK(has_line(lines, "- driver function cuGone"));
  CHECK(has_line(lines, "+ driver function cuNew"));
  CHECK(has_line(lines, "~ driver function cuChanged: int (int x) -> int (long x)"));
  CHECK(has_line(lines, "~ driver enum CUmode CU_TWO: 2 -> 3"));
  CHECK(has_line(lines, "+ driver enum CUmode CU_THREE: 4"));
  CHECK(has_line(lines, "~ driver struct CUbox: 8 bytes"));
  CHECK(lines.size() == 6);
}
