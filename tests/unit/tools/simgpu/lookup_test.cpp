// cuGetProcAddress of the simulated driver against what a real one was recorded to answer, and the exports.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/unit/recorded_lookups.h"
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
    const auto rows = rota::test::recorded_lookups(ROTA_TEST_DATA "/cugetprocaddress-580.159.txt");
    for (const rota::test::RecordedLookup& row : rows) {
      void* function = nullptr;
      auto status = static_cast<CUdriverProcAddressQueryResult>(99);  // as the recording began
      int result = static_cast<int>(get(row.name.c_str(), &function, row.version, row.flags, &status));
      void* expected = row.found() ? library.symbol(row.answer.c_str()) : nullptr;
      if (row.found() && expected == nullptr) return "no export " + row.answer;
      int expected_status = 0;
      int expected_result = 0;
      if (!row.found()) std::sscanf(row.answer.c_str(), "-[%d rc %d]", &expected_status, &expected_result);
      if (function != expected || static_cast<int>(status) != expected_status || result != expected_result) {
        return row.text() + ": result " + std::to_string(result) + ", status " +
               std::to_string(static_cast<int>(status)) + (function == expected ? "" : ", another function");
      }
    }
    EXPECT(rows.size() == 4564);
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
