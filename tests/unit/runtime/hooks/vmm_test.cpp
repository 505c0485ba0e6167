// Overrides of virtual memory management beyond cuMemCreate and cuMemRelease (allocation_test.cpp): physical memory is
// counted until its last handle and its last mapping have ended, whichever calls made them. What another process made
// is charged there.
#include <catch2/catch.hpp>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;

namespace {

using Handle = api::CUmemGenericAllocationHandle;

constexpr api::CUdeviceptr kAddress = 0x600000000000;
Handle of_driver = 0;
CUresult answer = api::CUDA_SUCCESS;

CUresult give(Handle* into, auto...) {
  if (answer == api::CUDA_SUCCESS) *into = of_driver;
  return answer;
}

void install(FakeDriver& driver) {
  driver.set<api::cuMemCreate_fn>(Symbol::k_cuMemCreate, give);
  driver.set<api::cuMemRetainAllocationHandle_fn>(Symbol::k_cuMemRetainAllocationHandle, give);
  driver.set<api::cuMemImportFromShareableHandle_fn>(Symbol::k_cuMemImportFromShareableHandle, give);
  driver.set<api::cuMemMap_fn>(Symbol::k_cuMemMap, [](auto...) { return answer; });
  driver.set<api::cuMemUnmap_fn>(Symbol::k_cuMemUnmap, [](auto...) { return answer; });
  driver.set<api::cuMemSetAccess_fn>(Symbol::k_cuMemSetAccess, [](auto...) { return answer; });
  driver.set<api::cuMemAddressFree_fn>(Symbol::k_cuMemAddressFree, [](auto...) { return answer; });
  driver.set<api::cuMemRelease_fn>(Symbol::k_cuMemRelease, [](auto...) { return answer; });
}

// 4 MiB of GPU 1, whose handle is `handle`.
void create(Handle handle) {
  api::CUmemAllocationProp what{};
  what.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  of_driver = handle;
  Handle made = 0;
  EXPECT(overrides::cuMemCreate(&made, 4 * kMiB, &what, 0) == api::CUDA_SUCCESS);
  EXPECT(made == handle);
}

void release(Handle handle) {
  EXPECT(overrides::cuMemRelease(handle) == api::CUDA_SUCCESS);
}

std::uint64_t charged() {
  EXPECT(live_bytes() == runtime().ledger.live_bytes(1));
  return live_bytes();
}

CUresult note(Handle& seen, Handle handle) {
  seen = handle;
  return api::CUDA_SUCCESS;
}

CUresult map_array(api::cuMemMapArrayAsync_fn* function, Handle handle) {
  api::CUarrayMapInfo what{};
  what.memHandleType = api::CU_MEM_HANDLE_TYPE_GENERIC;
  what.memHandle.memHandle = handle;
  return function(&what, 1, nullptr);
}

struct Row {
  Symbol symbol;
  CUresult (*call)(Handle* handle);
};
const Table<Row> kRows = {
    {Symbol::k_cuMemMap, [](auto* handle) { return overrides::cuMemMap(kAddress, 4 * kMiB, 0, *handle, 0); }},
    {Symbol::k_cuMemUnmap, [](auto*) { return overrides::cuMemUnmap(kAddress, 4 * kMiB); }},
    {Symbol::k_cuMemSetAccess, [](auto*) { return overrides::cuMemSetAccess(kAddress, 4 * kMiB, nullptr, 0); }},
    {Symbol::k_cuMemAddressFree, [](auto*) { return overrides::cuMemAddressFree(kAddress, 4 * kMiB); }},
    {Symbol::k_cuMemRetainAllocationHandle,
     [](auto* handle) {
       return overrides::cuMemRetainAllocationHandle(handle, reinterpret_cast<void*>(kAddress + kMiB));
     }},
    {Symbol::k_cuMemImportFromShareableHandle,
     [](auto* handle) {
       return overrides::cuMemImportFromShareableHandle(handle, nullptr, api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
     }},
};
// Other functions that take handles, or addresses without memory: for the driver's handles they return the driver's
// answer. `handle` is the driver's, or 7 as an address.
struct Other {
  Symbol symbol;
  CUresult (*call)(Handle handle);
  bool hands_out;
};
const Table<Other> kOthers = {
    {Symbol::k_cuMemAddressReserve,
     [](Handle) {
       api::CUdeviceptr address = 0;
       return overrides::cuMemAddressReserve(&address, 4 * kMiB, 0, 0, 0);
     },
     false},
    {Symbol::k_cuMemGetAllocationPropertiesFromHandle,
     [](Handle handle) {
       api::CUmemAllocationProp properties{};
       return overrides::cuMemGetAllocationPropertiesFromHandle(&properties, handle);
     },
     false},
    {Symbol::k_cuMemMapArrayAsync, [](Handle handle) { return map_array(overrides::cuMemMapArrayAsync, handle); },
     false},
    {Symbol::k_cuMemMapArrayAsync_ptsz,
     [](Handle handle) { return map_array(overrides::cuMemMapArrayAsync_ptsz, handle); }, false},
    {Symbol::k_cuMemExportToShareableHandle,
     [](Handle handle) {
       int file = -1;
       return overrides::cuMemExportToShareableHandle(&file, handle, api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
     },
     true},
    {Symbol::k_cuMulticastBindMem,
     [](Handle handle) { return overrides::cuMulticastBindMem(1, 0, handle, 0, 4 * kMiB, 0); }, true},
    {Symbol::k_cuMulticastBindMem_v2,
     [](Handle handle) { return overrides::cuMulticastBindMem_v2(1, 0, 0, handle, 0, 4 * kMiB, 0); }, true},
    {Symbol::k_cuLogicalEndpointBindMem,
     [](Handle handle) { return overrides::cuLogicalEndpointBindMem(1, 0, 0, handle, 0, 4 * kMiB, 0); }, true},
    {Symbol::k_cuMulticastBindAddr,
     [](Handle address) { return overrides::cuMulticastBindAddr(1, 0, address, 4 * kMiB, 0); }, true},
    {Symbol::k_cuMulticastBindAddr_v2,
     [](Handle address) { return overrides::cuMulticastBindAddr_v2(1, 0, 0, address, 4 * kMiB, 0); }, true},
    {Symbol::k_cuLogicalEndpointBindAddr,
     [](Handle address) {
       return overrides::cuLogicalEndpointBindAddr(1, 0, 0, reinterpret_cast<void*>(address), 4 * kMiB, 0);
     },
     true},
    {Symbol::k_cuLogicalEndpointExport,
     [](Handle endpoint) {
       return overrides::cuLogicalEndpointExport(nullptr, static_cast<api::CUlogicalEndpointId>(endpoint), {});
     },
     true},
    {Symbol::k_cuMemPoolExportPointer,
     [](Handle address) { return overrides::cuMemPoolExportPointer(nullptr, address); }, true},
    {Symbol::k_cuMemPoolExportToShareableHandle,
     [](Handle pool) {
       return overrides::cuMemPoolExportToShareableHandle(nullptr, reinterpret_cast<api::CUmemoryPool>(pool),
                                                          api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
     },
     true},
};
CUresult call(Symbol symbol, Handle* handle) {
  for (const Row& row : kRows) {
    if (row.symbol == symbol) return row.call(handle);
  }
  std::abort();
}
CUresult map(Handle handle) {
  return call(Symbol::k_cuMemMap, &handle);
}
CUresult unmap() {
  return call(Symbol::k_cuMemUnmap, nullptr);
}

}  // namespace

TEST_CASE("a mapping keeps physical memory charged after its handle is released, and takes no memory of its own") {
  CHECK(holds({.limit = "4M"}, [](FakeDriver& driver) {
    install(driver);
    create(7);
    EXPECT(map(7) == api::CUDA_SUCCESS);
    EXPECT(charged() == 4 * kMiB);
    const auto mapping = runtime().ledger.find(kAddress + 5);
    EXPECT(mapping && mapping->kind == memory::Kind::kMapping && mapping->device == 1 && !mapping->charged);
    release(7);
    EXPECT(charged() == 4 * kMiB);
    answer = api::CUDA_ERROR_INVALID_VALUE;
    EXPECT(unmap() == api::CUDA_ERROR_INVALID_VALUE);
    EXPECT(charged() == 4 * kMiB);
    EXPECT(runtime().ledger.find(kAddress).has_value());
    answer = api::CUDA_SUCCESS;
    EXPECT(unmap() == api::CUDA_SUCCESS);
    EXPECT(charged() == 0);
    EXPECT(runtime().ledger.entries() == 0);
    create(7);  // there is room again
  }));
}

TEST_CASE("a mapping that the driver refuses keeps nothing charged") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    create(7);
    answer = api::CUDA_ERROR_INVALID_VALUE;
    EXPECT(map(7) == api::CUDA_ERROR_INVALID_VALUE);
    EXPECT(runtime().ledger.entries() == 0);
    answer = api::CUDA_SUCCESS;
    release(7);
    EXPECT(charged() == 0);
  }));
}

TEST_CASE("a handle got back from an address, inside it too, keeps the memory, which never moves") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    create(7);
    EXPECT(map(7) == api::CUDA_SUCCESS);
    release(7);
    Handle again = 0;
    of_driver = 9;
    answer = api::CUDA_ERROR_INVALID_VALUE;
    EXPECT(call(Symbol::k_cuMemRetainAllocationHandle, &again) == api::CUDA_ERROR_INVALID_VALUE);
    answer = api::CUDA_SUCCESS;
    EXPECT(call(Symbol::k_cuMemRetainAllocationHandle, &again) == api::CUDA_SUCCESS);
    EXPECT(again == 9);
    EXPECT(!runtime().unevictable());
    EXPECT(unmap() == api::CUDA_SUCCESS);
    EXPECT(charged() == 4 * kMiB);
    release(9);
    EXPECT(charged() == 0);
  }));
}

TEST_CASE("memory that another process made is charged to nobody here, mapped or not") {
  CHECK(holds({.limit = "1M"}, [](FakeDriver& driver) {
    install(driver);
    of_driver = 11;
    Handle theirs = 0;
    answer = api::CUDA_ERROR_INVALID_VALUE;
    EXPECT(call(Symbol::k_cuMemImportFromShareableHandle, &theirs) == api::CUDA_ERROR_INVALID_VALUE);
    answer = api::CUDA_SUCCESS;
    EXPECT(map(11) == api::CUDA_SUCCESS);
    EXPECT(runtime().ledger.entries() == 0);  // nobody has reported that handle
    EXPECT(call(Symbol::k_cuMemImportFromShareableHandle, &theirs) == api::CUDA_SUCCESS);
    EXPECT(runtime().monitor.shared() == protocol::kSharesOfOthers);
    EXPECT(theirs == 11);
    EXPECT(map(theirs) == api::CUDA_SUCCESS);
    EXPECT(charged() == 0);
    EXPECT(runtime().ledger.entries() == 1);
    release(theirs);
    EXPECT(unmap() == api::CUDA_SUCCESS);
    EXPECT(runtime().ledger.entries() == 0);
    EXPECT(charged() == 0);
  }));
}

TEST_CASE("memory of our own that comes back as a descriptor under the same handle is kept by both handles") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    create(7);
    Handle ours = 0;
    EXPECT(call(Symbol::k_cuMemImportFromShareableHandle, &ours) == api::CUDA_SUCCESS);
    EXPECT(ours == 7);
    release(7);
    EXPECT(charged() == 4 * kMiB);
    release(7);
    EXPECT(charged() == 0);
  }));
}

TEST_CASE("a handle of the driver's goes to the driver as it is, and what hands it out says that memory is shared") {
  for (const Other& row : kOthers) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      driver.enter_context(0);
      static Handle seen = 0;
      seen = 7;
      const auto array = [](api::CUarrayMapInfo* list, unsigned, api::CUstream) {
        seen = list[0].memHandle.memHandle;
        return api::CUDA_SUCCESS;
      };
      driver.set<api::cuMemAddressReserve_fn>(Symbol::k_cuMemAddressReserve, [](api::CUdeviceptr* address, auto...) {
        *address = kAddress;
        return api::CUDA_SUCCESS;
      });
      driver.set<api::cuMemGetAllocationPropertiesFromHandle_fn>(
          Symbol::k_cuMemGetAllocationPropertiesFromHandle, [](auto*, Handle handle) { return note(seen, handle); });
      driver.set<api::cuMemMapArrayAsync_fn>(Symbol::k_cuMemMapArrayAsync, array);
      driver.set<api::cuMemMapArrayAsync_ptsz_fn>(Symbol::k_cuMemMapArrayAsync_ptsz, array);
      driver.set<api::cuMemExportToShareableHandle_fn>(
          Symbol::k_cuMemExportToShareableHandle, [](void*, Handle handle, auto...) { return note(seen, handle); });
      driver.set<api::cuMulticastBindMem_fn>(Symbol::k_cuMulticastBindMem,
                                             [](auto, auto, Handle handle, auto...) { return note(seen, handle); });
      driver.set<api::cuMulticastBindMem_v2_fn>(
          Symbol::k_cuMulticastBindMem_v2, [](auto, auto, auto, Handle handle, auto...) { return note(seen, handle); });
      driver.set<api::cuLogicalEndpointBindMem_fn>(
          Symbol::k_cuLogicalEndpointBindMem,
          [](auto, auto, auto, Handle handle, auto...) { return note(seen, handle); });
      driver.set<api::cuMulticastBindAddr_fn>(Symbol::k_cuMulticastBindAddr,
                                              [](auto, auto, auto address, auto...) { return note(seen, address); });
      driver.set<api::cuMulticastBindAddr_v2_fn>(
          Symbol::k_cuMulticastBindAddr_v2,
          [](auto, auto, auto, auto address, auto...) { return note(seen, address); });
      driver.set<api::cuLogicalEndpointBindAddr_fn>(
          Symbol::k_cuLogicalEndpointBindAddr,
          [](auto, auto, auto, void* address, auto...) { return note(seen, reinterpret_cast<Handle>(address)); });
      driver.set<api::cuLogicalEndpointExport_fn>(Symbol::k_cuLogicalEndpointExport,
                                                  [](auto, auto endpoint, auto) { return note(seen, endpoint); });
      driver.set<api::cuMemPoolExportPointer_fn>(Symbol::k_cuMemPoolExportPointer,
                                                 [](auto, auto address) { return note(seen, address); });
      driver.set<api::cuMemPoolExportToShareableHandle_fn>(
          Symbol::k_cuMemPoolExportToShareableHandle,
          [](auto, auto pool, auto...) { return note(seen, reinterpret_cast<Handle>(pool)); });
      EXPECT(row.call(7) == api::CUDA_SUCCESS);
      EXPECT(seen == 7);
      EXPECT(!runtime().unevictable() && runtime().monitor.shared() == row.hands_out);
      EXPECT(charged() == 0 && runtime().ledger.entries() == 0);
    }));
  }
}
