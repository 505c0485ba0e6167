// Overrides that take memory and give it back: what is charged to whom, when the limit refuses before the driver is
// asked, and that only the driver's success changes the ledger. (physical_test.cpp has the mappings of cuMemCreate's
// memory, passing_test.cpp refused allocations and null pointers.)
#include <catch2/catch.hpp>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;
using memory::Kind;
using memory::Owner;

namespace {

const auto kStream = reinterpret_cast<api::CUstream>(0x5000);
const auto kPool = reinterpret_cast<api::CUmemoryPool>(0x9000);

// The driver's answer to whatever gives memory back.
CUresult answer_of_free = api::CUDA_SUCCESS;
int frees = 0;
api::CUcontext context_of_stream = nullptr;

CUresult give(auto* address, std::uint64_t bytes) {
  api::CUdeviceptr given = 0;
  const CUresult result = FakeDriver::the().give_memory(&given, bytes);
  *address = static_cast<std::remove_pointer_t<decltype(address)>>(given);
  return result;
}

template <typename Handle>
CUresult give_handle(Handle* handle) {
  FakeDriver& driver = FakeDriver::the();
  driver.allocation_calls.fetch_add(1);
  if constexpr (std::is_pointer_v<Handle>) {
    *handle = reinterpret_cast<Handle>(driver.next_handle += 16);
  } else {
    *handle = driver.next_handle += 16;
  }
  return api::CUDA_SUCCESS;
}

// The driver's side of every row for which the fake driver has none.
void install(FakeDriver& driver) {
  driver.next_address = 0x10000000;  // so that the oldest forms can carry one
#define FREES(name)                                          \
  driver.set<api::name##_fn>(Symbol::k_##name, [](auto...) { \
    ++frees;                                                 \
    return answer_of_free;                                   \
  });
  FREES(cuMemFree)
  FREES(cuMemFreeAsync)
  FREES(cuMemFreeAsync_ptsz)
  FREES(cuArrayDestroy)
  FREES(cuMipmappedArrayDestroy)
  FREES(cuMemRelease)
#undef FREES
  driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](api::CUdeviceptr address) {
    if (address == 0) return api::CUDA_SUCCESS;  // only asks whether frees are refused
    ++frees;
    return answer_of_free;
  });
#define GIVES_HANDLE(name) \
  driver.set<api::name##_fn>(Symbol::k_##name, [](auto* handle, auto...) { return give_handle(handle); });
  GIVES_HANDLE(cuArrayCreate)
  GIVES_HANDLE(cuArrayCreate_v2)
  GIVES_HANDLE(cuArray3DCreate)
  GIVES_HANDLE(cuArray3DCreate_v2)
  GIVES_HANDLE(cuMipmappedArrayCreate)
  GIVES_HANDLE(cuMemCreate)
#undef GIVES_HANDLE
#define GIVES_MEMORY(name) \
  driver.set<api::name##_fn>(Symbol::k_##name, [](auto* address, auto bytes, auto...) { return give(address, bytes); });
  GIVES_MEMORY(cuMemAlloc)
  GIVES_MEMORY(cuMemAllocAsync)
  GIVES_MEMORY(cuMemAllocAsync_ptsz)
  GIVES_MEMORY(cuMemAllocFromPoolAsync)
  GIVES_MEMORY(cuMemAllocFromPoolAsync_ptsz)
#undef GIVES_MEMORY
  driver.set<api::cuMemAllocPitch_fn>(Symbol::k_cuMemAllocPitch, [](api::CUdeviceptr_v1* address, unsigned* pitch,
                                                                    unsigned width, unsigned height, unsigned) {
    *pitch = (width + 511) / 512 * 512;
    return give(address, std::uint64_t{*pitch} * height);
  });
  const auto of_stream = [](api::CUstream, api::CUcontext* context) {
    *context = context_of_stream;
    return api::CUDA_SUCCESS;
  };
  driver.set<api::cuStreamGetCtx_fn>(Symbol::k_cuStreamGetCtx, of_stream);
  driver.set<api::cuStreamGetCtx_ptsz_fn>(Symbol::k_cuStreamGetCtx_ptsz, of_stream);
  driver.set<api::cuStreamIsCapturing_ptsz_fn>(Symbol::k_cuStreamIsCapturing_ptsz,
                                               [](api::CUstream, api::CUstreamCaptureStatus* status) {
                                                 *status = api::CU_STREAM_CAPTURE_STATUS_NONE;
                                                 return api::CUDA_SUCCESS;
                                               });
}

enum class Lives { kWithContext, kWithPool, kWithHandle };

struct Allocating {
  Symbol symbol;
  CUresult (*call)(std::uint64_t& given);  // an address or a handle
  std::uint64_t bytes;                     // that it takes
  Kind kind;
  Lives lives = Lives::kWithContext;
};

template <typename Address = api::CUdeviceptr, typename Call>
CUresult address_of(std::uint64_t& given, Call&& call) {
  Address address = 0;
  const CUresult result = call(&address);
  given = address;
  return result;
}

template <typename Handle, typename Call>
CUresult handle_of(std::uint64_t& given, Call&& call) {
  Handle handle = nullptr;
  const CUresult result = call(&handle);
  if (handle != nullptr) given = reinterpret_cast<std::uintptr_t>(handle) | memory::kHandleBit;
  return result;
}

constexpr api::CUDA_ARRAY_DESCRIPTOR_v1 kFlatV1{1024, 512, api::CU_AD_FORMAT_FLOAT, 1};
constexpr api::CUDA_ARRAY_DESCRIPTOR kFlat{1024, 512, api::CU_AD_FORMAT_FLOAT, 1};
constexpr api::CUDA_ARRAY3D_DESCRIPTOR_v1 kDeepV1{128, 64, 32, api::CU_AD_FORMAT_FLOAT, 2, 0};
constexpr api::CUDA_ARRAY3D_DESCRIPTOR kDeep{128, 64, 32, api::CU_AD_FORMAT_FLOAT, 2, 0};
constexpr api::CUDA_ARRAY3D_DESCRIPTOR kLevels{1024, 1024, 0, api::CU_AD_FORMAT_FLOAT, 1, 0};

CUresult create(std::uint64_t& handle, int device, std::uint64_t bytes) {
  api::CUmemAllocationProp what{};
  what.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  api::CUmemGenericAllocationHandle made = 0;
  const CUresult result = overrides::cuMemCreate(&made, bytes, &what, 0);
  handle = made;
  return result;
}

// Each in a context of GPU 1.
// clang-format off
const Table<Allocating> kAllocating = {
    {Symbol::k_cuMemAlloc, [](auto& given) { return address_of<api::CUdeviceptr_v1>(given, [](auto* to) { return overrides::cuMemAlloc(to, 1000000); }); }, 1000000, Kind::kPlain},
    {Symbol::k_cuMemAlloc_v2, [](auto& given) { return address_of(given, [](auto* to) { return overrides::cuMemAlloc_v2(to, 1000000); }); }, 1000000, Kind::kPlain},
    {Symbol::k_cuMemAllocPitch, [](auto& given) { return address_of<api::CUdeviceptr_v1>(given, [](auto* to) { unsigned pitch = 0; return overrides::cuMemAllocPitch(to, &pitch, 1000, 1000, 4); }); }, 1024 * 1000, Kind::kPlain},
    {Symbol::k_cuMemAllocPitch_v2, [](auto& given) { return address_of(given, [](auto* to) { std::size_t pitch = 0; return overrides::cuMemAllocPitch_v2(to, &pitch, 1000, 1000, 4); }); }, 1024 * 1000, Kind::kPlain},
    {Symbol::k_cuMemAllocManaged, [](auto& given) { return address_of(given, [](auto* to) { return overrides::cuMemAllocManaged(to, 1000000, api::CU_MEM_ATTACH_GLOBAL); }); }, 1000000, Kind::kManaged},
    {Symbol::k_cuMemAllocAsync, [](auto& given) { return address_of(given, [](auto* to) { return overrides::cuMemAllocAsync(to, 1000000, kStream); }); }, 1000000, Kind::kAsync, Lives::kWithPool},
    {Symbol::k_cuMemAllocAsync_ptsz, [](auto& given) { return address_of(given, [](auto* to) { return overrides::cuMemAllocAsync_ptsz(to, 1000000, kStream); }); }, 1000000, Kind::kAsync, Lives::kWithPool},
    {Symbol::k_cuMemAllocFromPoolAsync, [](auto& given) { return address_of(given, [](auto* to) { return overrides::cuMemAllocFromPoolAsync(to, 1000000, kPool, kStream); }); }, 1000000, Kind::kAsync, Lives::kWithPool},
    {Symbol::k_cuMemAllocFromPoolAsync_ptsz, [](auto& given) { return address_of(given, [](auto* to) { return overrides::cuMemAllocFromPoolAsync_ptsz(to, 1000000, kPool, kStream); }); }, 1000000, Kind::kAsync, Lives::kWithPool},
    {Symbol::k_cuMemCreate, [](auto& given) { return create(given, 1, 2 * kMiB); }, 2 * kMiB, Kind::kPhysical, Lives::kWithHandle},
    {Symbol::k_cuArrayCreate, [](auto& given) { return handle_of<api::CUarray>(given, [](auto* to) { return overrides::cuArrayCreate(to, &kFlatV1); }); }, 1024 * 512 * 4, Kind::kArray},
    {Symbol::k_cuArrayCreate_v2, [](auto& given) { return handle_of<api::CUarray>(given, [](auto* to) { return overrides::cuArrayCreate_v2(to, &kFlat); }); }, 1024 * 512 * 4, Kind::kArray},
    {Symbol::k_cuArray3DCreate, [](auto& given) { return handle_of<api::CUarray>(given, [](auto* to) { return overrides::cuArray3DCreate(to, &kDeepV1); }); }, 128 * 64 * 32 * 8, Kind::kArray},
    {Symbol::k_cuArray3DCreate_v2, [](auto& given) { return handle_of<api::CUarray>(given, [](auto* to) { return overrides::cuArray3DCreate_v2(to, &kDeep); }); }, 128 * 64 * 32 * 8, Kind::kArray},
    {Symbol::k_cuMipmappedArrayCreate, [](auto& given) { return handle_of<api::CUmipmappedArray>(given, [](auto* to) { return overrides::cuMipmappedArrayCreate(to, &kLevels, 3); }); }, 4 * (1024 * 1024 + 512 * 512 + 256 * 256), Kind::kArray},
};

struct Freeing {
  Symbol symbol;
  Symbol of;  // the row above whose memory it takes
  CUresult (*call)(std::uint64_t given);
};

template <typename Handle>
Handle handle(std::uint64_t given) {
  return reinterpret_cast<Handle>(given & ~memory::kHandleBit);
}

// Memory may be freed by another function than the one that matches its allocation.
const Table<Freeing> kFreeing = {
    {Symbol::k_cuMemFree, Symbol::k_cuMemAlloc, [](auto given) { return overrides::cuMemFree(static_cast<api::CUdeviceptr_v1>(given)); }},
    {Symbol::k_cuMemFree_v2, Symbol::k_cuMemAlloc_v2, [](auto given) { return overrides::cuMemFree_v2(given); }},
    {Symbol::k_cuMemFree_v2, Symbol::k_cuMemAllocManaged, [](auto given) { return overrides::cuMemFree_v2(given); }},
    {Symbol::k_cuMemFree_v2, Symbol::k_cuMemAllocPitch_v2, [](auto given) { return overrides::cuMemFree_v2(given); }},
    {Symbol::k_cuMemFree_v2, Symbol::k_cuMemAllocAsync, [](auto given) { return overrides::cuMemFree_v2(given); }},
    {Symbol::k_cuMemFreeAsync, Symbol::k_cuMemAllocAsync, [](auto given) { return overrides::cuMemFreeAsync(given, kStream); }},
    {Symbol::k_cuMemFreeAsync, Symbol::k_cuMemAlloc_v2, [](auto given) { return overrides::cuMemFreeAsync(given, kStream); }},
    {Symbol::k_cuMemFreeAsync_ptsz, Symbol::k_cuMemAllocFromPoolAsync_ptsz, [](auto given) { return overrides::cuMemFreeAsync_ptsz(given, kStream); }},
    {Symbol::k_cuArrayDestroy, Symbol::k_cuArrayCreate_v2, [](auto given) { return overrides::cuArrayDestroy(handle<api::CUarray>(given)); }},
    {Symbol::k_cuMipmappedArrayDestroy, Symbol::k_cuMipmappedArrayCreate, [](auto given) { return overrides::cuMipmappedArrayDestroy(handle<api::CUmipmappedArray>(given)); }},
    {Symbol::k_cuMemRelease, Symbol::k_cuMemCreate, [](auto given) { return overrides::cuMemRelease(given); }},
};
// clang-format on

const Allocating& row_of(Symbol symbol) {
  for (const Allocating& row : kAllocating) {
    if (row.symbol == symbol) return row;
  }
  std::abort();
}

std::uint64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT(overrides::cuMemGetInfo_v2(&free, &total) == api::CUDA_SUCCESS);
  return free;
}

// As long as what it stands for is alive.
bool in_ledger(std::uint64_t given, const Allocating& row) {
  return row.lives == Lives::kWithHandle || runtime().ledger.find(given).has_value();
}

}  // namespace

TEST_CASE("what every allocation takes is charged once, to its GPU, and belongs to its context, pool or handle") {
  for (const Allocating& row : kAllocating) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      const api::CUcontext context = context_of_stream = driver.enter_context(1);
      std::uint64_t given = 0;
      EXPECT(row.call(given) == api::CUDA_SUCCESS);
      EXPECT(given != 0);
      EXPECT(driver.allocation_calls == 1);
      EXPECT(runtime().ledger.live_bytes(1) == row.bytes);
      EXPECT(live_bytes() == row.bytes);
      const bool stays_on_gpu = row.kind.backing == memory::Backing::kDevice;
      EXPECT(runtime().ledger.fixed_bytes(1) == (stays_on_gpu ? row.bytes : 0));
      EXPECT(free_bytes() == driver.device_bytes - row.bytes);
      if (row.lives != Lives::kWithHandle) {
        const auto entry = runtime().ledger.find(given);
        EXPECT(entry && entry->address == given && entry->bytes == row.bytes && entry->kind == row.kind);
        EXPECT(entry && entry->device == 1);
        EXPECT(entry && (row.lives == Lives::kWithContext ? entry->owner == Owner::of(context)
                                                          : entry->owner.kind == Owner::Kind::kPool));
      }
      // A second allocation at the same time has its own entry.
      std::uint64_t other = 0;
      EXPECT(row.call(other) == api::CUDA_SUCCESS);
      EXPECT(runtime().ledger.live_bytes(1) == 2 * row.bytes);
      // Memory of a context ends with it, and nothing else does.
      driver.set<api::cuCtxDestroy_v2_fn>(Symbol::k_cuCtxDestroy_v2, [](auto...) { return api::CUDA_SUCCESS; });
      EXPECT(overrides::cuCtxDestroy_v2(context) == api::CUDA_SUCCESS);
      EXPECT(live_bytes() == (row.lives == Lives::kWithContext ? 0 : 2 * row.bytes));
    }));
  }
}

TEST_CASE("every allocation beyond the limit is refused before the driver is asked, and one that fits is not") {
  for (const Allocating& row : kAllocating) {
    const std::string limit = std::to_string(2 * row.bytes - 1);
    CHECK(holds({.limit = limit.c_str()}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      context_of_stream = driver.enter_context(1);
      std::uint64_t given = 0;
      EXPECT(row.call(given) == api::CUDA_SUCCESS);
      std::uint64_t refused = 0;
      EXPECT(row.call(refused) == api::CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT(refused == 0);
      EXPECT(driver.allocation_calls == 1);
      EXPECT(live_bytes() == row.bytes);
      EXPECT(in_ledger(given, row));
    }));
    const std::string enough = std::to_string(2 * row.bytes);
    CHECK(holds({.limit = enough.c_str()}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      context_of_stream = driver.enter_context(1);
      std::uint64_t given = 0;
      EXPECT(row.call(given) == api::CUDA_SUCCESS);
      EXPECT(row.call(given) == api::CUDA_SUCCESS);
    }));
  }
}

TEST_CASE("every free that the driver refuses leaves the memory live, and one that succeeds gives its bytes back") {
  for (const Freeing& row : kFreeing) {
    const Allocating& source = row_of(row.of);
    const std::string limit = std::to_string(source.bytes);
    CHECK(holds({.limit = limit.c_str()}, [&](FakeDriver& driver) {
      now_testing(std::string(name_of(row.symbol)) + " of " + name_of(row.of));
      install(driver);
      context_of_stream = driver.enter_context(1);
      std::uint64_t given = 0;
      EXPECT(source.call(given) == api::CUDA_SUCCESS);
      answer_of_free = api::CUDA_ERROR_ILLEGAL_ADDRESS;
      EXPECT(row.call(given) == api::CUDA_ERROR_ILLEGAL_ADDRESS);
      EXPECT(live_bytes() == source.bytes);
      EXPECT(in_ledger(given, source));
      if (const auto entry = runtime().ledger.find(given)) EXPECT(!entry->freeing);
      std::uint64_t refused = 0;
      EXPECT(source.call(refused) == api::CUDA_ERROR_OUT_OF_MEMORY);
      answer_of_free = api::CUDA_SUCCESS;
      EXPECT(row.call(given) == api::CUDA_SUCCESS);
      EXPECT(frees == 2);
      EXPECT(live_bytes() == 0);
      EXPECT(runtime().ledger.entries() == 0);
      EXPECT(source.call(given) == api::CUDA_SUCCESS);
      // Only the driver decides about freeing memory that does not exist.
      answer_of_free = api::CUDA_ERROR_INVALID_VALUE;
      EXPECT(row.call(0x4440) == api::CUDA_ERROR_INVALID_VALUE);
      EXPECT(live_bytes() == source.bytes);
    }));
  }
}

TEST_CASE("converted memory has the kind and the pitch that the managed backend gives it, and its error is handed on") {
  CHECK(holds({.memory = "managed"}, [](FakeDriver& driver) {
    driver.enter_context(0);
    api::CUdeviceptr plain = 0;
    EXPECT(overrides::cuMemAlloc_v2(&plain, kMiB) == api::CUDA_SUCCESS);
    api::CUdeviceptr pitched = 0;
    std::size_t pitch = 0;
    EXPECT(overrides::cuMemAllocPitch_v2(&pitched, &pitch, 1000, 2000, 4) == api::CUDA_SUCCESS);
    EXPECT(pitch == 1024);
    EXPECT(driver.managed_allocations == 2);
    for (const auto address : {plain, pitched}) EXPECT(runtime().ledger.find(address)->kind == Kind::kConverted);
    EXPECT(runtime().ledger.live_bytes(0) == kMiB + 1024 * 2000);
    EXPECT(runtime().ledger.fixed_bytes(0) == 0);
    driver.set<api::cuMemAllocManaged_fn>(Symbol::k_cuMemAllocManaged,
                                          [](auto...) { return api::CUDA_ERROR_ILLEGAL_ADDRESS; });
    api::CUdeviceptr none = 0;
    std::size_t no_pitch = 0;
    EXPECT(overrides::cuMemAlloc_v2(&none, kMiB) == api::CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(overrides::cuMemAllocPitch_v2(&none, &no_pitch, 1000, 2000, 4) == api::CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(no_pitch == 0);
    EXPECT(runtime().ledger.live_bytes(0) == kMiB + 1024 * 2000);
  }));
}

TEST_CASE("converted memory freed in stream order waits for an event in that form's stream, and not for the driver") {
  CHECK(holds({.memory = "managed"}, [](FakeDriver& driver) {
    install(driver);
    context_of_stream = driver.enter_context(0);
    static std::vector<std::pair<std::string, api::CUstream>> recorded;
    driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, [](api::CUevent, api::CUstream stream) {
      recorded.emplace_back("cuEventRecord", stream);
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuEventRecord_ptsz_fn>(Symbol::k_cuEventRecord_ptsz, [](api::CUevent, api::CUstream stream) {
      recorded.emplace_back("cuEventRecord_ptsz", stream);
      return api::CUDA_SUCCESS;
    });
    api::CUdeviceptr first = 0;
    api::CUdeviceptr second = 0;
    EXPECT(overrides::cuMemAlloc_v2(&first, kMiB) == api::CUDA_SUCCESS);
    EXPECT(overrides::cuMemAlloc_v2(&second, kMiB) == api::CUDA_SUCCESS);
    EXPECT(overrides::cuMemFreeAsync(first, kStream) == api::CUDA_SUCCESS);
    EXPECT(overrides::cuMemFreeAsync_ptsz(second, nullptr) == api::CUDA_SUCCESS);
    EXPECT(frees == 0);
    EXPECT(recorded == decltype(recorded){{"cuEventRecord", kStream}, {"cuEventRecord_ptsz", nullptr}});
    // After a waiting free by the program, they are given to the driver.
    api::CUdeviceptr third = 0;
    EXPECT(overrides::cuMemAllocManaged(&third, kMiB, api::CU_MEM_ATTACH_GLOBAL) == api::CUDA_SUCCESS);
    EXPECT(overrides::cuMemFree_v2(third) == api::CUDA_SUCCESS);
    EXPECT(frees == 3);
    EXPECT(live_bytes() == 0);
  }));
}

TEST_CASE("an array's handle and an address of memory are never taken for each other") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    driver.enter_context(0);
    api::CUarray array = nullptr;
    EXPECT(overrides::cuArrayCreate_v2(&array, &kFlat) == api::CUDA_SUCCESS);
    driver.next_address = reinterpret_cast<std::uintptr_t>(array);
    api::CUdeviceptr address = 0;
    EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
    EXPECT(address == reinterpret_cast<std::uintptr_t>(array));
    EXPECT(overrides::cuArrayDestroy(array) == api::CUDA_SUCCESS);
    EXPECT(live_bytes() == kMiB);
    EXPECT(runtime().ledger.find(address).has_value());
  }));
}

TEST_CASE("a sparse array, and one whose description the driver refuses, take no memory") {
  CHECK(holds({.limit = "1M"}, [](FakeDriver& driver) {
    install(driver);
    driver.enter_context(0);
    constexpr unsigned kSparse = 0x40;  // CUDA_ARRAY3D_SPARSE
    const api::CUDA_ARRAY3D_DESCRIPTOR sparse{4096, 4096, 0, api::CU_AD_FORMAT_FLOAT, 4, kSparse};
    api::CUarray array = nullptr;
    EXPECT(overrides::cuArray3DCreate_v2(&array, &sparse) == api::CUDA_SUCCESS);
    api::CUmipmappedArray levels = nullptr;
    EXPECT(overrides::cuMipmappedArrayCreate(&levels, &sparse, 5) == api::CUDA_SUCCESS);
    EXPECT(live_bytes() == 0);
    EXPECT(overrides::cuArrayDestroy(array) == api::CUDA_SUCCESS);
    EXPECT(overrides::cuMipmappedArrayDestroy(levels) == api::CUDA_SUCCESS);
    EXPECT(live_bytes() == 0);
  }));
}

TEST_CASE("physical memory is charged to the GPU that its description names, and host memory to none") {
  CHECK(holds({.limit = "4M"}, [](FakeDriver& driver) {
    install(driver);
    driver.enter_context(0);
    std::uint64_t handle = 0;
    EXPECT(create(handle, 2, 3 * kMiB) == api::CUDA_SUCCESS);
    EXPECT(runtime().ledger.live_bytes(2) == 3 * kMiB);
    EXPECT(runtime().ledger.live_bytes(0) == 0);
    api::CUmemAllocationProp what{};
    for (const auto type : {api::CU_MEM_LOCATION_TYPE_HOST, api::CU_MEM_LOCATION_TYPE_HOST_NUMA,
                            api::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT}) {
      what.location = {.type = type, .id = 2};
      api::CUmemGenericAllocationHandle of_host = 0;
      EXPECT(overrides::cuMemCreate(&of_host, 64 * kMiB, &what, 0) == api::CUDA_SUCCESS);
      EXPECT(overrides::cuMemRelease(of_host) == api::CUDA_SUCCESS);
    }
    api::CUmemGenericAllocationHandle of_part = 0;
    what.location = {};
    what.location.type = api::CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    what.location.localized.deviceId = 3;
    EXPECT(overrides::cuMemCreate(&of_part, kMiB, &what, 0) == api::CUDA_SUCCESS);
    EXPECT(runtime().ledger.live_bytes(3) == kMiB);
    EXPECT(overrides::cuMemRelease(of_part) == api::CUDA_SUCCESS);
    EXPECT(live_bytes() == 3 * kMiB);
  }));
}
