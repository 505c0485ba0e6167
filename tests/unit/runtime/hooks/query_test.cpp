// Overrides of queries: how much memory is free, and handles for other processes.
#include <catch2/catch.hpp>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;

namespace {

struct Info {
  Symbol symbol;
  // Either may be null.
  CUresult (*call)(std::size_t* free, std::size_t* total);
  std::uint64_t most = UINT64_MAX;  // that it can express
};

CUresult narrow(std::size_t* free, std::size_t* total) {
  unsigned narrow_free = 0;
  unsigned narrow_total = 0;
  const CUresult result =
      overrides::cuMemGetInfo(free != nullptr ? &narrow_free : nullptr, total != nullptr ? &narrow_total : nullptr);
  if (free != nullptr) *free = narrow_free;
  if (total != nullptr) *total = narrow_total;
  return result;
}

const Table<Info> kInfo = {{Symbol::k_cuMemGetInfo_v2, overrides::cuMemGetInfo_v2},
                           {Symbol::k_cuMemGetInfo, narrow, UINT32_MAX}};

struct Total {
  Symbol symbol;
  CUresult (*call)(std::size_t* total);
};
const Table<Total> kTotal = {
    {Symbol::k_cuDeviceTotalMem_v2, [](std::size_t* total) { return overrides::cuDeviceTotalMem_v2(total, 0); }},
    {Symbol::k_cuDeviceTotalMem,
     [](std::size_t* total) {
       unsigned narrow_total = 0;
       const CUresult result = overrides::cuDeviceTotalMem(&narrow_total, 0);
       *total = narrow_total;
       return result;
     }},
};

// A driver that takes null for either, as CUDA's may.
template <typename Number>
CUresult tell(Number* free, Number* total) {
  const std::uint64_t bytes = std::min<std::uint64_t>(FakeDriver::the().device_bytes, Number(-1));
  if (free != nullptr) *free = static_cast<Number>(bytes);
  if (total != nullptr) *total = static_cast<Number>(bytes);
  return api::CUDA_SUCCESS;
}

void install(FakeDriver& driver) {
  driver.set<api::cuMemGetInfo_fn>(Symbol::k_cuMemGetInfo, tell<unsigned>);
  driver.set<api::cuMemGetInfo_v2_fn>(Symbol::k_cuMemGetInfo_v2, tell<std::size_t>);
  driver.set<api::cuDeviceTotalMem_fn>(Symbol::k_cuDeviceTotalMem,
                                       [](unsigned* total, api::CUdevice) { return tell<unsigned>(nullptr, total); });
  driver.enter_context(0);
}

struct Sharing {
  Symbol symbol;
  CUresult (*call)(api::CUipcMemHandle* handle, api::CUdeviceptr address);
};
const Table<Sharing> kSharing = {{Symbol::k_cuIpcGetMemHandle, overrides::cuIpcGetMemHandle}};

struct Opening {
  Symbol symbol;
  CUresult (*call)();
};
const Table<Opening> kOpening = {
    {Symbol::k_cuIpcGetEventHandle,
     [] {
       api::CUipcEventHandle handle{};
       return overrides::cuIpcGetEventHandle(&handle, nullptr);
     }},
    {Symbol::k_cuIpcOpenEventHandle,
     [] {
       api::CUevent event = nullptr;
       return overrides::cuIpcOpenEventHandle(&event, {});
     }},
    {Symbol::k_cuIpcOpenMemHandle,
     [] {
       api::CUdeviceptr memory = 0;
       return overrides::cuIpcOpenMemHandle(&memory, {}, 1);
     }},
    {Symbol::k_cuIpcOpenMemHandle_v2,
     [] {
       api::CUdeviceptr memory = 0;
       return overrides::cuIpcOpenMemHandle_v2(&memory, {}, 1);
     }},
    {Symbol::k_cuMemPoolImportFromShareableHandle,
     [] {
       api::CUmemoryPool pool = nullptr;
       return overrides::cuMemPoolImportFromShareableHandle(&pool, nullptr,
                                                            api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
     }},
    {Symbol::k_cuMemPoolImportPointer,
     [] {
       api::CUdeviceptr memory = 0;
       api::CUmemPoolPtrExportData data{};
       return overrides::cuMemPoolImportPointer(&memory, nullptr, &data);
     }},
    {Symbol::k_cuImportExternalMemory,
     [] {
       api::CUexternalMemory memory = nullptr;
       const api::CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
       return overrides::cuImportExternalMemory(&memory, &what);
     }},
    {Symbol::k_cuImportExternalSemaphore,
     [] {
       api::CUexternalSemaphore semaphore = nullptr;
       const api::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC what{};
       return overrides::cuImportExternalSemaphore(&semaphore, &what);
     }},
};

CUresult answer_of_share = api::CUDA_SUCCESS;

void install_sharing(FakeDriver& driver) {
  driver.set<api::cuIpcGetMemHandle_fn>(Symbol::k_cuIpcGetMemHandle, [](auto...) { return answer_of_share; });
  driver.set<api::cuIpcGetEventHandle_fn>(Symbol::k_cuIpcGetEventHandle, [](auto...) { return answer_of_share; });
  driver.set<api::cuIpcOpenEventHandle_fn>(Symbol::k_cuIpcOpenEventHandle, [](auto...) { return answer_of_share; });
  driver.set<api::cuIpcOpenMemHandle_fn>(Symbol::k_cuIpcOpenMemHandle, [](auto...) { return answer_of_share; });
  driver.set<api::cuIpcOpenMemHandle_v2_fn>(Symbol::k_cuIpcOpenMemHandle_v2, [](auto...) { return answer_of_share; });
  driver.set<api::cuMemPoolImportFromShareableHandle_fn>(Symbol::k_cuMemPoolImportFromShareableHandle,
                                                         [](auto...) { return answer_of_share; });
  driver.set<api::cuMemPoolImportPointer_fn>(Symbol::k_cuMemPoolImportPointer, [](auto...) { return answer_of_share; });
  driver.set<api::cuImportExternalMemory_fn>(Symbol::k_cuImportExternalMemory, [](auto...) { return answer_of_share; });
  driver.set<api::cuImportExternalSemaphore_fn>(Symbol::k_cuImportExternalSemaphore,
                                                [](auto...) { return answer_of_share; });
  driver.enter_context(0);
}

}  // namespace

TEST_CASE("a program sees its limit as the GPU's size, and what it has taken as gone from it") {
  for (const Info& row : kInfo) {
    CHECK(holds({.limit = "64M"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      std::size_t free = 0;
      std::size_t total = 0;
      EXPECT(row.call(&free, &total) == api::CUDA_SUCCESS);
      EXPECT(free == 64 * kMiB);
      EXPECT(total == 64 * kMiB);
      api::CUdeviceptr address = 0;
      EXPECT(overrides::cuMemAlloc_v2(&address, 40 * kMiB) == api::CUDA_SUCCESS);
      EXPECT(row.call(&free, &total) == api::CUDA_SUCCESS);
      EXPECT(free == 24 * kMiB);
      EXPECT(total == 64 * kMiB);
    }));
  }
}

TEST_CASE("the GPU's size is the limit for cuDeviceTotalMem, which needs no context, and its own without one") {
  for (const Total& row : kTotal) {
    for (const bool limited : {true, false}) {
      CHECK(holds({.limit = limited ? "64M" : ""}, [&](FakeDriver& driver) {
        now_testing(name_of(row.symbol));
        install(driver);
        driver.leave_context();
        std::size_t total = 0;
        EXPECT(row.call(&total) == api::CUDA_SUCCESS);
        EXPECT(total == (limited ? 64 * kMiB : driver.device_bytes));
      }));
    }
  }
}

TEST_CASE("a program that asks for one of the two numbers gets the same as with both") {
  for (const Info& row : kInfo) {
    CHECK(holds({.limit = "64M"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      api::CUdeviceptr address = 0;
      EXPECT(overrides::cuMemAlloc_v2(&address, 40 * kMiB) == api::CUDA_SUCCESS);
      std::size_t free = 0;
      std::size_t total = 0;
      EXPECT(row.call(&free, nullptr) == api::CUDA_SUCCESS);
      EXPECT(free == 24 * kMiB);
      EXPECT(row.call(nullptr, &total) == api::CUDA_SUCCESS);
      EXPECT(total == 64 * kMiB);
      EXPECT(row.call(nullptr, nullptr) == api::CUDA_SUCCESS);
    }));
  }
}

TEST_CASE("a GPU larger than 32 bits can say is as large as they can say to the oldest form") {
  for (const Info& row : kInfo) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      driver.device_bytes = std::uint64_t{80} << 30;
      std::size_t free = 0;
      std::size_t total = 0;
      EXPECT(row.call(&free, &total) == api::CUDA_SUCCESS);
      EXPECT(free == std::min(driver.device_bytes, row.most));
      EXPECT(total == std::min(driver.device_bytes, row.most));
    }));
  }
}

TEST_CASE("without a context the driver's own answer stands") {
  for (const Info& row : kInfo) {
    CHECK(holds({.limit = "64M"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      driver.leave_context();
      std::size_t free = 0;
      std::size_t total = 0;
      EXPECT(row.call(&free, &total) == api::CUDA_SUCCESS);
      EXPECT(total == driver.device_bytes);
    }));
  }
}

TEST_CASE("a handle for another process marks this one once the driver has given it, and a refusal does not") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install_sharing(driver);
    api::CUdeviceptr address = 0;
    EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
    api::CUipcMemHandle handle{};
    answer_of_share = api::CUDA_ERROR_INVALID_VALUE;
    EXPECT(kSharing.front().call(&handle, address) == api::CUDA_ERROR_INVALID_VALUE);
    EXPECT(!runtime().unevictable());
    answer_of_share = api::CUDA_SUCCESS;
    EXPECT(kSharing.front().call(&handle, address) == api::CUDA_SUCCESS);
    EXPECT(runtime().unevictable());
    EXPECT(runtime().monitor.shared() == protocol::kSharesOwn);
    EXPECT(live_bytes() == kMiB);
  }));
}

TEST_CASE(
    "a program that has handed out an event or opened what others share may have to run concurrently with them, and "
    "its memory can be evicted") {
  for (const Opening& row : kOpening) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install_sharing(driver);
      answer_of_share = api::CUDA_ERROR_INVALID_VALUE;
      EXPECT(row.call() == api::CUDA_ERROR_INVALID_VALUE);
      EXPECT(!runtime().monitor.shared());
      answer_of_share = api::CUDA_SUCCESS;
      EXPECT(row.call() == api::CUDA_SUCCESS);
      const bool exports = row.symbol == Symbol::k_cuIpcGetEventHandle;
      EXPECT(runtime().monitor.shared() == (exports ? protocol::kSharesOwn : protocol::kSharesOfOthers));
      EXPECT(!runtime().unevictable());
    }));
  }
}

TEST_CASE("a program whose converted memory cannot be shared gets native memory from then on, and no other does") {
  CHECK(holds({.memory = "managed"}, [](FakeDriver& driver) {
    install_sharing(driver);
    answer_of_share = api::CUDA_ERROR_INVALID_VALUE;
    api::CUdeviceptr address = 0;
    EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
    api::CUipcMemHandle handle{};
    // Memory that is not rota's would be refused without rota as well.
    EXPECT(kSharing.front().call(&handle, 0x1234) == api::CUDA_ERROR_INVALID_VALUE);
    EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
    EXPECT(driver.managed_allocations == 2);
    EXPECT(kSharing.front().call(&handle, address + 5) == api::CUDA_ERROR_INVALID_VALUE);
    EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
    EXPECT(driver.managed_allocations == 2);
    EXPECT(runtime().ledger.find(address)->kind == memory::Kind::kPlain);
    EXPECT(!runtime().unevictable());
  }));
}
