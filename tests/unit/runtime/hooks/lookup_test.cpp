// Overrides of what hands out the driver's functions and tables: the program gets the shim's own functions, and what
// rota does not know marks the process. (attach_test.cpp has drivers without cuGetProcAddress, contract_test.cpp the
// list of known tables.)
#include <algorithm>
#include <catch2/catch.hpp>

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
       // The status is for who wants it.
       EXPECT(overrides::cuGetProcAddress_v2(name, into, 12000, 0, nullptr) == result);
       return result;
     }},
};

struct Tabling {
  Symbol symbol;
  CUresult (*call)(const void** into, const api::CUuuid* id);
};
const Table<Tabling> kTabling = {{Symbol::k_cuGetExportTable, overrides::cuGetExportTable}};

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
      of_driver = nullptr;  // found, and not there in the version that was asked for
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
