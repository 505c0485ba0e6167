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
  const std::string text = model_to_json(model_from(kHeader));
  const auto again = parse_model(text, "13.0.json");
  REQUIRE(again);
  CHECK(model_to_json(*again) == text);
  CHECK(again->driver.functions[0].parameters[0].direction == "inout");
  CHECK(diff_models(model_from(kHeader), *again).empty());
}

TEST_CASE("a later release holds what it changed, and is read back whole") {
  const Model first = model_from(kHeader, "12.9");
  const Model second = model_from(R"(
#include <stddef.h>
typedef enum CUresult_enum { CUDA_SUCCESS = 0, CUDA_ERROR = -1, CUDA_WORSE = -2 } CUresult;
typedef struct CUstream_st* CUstream;
typedef struct { CUstream hStream; char name[16]; unsigned flag : 1; union { int x; }; } CUconfig;
extern "C" CUresult cuB(const CUconfig* config);
)",
                                  "13.0");
  Folder folder;
  REQUIRE(save_model(folder.path(), first));
  REQUIRE(save_model(folder.path(), second));
  const std::string text = folder.read("13.0.json");
  CHECK_THAT(text, Contains("\"after\": \"12.9\"") && Contains("CUDA_WORSE") && Contains("cuB"));
  CHECK_THAT(text, Contains("\"gone\": [\"CUhostFn\",\"cuA\"]"));
  CHECK_THAT(text, !Contains("CUconfig_st") && !Contains("\"CUstream\""));
  const auto models = load_models(folder.path());
  REQUIRE(models);
  REQUIRE(models->size() == 2);
  CHECK(model_to_json((*models)[0]) == model_to_json(first));
  CHECK(model_to_json((*models)[1]) == model_to_json(second));
}

TEST_CASE("a release that comes in between has the one after it told anew, and loses nothing") {
  const Model oldest = model_from("extern \"C\" int cuA(void);\n", "12.8");
  const Model middle = model_from("extern \"C\" int cuA(void);\nextern \"C\" int cuB(void);\n", "12.9");
  const Model newest =
      model_from("extern \"C\" int cuA(void);\nextern \"C\" int cuB(void);\nextern \"C\" int cuC(void);\n", "12.10");
  Folder folder;
  for (const Model* model : {&newest, &oldest, &middle, &middle}) REQUIRE(save_model(folder.path(), *model));
  const auto models = load_models(folder.path());
  REQUIRE(models);
  REQUIRE(models->size() == 3);
  CHECK((*models)[2].release == "12.10");
  CHECK(model_to_json((*models)[2]) == model_to_json(newest));
  CHECK_THAT(folder.read("12.10.json"), !Contains("cuB") && Contains("cuC"));
}

TEST_CASE("a model that comes after another release than it says is refused") {
  Folder folder;
  REQUIRE(save_model(folder.path(), model_from("extern \"C\" int cuA(void);\n", "12.8")));
  REQUIRE(save_model(folder.path(), model_from("extern \"C\" int cuB(void);\n", "12.9")));
  folder.write("12.8.json", "");
  const auto damaged = load_models(folder.path());
  REQUIRE_FALSE(damaged);
  CHECK_THAT(damaged.error().text, Contains("12.8.json"));
  Folder alone;
  alone.write("12.9.json", folder.read("12.9.json"));
  const auto orphan = load_models(alone.path());
  REQUIRE_FALSE(orphan);
  CHECK_THAT(orphan.error().text, Contains("changes since CUDA 12.8, but nothing comes before it"));
}

TEST_CASE("a folder of no models is an error, and other files in it are none of ours") {
  Folder folder;
  folder.write("notes.json", "{}");
  folder.write("13.0.json.new", "{");
  const auto models = load_models(folder.path());
  REQUIRE_FALSE(models);
  CHECK_THAT(models.error().text, Contains("no model of a CUDA release"));
}

TEST_CASE("two extractions of the same headers give the same bytes") {
  CHECK(model_to_json(model_from(kHeader)) == model_to_json(model_from(kHeader)));
}

TEST_CASE("a damaged model is an error that names the file and the remedy") {
  const std::string text = model_to_json(model_from(kHeader));
  for (const std::string& damaged : {text.substr(0, text.size() / 2), std::string("{}"), std::string("[1, 2]"),
                                     std::string(R"({"release": 13, "driver": {}, "runtime": {}})")}) {
    const auto model = parse_model(damaged, "api/13.0.json");
    REQUIRE_FALSE(model);
    CHECK_THAT(model.error().text, Contains("api/13.0.json") && Contains("rota-codegen extract"));
  }
}

TEST_CASE("diff names what was added, removed and changed, and calls a renamed tag no change") {
  const Model before = model_from(R"(
typedef enum CUmode_enum { CU_ONE = 1, CU_TWO = 2 } CUmode;
typedef struct CUbox_st { int width; int height; } CUbox;
extern "C" int cuSame(CUbox* box);
extern "C" int cuGone(void);
extern "C" int cuChanged(int x);
)");
  const Model after = model_from(R"(
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
