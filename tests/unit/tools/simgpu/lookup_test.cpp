// cuGetProcAddress of the simulated driver against what a real one was recorded to answer, and the exports.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/unit/tools/simgpu/pose.h"
#include "tests/unit/tools/simgpu/process.h"

using namespace simgpu_test;

TEST_CASE("cuGetProcAddress answers every recorded row as the real driver did") {
  TemporaryFolder folder;
  // As built it says 13.0; and the copy that poses as 13.0, which exports nothing newer.
  const std::string path = GENERATE(as<std::string>(), SIMGPU_LIBRARY, "13.0");
  Child child([&]() -> std::string {
    Library library(folder.file("state"), "64M", "0", path == "13.0" ? pose(folder, path) : path);
    auto* get = CU(cuGetProcAddress_v2);
    EXPECT(get != nullptr);
    std::ifstream recorded(ROTA_TEST_DATA "/cugetprocaddress-580.159.txt");
    EXPECT(recorded.good());
    std::string line;
    int rows = 0;
    while (std::getline(recorded, line)) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream fields(line);
      std::string name;
      std::string expected;
      unsigned long flags = 0;
      int version = 0;
      fields >> name >> flags >> version >> expected;
      int expected_result = 0;
      if (expected[0] == '-') {
        std::string word;
        if (fields >> word) fields >> expected_result;
        if (expected_result != 0) expected += " rc";
      }
      void* function = nullptr;
      auto status = static_cast<CUdriverProcAddressQueryResult>(99);  // as the recording began
      int result = static_cast<int>(get(name.c_str(), &function, version, flags, &status));
      ++rows;
      int expected_status = expected[0] == '-' ? std::atoi(expected.c_str() + 2) : 0;
      void* expected_function = expected[0] == '-' ? nullptr : library.symbol(expected.c_str());
      if (expected[0] != '-' && expected_function == nullptr) return "no export " + expected;
      if (function != expected_function || static_cast<int>(status) != expected_status || result != expected_result) {
        return line + ": result " + std::to_string(result) + ", status " + std::to_string(static_cast<int>(status)) +
               (function == expected_function ? "" : ", another function");
      }
    }
    EXPECT(rows == 4564);
    return "";
  });
  CHECK(child.wait().empty());
}

TEST_CASE("every recorded export of the real driver exists, and what is not simulated says so") {
  TemporaryFolder folder;
  std::string log = folder.file("log");
  Child child([&]() -> std::string {
    setenv("ROTA_SIM_LOG", log.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    Library library(folder.file("state"));
    std::ifstream exports(ROTA_TEST_DATA "/libcuda-580.159-exports.txt");
    EXPECT(exports.good());
    std::string name;
    int found = 0;
    while (exports >> name) {
      if (name.rfind("cu", 0) != 0 || name.rfind("cudbg", 0) == 0) continue;
      if (library.symbol(name.c_str()) == nullptr) return "no export " + name;
      ++found;
    }
    EXPECT(found > 600);
    CUtexref reference = nullptr;
    EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, CU(cuTexRefCreate)(&reference));
    EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, CU(cuTexRefCreate)(&reference));
    const void* table = &library;
    CUuuid id{};
    EXPECT_RESULT(CUDA_ERROR_NOT_FOUND, CU(cuGetExportTable)(&table, &id));
    EXPECT(table == nullptr);
    return "";
  });
  CHECK(child.wait().empty());
  std::ifstream lines(log);
  std::string line;
  REQUIRE(std::getline(lines, line));
  CHECK(line == "simgpu: not simulated: cuTexRefCreate");
  CHECK_FALSE(std::getline(lines, line));  // each name once
}

TEST_CASE("the runtime asks the driver for its functions in the recorded order") {
  std::ifstream recorded(ROTA_TEST_DATA "/cudart-13.0-lookups.txt");
  std::ifstream ours(SIMGPU_CUDART_LOOKUPS);
  REQUIRE((recorded.good() && ours.good()));
  std::string line;
  size_t asked = 0;
  // ROTA_CUDART_LOOKUP(member, "name", version, flags), each found in the recording after the one before it.
  while (std::getline(ours, line)) {
    size_t quote = line.find('"');
    if (line.find("ROTA_CUDART_LOOKUP(") != 0 || quote == std::string::npos) continue;
    std::string name = line.substr(quote + 1, line.find('"', quote + 1) - quote - 1);
    std::istringstream rest(line.substr(line.find(',', quote) + 1));
    int version = 0;
    int flags = 0;
    char comma = 0;
    rest >> version >> comma >> flags;
    std::string wanted = name + " " + std::to_string(version) + " " + std::to_string(flags);
    bool found = false;
    std::string row;
    while (!found && std::getline(recorded, row)) found = row == wanted;
    INFO("not in the recorded order: " << wanted);
    REQUIRE(found);
    ++asked;
  }
  CHECK(asked > 400);
}
