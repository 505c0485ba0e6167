// What `check` must find, each on a small API; and what the emitters do with the policy.
#include "codegen/check.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "codegen/emit_driver.h"
#include "codegen/exports.h"
#include "codegen/generate.h"
#include "tests/unit/codegen/support.h"

using namespace rota::codegen;
using namespace rota::codegen::test;
using Catch::Matchers::Contains;

namespace {

constexpr const char* kHeader = R"(
typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_NEW = 7 } CUresult;
typedef struct CUstream_st* CUstream;
typedef struct CUcontext_st* CUcontext;
typedef struct { int size; CUstream hStream; } CUconfig;
extern "C" {
CUresult cuLaunch(const CUconfig* config, int* out);
CUresult cuLaunch_ptsz(const CUconfig* config, int* out);
CUresult cuCopyAsync(void* to, CUstream hStream);
CUresult cuCopyAsync_v2(void* to, CUstream stream);
CUresult cuConnect(CUstream* pStream);
CUresult cuRecord(CUcontext hCtx);
CUresult cuSync(void);
/** \brief Asks. \note_async */
CUresult cuAsk(int* answer);
}
)";

constexpr const char* kPolicy = R"(
[driver]
cuLaunch = { submits = "config.hStream", params = { out = "inout" } }
cuCopyAsync = { submits = "hStream" }
cuConnect = { submits = "pStream" }
cuRecord = { submits = "hCtx" }
cuSync = { submits = "current", may_block = true }
cuAsk = { query = true, reason = "asks only" }
)";

Inputs with_policy(std::string_view policy) {
  return inputs_from(kHeader, policy);
}

std::string without(std::string text, std::string_view line) {
  const std::size_t at = text.find(line);
  return text.erase(at, text.find('\n', at) - at + 1);
}

std::string with(std::string text, std::string_view from, std::string_view to) {
  return text.replace(text.find(from), from.size(), to);
}

std::string content_of(const std::vector<EmittedFile>& files, const std::string& name) {
  const auto found = std::ranges::find(files, name, &EmittedFile::name);
  return found == files.end() ? "" : found->content;
}

std::string policy_error(std::string_view policy) {
  const auto parsed = parse_policy(policy, "policy.toml");
  return parsed ? "no error" : parsed.error().text;
}

}  // namespace

TEST_CASE("a complete policy leaves nothing to complain about") {
  const Inputs inputs = with_policy(kPolicy);
  CHECK(check_policy(inputs).empty());
  CHECK(check_reviewed(inputs).empty());
  CHECK(check_documentation(inputs).empty());
}

TEST_CASE("an unreviewed function is named with the facts that its documentation suggests") {
  const Problems problems = check_reviewed(with_policy(without(kPolicy, "cuCopyAsync")));
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Contains("cuCopyAsync") && Contains("unreviewed") && Contains("submits = \"hStream\"?"));
}

TEST_CASE("a policy entry for a function that does not exist is named with its line") {
  const Problems problems = check_policy(with_policy(std::string(kPolicy) + "cuNever = { query = true }\n"));
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Contains("policy.toml:9: cuNever: no header"));
}

TEST_CASE("a policy entry with a parameter that no version has is named") {
  for (const auto& [fact, word] : {std::pair{"submits = \"nothing\"", "submits"},
                                   {"frees = \"nothing\"", "frees"},
                                   {"needs_mapping = [\"to\", \"nothing\"]", "needs_mapping"},
                                   {"query = true, params = { nothing = \"in\" }", "params"},
                                   {"query = true, params = { to = \"in[nothing]\" }", "params.to"}}) {
    const Problems problems = check_policy(with_policy(with(kPolicy, "submits = \"hStream\"", fact)));
    REQUIRE(problems.size() == 1);
    CHECK_THAT(problems[0], Contains(std::string(word) + " names the parameter nothing"));
  }
}

TEST_CASE("a query that submits contradicts itself") {
  const Problems problems =
      check_policy(with_policy(with(kPolicy, "submits = \"hStream\"", "submits = \"hStream\", query = true")));
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Contains("cuCopyAsync: is marked as a query, yet submits"));
}

TEST_CASE("a stream parameter or an asynchrony note on a mere query needs a reason") {
  const Problems streams = check_documentation(with_policy(with(kPolicy, "submits = \"hStream\"", "query = true")));
  REQUIRE(streams.size() == 1);
  CHECK_THAT(streams[0], Contains("cuCopyAsync is marked as a query, but has a stream parameter"));
  const Problems notes = check_documentation(with_policy(with(kPolicy, ", reason = \"asks only\"", "")));
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Contains("cuAsk is marked as a query, but its documentation calls it asynchronous"));
}

TEST_CASE("a policy that says nothing understandable is an error with its line") {
  CHECK_THAT(policy_error("[driver]\ncuA = { submit = \"x\" }\n"),
             Contains("policy.toml:2: cuA: unknown fact 'submit'"));
  CHECK_THAT(policy_error("[driver]\ncuA = { }\n"), Contains("policy.toml:2: cuA states no fact"));
  CHECK_THAT(policy_error("[driver]\ncuA = { query = \"yes\" }\n"),
             Contains("policy.toml:2: query must be true or false"));
  CHECK_THAT(policy_error("[driver]\ncuA = { query = true, params = { x = \"output\" } }\n"),
             Contains("policy.toml:2: x = \"output\" is unknown"));
  CHECK_THAT(policy_error("[driver]\ncuA = { captures = \"start\" }\n"), Contains("captures = \"start\" is unknown"));
  CHECK_THAT(policy_error("[driver]\ncuA = {\n"), Contains("policy.toml:"));
  CHECK_THAT(policy_error("[other]\n"), Contains("[driver] is missing"));
}

TEST_CASE("a parameter's use is what the policy says, else what its type suggests") {
  const Inputs inputs = with_policy(kPolicy);
  const Api& api = inputs.driver;
  const Function& launch = *api.find_function("cuLaunch");
  CHECK(parameter_use(api, inputs.policy.find("cuLaunch"), launch, launch.parameters[1]).direction ==
        Direction::kInOut);
  CHECK(parameter_use(api, nullptr, launch, launch.parameters[1]).direction == Direction::kOut);
  CHECK(parameter_use(api, nullptr, launch, launch.parameters[0]).direction == Direction::kIn);
  const Function& copy = *api.find_function("cuCopyAsync");
  CHECK(parameter_use(api, nullptr, copy, copy.parameters[0]).opaque);
}

TEST_CASE("an export without a thunk is named, the debugger's are not asked for") {
  const Inputs inputs = with_policy(kPolicy);
  const Problems problems = check_exports(inputs, {"cuAsk", "cudbgMain", "cuSurprise"}, "libcuda.so.1");
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Contains("libcuda.so.1 exports cuSurprise") && Contains("undeclared = true"));
}

TEST_CASE("an undeclared export gets a thunk, and must be undeclared") {
  const Inputs inputs = with_policy(std::string(kPolicy) + "cuSurprise = { undeclared = true }\n");
  CHECK(check_exports(inputs, {"cuSurprise"}, "list").empty());
  CHECK(std::ranges::is_sorted(inputs.symbols));
  auto policy = parse_policy("[driver]\ncuAsk = { undeclared = true }\n", "policy.toml");
  REQUIRE(policy);
  CHECK_FALSE(make_inputs(inputs.releases, *policy));
}

TEST_CASE("exports are read from a list, and anything else is refused") {
  Folder folder;
  folder.write("list.txt", "# driver\ncuInit\n\ncuAsk  # twice\n");
  const auto names = read_exports(folder.path() + "/list.txt");
  REQUIRE(names);
  CHECK(*names == std::vector<std::string>{"cuInit", "cuAsk"});
  folder.write("text.txt", "this is no list\n");
  folder.write("cut.so", std::string("\177ELF\2\1\1", 7));
  folder.write("empty.txt", "");
  for (const char* name : {"text.txt", "cut.so", "empty.txt", "missing.txt"}) {
    const auto refused = read_exports(folder.path() + "/" + name);
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().text, Contains(name));
  }
}

TEST_CASE("exports are read from a shared library") {
  const auto names = read_exports("/proc/self/exe");
  // A program has a dynamic symbol table too; what it exports depends on the linker, that it can be read does not.
  CHECK(names);
}

TEST_CASE("what a libcudart exports beyond its headers is noted, but one stream form without the other is an error") {
  const auto both_forms = model_from(
                              "extern \"C\" int cudaThing(void);\nextern \"C\" int cudaThing_ptsz(void);\n"
                              "extern \"C\" int cudaOnlyDeclared(void);\n")
                              .driver;
  const auto library = read_runtime_library(ROTA_TEST_CUDART, both_forms);
  REQUIRE(library);
  CHECK(*library == RuntimeLibrary{"libcudart.so.13", {"cudaHidden"}, {"cudaOnlyDeclared"}});
  const auto one_form = model_from("extern \"C\" int cudaThing(void);\n").driver;
  const auto refused = read_runtime_library(ROTA_TEST_CUDART, one_form);
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().text, Contains("exports cudaThing_ptsz, but the headers declare only other forms of it"));
  CHECK_FALSE(read_runtime_library("/proc/self/exe", both_forms));
}

TEST_CASE("a stale, a missing and a forgotten generated file are each named") {
  const auto files = emit_driver(with_policy(kPolicy));
  REQUIRE(files);
  Folder folder;
  REQUIRE(write_files(*files, folder.path()));
  CHECK(check_generated(*files, folder.path()).empty());
  folder.write("driver_types.h", folder.read("driver_types.h") + "// edited\n");
  folder.write("driver_old.h", "// Generated by rota-codegen from something\n");
  folder.write("by_hand.h", "// ours\n");
  const Problems problems = check_generated(*files, folder.path());
  REQUIRE(problems.size() == 2);
  CHECK_THAT(problems[0], Contains("driver_types.h") && Contains("rota-codegen generate"));
  CHECK_THAT(problems[1], Contains("driver_old.h") && Contains("delete it"));
}

TEST_CASE("generating twice gives the same bytes and rewrites nothing") {
  const auto first = emit_driver(with_policy(kPolicy));
  const auto second = emit_driver(with_policy(kPolicy));
  REQUIRE(first);
  REQUIRE(second);
  REQUIRE(first->size() == second->size());
  for (std::size_t i = 0; i < first->size(); ++i) CHECK((*first)[i].content == (*second)[i].content);
  Folder folder;
  CHECK(write_files(*first, folder.path())->size() == first->size());
  CHECK(write_files(*second, folder.path())->empty());
}

TEST_CASE("the names of errors are listed, and headers without them are refused") {
  const auto files = emit_driver(with_policy(kPolicy));
  REQUIRE(files);
  CHECK_THAT(content_of(*files, "driver_errors.inc"),
             Contains("ROTA_ERROR(CUDA_SUCCESS, 0)\nROTA_ERROR(CUDA_ERROR_NEW, 7)\n"));
  const auto refused = emit_driver(inputs_from(with(kHeader, "cudaError_enum", "other_enum"), kPolicy));
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().text, Contains("no enum cudaError_enum"));
}

TEST_CASE("gates hand over the stream that the policy names, in every version and form") {
  const auto gates = emit_gates(with_policy(kPolicy));
  REQUIRE(gates);
  const std::string source = content_of(*gates, "driver_gates.cpp");
  CHECK_THAT(source, Contains("{Symbol::k_cuLaunch, config ? config->hStream : nullptr, true, false}"));
  CHECK_THAT(source, Contains("{Symbol::k_cuLaunch_ptsz, config ? config->hStream : nullptr, true, true}"));
  CHECK_THAT(source, Contains("{Symbol::k_cuCopyAsync, hStream, true, false}"));
  CHECK_THAT(source, Contains("{Symbol::k_cuCopyAsync_v2, stream, true, false}"));
  CHECK_THAT(source, Contains("{Symbol::k_cuConnect, pStream ? *pStream : nullptr, true, false}"));
  CHECK_THAT(source, Contains("{Symbol::k_cuSync, nullptr, false, false}"));
  CHECK_THAT(source, !Contains("k_cuAsk"));
}

TEST_CASE("a gate for something that is no stream is an error that names it") {
  const auto gates = emit_gates(with_policy(with(kPolicy, "submits = \"hStream\"", "submits = \"to\"")));
  REQUIRE_FALSE(gates);
  CHECK_THAT(gates.error().text, Contains("cuCopyAsync") && Contains("parameter to is neither a stream nor a context"));
}

TEST_CASE("a version of an overridden function without an override is named") {
  Inputs inputs = with_policy(kPolicy);
  inputs.overrides = {"cuCopyAsync", "cuCopyAsync_v2"};
  CHECK(check_overrides(inputs).empty());
  inputs.overrides = {"cuCopyAsync", "cuNever"};
  const Problems problems = check_overrides(inputs);
  REQUIRE(problems.size() == 2);
  CHECK_THAT(problems[0], Contains("no header declares cuNever"));
  CHECK_THAT(problems[1], Contains("cuCopyAsync_v2 is missing, but other versions of cuCopyAsync are overridden"));
}

TEST_CASE("pointer parameters that the policy does not speak of are counted and named") {
  const Inputs inputs = inputs_from("extern \"C\" int cuA(int* x, const int* y, int z);\n",
                                    "[driver]\ncuA = { query = true, params = { y = \"in\" } }\n");
  const PointerReview review = review_pointers(inputs);
  CHECK(review.stated == 1);
  CHECK(review.unreviewed == std::vector<std::string>{"cuA.x"});
  const Problems problems = check_calls(inputs, {"cuA", "cuNever"}, "calls.txt");
  REQUIRE(problems.size() == 2);
  CHECK_THAT(problems[0], Contains("calls.txt: traces contain cuA, but nobody has reviewed cuA.x"));
  CHECK_THAT(problems[1], Contains("cuNever is in no model"));
}
