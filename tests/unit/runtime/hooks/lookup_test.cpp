// Overrides of functions that return the driver's functions and tables: the program gets the shim's own functions, and
// the process is marked if it gets one that rota does not know. (attach_test.cpp has drivers without cuGetProcAddress,
// contract_test.cpp the list of known tables.)
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "runtime/core/attach.h"
#include "tests/unit/runtime/fake_preload.h"
#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;

namespace {

CUresult answer = api::CUDA_SUCCESS;
void* of_driver = nullptr;
FakePreload* preload = nullptr;
constexpr auto kFound = api::CU_GET_PROC_ADDRESS_SUCCESS;

void install(FakeDriver& driver) {
  preload = &FakePreload::fresh();
  EXPECT(interpose::attach(preload->attachment, nullptr) == 0);
  driver.set<api::cuGetProcAddress_fn>(Symbol::k_cuGetProcAddress, [](const char*, void** into, auto...) {
    if (answer == api::CUDA_SUCCESS) *into = of_driver;
    return answer;
  });
  driver.set<api::cuGetProcAddress_v2_fn>(Symbol::k_cuGetProcAddress_v2,
                                          [](const char*, void** into, int, auto, auto* status) {
                                            if (answer == api::CUDA_SUCCESS) *into = of_driver;
                                            if (status != nullptr) *status = kFound;
                                            return answer;
                                          });
}

struct Looking {
  Symbol symbol;
  CUresult (*call)(const char* name, void** into);
};
const Table<Looking> kLooking = {
    {Symbol::k_cuGetProcAddress,
     [](const char* name, void** into) { return overrides::cuGetProcAddress(name, into, 12000, 0); }},
    {Symbol::k_cuGetProcAddress_v2,
     [](const char* name, void** into) {
       auto status = api::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
       const CUresult result = overrides::cuGetProcAddress_v2(name, into, 12000, 0, &status);
       EXPECT(status == kFound);
       // The status may be null.
       EXPECT(overrides::cuGetProcAddress_v2(name, into, 12000, 0, nullptr) == result);
       return result;
     }},
};

struct Tabling {
  Symbol symbol;
  CUresult (*call)(const void** into, const api::CUuuid* id);
};
const Table<Tabling> kTabling = {{Symbol::k_cuGetExportTable, overrides::cuGetExportTable}};

// What is logged at level debug meanwhile; the level is chosen once in a process.
std::string logged(const std::function<void()>& call) {
  setenv("ROTA_LOG", "debug", 1);
  std::array<int, 2> ends{};
  EXPECT(pipe(ends.data()) == 0);
  const int before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  call();
  dup2(before, STDERR_FILENO);
  close(before);
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = read(ends[0], part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  close(ends[0]);
  return text;
}

}  // namespace

TEST_CASE("a function of the driver's is handed out as the shim's own, under the name that was asked for") {
  for (const Looking& row : kLooking) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      of_driver = preload->real_of(Symbol::k_cuLaunchKernel);
      void* got = nullptr;
      EXPECT(row.call("cuLaunchKernel", &got) == api::CUDA_SUCCESS);
      EXPECT(got == preload->thunk_of(Symbol::k_cuLaunchKernel));
      EXPECT(!runtime().unevictable());
    }));
  }
}

TEST_CASE("a function that rota does not know is handed out as it is, and marks the process") {
  for (const Looking& row : kLooking) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      static char unknown;
      of_driver = &unknown;
      void* got = nullptr;
      EXPECT(row.call("cuOfTomorrow", &got) == api::CUDA_SUCCESS);
      EXPECT(got == &unknown);
      EXPECT(runtime().unevictable());
      EXPECT(runtime().unknown_pointers > 0);
    }));
  }
}

TEST_CASE("a name that the driver does not know leaves what the program had, and marks nothing") {
  for (const Looking& row : kLooking) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      static char unknown;
      void* got = &unknown;
      answer = api::CUDA_ERROR_NOT_FOUND;
      EXPECT(row.call("cuNothing", &got) == api::CUDA_ERROR_NOT_FOUND);
      EXPECT(got == &unknown);
      answer = api::CUDA_SUCCESS;
      of_driver = nullptr;  // found, but not in the version that was asked for
      EXPECT(row.call("cuNothing", &got) == api::CUDA_SUCCESS);
      EXPECT(got == nullptr);
      EXPECT(!runtime().unevictable());
    }));
  }
}

TEST_CASE("a private table goes out as the driver's own, an unknown one marks the process, a refused one does not") {
  CHECK(holds({}, [](FakeDriver& driver) {
    static std::array<std::uint64_t, 4> table{32};
    driver.set<api::cuGetExportTable_fn>(Symbol::k_cuGetExportTable, [](const void** into, const api::CUuuid*) {
      if (answer == api::CUDA_SUCCESS) *into = table.data();
      return answer;
    });
    const api::CUuuid id{.bytes = {1, 2, 3}};
    const void* got = nullptr;
    answer = api::CUDA_ERROR_NOT_FOUND;
    EXPECT(kTabling.front().call(&got, &id) == api::CUDA_ERROR_NOT_FOUND);
    EXPECT(got == nullptr);
    EXPECT(!runtime().unevictable());
    answer = api::CUDA_SUCCESS;
    EXPECT(kTabling.front().call(&got, &id) == api::CUDA_SUCCESS);
    EXPECT(got == table.data());
    EXPECT(runtime().unevictable());
  }));
}

const api::CUuuid kOfCufft{.bytes = {0x6e, 0x16, 0x3f, static_cast<char>(0xbe), static_cast<char>(0xb9), 0x58, 0x44,
                                     0x4d, static_cast<char>(0x83), 0x5c, static_cast<char>(0xe1),
                                     static_cast<char>(0x82), static_cast<char>(0xaf), static_cast<char>(0xf1),
                                     static_cast<char>(0x99), 0x1e}};

TEST_CASE("a table through which work is submitted goes out gated, and where it cannot be, that is said") {
  struct Case {
    int driver;
    bool gated;
  };
  const std::array<Case, 2> cases{Case{13000, true}, Case{12040, false}};
  static std::array<std::uint64_t, 99> table{792, 0x1000};
  static int version;
  for (const Case& each : cases) {
    version = each.driver;
    CHECK(holds({}, [&](FakeDriver& driver) {
      driver.set<api::cuDriverGetVersion_fn>(Symbol::k_cuDriverGetVersion, [](int* into) {
        *into = version;
        return api::CUDA_SUCCESS;
      });
      driver.set<api::cuGetExportTable_fn>(Symbol::k_cuGetExportTable, [](const void** into, const api::CUuuid*) {
        *into = table.data();
        return api::CUDA_SUCCESS;
      });
      const void* got = nullptr;
      const std::string said = logged([&] { EXPECT(kTabling.front().call(&got, &kOfCufft) == api::CUDA_SUCCESS); });
      const auto says = [&](const char* text) { return said.find(text) != std::string::npos; };
      EXPECT((got != table.data()) == each.gated);
      EXPECT(runtime().unevictable() != each.gated);
      EXPECT(
          says(each.gated ? "cuGetExportTable: gated table 6e163fbe-" : "cuGetExportTable: ungated table 6e163fbe-"));
      EXPECT(says("it submits work through a private table of the driver") != each.gated);
      EXPECT(!says("unknown") && !says("does not know"));
    }));
  }
}

TEST_CASE("a profiler gets the driver's own tables, known by its name or by what else it has asked for") {
  static std::array<std::uint64_t, 99> table{792, 0x1000};
  static const api::CUuuid unknown{.bytes = {1, 2, 3}};
  using Ask = CUresult(decltype(&overrides::cuGetExportTable), const void**, const api::CUuuid*);
  struct Case {
    const char* library;
    bool asks_before;
    bool gated;
  };
  for (const auto& [path, asks_before, gated] :
       {Case{ROTA_TEST_CUPTI, false, false}, Case{ROTA_TEST_LIBRARY, false, true},
        Case{ROTA_TEST_LIBRARY, true, false}}) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      driver.set<api::cuDriverGetVersion_fn>(Symbol::k_cuDriverGetVersion, [](int* version) {
        *version = 13000;
        return api::CUDA_SUCCESS;
      });
      driver.set<api::cuGetExportTable_fn>(Symbol::k_cuGetExportTable, [](const void** into, const api::CUuuid*) {
        *into = table.data();
        return api::CUDA_SUCCESS;
      });
      void* const library = dlopen(path, RTLD_NOW);
      EXPECT(library != nullptr);
      auto* const ask = reinterpret_cast<Ask*>(dlsym(library, "ask"));
      const void* got = nullptr;
      const std::string said = logged([&] {
        if (asks_before) EXPECT(ask(overrides::cuGetExportTable, &got, &unknown) == api::CUDA_SUCCESS);
        EXPECT(ask(overrides::cuGetExportTable, &got, &kOfCufft) == api::CUDA_SUCCESS);
      });
      EXPECT((got != table.data()) == gated);
      EXPECT(runtime().unevictable() != gated);
      EXPECT((said.find(": ungated table 6e163fbe-") != std::string::npos) != gated);
    }));
  }
}
