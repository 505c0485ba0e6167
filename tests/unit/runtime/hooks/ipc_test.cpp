// Overrides of calls that share memory with other processes: they make a rank a member of its launch's gang.
#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/unit/runtime/hooks/program.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;

namespace {

struct Sharing {
  Symbol symbol;
  CUresult (*call)();
};

CUresult register_shared(CUresult (*call)(void*, std::size_t, unsigned int)) {
  void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const CUresult result = call(memory, 4096, 0);
  munmap(memory, 4096);
  return result;
}

const Table<Sharing> kCalls = {
    {Symbol::k_cuIpcGetMemHandle,
     [] {
       api::CUipcMemHandle handle{};
       return overrides::cuIpcGetMemHandle(&handle, 0x1000);
     }},
    {Symbol::k_cuIpcOpenMemHandle,
     [] {
       api::CUdeviceptr address = 0;
       return overrides::cuIpcOpenMemHandle(&address, {}, 1);
     }},
    {Symbol::k_cuIpcOpenMemHandle_v2,
     [] {
       api::CUdeviceptr address = 0;
       return overrides::cuIpcOpenMemHandle_v2(&address, {}, 1);
     }},
    {Symbol::k_cuMemPoolImportPointer,
     [] {
       api::CUdeviceptr address = 0;
       api::CUmemPoolPtrExportData data{};
       return overrides::cuMemPoolImportPointer(&address, nullptr, &data);
     }},
    {Symbol::k_cuMemImportFromShareableHandle,
     [] {
       api::CUmemGenericAllocationHandle handle = 0;
       return overrides::cuMemImportFromShareableHandle(&handle, nullptr,
                                                        api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
     }},
    {Symbol::k_cuMemHostRegister, [] { return register_shared(&overrides::cuMemHostRegister); }},
    {Symbol::k_cuMemHostRegister_v2, [] { return register_shared(&overrides::cuMemHostRegister_v2); }}};

void let_succeed(FakeDriver& driver) {
  constexpr CUresult kDone = api::CUDA_SUCCESS;
  driver.set<api::cuIpcGetMemHandle_fn>(Symbol::k_cuIpcGetMemHandle,
                                        [](api::CUipcMemHandle*, api::CUdeviceptr) { return kDone; });
  driver.set<api::cuIpcOpenMemHandle_fn>(Symbol::k_cuIpcOpenMemHandle,
                                         [](api::CUdeviceptr*, api::CUipcMemHandle, unsigned int) { return kDone; });
  driver.set<api::cuIpcOpenMemHandle_v2_fn>(Symbol::k_cuIpcOpenMemHandle_v2,
                                            [](api::CUdeviceptr*, api::CUipcMemHandle, unsigned int) { return kDone; });
  driver.set<api::cuMemPoolImportPointer_fn>(
      Symbol::k_cuMemPoolImportPointer,
      [](api::CUdeviceptr*, api::CUmemoryPool, api::CUmemPoolPtrExportData*) { return kDone; });
  driver.set<api::cuMemImportFromShareableHandle_fn>(
      Symbol::k_cuMemImportFromShareableHandle,
      [](api::CUmemGenericAllocationHandle*, void*, api::CUmemAllocationHandleType) { return kDone; });
  driver.set<api::cuMemHostRegister_fn>(Symbol::k_cuMemHostRegister,
                                        [](void*, std::size_t, unsigned int) { return kDone; });
  driver.set<api::cuMemHostRegister_v2_fn>(Symbol::k_cuMemHostRegister_v2,
                                           [](void*, std::size_t, unsigned int) { return kDone; });
}

}  // namespace

TEST_CASE("a rank that shares memory with other processes is a member of its launch's gang") {
  for (const Sharing& sharing : kCalls) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(sharing.symbol));
      let_succeed(driver);
      FakeRotad rotad;
      setenv("MASTER_ADDR", "localhost", 1);
      setenv("MASTER_PORT", "2", 1);
      setenv("WORLD_SIZE", "2", 1);
      setenv("LOCAL_WORLD_SIZE", "2", 1);
      runtime().monitor.context_made(driver.enter_context(0), 0, true);
      EXPECT(sharing.call() == api::CUDA_SUCCESS);
      protocol::Message message = rotad.next();
      while (message.kind != protocol::Kind::kGang) message = rotad.next();
      EXPECT(message.body.gang.why == protocol::GangWhy::kMemory);
    }));
  }
}

namespace {

struct Closing {
  Symbol symbol;
  CUresult (*call)(api::CUdeviceptr address);
};
const Table<Closing> kClosing = {{Symbol::k_cuIpcCloseMemHandle, overrides::cuIpcCloseMemHandle}};

api::CUdeviceptr closed = 0;

}  // namespace

TEST_CASE("what was not opened by a handle of rota's is the driver's to close") {
  for (const Closing& row : kClosing) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      driver.set<api::cuIpcCloseMemHandle_fn>(row.symbol, [](api::CUdeviceptr address) {
        closed = address;
        return api::CUDA_ERROR_INVALID_HANDLE;
      });
      driver.enter_context(0);
      EXPECT(row.call(0x1000) == api::CUDA_ERROR_INVALID_HANDLE);
      EXPECT(closed == 0x1000);
    }));
  }
}
