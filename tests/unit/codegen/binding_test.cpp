// That the policy binds: what check demands of functions that rota must know of, and what is generated from their
// facts.
#include <algorithm>
#include <catch2/catch.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/addresses.h"
#include "codegen/check.h"
#include "codegen/emit_driver.h"
#include "codegen/generate.h"
#include "tests/unit/codegen/support.h"

using namespace rota::codegen;
using namespace rota::codegen::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

namespace {

constexpr const char* kHeader = R"(
typedef enum cudaError_enum { CUDA_SUCCESS = 0 } CUresult;
typedef struct CUstream_st* CUstream;
typedef void (*CUhook)(void* data);
extern "C" {
CUresult cuTake(void** out);
CUresult cuTake_v2(void** out);
CUresult cuGive(void* address);
CUresult cuShare(void* address);
CUresult cuLook(void* address);
CUresult cuForm(void* address);
CUresult cuFormOf(void* address);
CUresult cuWaitAndLook(void* address);
CUresult cuLookAndTell(void* address, CUhook hook);
CUresult cuShareWaiting(void* address);
CUresult cuSendOut(void* address, CUstream hStream);
CUresult cuBegin(CUstream hStream, int mode);
CUresult cuBegin_ptsz(CUstream hStream, int mode);
CUresult cuBeginShared(CUstream hStream);
CUresult cuEnd(CUstream hStream, int* out);
CUresult cuTurn(CUstream hStream);
CUresult cuMake(int* context);
CUresult cuAsk(void);
}
)";

// Behind a scope.
std::string refusal(const std::string& indent) {
  return indent + "if (scope.refused()) [[unlikely]] return gate::refusal.load();\n";
}

constexpr const char* kPolicy = R"(
[driver]
cuTake = { allocates = "out" }
cuGive = { frees = "address" }
cuShare = { exports = "address" }
cuLook = { query = true, needs_mapping = "address" }
cuForm = { query = true, needs_room = true }
cuFormOf = { needs_room = true, needs_mapping = "address" }
cuWaitAndLook = { needs_mapping = "address", may_block = "others" }
cuLookAndTell = { needs_mapping = "address" }
cuShareWaiting = { exports = "address", may_block = "others" }
cuSendOut = { submits = "hStream", exports = "address" }
cuBegin = { captures = "begin" }
cuBeginShared = { captures = "begin", exports = "hStream" }
cuEnd = { captures = "end" }
cuTurn = { captures = "update" }
cuMake = { context = "create" }
cuAsk = { query = true }
)";

std::string with(std::string text, std::string_view from, std::string_view to) {
  return text.replace(text.find(from), from.size(), to);
}

constexpr std::string_view kTakes = "allocates = \"out\"";
constexpr std::string_view kTakesCounted = "allocates = \"out\", counted = \"how\"";

std::vector<std::string> named(const Problems& problems) {
  std::vector<std::string> names;
  for (const std::string& problem : problems) {
    const std::size_t begin = problem.find(": ") + 2;
    names.push_back(problem.substr(begin, problem.find(':', begin) - begin));
  }
  return names;
}

std::string gates(std::string_view policy = kPolicy) {
  const auto files = emit_gates(inputs_from(kHeader, policy));
  if (!files) FAIL(files.error().text);
  return files->back().content;
}

// The generated body of a function.
std::string body_of(const std::string& source, const std::string& function) {
  const std::size_t at = source.find(" " + function + "(");
  const std::size_t begin = source.find("{\n", at) + 2;
  return at == std::string::npos ? "" : source.substr(begin, source.find("\n}\n", begin) + 1 - begin);
}

std::string policy_error(std::string_view policy) {
  const auto parsed = parse_policy(policy, "policy.toml");
  return parsed ? "no error" : parsed.error().text;
}

}  // namespace

TEST_CASE("what rota must know of and nothing acts upon is named with its facts and its line") {
  const Problems problems = check_binding(inputs_from(kHeader, kPolicy));
  CHECK(named(problems) == std::vector<std::string>{"cuGive", "cuMake", "cuTake", "cuTurn"});
  REQUIRE(problems.size() == 4);
  CHECK_THAT(problems[0], Contains("policy.toml:4: cuGive: frees, and nothing acts on it"));
  CHECK_THAT(problems[1], Contains("context = \"create\""));
  CHECK_THAT(problems[2], Contains("allocates") && Contains("runtime/overrides.inc") && Contains("passes = "));
  CHECK_THAT(problems[3], Contains("captures = \"update\""));
}

TEST_CASE("an override or a reason satisfies the check, both at once contradict each other") {
  Inputs inputs = inputs_from(
      kHeader,
      with(with(kPolicy, "frees = \"address\"", "frees = \"address\", passes = \"why\""), kTakes, kTakesCounted));
  inputs.overrides = {"cuTake", "cuTake_v2", "cuMake", "cuTurn"};
  CHECK(check_binding(inputs).empty());
  inputs.overrides.emplace_back("cuGive");
  const Problems problems = check_binding(inputs);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Contains("cuGive: has an override, so it does not pass"));
}

TEST_CASE("of an override that takes or gives back memory the policy says what it does about it") {
  const auto problem = [](std::string_view from, std::string_view to, std::vector<std::string> overrides) {
    Inputs inputs = inputs_from(
        kHeader, with(with(kPolicy, "frees = \"address\"", "frees = \"address\", passes = \"why\""), from, to));
    inputs.overrides = std::move(overrides);
    const Problems problems = check_binding(inputs);
    return fmt::format("{}", fmt::join(problems, "; "));
  };
  const std::vector<std::string> all = {"cuTake", "cuTake_v2", "cuMake", "cuTurn"};
  CHECK(problem(kTakes, kTakesCounted, all).empty());
  CHECK(problem(kTakes, "allocates = \"out\", redirected = \"x\"", all).empty());
  CHECK_THAT(problem(kTakes, kTakes, all), Contains("policy.toml:3: cuTake: allocates or frees memory") &&
                                               Contains("redirected = ") && Contains("counted = "));
  CHECK_THAT(problem(kTakes, "allocates = \"out\", counted = \"x\", redirected = \"x\"", all),
             Contains("cuTake: is both redirected and counted"));
  CHECK_THAT(problem(kTakes, "allocates = \"out\", counted = \"x\", passes = \"x\"", {"cuMake", "cuTurn"}),
             Contains("cuTake: is counted, but has no override"));
  CHECK_THAT(problem("context = \"create\"", "context = \"create\", counted = \"x\"", all),
             Contains("cuMake: is counted, but neither allocates nor frees"));
  CHECK_THAT(policy_error("[driver]\ncuA = { frees = \"x\", counted = \" \" }\n"),
             Contains("policy.toml:2: cuA: counted must say how"));
  CHECK_THAT(policy_error("[driver]\n[runtime]\ncudaA = { counted = \"x\" }\n"),
             Contains("a runtime function has only params"));
}

TEST_CASE("the matrix of allocations has every form of what takes or gives back memory, and says what becomes of it") {
  const Inputs inputs = inputs_from(kHeader, with(with(kPolicy, kTakes, kTakesCounted), "frees = \"address\"",
                                                  "frees = \"address\", passes = \"why not\""));
  CHECK_THAT(emit_allocation_list(inputs).content,
             EndsWith("\nROTA_ALLOCATION(cuTake, cuTake, true, false, kCounted)\n"
                      "ROTA_ALLOCATION(cuTake_v2, cuTake, true, false, kCounted)\n"
                      "ROTA_ALLOCATION(cuGive, cuGive, false, true, kPassed)\n"));
  CHECK_THAT(
      emit_allocation_table(inputs).content,
      EndsWith("\n| `cuTake` | –, _v2 | yes |  | counted | how |\n| `cuGive` | – |  | yes | passed | why not |\n"));
}

TEST_CASE("a reason to pass where nothing would be stopped is named") {
  Inputs inputs = inputs_from(
      kHeader,
      with(with(kPolicy, "cuAsk = { query = true", "cuAsk = { query = true, passes = \"x\""),
           "cuTake = { allocates = \"out\" }\ncuGive = { frees = \"address\" }\n",
           "cuTake = { allocates = \"out\", counted = \"x\" }\ncuGive = { frees = \"address\", counted = \"x\" }\n"));
  inputs.overrides = {"cuTake", "cuTake_v2", "cuGive", "cuMake", "cuTurn"};
  const Problems problems = check_binding(inputs);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Contains("cuAsk: passes excuses nothing"));
}

TEST_CASE("every base name of the repository whose overrides are taken out is named, or has no fact that binds") {
  auto inputs = load_inputs(ROTA_SOURCE_DIR);
  REQUIRE(inputs);
  REQUIRE(check_binding(*inputs).empty());
  const std::vector<std::string> all = inputs->overrides;
  std::size_t bitten = 0;
  for (const std::string& name : all) {
    const Function* function = inputs->driver.find_function(name);
    REQUIRE(function);
    const FunctionPolicy* policy = inputs->policy.find(function->base);
    REQUIRE(policy);
    inputs->overrides = all;
    std::erase_if(inputs->overrides, [&](const std::string& other) {
      return inputs->driver.find_function(other)->base == function->base;
    });
    const auto found = named(check_binding(*inputs));
    // An exporting function without an override is marked, which suffices, unless it takes a handle that is rota's.
    const auto handles = physical_handles_taken(inputs->driver, *function, policy);
    REQUIRE(handles);
    const bool translates = std::ranges::any_of(
        *handles, [&](const AddressPlace& place) { return function->parameters[place.parameter].name != "mcHandle"; });
    const bool binds = translates || (!policy->binding_facts().empty() &&
                                      policy->binding_facts() != std::vector<std::string>{"exports"});
    INFO(name);
    CHECK((std::ranges::count(found, function->base) > 0 &&
           found.size() == std::size_t(std::ranges::count(found, function->base))) == binds);
    bitten += binds;
  }
  CHECK(bitten > 30);
}

TEST_CASE("an override of a submitting function has to call its gate") {
  Inputs inputs = inputs_from(kHeader, with(with(kPolicy, kTakes, kTakesCounted), "frees = \"address\"",
                                            "frees = \"address\", counted = \"how\""));
  inputs.overrides = {"cuTake", "cuTake_v2", "cuGive", "cuMake", "cuTurn", "cuSendOut"};
  const auto problem = [&] {
    const Problems problems = check_binding(inputs);
    return problems.empty() ? std::string("none") : problems.front();
  };
  CHECK_THAT(problem(), Contains("no comment above cuSendOut names the file"));
  inputs.override_files["cuSendOut"] = "runtime/hooks/send.cpp";
  inputs.override_sources["runtime/hooks/send.cpp"] = "gate::Scope scope; return real::cuSendOut(address, hStream);";
  CHECK_THAT(problem(), Contains("runtime/hooks/send.cpp: the override of cuSendOut") &&
                            Contains("does not call gates::cuSendOut"));
  inputs.override_sources["runtime/hooks/send.cpp"] = "return gates::cuSendOut(address, hStream);";
  CHECK(problem() == "none");
}

TEST_CASE("what waits for others must not submit") {
  const Problems problems =
      check_binding(inputs_from(kHeader, "[driver]\ncuSendOut = { submits = \"hStream\", may_block = \"others\" }\n"));
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Contains("cuSendOut: submits, yet may wait for others"));
}

TEST_CASE("a policy with an empty reason to pass, or a wait for nobody, is refused") {
  CHECK_THAT(policy_error("[driver]\ncuA = { frees = \"x\", passes = \"\" }\n"),
             Contains("policy.toml:2: cuA: passes must say why"));
  CHECK_THAT(policy_error("[driver]\ncuA = { frees = \"x\", passes = \"  \" }\n"), Contains("passes must say why"));
  CHECK_THAT(policy_error("[driver]\ncuA = { frees = \"x\", passes = true }\n"), Contains("passes must be a string"));
  CHECK_THAT(policy_error("[driver]\ncuA = { may_block = \"nobody\" }\n"),
             Contains("may_block must be true, false or \"others\""));
  CHECK_THAT(policy_error("[driver]\ncuA = { needs_room = false }\n"), Contains("needs_room must be true"));
  CHECK_THAT(policy_error("[driver]\ncuA = { frees = \"x\", pases = \"why\" }\n"), Contains("unknown fact 'pases'"));
}

TEST_CASE("a call that submits says which GPUs it reaches besides its stream's, as far as its parameters tell") {
  constexpr const char* kAddresses = R"(
typedef enum cudaError_enum { CUDA_SUCCESS = 0 } CUresult;
typedef struct CUstream_st* CUstream; typedef struct CUcontext_st* CUcontext; typedef struct CUarray_st* CUarray;
typedef unsigned long long CUdeviceptr; typedef struct CUgraph_st* CUgraph; typedef struct CUgraphExec_st* CUgraphExec;
typedef enum { CU_MEMORYTYPE_HOST = 1 } CUmemorytype;
typedef struct { CUmemorytype kind; const void* srcHost; CUdeviceptr from; CUarray fromArray;
                 CUmemorytype toKind; void* dstHost; CUdeviceptr to; CUarray toArray; } CUcopy;
typedef struct { CUdeviceptr from; CUdeviceptr to; } CUpair;
typedef struct { int kernel; CUstream hStream; } CUlaunch;
extern "C" {
CUresult cuSet(CUdeviceptr to, CUstream hStream); CUresult cuCopy(CUdeviceptr to, CUdeviceptr from, CUstream hStream);
CUresult cuCopyBy(const CUcopy* pCopy, CUstream hStream); CUresult cuCopyPair(const CUpair* pPair, CUstream hStream); CUresult cuCopyList(const CUcopy* pCopies, unsigned long long count, CUstream hStream);
CUresult cuCopyArray(CUdeviceptr to, CUarray from, CUstream hStream); CUresult cuCopyArrays(CUarray to, CUarray from, CUstream hStream);
CUresult cuCopyMany(CUdeviceptr* to, unsigned long long count, CUstream hStream);
CUresult cuCopyTwice(CUdeviceptr to, CUdeviceptr from, CUdeviceptr too, CUstream hStream);
CUresult cuRecord(CUcontext hCtx); CUresult cuLaunchWith(CUdeviceptr argument, CUstream hStream);
CUresult cuPlay(CUgraphExec hGraphExec, CUstream hStream); CUresult cuInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph);
CUresult cuLaunchAll(CUlaunch* launches, unsigned long long count); CUresult cuWait(CUstream hStream);
}
)";
  constexpr const char* kFacts = R"([driver]
cuSet = { submits = "hStream" }
cuCopy = { submits = "hStream" }
cuCopyBy = { submits = "hStream", params = { pCopy = "in" } }
cuCopyPair = { submits = "hStream", params = { pPair = "in" } }
cuCopyList = { submits = "hStream", params = { pCopies = "in[count]" } }
cuCopyArray = { submits = "hStream" }
cuCopyArrays = { submits = "hStream" }
cuCopyMany = { submits = "hStream", params = { to = "in[count]" } }
cuCopyTwice = { submits = "hStream" }
cuRecord = { submits = "hCtx" }
cuLaunchWith = { submits = "hStream" }
cuPlay = { submits = "hStream" }
cuInstantiate = { submits = "current" }
cuLaunchAll = { submits = "launches.hStream", params = { launches = "in[count]" } }
cuWait = { submits = "hStream" }
)";
  const auto files = emit_gates(inputs_from(kAddresses, kFacts));
  REQUIRE(files);
  const auto scope = [&](const std::string& function) {
    const std::string body = body_of(files->back().content, function);
    const std::size_t begin = body.find("Symbol::k_" + function) + function.size() + 10;
    return body.substr(begin, body.find("});", begin) - begin);
  };
  CHECK(scope("cuWait") == ", hStream, true, false");
  CHECK(scope("cuLaunchWith") == ", hStream, true, false");
  CHECK(scope("cuSet") == ", hStream, true, false, driver::Reaches::kAddresses, reinterpret_cast<const void*>(to)");
  CHECK_THAT(scope("cuCopy"),
             Contains("kAddresses, reinterpret_cast<const void*>(to), reinterpret_cast<const void*>(from)"));
  CHECK_THAT(scope("cuCopyBy"), Contains("kCopy, static_cast<const void*>(pCopy), driver::in_record(16, 48)"));
  CHECK_THAT(scope("cuCopyArray"), Contains("kAddressAndArray, reinterpret_cast<const void*>(to), from"));
  CHECK_THAT(scope("cuCopyArrays"), Contains("kArrays, to, from"));
  CHECK_THAT(scope("cuPlay"), Contains("driver::Reaches::kGraph, reinterpret_cast<const void*>(hGraphExec)"));
  CHECK_THAT(scope("cuInstantiate"), Contains("driver::Reaches::kAll"));
  for (const char* function : {"cuCopyPair", "cuCopyList", "cuCopyMany", "cuCopyTwice", "cuRecord", "cuLaunchAll"}) {
    CHECK_THAT(scope(function), Contains("driver::Reaches::kAll"));
  }
  // Nobody has to say so, or can.
  CHECK_THAT(policy_error("[driver]\ncuPlay = { submits = \"hStream\", reaches = \"all\" }"),
             Contains("unknown fact 'reaches'"));
}

TEST_CASE("a call that needs its mapping is made within a scope that holds memory in place") {
  CHECK(body_of(gates(), "cuLook") == "  const gate::MappingScope scope(static_cast<const void*>(address));\n" +
                                          refusal("  ") + "  return real::cuLook(address);\n");
}

TEST_CASE("a call for which the driver needs memory of its own is retried when others have evicted memory") {
  const std::string source = gates();
  CHECK(body_of(source, "cuForm") ==
        "  return contract::with_room([=]() __attribute__((always_inline)) {\n    return real::cuForm(address);\n  "
        "});\n");
  CHECK(body_of(source, "cuFormOf") ==
        "  return contract::with_room([=]() __attribute__((always_inline)) {\n    const gate::MappingScope "
        "scope(static_cast<const void*>(address));\n" +
            refusal("    ") + "    return real::cuFormOf(address);\n  });\n");
}

TEST_CASE("no such scope stands around what waits for others or runs the program's code") {
  const std::string source = gates();
  CHECK(body_of(source, "cuWaitAndLook").empty());
  CHECK(body_of(source, "cuLookAndTell").empty());
  CHECK(body_of(source, "cuAsk").empty());
}

TEST_CASE("a call that exports marks the process when it has succeeded, before memory may move again") {
  const std::string source = gates();
  CHECK(body_of(source, "cuShare") == "  const gate::MappingScope scope(static_cast<const void*>(address));\n" +
                                          refusal("  ") +
                                          "  return contract::exported(Symbol::k_cuShare, real::cuShare(address));\n");
  CHECK(body_of(source, "cuSendOut") ==
        "  return contract::with_room([=]() __attribute__((always_inline)) {\n"
        "    gate::Scope scope({Symbol::k_cuSendOut, hStream, true, false, driver::Reaches::kAddresses, "
        "static_cast<const void*>(address)});\n" +
            refusal("    ") +
            "    return contract::exported(Symbol::k_cuSendOut, real::cuSendOut(address, hStream));\n  });\n");
  // Without the scope the mark cannot wait for the result.
  CHECK(
      body_of(source, "cuShareWaiting") ==
      "  contract::exported(Symbol::k_cuShareWaiting, api::CUDA_SUCCESS);\n  return real::cuShareWaiting(address);\n");
}

TEST_CASE("an export with a reason to pass is not marked, unless the reason speaks of something else") {
  CHECK(body_of(gates(with(kPolicy, "cuShare = { exports = \"address\"",
                           "cuShare = { exports = \"address\", passes = \"why\"")),
                "cuShare")
            .empty());
  CHECK_THAT(body_of(gates(with(kPolicy, "cuShare = { exports = \"address\"",
                                "cuShare = { exports = \"address\", frees = \"address\", passes = \"why\"")),
                     "cuShare"),
             Contains("contract::exported"));
}

TEST_CASE("captures begin and end in their gates, and memory is held only within the lock") {
  const std::string source = gates();
  CHECK(body_of(source, "cuBegin") ==
        "  return contract::begin_capture(hStream, false, [&] {\n    const gate::MappingScope scope;\n" +
            refusal("    ") + "    return real::cuBegin(hStream, mode);\n  });\n");
  CHECK_THAT(body_of(source, "cuBegin_ptsz"), Contains("begin_capture(hStream, true, "));
  CHECK(body_of(source, "cuEnd") ==
        "  return contract::end_capture(hStream, false, [&] {\n    return real::cuEnd(hStream, out);\n  });\n");
  CHECK_THAT(body_of(source, "cuBeginShared"),
             Contains("return contract::exported(Symbol::k_cuBeginShared, real::cuBeginShared(hStream));\n  });"));
  const auto refused =
      emit_gates(inputs_from(kHeader, with(kPolicy, "cuAsk = { query = true", "cuAsk = { captures = \"end\"")));
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().text, Contains("cuAsk: a capture, but it has no stream parameter"));
}

TEST_CASE("generated gates see one header of ours") {
  const std::string source = gates();
  std::vector<std::string> ours;
  for (std::size_t at = source.find("#include \""); at != std::string::npos; at = source.find("#include \"", at + 1)) {
    const std::string path = source.substr(at + 10, source.find('"', at + 10) - at - 10);
    if (!path.starts_with("generated/")) ours.push_back(path);
  }
  CHECK(ours == std::vector<std::string>{"runtime/contract.h"});
}

TEST_CASE("the driver's private tables are listed by identifier and length") {
  const auto files = emit_driver(
      inputs_from(kHeader, std::string(kPolicy) +
                               "[export_tables]\n\"01020304-0506-0708-090a-0b0c0d0e0fff\" = { bytes = 64, asked_by "
                               "= [\"libcudart\"], evidence = \"seen\" }\n"));
  REQUIRE(files);
  const auto file = std::ranges::find(*files, "driver_export_tables.inc", &EmittedFile::name);
  REQUIRE(file != files->end());
  CHECK_THAT(file->content,
             Contains("\nROTA_EXPORT_TABLE(64, false, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, "
                      "0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0xff)\n"));
}

TEST_CASE("what the names of collective kernels begin with is listed, and must tell them from others") {
  const std::string table = "[collective_kernels]\n";
  const auto files = emit_driver(inputs_from(kHeader, std::string(kPolicy) + table + "prefixes = [\"ncclKernel\"]\n"));
  REQUIRE(files);
  const auto file = std::ranges::find(*files, "driver_collective_kernels.inc", &EmittedFile::name);
  REQUIRE(file != files->end());
  CHECK_THAT(file->content, Contains("\nROTA_COLLECTIVE_KERNEL(\"ncclKernel\")\n"));
  for (const char* prefix : {"", "_Z", "nccl Kernel", "nccl\\\"Kernel"}) {
    CHECK_THAT(policy_error("[driver]\n" + table + "prefixes = [\"" + prefix + "\"]\n"),
               Contains("policy.toml:3:") && Contains("does not tell collective kernels apart"));
  }
  CHECK_THAT(policy_error("[driver]\n" + table + "names = []\n"), Contains("a table with prefixes = [...]"));
}

TEST_CASE("a private table through which work is submitted is gated, if its length is known") {
  const std::string table =
      "[export_tables]\n\"01020304-0506-0708-090a-0b0c0d0e0fff\" = { asked_by = \"x\", evidence = \"seen\", ";
  const auto files = emit_driver(inputs_from(kHeader, std::string(kPolicy) + table + "bytes = 64, gated = true }\n"));
  REQUIRE(files);
  const auto file = std::ranges::find(*files, "driver_export_tables.inc", &EmittedFile::name);
  REQUIRE(file != files->end());
  CHECK_THAT(file->content, Contains("\nROTA_EXPORT_TABLE(64, true, 0x01,"));
  CHECK_THAT(policy_error("[driver]\n" + table + "bytes = 0, gated = true }\n"), Contains("bytes must be its length"));
  CHECK_THAT(policy_error("[driver]\n" + table + "bytes = 64, gated = \"yes\" }\n"),
             Contains("gated must be true or false"));
}

TEST_CASE("a private table without evidence, length or a proper identifier is refused") {
  const auto error = [](const std::string& uuid, const std::string& facts) {
    return policy_error("[driver]\n[export_tables]\n\"" + uuid + "\" = { " + facts + " }\n");
  };
  const std::string uuid = "01020304-0506-0708-090a-0b0c0d0e0fff";
  const std::string good = "bytes = 64, asked_by = \"libcudart\", evidence = \"seen\"";
  CHECK(error(uuid, good) == "no error");
  CHECK_THAT(error("01020304-0506-0708-090a-0b0c0d0e0f", good),
             Contains("policy.toml:3:") && Contains("is not a UUID"));
  CHECK_THAT(error("0102030405060708090a0b0c0d0e0fff----", good), Contains("is not a UUID"));
  CHECK_THAT(error(uuid, "asked_by = \"x\", evidence = \"seen\""), Contains("bytes is missing"));
  CHECK_THAT(error(uuid, "bytes = 63, asked_by = \"x\", evidence = \"seen\""), Contains("a multiple of 8"));
  CHECK_THAT(error(uuid, "bytes = 64, evidence = \"seen\""), Contains("asked_by is missing"));
  CHECK_THAT(error(uuid, "bytes = 64, asked_by = \"x\""), Contains("evidence is missing"));
  CHECK_THAT(error(uuid, good + ", sure = true"), Contains("unknown fact 'sure'"));
}

TEST_CASE("what makes and ends objects and memory is listed by base name, for both APIs") {
  const auto inputs = load_inputs(ROTA_SOURCE_DIR);
  REQUIRE(inputs);
  const auto files = emit_trace(*inputs);
  REQUIRE(files);
  const auto file = std::ranges::find(*files, "trace_objects.inc", &EmittedFile::name);
  REQUIRE(file != files->end());
  CHECK_THAT(file->content, Contains("\nROTA_TRACE_MAKES(cuEventCreate, \"phEvent\")\n"));
  CHECK_THAT(file->content, Contains("\nROTA_TRACE_ENDS(cudaEventDestroy, \"event\")\n"));
  CHECK_THAT(file->content,
             Contains("\nROTA_TRACE_MEMORY(cuMemAllocPitch, \"*dptr\", \"*pPitch\", \"Height\", false, true)\n"));
  CHECK_THAT(file->content,
             Contains("\nROTA_TRACE_MEMORY(cuModuleGetGlobal, \"*dptr\", \"*bytes\", \"\", false, false)\n"));
}

TEST_CASE("functions that return handles one by one are listed, those that fill arrays are not") {
  const auto inputs = load_inputs(ROTA_SOURCE_DIR);
  REQUIRE(inputs);
  const auto files = emit_trace(*inputs);
  REQUIRE(files);
  const auto file = std::ranges::find(*files, "driver_handles.inc", &EmittedFile::name);
  REQUIRE(file != files->end());
  for (const char* function :
       {"cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuCtxPopCurrent", "cuCtxAttach", "cuCtxFromGreenCtx",
        "cuStreamGetCtx", "cuDeviceGetDefaultMemPool", "cuModuleGetTexRef", "cuMipmappedArrayGetLevel",
        "cuLibraryGetModule", "cuIpcOpenEventHandle", "cuEventCreate", "cuModuleGetFunction"}) {
    CHECK_THAT(file->content, Contains(fmt::format("\nROTA_RETURNS_HANDLE({})\n", function)));
  }
  for (const char* function :
       {"cuGraphGetNodes", "cuLibraryEnumerateKernels", "cuModuleEnumerateFunctions", "cuMemAlloc", "cuEventDestroy"}) {
    CHECK_THAT(file->content, !Contains(fmt::format("({})", function)));
  }
}

TEST_CASE("facts for listings name parameters that exist, and every new handle") {
  const auto problem = [](std::string_view from, std::string_view to) {
    const Problems problems = check_policy(inputs_from(kHeader, with(kPolicy, from, to)));
    return problems.empty() ? std::string("none") : problems.front();
  };
  CHECK_THAT(problem("frees = \"address\"", "frees = \"address\", ends = \"nothing\""),
             Contains("cuGive: ends names the parameter nothing"));
  CHECK_THAT(problem("frees = \"address\"", "frees = \"address\", makes = \"nothing\""),
             Contains("makes names the parameter nothing"));
  CHECK_THAT(problem("allocates = \"out\"", "allocates = \"out\", memory = { address = \"*out\", bytes = \"size\" }"),
             Contains("cuTake: memory names the parameter size"));
  CHECK(problem("allocates = \"out\"", "allocates = \"out\", memory = { address = \"*out\" }") == "none");
  const Problems unnamed =
      check_policy(inputs_from("typedef struct CUthing_st* CUthing;\nextern \"C\" int cuNew(CUthing* out);\n",
                               "[driver]\ncuNew = { allocates = \"out\", passes = \"x\" }\n"));
  REQUIRE(unnamed.size() == 1);
  CHECK_THAT(unnamed[0], Contains("cuNew: returns a new handle through out, which makes does not name"));
  CHECK_THAT(policy_error("[driver]\ncuA = { frees = \"x\", memory = { bytes = \"n\" } }\n"),
             Contains("cuA: memory has no address"));
  CHECK_THAT(policy_error("[driver]\ncuA = { frees = \"x\", memory = { address = \"p\", size = \"n\" } }\n"),
             Contains("unknown part 'size' of memory"));
  CHECK_THAT(policy_error("[driver]\n[runtime]\ncudaA = { frees = \"x\" }\n"),
             Contains("a runtime function has only params, makes, ends and memory"));
}
