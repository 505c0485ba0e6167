// What a release brings, as its reviewers read it.
#include "codegen/report.h"

#include <catch2/catch.hpp>

#include "codegen/generate.h"
#include "codegen/suggest.h"
#include "tests/unit/codegen/support.h"

using namespace rota::codegen;
using namespace rota::codegen::test;
using Catch::Matchers::Contains;

namespace {

constexpr const char* kBefore = R"(
typedef struct CUstream_st* CUstream;
typedef unsigned long long CUdeviceptr;
extern "C" int cuOld(int x);
extern "C" int cuCopy(CUdeviceptr to, CUstream stream);
)";

constexpr const char* kAfter = R"(
typedef struct CUstream_st* CUstream;
typedef unsigned long long CUdeviceptr;
typedef struct CUbox_st { int width; } CUbox;
extern "C" int cuOld(int x);
extern "C" int cuCopy(CUdeviceptr to, CUstream stream);
extern "C" int cuCopy_v2(CUdeviceptr to, CUstream stream, int* failed);
extern "C" int cuRegionBind(CUdeviceptr to, CUstream stream, const CUbox* box, void* cookie);
)";

Inputs two_releases(const std::string& policy) {
  auto facts = parse_policy(policy, "policy.toml");
  REQUIRE(facts);
  auto inputs = make_inputs({model_from(kBefore, "12.9"), model_from(kAfter, "13.0")}, *facts);
  if (!inputs) FAIL(inputs.error().text);
  return std::move(*inputs);
}

}  // namespace

TEST_CASE("a report names what came, what must be decided, and what the headers suggest for it") {
  const Inputs inputs =
      two_releases("[driver]\ncuOld = { query = true }\ncuCopy = { submits = \"stream\", may_block = true }\n");
  const std::string report = release_report(inputs, inputs.releases[0], inputs.releases[1]);
  CHECK_THAT(report, Contains("### Driver functions added: 2") && Contains("- `cuCopy_v2(CUdeviceptr to, "));
  CHECK_THAT(report, Contains("### Driver functions removed: 0"));
  CHECK_THAT(report,
             Contains("- [ ] `cuRegionBind` (tiny.h): ") && Contains("submits = \"stream\"? (a stream parameter)"));
  CHECK_THAT(report, Contains("needs_mapping = \"to\"? (a device address)") && Contains("exports? (Bind in its name)"));
  CHECK_THAT(report, Contains("box = \"in\", cookie = \"opaque\""));
  CHECK_THAT(report, Contains("- [ ] `cuCopy`: params not reviewed; by their types: `failed = \"out\"`"));
  CHECK_THAT(report, Contains("### New versions of known functions") &&
                         Contains("- [ ] `cuCopy_v2`: submits = stream, may_block"));
  CHECK_THAT(report, Contains("+ driver struct CUbox"));
  CHECK_THAT(report, !Contains("cuOld"));
}

TEST_CASE("a report of decided functions says what was decided") {
  const Inputs inputs = two_releases(
      "[driver]\ncuOld = { query = true }\ncuCopy = { submits = \"stream\", params = { failed = \"out\" } }\n"
      "cuRegionBind = { submits = \"stream\", exports = \"to\", params = { box = \"in\", cookie = \"opaque\" } }\n");
  const std::string report = release_report(inputs, inputs.releases[0], inputs.releases[1]);
  CHECK_THAT(report, Contains("None is open."));
  CHECK_THAT(report, Contains("### Already decided\n\n- `cuRegionBind`: submits = stream, exports = to"));
}

TEST_CASE("a function of which nothing is suggested is suggested as a query") {
  const Api api = model_from("extern \"C\" int cuAsk(int x);\n").driver;
  CHECK(suggestion_text(suggest_facts(api.versions_of("cuAsk"))) == "nothing beyond query = true");
}

TEST_CASE("coverage counts each release against what the build knows") {
  const Inputs inputs = load_inputs(ROTA_SOURCE_DIR) ? *load_inputs(ROTA_SOURCE_DIR) : Inputs();
  REQUIRE_FALSE(inputs.releases.empty());
  const std::string text = emit_coverage(inputs).content;
  for (const Model& model : inputs.releases) CHECK_THAT(text, Contains("\n| " + model.release + " | "));
  CHECK_THAT(text, Contains("| 12.4 | 626 | 626 | "));
}
