// Values of single types, and the hand-written tables against the generated ones.
#include <catch2/catch.hpp>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "generated/driver_types.h"
#include "tools/rota/trace/render.h"
#include "tools/rota/trace/tables.h"

namespace rota::test {
namespace {

using namespace api;
using tool::Renderer;
using tool::RenderOptions;
using tool::Syntax;

std::uint32_t type_number(const names::Api& api, std::string_view name) {
  for (std::size_t i = 0; i < api.types.size(); ++i) {
    if (name == api.types[i].name) return static_cast<std::uint32_t>(i);
  }
  FAIL("no type " << name);
  return 0;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class T>
std::string shown(std::string_view type, const T& value, RenderOptions options = {}) {
  return Renderer(names::driver(), options).value(type_number(names::driver(), type), bytes_of(value));
}

TEST_CASE("A struct that is one array of char holds bytes: identifiers and handles for other processes") {
  CUuuid uuid{};
  uuid.bytes[0] = static_cast<char>(0xab);
  CHECK(shown("CUuuid", uuid) == "0xab000000000000000000000000000000");
  CUipcEventHandle handle{};
  handle.reserved[1] = 'A';
  CHECK(shown("CUipcEventHandle", handle).starts_with("0x0041000000"));
}

TEST_CASE("Of a union the member that its discriminator picks is shown") {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = 3;
  CHECK(shown("CUmemLocation", location) == "{type=CU_MEM_LOCATION_TYPE_DEVICE, id=3}");

  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.devPtr = 0x1000;
  resource.res.linear.numChannels = 4;
  const std::string text = shown("const CUDA_RESOURCE_DESC", resource);
  CHECK(text.find("res={linear={devPtr=0x1000, format=") != std::string::npos);
  CHECK(text.find("numChannels=4") != std::string::npos);
  CHECK(shown("const CUDA_RESOURCE_DESC", resource, {.syntax = Syntax::kJson}).find("\"res\":{\"linear\":{") !=
        std::string::npos);

  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = 2;
  CHECK(shown("CUlaunchAttribute", attribute) ==
        "{id=CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value={clusterDim={x=2, y=0, z=0}}}");

  CUDA_EXTERNAL_MEMORY_HANDLE_DESC memory{};
  memory.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  memory.handle.fd = 7;
  CHECK(shown("const CUDA_EXTERNAL_MEMORY_HANDLE_DESC", memory).find("handle={fd=7}") != std::string::npos);

  CUstreamBatchMemOpParams operation{};
  operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = 0x2000;
  operation.writeValue.value = 9;
  const std::string written = shown("CUstreamBatchMemOpParams", operation);
  CHECK(written.find("{writeValue={operation=CU_STREAM_MEM_OP_WRITE_VALUE_32, address=0x2000, value=9") == 0);
}

TEST_CASE("A union whose discriminator says something unknown is shown as bytes") {
  CUlaunchAttribute attribute{};
  attribute.id = static_cast<CUlaunchAttributeID>(99);
  attribute.value.priority = 0x1234;
  CHECK(shown("CUlaunchAttribute", attribute) == "{id=99, value=0x3412}");
}

TEST_CASE("An argument says which member of a bare union value counts") {
  CUlaunchAttributeValue value{};
  value.priority = -2;
  const auto id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  const names::Api& api = names::driver();
  Renderer renderer(api, {});
  renderer.selector(type_number(api, "CUstreamAttrID"), bytes_of(id));
  CHECK(renderer.value(type_number(api, "const CUstreamAttrValue"), bytes_of(value)) == "{priority=-2}");
}

TEST_CASE("A struct that was smaller when the program was built shows the fields that it had") {
  CUDA_KERNEL_NODE_PARAMS node{};
  node.gridDimX = 5;
  const names::Api& api = names::driver();
  const std::uint32_t type = type_number(api, "const CUDA_KERNEL_NODE_PARAMS");
  const auto all = bytes_of(node);
  const std::string older = Renderer(api, {}).value(type, all.first(offsetof(CUDA_KERNEL_NODE_PARAMS, kern)));
  CHECK(older.find("gridDimX=5") != std::string::npos);
  CHECK(older.find("extra=0x0}") != std::string::npos);
  CHECK(older.find("kern") == older.find("kernelParams"));
  CHECK(Renderer(api, {}).value(type, all.first(6)) == "{}");
}

TEST_CASE("Long arrays say how much is left out, and JSON leaves nothing out that was recorded") {
  const names::Api& api = names::driver();
  const std::uint32_t type = type_number(api, "unsigned int");
  std::vector<unsigned> numbers(20, 7);
  const auto bytes = std::as_bytes(std::span(numbers));
  const auto text = [&](RenderOptions options, bool cut_off) {
    return Renderer(api, options).array(type, bytes, cut_off);
  };
  CHECK(text({.elements = 3}, false) == "[7, 7, 7, … 17 more]");
  CHECK(text({.elements = 3}, true) == "[7, 7, 7, … 17 more, and others that were not recorded]");
  CHECK(text({.elements = 20}, false).find("…") == std::string::npos);
  CHECK(text({.elements = 20}, true).ends_with("7, … more that were not recorded]"));
  CHECK(text({.elements = 0}, false) == text({.elements = 20}, false));
  CHECK(text({.syntax = Syntax::kJson, .elements = 3}, false) == text({.elements = 20}, false));
  CHECK(text({.syntax = Syntax::kJson, .elements = 3}, true).ends_with(", 7, \"…\"]"));
}

TEST_CASE("Flags that are macros in the headers have names too, as parameters and as fields") {
  const names::Api& runtime = names::runtime();
  const auto flags = [&](std::string_view function, std::string_view parameter, unsigned value) -> std::string {
    for (const names::Function& one : runtime.functions) {
      if (function != one.name) continue;
      for (const names::Parameter& each : runtime.parameters.subspan(one.first_parameter, one.parameters)) {
        if (parameter == each.name) return Renderer(runtime, {}).value(each.type, bytes_of(value));
      }
    }
    return "no such parameter";
  };
  CHECK(flags("cudaEventCreateWithFlags", "flags", 2) == "cudaEventDisableTiming");
  CHECK(flags("cudaStreamCreateWithPriority", "flags", 1) == "cudaStreamNonBlocking");
  CHECK(flags("cudaHostAlloc", "flags", 3) == "cudaHostAllocPortable|cudaHostAllocMapped");
  CHECK(flags("cudaSetDeviceFlags", "flags", 0x88) == "cudaDeviceMapHost|cudaDeviceSyncMemops");
  CUDA_ARRAY3D_DESCRIPTOR array{};
  array.Flags = 0x42;
  CHECK(shown("const CUDA_ARRAY3D_DESCRIPTOR", array).find("Flags=CUDA_ARRAY3D_SURFACE_LDST|CUDA_ARRAY3D_SPARSE}") !=
        std::string::npos);
}

TEST_CASE("Floating-point numbers have the digits of their own type") {
  const names::Api& api = names::driver();
  const float number = 0.1F;
  CHECK(Renderer(api, {}).value(type_number(api, "float"), bytes_of(number)) == "0.1");
}

TEST_CASE("Every union of both APIs has a rule, and every rule a union where the tables have its struct") {
  for (const names::Api* api : {&names::driver(), &names::runtime()}) {
    std::vector<std::string> paths(api->records.size());
    // Structs without a tag go by their parent's path; parents may come later in the table.
    for (std::size_t i = 0; i < api->records.size(); ++i) paths[i] = api->records[i].name;
    for (int round = 0; round < 4; ++round) {
      for (std::size_t i = 0; i < api->records.size(); ++i) {
        if (paths[i].empty()) continue;
        const names::Record& record = api->records[i];
        for (const names::Field& field : api->fields.subspan(record.first, record.count)) {
          const names::Type& type = api->types[field.type];
          if (type.kind != names::Kind::kRecord || !paths[type.detail].empty()) continue;
          paths[type.detail] = paths[i] + (field.name[0] == '\0' ? "" : std::string(".") + field.name);
        }
      }
    }
    std::map<const tool::UnionRule*, std::set<std::string>> members;
    std::set<std::string> enumerators;
    for (const names::Enumerator& enumerator : api->enumerators) enumerators.insert(enumerator.name);
    for (std::size_t i = 0; i < api->records.size(); ++i) {
      const names::Record& record = api->records[i];
      if (record.is_union && record.name[0] != '\0') {
        INFO(record.name);
        CHECK(tool::union_rule(record.name, "") != nullptr);
      }
      for (const names::Field& field : api->fields.subspan(record.first, record.count)) {
        const names::Type& type = api->types[field.type];
        if (type.kind != names::Kind::kRecord || !api->records[type.detail].is_union) continue;
        INFO(paths[i] << "." << field.name);
        const tool::UnionRule* const rule = tool::union_rule(paths[i], field.name);
        CHECK(rule != nullptr);
        if (rule == nullptr) continue;
        for (const names::Field& member :
             api->fields.subspan(api->records[type.detail].first, api->records[type.detail].count)) {
          members[rule].insert(member.name);
        }
      }
    }
    // Of several majors of the runtime the newest has them all.
    for (const auto& [rule, names] : members) {
      INFO(rule->record << "." << rule->member);
      if (!rule->otherwise.empty()) CHECK(names.contains(std::string(rule->otherwise)));
      for (const tool::UnionCase& one : rule->cases) {
        INFO(one.enumerator);
        // Not one of the other API, or of a release that the tables do not have.
        if (enumerators.contains(std::string(one.enumerator))) CHECK(names.contains(std::string(one.shown)));
      }
    }
  }
}

TEST_CASE("Every type that is an address and no pointer spelled out is a known handle or a known function") {
  const std::set<std::string> no_handles = {"CUasyncCallback",
                                            "CUhostFn",
                                            "CUlogsCallback",
                                            "CUoccupancyB2DSize",
                                            "CUstreamCallback",
                                            "cudaAsyncCallback",
                                            "cudaHostFn_t",
                                            "cudaLogsCallback_t",
                                            "cudaStreamCallback_t",
                                            "CUcoredumpStatusCallback",
                                            "CUgraphRecaptureCallback",
                                            "cudaGraphRecaptureCallback_t"};
  for (const names::Api* api : {&names::driver(), &names::runtime()}) {
    for (const names::Type& type : api->types) {
      std::string name = type.name;
      if (type.kind != names::Kind::kAddress || name.find('*') != std::string::npos) continue;
      if (name.starts_with("const ")) name.erase(0, 6);
      INFO(name);
      CHECK((!tool::handle_class(name).empty() || tool::is_device_pointer(name) || no_handles.contains(name)));
    }
  }
}

TEST_CASE("The functions that the tables name exist, with the parameters that they name") {
  std::set<std::string> functions;
  std::set<std::string> parameters;  // "cuMemAlloc.dptr"
  for (const names::Api* api : {&names::driver(), &names::runtime()}) {
    for (const names::Function& function : api->functions) {
      const std::string base(tool::base_name(function.name));
      functions.insert(base);
      for (const names::Parameter& parameter : api->parameters.subspan(function.first_parameter, function.parameters)) {
        parameters.insert(base + "." + parameter.name);
      }
    }
  }
  const auto check = [&](std::string_view function, tool::Place place) {
    if (place.empty() || !functions.contains(std::string(function))) return;
    if (place.front() == '*') place.remove_prefix(1);
    const std::string parameter = std::string(function) + "." + std::string(place.substr(0, place.find('.')));
    INFO(parameter);
    CHECK(parameters.contains(parameter));
  };
  std::size_t allocations = 0;
  for (const std::string& function : functions) {
    if (const tool::Allocation* const allocation = tool::allocation_of(function)) {
      ++allocations;
      check(function, allocation->address);
      check(function, allocation->bytes);
      check(function, allocation->rows);
    }
  }
  CHECK(allocations > 30);
  for (const tool::Naming& naming : tool::namings()) {
    INFO(naming.function);
    CHECK(functions.contains(std::string(naming.function)));
    check(naming.function, naming.object);
    check(naming.function, naming.name);
  }
}

TEST_CASE("A function's base name has neither version nor stream form") {
  CHECK(tool::base_name("cuMemAlloc_v2") == "cuMemAlloc");
  CHECK(tool::base_name("cuMemcpyHtoD_v2_ptds") == "cuMemcpyHtoD");
  CHECK(tool::base_name("cudaLaunchKernel_ptsz") == "cudaLaunchKernel");
  CHECK(tool::base_name("cuFoo_void") == "cuFoo_void");
}

TEST_CASE("Which functions make and end objects and memory, the policy says, in both APIs") {
  CHECK(tool::makes_object("cuStreamCreateWithPriority", "phStream"));
  CHECK(tool::makes_object("cuGraphAddKernelNode", "phGraphNode"));
  CHECK(tool::makes_object("cudaMallocArray", "array"));
  CHECK_FALSE(tool::makes_object("cuGraphAddKernelNode", "nodeParams"));
  CHECK_FALSE(tool::makes_object("cuGraphGetNodes", "nodes"));
  // What is found, or named once more, was there before.
  CHECK_FALSE(tool::makes_object("cuGraphNodeFindInClone", "phNode"));
  CHECK_FALSE(tool::makes_object("cuMemRetainAllocationHandle", "handle"));
  CHECK_FALSE(tool::makes_object("cuGraphicsUnregisterResource", "resource"));
  CHECK(tool::ends_object("cuDestroyExternalMemory", "extMem"));
  CHECK(tool::ends_object("cuCoredumpDeregisterStartCallback", "callback"));
  CHECK(tool::ends_object("cuMemFreeAsync", "dptr"));
  CHECK_FALSE(tool::ends_object("cuMemFreeAsync", "hStream"));
  CHECK(tool::ends_object("cudaFree", "devPtr"));
}

}  // namespace
}  // namespace rota::test
