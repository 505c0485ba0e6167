// cuMemPoolSetAccess: memory of a pool can be used from the GPUs that the pool names and from no others, whether the
// driver or rota serves it and wherever it has been meanwhile.
#include <catch2/catch.hpp>

#include <set>

#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

constexpr const char* kCode = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry _Z4fillPjmj() { ret; }\n";

constexpr auto kFull = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
constexpr auto kNone = CU_MEM_ACCESS_FLAGS_PROT_NONE;
constexpr std::uint64_t kBytes = 4 * kMiB;  // a span of its own on a GPU of this size

// A pool of GPU 0, and a context and a kernel on each of the two GPUs.
struct Pooled {
  Pooled() : other(enter(1)), own(enter(0)) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    EXPECT_OK(cu.cuMemPoolCreate(&pool, &properties));
    EXPECT_OK(cu.cuCtxSetCurrent(other));
    CUmodule code = nullptr;
    EXPECT_OK(cu.cuModuleLoadData(&code, kCode));
    EXPECT_OK(cu.cuModuleGetFunction(&fill, code, "_Z4fillPjmj"));
    EXPECT_OK(cu.cuCtxSetCurrent(own));
  }
  CUdeviceptr take(CUmemoryPool from = nullptr) const {
    CUdeviceptr address = 0;
    EXPECT_OK(cu.cuMemAllocFromPoolAsync(&address, kBytes, from != nullptr ? from : pool, nullptr));
    EXPECT_OK(cu.cuMemsetD8_v2(address, 3, kBytes));
    EXPECT_OK(cu.cuCtxSynchronize());
    return address;
  }
  void set_access(CUmemAccess_flags flags) const {
    const CUmemAccessDesc wanted = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}, .flags = flags};
    EXPECT_OK(cu.cuMemPoolSetAccess(pool, &wanted, 1));
    CUmemLocation where = wanted.location;
    CUmemAccess_flags now = CU_MEM_ACCESS_FLAGS_PROT_MAX;
    EXPECT_OK(cu.cuMemPoolGetAccess(&now, pool, &where));
    EXPECT(now == flags);
  }
  // A kernel and a copy on GPU 1.
  void expect_used_from_there(CUdeviceptr address) const {
    EXPECT_OK(cu.cuCtxSetCurrent(other));
    unsigned long count = 64;
    unsigned value = 9;
    void* arguments[] = {&address, &count, &value};
    EXPECT_OK(cu.cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr));
    EXPECT_OK(cu.cuCtxSynchronize());
    unsigned words[64] = {};
    EXPECT_OK(cu.cuMemcpyDtoH_v2(words, address, sizeof words));
    EXPECT(words[63] == 9);
    EXPECT_OK(cu.cuCtxSetCurrent(own));
  }
  // Without an error that would end the context, as a kernel's.
  CUresult set_there(CUdeviceptr address) const {
    EXPECT_OK(cu.cuCtxSetCurrent(other));
    const CUresult result = cu.cuMemsetD8_v2(address, 5, 16);
    EXPECT_OK(cu.cuCtxSynchronize());
    EXPECT_OK(cu.cuCtxSetCurrent(own));
    return result;
  }
  // Every GPU may use managed memory; only the advice changes.
  void expect_not_used_from_there(CUdeviceptr address) const {
    if (mode() == Mode::kManaged) {
      EXPECT(advised(address).empty());
    } else {
      EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, set_there(address));
    }
  }
  static std::set<int> advised(CUdeviceptr address) {
    CUdevice devices[4] = {};
    EXPECT_OK(cu.cuMemRangeGetAttribute(devices, sizeof devices, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, address, kBytes));
    std::set<int> set(std::begin(devices), std::end(devices));
    set.erase(-2);  // CU_DEVICE_INVALID: none
    return set;
  }
  void expect_access(CUdeviceptr address) const {
    expect_used_from_there(address);
    if (mode() == Mode::kManaged) EXPECT(advised(address) == std::set<int>{1});
  }

  CUcontext other;
  CUcontext own;
  CUmemoryPool pool = nullptr;
  CUfunction fill = nullptr;
};

void in_mode(Mode mode, const std::function<void()>& program) {
  const std::string report = on_simgpu({.mode = mode, .limit = "", .replace = failing, .neighbour = {}}, [&] {
    alarm(kPatience);
    if (mode == Mode::kSwap) swap().host().set_left([] { return std::uint64_t{1} << 40; });
    program();
  });
  INFO(name_of(mode));
  CHECK(report == "");
}

void out_and_in(const Pooled& pooled) {
  if (mode() != Mode::kSwap) return;
  Carrier carrier(pooled.own);
  const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
  EXPECT(moved.bytes + moved.without_copy >= kBytes);
  EXPECT(!swap().restore(0, carrier.mover()).failed);
  EXPECT(swap().all_in_place());
}

}  // namespace

TEST_CASE("a pool's memory is used from the GPUs that have access to the pool, earlier memory and later") {
  for (const Mode mode : {Mode::kBare, Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    in_mode(mode, [] {
      const Pooled pooled;
      const CUdeviceptr earlier = pooled.take();
      pooled.expect_not_used_from_there(earlier);
      pooled.set_access(kFull);
      const CUdeviceptr later = pooled.take();
      for (int round = 0; round < 2; ++round) {
        for (const CUdeviceptr address : {earlier, later}) {
          pooled.expect_access(address);
          expect_pattern(address + kMiB, kMiB, 3, "beside what the kernel wrote");
        }
        out_and_in(pooled);
      }
      pooled.set_access(kNone);
      const CUdeviceptr last = pooled.take();
      for (int round = 0; round < 2; ++round) {
        for (const CUdeviceptr address : {earlier, later, last}) pooled.expect_not_used_from_there(address);
        out_and_in(pooled);
      }
      for (const CUdeviceptr address : {earlier, later, last}) EXPECT_OK(cu.cuMemFree_v2(address));
      EXPECT_EMPTY_BOOKS();
    });
  }
}

TEST_CASE("access that a pool has before it has given anything holds for what it gives") {
  for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    in_mode(mode, [] {
      const Pooled pooled;
      pooled.set_access(kFull);
      pooled.expect_access(pooled.take());
    });
  }
}

TEST_CASE("access to one pool is none to another that takes its memory over, nor to plain memory") {
  for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    in_mode(mode, [] {
      Pooled pooled;
      pooled.set_access(kFull);
      EXPECT_OK(cu.cuMemFree_v2(pooled.take()));
      EXPECT_OK(cu.cuMemPoolDestroy(pooled.pool));
      if (Mode::kNative != test::mode()) runtime().memory.collect_deferred();
      pooled.pool = nullptr;
      CUmemoryPool standard = nullptr;
      EXPECT_OK(cu.cuDeviceGetDefaultMemPool(&standard, 0));
      pooled.expect_not_used_from_there(pooled.take(standard));
      CUdeviceptr plain = 0;
      EXPECT_OK(cu.cuMemAlloc_v2(&plain, kBytes));
      pooled.expect_not_used_from_there(plain);
    });
  }
}

TEST_CASE("peer access reaches plain memory and no pool's, also where one is served from what the other has left") {
  in_mode(Mode::kSwap, [] {
    const Pooled pooled;
    EXPECT_OK(cu.cuCtxSetCurrent(pooled.other));
    EXPECT_OK(cu.cuCtxEnablePeerAccess(pooled.own, 0));
    EXPECT_OK(cu.cuCtxSetCurrent(pooled.own));
    CUdeviceptr plain = allocate(kBytes, 1);
    EXPECT_OK(pooled.set_there(plain));
    EXPECT_OK(cu.cuMemFree_v2(plain));  // cached
    const CUdeviceptr block = pooled.take();
    pooled.expect_not_used_from_there(block);
    out_and_in(pooled);
    pooled.expect_not_used_from_there(block);
    EXPECT_OK(cu.cuMemFree_v2(block));
    EXPECT_OK(cu.cuMemPoolTrimTo(pooled.pool, 0));
    runtime().memory.collect_deferred();
    plain = allocate(kBytes, 1);
    EXPECT_OK(pooled.set_there(plain));
    out_and_in(pooled);
    EXPECT_OK(pooled.set_there(plain));
  });
}

TEST_CASE("memory that is restored next to other memory keeps its own access") {
  in_mode(Mode::kSwap, [] {
    const Pooled pooled;
    pooled.set_access(kFull);
    std::vector<CUdeviceptr> plain;
    std::vector<CUdeviceptr> of_pool;
    for (int number = 0; number < 3; ++number) {
      plain.push_back(allocate(kBytes, 1));
      of_pool.push_back(pooled.take());
    }
    out_and_in(pooled);
    for (const CUdeviceptr address : plain) pooled.expect_not_used_from_there(address);
    for (const CUdeviceptr address : of_pool) pooled.expect_access(address);
  });
}

TEST_CASE("access that is granted or withdrawn while memory is restored holds for it as for the rest") {
  for (const bool gives : {true, false}) {
    in_mode(Mode::kSwap, [gives] {
      const Pooled pooled;
      pooled.set_access(gives ? kNone : kFull);
      const CUdeviceptr first = pooled.take();
      const CUdeviceptr second = pooled.take();
      Carrier carrier(pooled.own);
      swap().evict(0, kAll, carrier.mover());
      // Between an extent's access and its entry as mapped; past the gate, which would wait.
      bool changed = false;
      before = [&](Symbol symbol) {
        if (symbol != Symbol::k_cuMemcpyHtoDAsync_v2 || std::exchange(changed, true)) return;
        const CUmemAccessDesc wanted = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                        .flags = gives ? kFull : kNone};
        runtime().memory.set_pool_access(pooled.pool, &wanted, 1);
      };
      EXPECT(!swap().restore(0, carrier.mover()).failed);
      before = [](Symbol) {};
      EXPECT(changed);
      for (const CUdeviceptr address : {first, second}) {
        EXPECT_RESULT(gives ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, pooled.set_there(address));
      }
    });
  }
}

TEST_CASE("peer access that is enabled while memory is restored holds for it as for the rest") {
  in_mode(Mode::kSwap, [] {
    const Pooled pooled;
    const CUdeviceptr first = allocate(kBytes, 1);
    const CUdeviceptr second = allocate(kBytes, 2);
    Carrier carrier(pooled.own);
    swap().evict(0, kAll, carrier.mover());
    bool changed = false;
    before = [&](Symbol symbol) {
      if (symbol != Symbol::k_cuMemcpyHtoDAsync_v2 || std::exchange(changed, true)) return;
      swap().set_peer(1, 0, true);
    };
    EXPECT(!swap().restore(0, carrier.mover()).failed);
    before = [](Symbol) {};
    EXPECT_OK(pooled.set_there(first));
    EXPECT_OK(pooled.set_there(second));
  });
}

TEST_CASE("peer access that is given back, or ends with a context, ends for memory of all ages, wherever it has been") {
  for (const Mode mode : {Mode::kBare, Mode::kNative, Mode::kSwap}) {
    for (const char* ends : {"it is given back", "its context ends", "the owner's context ends"}) {
      in_mode(mode, [ends] {
        const Pooled pooled;
        // Memory of a context that stays; peer access is to that of one that need not.
        const bool owner_ends = std::strcmp(ends, "the owner's context ends") == 0;
        CUcontext owner = pooled.own;
        if (owner_ends) EXPECT_OK(cu.cuCtxCreate_v2(&owner, 0, 0));
        EXPECT_OK(cu.cuCtxSetCurrent(pooled.own));
        const CUdeviceptr earlier = allocate(kBytes, 1);
        CUcontext accessing = pooled.other;
        if (std::strcmp(ends, "its context ends") == 0) EXPECT_OK(cu.cuCtxCreate_v2(&accessing, 0, 1));
        EXPECT_OK(cu.cuCtxSetCurrent(accessing));
        EXPECT_OK(cu.cuCtxEnablePeerAccess(owner, 0));
        if (accessing == pooled.other && !owner_ends) EXPECT_OK(pooled.set_there(earlier));
        EXPECT_OK(cu.cuCtxSetCurrent(accessing));
        if (owner_ends) {
          EXPECT_OK(cu.cuCtxDestroy_v2(owner));
        } else if (accessing != pooled.other) {
          EXPECT_OK(cu.cuCtxDestroy_v2(accessing));
        } else {
          EXPECT_OK(cu.cuCtxDisablePeerAccess(owner));
        }
        EXPECT_OK(cu.cuCtxSetCurrent(pooled.own));
        const CUdeviceptr later = allocate(kBytes, 2);
        for (int round = 0; round < 2; ++round) {
          for (const CUdeviceptr address : {earlier, later}) pooled.expect_not_used_from_there(address);
          out_and_in(pooled);
        }
        // And can be given anew.
        EXPECT_OK(cu.cuCtxSetCurrent(pooled.other));
        EXPECT_OK(cu.cuCtxEnablePeerAccess(pooled.own, 0));
        for (const CUdeviceptr address : {earlier, later}) EXPECT_OK(pooled.set_there(address));
      });
    }
  }
}

TEST_CASE("extents stay mapped for a GPU as long as one of its contexts has peer access") {
  in_mode(Mode::kSwap, [] {
    const Pooled pooled;
    const CUdeviceptr memory = allocate(kBytes, 1);
    CUcontext second = nullptr;
    EXPECT_OK(cu.cuCtxCreate_v2(&second, 0, 1));
    for (const CUcontext context : {second, pooled.other}) {
      EXPECT_OK(cu.cuCtxSetCurrent(context));
      EXPECT_OK(cu.cuCtxEnablePeerAccess(pooled.own, 0));
    }
    EXPECT_OK(cu.cuCtxSetCurrent(second));
    EXPECT_OK(cu.cuCtxDisablePeerAccess(pooled.own));
    EXPECT_OK(pooled.set_there(memory));
    out_and_in(pooled);
    EXPECT_OK(pooled.set_there(memory));
    EXPECT_OK(cu.cuCtxSetCurrent(pooled.other));
    EXPECT_OK(cu.cuCtxDisablePeerAccess(pooled.own));
    pooled.expect_not_used_from_there(memory);
  });
}
