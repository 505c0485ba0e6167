// Overrides of look-ups by name: collective kernels that are there make the program a member of a gang.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>

#include "tests/unit/runtime/hooks/program.h"
#include "tests/unit/runtime/turn/fake_rotad.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;

namespace {

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
                                {Symbol::k_cuLibraryGetKernel, [](const char* name) {
                                   api::CUkernel kernel = nullptr;
                                   return overrides::cuLibraryGetKernel(&kernel, nullptr, name);
                                 }}};

CUresult find(const char* name) {
  return std::strcmp(name, kThere) == 0 ? api::CUDA_SUCCESS : api::CUDA_ERROR_NOT_FOUND;
}

}  // namespace

TEST_CASE("a rank that finds a collective kernel by name is a member of its launch's gang") {
  for (const Lookup& lookup : kLookups) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(lookup.symbol));
      driver.set<api::cuModuleGetFunction_fn>(
          Symbol::k_cuModuleGetFunction, [](api::CUfunction*, api::CUmodule, const char* name) { return find(name); });
      driver.set<api::cuLibraryGetKernel_fn>(
          Symbol::k_cuLibraryGetKernel, [](api::CUkernel*, api::CUlibrary, const char* name) { return find(name); });
      FakeRotad rotad;
      setenv("MASTER_ADDR", "localhost", 1);
      setenv("WORLD_SIZE", "2", 1);
      setenv("LOCAL_WORLD_SIZE", "2", 1);
      // One that is not there says nothing: it would be the gang of another launch.
      setenv("MASTER_PORT", "1", 1);
      EXPECT(lookup.call("ncclDevKernel_Missing") == api::CUDA_ERROR_NOT_FOUND);
      setenv("MASTER_PORT", "2", 1);
      EXPECT(lookup.call(kThere) == api::CUDA_SUCCESS);
      const turn::Launch launch = turn::launched_gang([](const char* name) -> const char* { return getenv(name); });
      runtime().monitor.context_made(driver.enter_context(0), 0, true);
      protocol::Message message = rotad.next();
      while (message.kind != protocol::Kind::kGang) message = rotad.next();
      EXPECT(launch.gang && std::strcmp(message.body.gang.name, launch.gang->name) == 0);
    }));
  }
}
