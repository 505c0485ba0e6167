// CUPTI numbers every function of driver and runtime: an independent list to hold the model against.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "codegen/generate.h"

using namespace rota::codegen;

namespace {

std::set<std::string> numbered_names(const std::string& path, const std::string& prefix, bool strip_version) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string content = text.str();
  const std::regex line(prefix + R"((\w+)\s*=\s*\d+)");
  std::set<std::string> names;
  for (std::sregex_iterator at(content.begin(), content.end(), line), end; at != end; ++at) {
    std::string name = (*at)[1];
    if (name == "INVALID" || name == "SIZE" || name == "FORCE_INT") continue;
    // The runtime's entries carry the CUDA version in which they appeared: cudaMalloc_v3020, cudaMemcpy_ptds_v7000.
    if (strip_version) name = std::regex_replace(name, std::regex("_v\\d{4,5}$"), "");
    names.insert(name);
  }
  return names;
}

std::set<std::string> names_of(const Api& api) {
  std::set<std::string> names;
  for (const Function& function : api.functions) names.insert(function.name);
  return names;
}

std::set<std::string> missing(const std::set<std::string>& from, const std::set<std::string>& in) {
  std::set<std::string> names;
  std::set_difference(in.begin(), in.end(), from.begin(), from.end(), std::inserter(names, names.end()));
  return names;
}

}  // namespace

TEST_CASE("CUPTI numbers every driver function of the model, under the same name") {
  const auto inputs = load_inputs(ROTA_SOURCE_DIR);
  REQUIRE(inputs);
  const auto numbered =
      numbered_names(std::string(ROTA_CUPTI_INCLUDE) + "/cupti_driver_cbid.h", "CUPTI_DRIVER_TRACE_CBID_", false);
  std::set<std::string> declared;
  for (const Function& function : inputs->model.driver.functions) {
    // Interop with EGL is not CUPTI's.
    if (function.header != "cudaEGL.h") declared.insert(function.name);
  }
  CHECK(declared.size() > 637);
  CHECK(missing(numbered, declared) == std::set<std::string>{});
}

TEST_CASE("CUPTI numbers every runtime function of the model, under the same name") {
  const auto inputs = load_inputs(ROTA_SOURCE_DIR);
  REQUIRE(inputs);
  const auto numbered =
      numbered_names(std::string(ROTA_CUPTI_INCLUDE) + "/cupti_runtime_cbid.h", "CUPTI_RUNTIME_TRACE_CBID_", true);
  // Declared still, but exported by no libcudart since texture references are gone.
  CHECK(missing(numbered, names_of(inputs->model.runtime)) ==
        std::set<std::string>{"__cudaRegisterSurface", "__cudaRegisterTexture"});
}
