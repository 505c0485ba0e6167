// Where functions take device addresses: what is found in parameters and structures, and what check demands of it.
#include <catch2/catch.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/addresses.h"
#include "codegen/check.h"
#include "tests/unit/codegen/support.h"

using namespace rota::codegen;
using namespace rota::codegen::test;
using Catch::Matchers::Contains;

namespace {

constexpr const char* kHeader = R"(
typedef enum cudaError_enum { CUDA_SUCCESS = 0 } CUresult;
typedef unsigned long long CUdeviceptr_v2;
typedef CUdeviceptr_v2 CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef struct CUstream_st* CUstream;
typedef struct Operand_st {
  int type;
  union {
    struct { CUdeviceptr ptr; unsigned long row; } ptr;
    struct { void* handle; } array;
  } op;
} Operand;
typedef struct Copy_st { Operand src; Operand dst; void* srcHost; } Copy;
typedef struct Batch_st { CUstream stream; unsigned count; Copy* list; CUdeviceptr pair[2]; } Batch;
typedef struct Kernel_st { void** kernelParams; void** extra; } Kernel;
typedef struct Odd_st { void* where; } Odd;
extern "C" {
CUresult cuPlain(CUdeviceptr dst, unsigned long bytes, const CUdeviceptr* srcs);
CUresult cuNarrow(CUdeviceptr_v1 address);
CUresult cuGet(CUdeviceptr* out, const Copy* copy);
CUresult cuDeep(const Batch* batch);
CUresult cuByValue(Operand operand);
CUresult cuLaunch(void** kernelParams, Kernel* kernel);
CUresult cuUntyped(void* address, void* other);
CUresult cuAdd(Copy* copy);
}
)";

constexpr const char* kPolicy = R"(
[driver]
cuPlain = { query = true, params = { srcs = "in[bytes]" } }
cuNarrow = { query = true }
cuGet = { query = true, params = { out = "out", copy = "in" } }
cuDeep = { query = true, params = { batch = "in" } }
cuByValue = { query = true }
cuLaunch = { query = true, params = { kernelParams = "opaque", kernel = "in" } }
cuUntyped = { needs_mapping = "address", params = { address = "opaque", other = "opaque" } }
cuAdd = { query = true, memory = { address = "*copy.dst.op.ptr.ptr" }, params = { copy = "inout" } }
)";

std::vector<std::string> found(const std::string& name, const std::string& policy = kPolicy) {
  const Inputs inputs = inputs_from(kHeader, policy);
  const Function* function = inputs.driver.find_function(name);
  REQUIRE(function != nullptr);
  const auto places = addresses_taken(inputs.driver, *function, inputs.policy.find(name));
  if (!places) return {places.error().text};
  std::vector<std::string> all;
  for (const AddressPlace& place : *places) {
    all.push_back(fmt::format("{} {}: {}", place.parameter, place.text, fmt::join(place.offsets, " ")));
  }
  return all;
}

using Places = std::vector<std::string>;

std::string with(std::string text, std::string_view from, std::string_view to) {
  return text.replace(text.find(from), from.size(), to);
}

// What check says of a function whose facts are these.
std::string problem(const std::string& facts) {
  const std::string policy = "[driver]\ncuPlain = { " + facts + ", params = { srcs = \"in[bytes]\" } }\n";
  return fmt::format("{}", fmt::join(check_binding(inputs_from(kHeader, policy)), "; "));
}

}  // namespace

TEST_CASE("addresses are found by their type, also through pointers, structures, unions and arrays") {
  CHECK(found("cuPlain") == Places{"0 dst: 0", "2 srcs[0]: 0 0"});
  CHECK(found("cuDeep") == Places{"0 batch->list->src.op.ptr.ptr: 0 16 8", "0 batch->list->dst.op.ptr.ptr: 0 16 32",
                                  "0 batch->pair[0]: 0 24"});
  CHECK(found("cuByValue") == Places{"0 operand.op.ptr.ptr: 8"});
}

TEST_CASE("a kernel's arguments are addresses, however they are given") {
  CHECK(found("cuLaunch") ==
        Places{"0 kernelParams[0]: 0 0 0", "1 kernel->kernelParams[0]: 0 0 0 0", "1 kernel->extra[1]: 0 8 8 0"});
}

TEST_CASE("an untyped pointer is an address where the policy says so") {
  CHECK(found("cuUntyped") == Places{"0 address: 0"});
}

TEST_CASE("what the function writes, and addresses of 32 bits, are not looked for") {
  CHECK(found("cuNarrow").empty());
  CHECK(found("cuGet") == Places{"1 copy->src.op.ptr.ptr: 0 8", "1 copy->dst.op.ptr.ptr: 0 32"});
  CHECK(found("cuAdd") == Places{"0 copy->src.op.ptr.ptr: 0 8"});
}

TEST_CASE("a handle of physical memory is found by its type, and needs an override unless a multicast object's") {
  const std::string header =
      with(kHeader, "CUresult cuNarrow(CUdeviceptr_v1 address);",
           "typedef unsigned long long CUmemGenericAllocationHandle;"
           "typedef struct Bind_st { int type; CUmemGenericAllocationHandle memory; } Bind;"
           "CUresult cuBind(CUmemGenericAllocationHandle mcHandle, const Bind* bind, void* more);"
           "CUresult cuMake(CUmemGenericAllocationHandle* out);"
           "CUresult cuNarrow(CUdeviceptr_v1 address);");
  Inputs inputs = inputs_from(header,
                              "[driver]\ncuBind = { query = true, params = { bind = \"in\", more = \"opaque\" } }\n"
                              "cuMake = { query = true, params = { out = \"out\" } }\n");
  const auto taken = [&](const char* name) {
    return *physical_handles_taken(inputs.driver, *inputs.driver.find_function(name), inputs.policy.find(name));
  };
  REQUIRE(taken("cuBind").size() == 2);
  CHECK(taken("cuBind")[1].text == "bind->memory");
  CHECK(taken("cuBind")[1].offsets == std::vector<std::uint64_t>{0, 8});
  CHECK(taken("cuMake").empty());
  const auto said = [&] { return fmt::format("{}", fmt::join(check_binding(inputs), "; ")); };
  CHECK_THAT(said(), Contains("cuBind: bind->memory of cuBind is a handle of physical memory"));
  CHECK_THAT(said(), !Contains("mcHandle"));
  inputs.overrides.push_back("cuBind");
  CHECK_THAT(said(), !Contains("handle of physical memory"));
}

TEST_CASE("an untyped field that nobody has judged is an error that names it") {
  const Inputs inputs = inputs_from(with(kHeader, "CUresult cuNarrow(CUdeviceptr_v1 address);",
                                         "CUresult cuNarrow(CUdeviceptr_v1 address); CUresult cuOdd(const Odd* odd);"),
                                    "[driver]\ncuOdd = { query = true }\n");
  const auto places =
      addresses_taken(inputs.driver, *inputs.driver.find_function("cuOdd"), inputs.policy.find("cuOdd"));
  REQUIRE(!places);
  CHECK_THAT(places.error().text, Contains("cuOdd: odd->where is a void*"));
  CHECK_THAT(fmt::format("{}", fmt::join(check_binding(inputs), "; ")), Contains("cuOdd: odd->where is a void*"));
}

TEST_CASE(
    "check wants to know of each parameter with an address what keeps the memory in place, or why nothing has to") {
  CHECK_THAT(problem("query = true"), Contains("cuPlain: takes a device address, dst of cuPlain"));
  CHECK_THAT(problem("needs_mapping = \"dst\""), Contains("srcs[0] of cuPlain"));
  CHECK(problem("needs_mapping = [\"dst\", \"srcs\"]").empty());
  CHECK(problem("submits = \"current\"").empty());
  CHECK(problem("exports = [\"dst\", \"srcs\"]").empty());
  CHECK(problem("query = true, untouched = \"why\"").empty());
  CHECK_THAT(problem("submits = \"current\", untouched = \"why\""), Contains("cuPlain: untouched excuses nothing"));
  const auto policy = parse_policy("[driver]\ncuPlain = { query = true, untouched = \" \" }\n", "policy.toml");
  REQUIRE(!policy);
  CHECK_THAT(policy.error().text, Contains("policy.toml:2: cuPlain: untouched must say why"));
}
