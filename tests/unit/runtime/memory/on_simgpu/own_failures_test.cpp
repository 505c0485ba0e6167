// Memory that the program creates itself: the driver refuses the program's own calls, also while the memory is evicted.
// Refusals of rota's calls that move it are in refusals_test.cpp.
#include <catch2/catch.hpp>

#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/own_memory.h"

using namespace rota;
using namespace rota::test;

TEST_CASE("what the driver refuses is refused while memory is evicted, too") {
  check([] {
    Carrier carrier(enter(0));
    const Handle handle = create();
    const Handle small = create(2 * kMiB);
    const CUdeviceptr place = reserve(4 * kPiece);
    EXPECT_OK(cu.cuMemMap(place, kPiece, 0, handle, 0));
    const CUdeviceptr nowhere = reserve(kPiece);
    EXPECT_OK(cu.cuMemAddressFree(nowhere, kPiece));
    const Handle stale = create();
    EXPECT_OK(cu.cuMemRelease(stale));
    std::vector<std::vector<CUresult>> answers;
    for (const bool out : {false, true}) {
      if (out) go(carrier);
      CUmemAllocationProp properties{};
      const CUmemAccessDesc wrong{.location = kGpu, .flags = static_cast<CUmemAccess_flags>(2)};
      int file = -1;
      answers.push_back({
          cu.cuMemMap(place, kPiece, 0, handle, 0),                            // something is mapped there
          cu.cuMemMap(place + 2 * kMiB, 2 * kMiB, 0, small, 0),                // in its middle, too
          cu.cuMemMap(place + 4 * kPiece, 2 * kMiB, 0, small, 0),              // not reserved
          cu.cuMemMap(place + 4 * kPiece - kPiece / 2, kPiece, 0, handle, 0),  // reaches beyond
          cu.cuMemMap(nowhere, kPiece, 0, handle, 0),                          // no more reserved
          cu.cuMemMap(place + kPiece, 2 * kMiB, 0, handle, 0),                 // a part of it
          cu.cuMemMap(place + kPiece, 2 * kPiece, 0, handle, 0),               // more than it
          cu.cuMemMap(place + kPiece, kPiece, 2 * kMiB, handle, 0),            // from its middle
          cu.cuMemMap(place + kPiece + 4096, kPiece, 0, handle, 0),            // between granules
          cu.cuMemMap(place + kPiece, kPiece, 0, handle, 1),                   // flags
          cu.cuMemMap(place + kPiece, 0, 0, handle, 0),                        // nothing
          cu.cuMemMap(place + kPiece, kPiece, 0, stale, 0),                    // released
          cu.cuMemUnmap(place, 2 * kMiB),                                      // a part
          cu.cuMemUnmap(place, 2 * kPiece),                                    // and what is not mapped
          cu.cuMemUnmap(place + kPiece, kPiece),                               // nothing there
          cu.cuMemAddressFree(place, 4 * kPiece),                              // something is mapped there
          cu.cuMemRelease(stale),
          cu.cuMemGetAllocationPropertiesFromHandle(&properties, stale),
          cu.cuMemGetAllocationPropertiesFromHandle(nullptr, handle),
          cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          cu.cuMemFree_v2(place),
          out ? CUDA_ERROR_INVALID_VALUE : cu.cuMemSetAccess(place, kPiece, &wrong, 1),
          allow(place, kPiece / 2),
      });
    }
    for (std::size_t index = 0; index < answers[0].size(); ++index) {
      // Memory that a call waits for is restored before the driver answers: here nobody restores it, and the call is
      // refused.
      if (answers[0][index] == CUDA_SUCCESS || answers[1][index] == CUDA_SUCCESS) {
        note(fmt::format("call {} answers {} and {}", index, static_cast<int>(answers[0][index]),
                         static_cast<int>(answers[1][index])));
      }
    }
    come(carrier);
    EXPECT_OK(cu.cuMemUnmap(place, kPiece));
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_OK(cu.cuMemRelease(small));
    EXPECT_OK(cu.cuMemAddressFree(place, 4 * kPiece));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("making memory fails as the driver says, and leaves nothing behind") {
  check([] {
    enter(0);
    const std::size_t free_before = free_on_gpu();
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location = kGpu;
    Handle handle = 0;
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemCreate(&handle, kGpuBytes, &what, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemCreate(&handle, kPiece + 4096, &what, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemCreate(&handle, 0, &what, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemCreate(&handle, kPiece, &what, 1));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemCreate(nullptr, kPiece, &what, 0));
    // If rota gets no addresses for moving it, it is created as the program has asked.
    fails_at = {{Symbol::k_cuMemAddressReserve, kAlways}};
    EXPECT_OK(cu.cuMemCreate(&handle, kPiece, &what, 0));
    fails_at.clear();
    EXPECT(runtime().ledger.fixed_bytes(0) == kPiece && swap().needed_bytes(0) == 0);
    EXPECT_OK(cu.cuMemRelease(handle));
    // If there are only just enough addresses, it takes those.
    fails_at = {{Symbol::k_cuMemAddressReserve, 1}};
    EXPECT_OK(cu.cuMemCreate(&handle, kPiece, &what, 0));
    EXPECT(runtime().ledger.fixed_bytes(0) == 0 && swap().needed_bytes(0) == kPiece);
    EXPECT_OK(cu.cuMemRelease(handle));
    swap().drop_kept(0);
    EXPECT(free_on_gpu() == free_before);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("a piece that the driver does not take back at once costs what is made later no addresses") {
  check([] {
    enter(0);
    const std::uint64_t free_before = free_on_gpu();
    fails_at = {{Symbol::k_cuMemRelease, 1}};
    EXPECT_OK(cu.cuMemRelease(create(kNotKept)));
    std::map<Symbol, int> calls;
    counted = &calls;
    for (int round = 0; round < 100; ++round) EXPECT_OK(cu.cuMemRelease(create(kNotKept)));
    counted = nullptr;
    EXPECT(calls[Symbol::k_cuMemRelease] == 100 && calls[Symbol::k_cuMemAddressReserve] == 0);
    EXPECT(free_on_gpu() == free_before - kNotKept);
    swap().drop_kept(0);  // asks for it again
    EXPECT(free_on_gpu() == free_before);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory that cannot be mapped for rota when it may first be evicted stays, and is evicted the next time") {
  check([] {
    Carrier carrier(enter(0));
    const Handle handle = create();
    const CUdeviceptr address = map(handle);
    fill(address, 5);
    for (const Symbol refused : {Symbol::k_cuMemMap, Symbol::k_cuMemSetAccess}) {
      fails_at = {{refused, kAlways}};
      EXPECT(swap().evict(0, kAll, carrier.mover()).without_copy == 0);
      EXPECT(swap().resident_bytes(0) == kPiece && swap().all_in_place());
      fails_at.clear();
      expect_pattern(address, kPiece, 5, "where it was");
    }
    go(carrier);
    come(carrier);
    expect_pattern(address, kPiece, 5, "after it was out");
    unmap(address);
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory that is lost can still be unmapped and released") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const std::size_t free_before = free_on_gpu();
    const Handle out = create();
    const CUdeviceptr one = map(out);
    go(carrier);
    const Handle there = create(2 * kMiB);
    const CUdeviceptr other = map(there, 2 * kMiB);
    swap().release_all();
    EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) == kPiece + 2 * kMiB);
    unmap(one);
    unmap(other, 2 * kMiB);
    EXPECT_OK(cu.cuMemRelease(out));
    EXPECT_OK(cu.cuMemRelease(there));
    EXPECT(swap().all_in_place() && swap().out_bytes(0) == 0 && free_on_gpu() == free_before);
    // The same after a sticky error.
    const Handle failed = create();
    const CUdeviceptr third = map(failed);
    EXPECT(swap().context_failed(nullptr, 0) == kPiece);
    unmap(third);
    EXPECT_OK(cu.cuMemRelease(failed));
    EXPECT(swap().resident_bytes(0) == 0 && swap().needed_bytes(0) == 0 && free_on_gpu() == free_before);
    EXPECT_EMPTY_BOOKS();
  });
}
