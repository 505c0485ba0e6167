// Overrides of look-ups by name: collective kernels that are found make the program a member of a gang.
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>

#include "tests/unit/runtime/hooks/program.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;

namespace {

const char* named = nullptr;  // what is enumerated
constexpr const char* kThere = "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE";

struct Lookup {
  Symbol symbol;
  CUresult (*call)(const char* name);
};
const Table<Lookup> kLookups = {{Symbol::k_cuModuleGetFunction,
                                 [](const char* name) {
                                   api::CUfunction function = nullptr;
                                   return overrides::cuModuleGetFunction(&function, nullptr, name);
                                 }},
                                {Symbol::k_cuLibraryGetKernel,
                                 [](const char* name) {
                                   api::CUkernel kernel = nullptr;
                                   return overrides::cuLibraryGetKernel(&kernel, nullptr, name);
                                 }},
                                {Symbol::k_cuModuleEnumerateFunctions,
                                 [](const char* name) {
                                   std::array<api::CUfunction, 3> all{};
                                   named = name;
                                   return overrides::cuModuleEnumerateFunctions(all.data(), 3, nullptr);
                                 }},
                                {Symbol::k_cuLibraryEnumerateKernels, [](const char* name) {
                                   std::array<api::CUkernel, 3> all{};
                                   named = name;
                                   return overrides::cuLibraryEnumerateKernels(all.data(), 3, nullptr);
                                 }}};

CUresult find(const char* name) {
  return std::strcmp(name, kThere) == 0 ? api::CUDA_SUCCESS : api::CUDA_ERROR_NOT_FOUND;
}

// Two kernels are enumerated, of which the second has the name, if it is there.
template <typename Handle>
CUresult enumerate(Handle* all) {
  all[0] = reinterpret_cast<Handle>(1);
  all[1] = reinterpret_cast<Handle>(2);
  return find(named);
}
CUresult count(unsigned int* there) {
  *there = 2;
  return api::CUDA_SUCCESS;
}
template <typename Handle>
CUresult name_of_handle(const char** name, Handle handle) {
  EXPECT(handle != nullptr);  // no more than there are
  *name = handle == reinterpret_cast<Handle>(2) ? named : "another";
  return api::CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("a rank that finds a collective kernel is a member of its launch's gang") {
  for (const Lookup& lookup : kLookups) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(lookup.symbol));
      driver.set<api::cuModuleGetFunction_fn>(
          Symbol::k_cuModuleGetFunction, [](api::CUfunction*, api::CUmodule, const char* name) { return find(name); });
      driver.set<api::cuLibraryGetKernel_fn>(
          Symbol::k_cuLibraryGetKernel, [](api::CUkernel*, api::CUlibrary, const char* name) { return find(name); });
      driver.set<api::cuModuleEnumerateFunctions_fn>(
          Symbol::k_cuModuleEnumerateFunctions,
          [](api::CUfunction* all, unsigned int, api::CUmodule) { return enumerate(all); });
      driver.set<api::cuLibraryEnumerateKernels_fn>(
          Symbol::k_cuLibraryEnumerateKernels,
          [](api::CUkernel* all, unsigned int, api::CUlibrary) { return enumerate(all); });
      driver.set<api::cuModuleGetFunctionCount_fn>(Symbol::k_cuModuleGetFunctionCount,
                                                   [](unsigned int* there, api::CUmodule) { return count(there); });
      driver.set<api::cuLibraryGetKernelCount_fn>(Symbol::k_cuLibraryGetKernelCount,
                                                  [](unsigned int* there, api::CUlibrary) { return count(there); });
      driver.set<api::cuFuncGetName_fn>(Symbol::k_cuFuncGetName, &name_of_handle<api::CUfunction>);
      driver.set<api::cuKernelGetName_fn>(Symbol::k_cuKernelGetName, &name_of_handle<api::CUkernel>);
      FakeRotad rotad;
      setenv("MASTER_ADDR", "localhost", 1);
      setenv("WORLD_SIZE", "2", 1);
      setenv("LOCAL_WORLD_SIZE", "2", 1);
      // A kernel that is not found is no evidence: the gang would be that of another launch.
      setenv("MASTER_PORT", "1", 1);
      EXPECT(lookup.call("ncclDevKernel_Missing") == api::CUDA_ERROR_NOT_FOUND);
      setenv("MASTER_PORT", "2", 1);
      EXPECT(lookup.call(kThere) == api::CUDA_SUCCESS);
      const client::Launch launch = client::launched_gang([](const char* name) -> const char* { return getenv(name); });
      runtime().monitor.context_made(driver.enter_context(0), 0, true);
      protocol::Message message = rotad.next();
      while (message.kind != protocol::Kind::kGang) message = rotad.next();
      EXPECT(launch.gang && std::strcmp(message.body.gang.name, launch.gang->name) == 0);
    }));
  }
}
