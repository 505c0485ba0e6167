// Defects can be switched on in a driver that is built for tests, and in no other.
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "tests/unit/tools/simgpu/process.h"

using namespace simgpu_test;

TEST_CASE("the installed driver knows no mutations") {
  std::ifstream file(SIMGPU_LIBRARY, std::ios::binary);
  const std::string library{std::istreambuf_iterator<char>(file), {}};
  REQUIRE(library.find("ROTA_SIM_FAULTS") != std::string::npos);
  for (const char* text : {"ROTA_SIM_MUTATIONS", "mutation_switches", "errors_do_not_stick"}) {
    INFO(text);
    CHECK(library.find(text) == std::string::npos);
  }
}

TEST_CASE("the installed driver ignores the variable of mutations") {
  TemporaryFolder folder;
  Child child([&]() -> std::string {
    setenv("ROTA_SIM_MUTATIONS", "refuse:cuDeviceGetCount,no_such_mutation", 1);  // NOLINT(concurrency-mt-unsafe)
    Library library(folder.file("state"));
    EXPECT_OK(CU(cuInit)(0));
    int count = 0;
    EXPECT_OK(CU(cuDeviceGetCount)(&count));
    EXPECT(count == 1);
    return "";
  });
  CHECK(child.wait().empty());
}
