// Several releases as one API.
#include "codegen/unite.h"

#include <catch2/catch.hpp>

#include "codegen/emit.h"
#include "codegen/emit_trace.h"
#include "codegen/generate.h"
#include "tests/unit/codegen/support.h"

using namespace rota::codegen;
using namespace rota::codegen::test;
using Catch::Matchers::Contains;

namespace {

rota::Result<Api> unite_headers(const std::vector<std::string>& headers) {
  static std::vector<Model> models;
  models.clear();
  for (std::size_t i = 0; i < headers.size(); ++i)
    models.push_back(model_from(headers[i], release_name(12000 + 10 * static_cast<int>(i))));
  std::vector<ReleasedApi> apis;
  for (const Model& model : models) apis.push_back({model.release, &model.driver});
  return unite(apis);
}

Model runtime_model(const std::string& release, std::string_view header, std::vector<std::string> undeclared = {}) {
  Model model = model_from("extern \"C\" int cuA(void);\n", release);
  model.runtime = model_from(header, release).driver;
  model.library = {
      .name = "libcudart.so." + release.substr(0, 2), .undeclared = std::move(undeclared), .unexported = {}};
  return model;
}

std::string content_of(const std::vector<EmittedFile>& files, const std::string& name) {
  for (const EmittedFile& file : files) {
    if (file.name == name) return file.content;
  }
  FAIL("no file " + name);
  return "";
}

}  // namespace

TEST_CASE("the union has what any release has, each as the newest declares it") {
  const auto united = unite_headers({
      "typedef enum CUe_st { CU_A = 1, CU_OLD = 7, CU_MAX = 8 } CUe;\n"
      "extern \"C\" int cuGone(CUe x);\nextern \"C\" int cuStays(int before);\n",
      "typedef enum CUe_st { CU_A = 1, CU_B = 2, CU_MAX = 3 } CUe;\n"
      "extern \"C\" int cuStays(int after);\nextern \"C\" int cuNew(CUe x);\n",
  });
  REQUIRE(united);
  CHECK(united->functions.size() == 3);
  CHECK(united->find_function("cuStays")->parameters[0].name == "after");
  std::map<std::string, std::int64_t> values;
  for (const Enumerator& enumerator : united->find_enum("CUe_st")->enumerators)
    values[enumerator.name] = enumerator.value;
  CHECK(values == std::map<std::string, std::int64_t>{{"CU_A", 1}, {"CU_B", 2}, {"CU_MAX", 3}, {"CU_OLD", 7}});
}

TEST_CASE("one symbol with two ways of being called is an error that names both releases") {
  const auto united = unite_headers({"extern \"C\" int cuA(int x);\n", "extern \"C\" int cuA(long x);\n"});
  REQUIRE_FALSE(united);
  CHECK_THAT(united.error().text, Contains("cuA") && Contains("CUDA 12.0") && Contains("CUDA 12.1"));
}

TEST_CASE("a parameter type of another name that is passed alike is the same signature") {
  CHECK(unite_headers({"typedef enum A_st { kA } A;\nextern \"C\" int cuA(A x, int* y);\n",
                       "typedef enum B_st { kB } B;\nextern \"C\" int cuA(B x, unsigned* y);\n"}));
}

TEST_CASE("what a pointer leads to is as small as the release with the least of it") {
  const auto united = unite_headers({
      "typedef union CUold_st { char pad[32]; } CUold;\nextern \"C\" int cuSet(const CUold* value);\n",
      "typedef union CUnew_st { char pad[64]; } CUnew;\nextern \"C\" int cuSet(const CUnew* value);\n",
  });
  REQUIRE(united);
  CHECK(united->find_function("cuSet")->parameters[0].smallest == 32);
  CHECK_FALSE(united->find_record("CUold_st"));
  const auto plans = plan_traces(*united, {}, 0, {"cuSet"});
  REQUIRE(plans);
  REQUIRE((*plans)[0].captures.size() == 1);
  CHECK((*plans)[0].captures[0].bytes == 32);
}

TEST_CASE("types come after what they need, whatever their names") {
  const auto united =
      unite_headers({"typedef struct z_st { int x; } CUz;\ntypedef struct CUa_st { CUz z; struct CUa_st* next; } CUa;\n"
                     "extern \"C\" int cuA(CUa* a);\n"});
  REQUIRE(united);
  std::vector<std::string> order;
  for (const Declaration& declaration : united->declarations) {
    if (declaration.kind == DeclarationKind::kRecord) order.push_back(united->records[declaration.index].name);
  }
  CHECK(order == std::vector<std::string>{"z_st", "CUa_st"});
}

TEST_CASE("each libcudart major keeps its own signature under a shared name") {
  auto policy = parse_policy("[driver]\ncuA = { query = true }\n", "policy.toml");
  REQUIRE(policy);
  const auto inputs =
      make_inputs({runtime_model("11.8", "extern \"C\" int cuAdvise(int device);\nextern \"C\" int cuSame(int x);\n"),
                   runtime_model("12.0", "extern \"C\" int cuAdvise(int device);\nextern \"C\" int cuSame(int x);\n"),
                   runtime_model("13.0",
                                 "typedef struct CUplace_st { int kind; union { int id; short half; }; } CUplace;\n"
                                 "extern \"C\" int cuAdvise(CUplace place);\nextern \"C\" int cuSame(int x);\n",
                                 {"cuHidden"})},
                  *policy);
  REQUIRE(inputs);
  REQUIRE(inputs->runtimes.size() == 3);
  const auto files = emit_trace(*inputs);
  REQUIRE(files);
  const std::string rows = content_of(*files, "runtime_trace_functions.inc");
  CHECK_THAT(rows, Contains("ROTA_TRACED(0, cuAdvise, 0, ({\"device\", 0}))") &&
                       Contains("ROTA_TRACED(2, cuAdvise, 0, ({\"device\", 0}))") &&
                       Contains("ROTA_TRACED(4, cuAdvise, 0, ({\"place\", 3}))"));
  CHECK_THAT(rows, Contains("ROTA_TRACED(6, cuSame, 0, ({\"x\", 0}))") && Contains("ROTA_UNTRACED(5, cuHidden)"));
  const std::string types = content_of(*files, "runtime_trace_types.inc");
  CHECK_THAT(types, Contains("ROTA_TYPE(3, \"CUplace\", 8, kRecord, 1)"));
  CHECK_THAT(types, Contains("ROTA_STRUCT(1, \"CUplace_st\", {\"kind\", 0}, {\"\", 2, 4})"));
  CHECK_THAT(content_of(*files, "runtime_majors.inc"), Contains("ROTA_CUDART_MAJOR(13, libcudart.so.13, 4, 3)"));
  CHECK_THAT(content_of(*files, "runtime_symbols.inc"), Contains("ROTA_CUDART_SYMBOL(13, libcudart.so.13, cuHidden)"));
}

TEST_CASE("an entry of one symbol in one major goes before the name's own") {
  const auto policy = parse_policy(
      "[driver]\ncuA = { query = true }\n[runtime]\ncuGet = { params = { x = \"out\" } }\n"
      "\"cuGet@12\" = { params = { x = \"opaque\" } }\n",
      "policy.toml");
  REQUIRE(policy);
  const Api api = model_from("typedef enum CUr_st { kOk } CUr;\nextern \"C\" CUr cuGet(int* x);\n").driver;
  const auto twelve = plan_traces(api, policy->runtime, 12, {"cuGet"});
  const auto thirteen = plan_traces(api, policy->runtime, 13, {"cuGet"});
  REQUIRE(twelve);
  REQUIRE(thirteen);
  CHECK((*twelve)[0].captures.empty());
  CHECK((*thirteen)[0].captures.size() == 1);
}

TEST_CASE("a runtime function has no facts but its parameters") {
  const auto policy = parse_policy("[driver]\n[runtime]\ncuGet = { query = true }\n", "policy.toml");
  REQUIRE_FALSE(policy);
  CHECK_THAT(policy.error().text, Contains("policy.toml:3: cuGet: a runtime function has only params"));
}
