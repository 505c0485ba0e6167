// The cache of memory that a program created itself and has released.
#include <catch2/catch.hpp>
#include <map>

#include "tests/unit/runtime/memory/on_simgpu/own_memory.h"

using namespace rota;
using namespace rota::test;

TEST_CASE("memory that the program has released serves what it makes like it, and nothing else") {
  check([] {
    Carrier carrier(enter(0));
    CUdeviceptr plain = 0;
    EXPECT_OK(cu.cuMemAlloc_v2(&plain, kPiece));
    EXPECT_OK(cu.cuMemFree_v2(plain));
    swap().drop_kept(0);
    const std::size_t free_before = free_on_gpu();
    std::map<Symbol, int> calls;
    const auto creates = [&calls](auto&& make) {
      calls.clear();
      counted = &calls;
      make();
      counted = nullptr;
      return calls[Symbol::k_cuMemCreate];
    };
    Handle handle = create();
    CUdeviceptr address = map(handle);
    fill(address, 7);
    go(carrier);
    come(carrier);
    unmap(address);
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT(swap().needed_bytes(0) == 0 && charged_exactly(0, 0) && free_on_gpu() == free_before - kPiece);
    // Not for other sizes, for memory that can be given to others, or for plain memory.
    EXPECT(creates([&] { EXPECT_OK(cu.cuMemAlloc_v2(&plain, kPiece)); }) == 1);
    EXPECT(creates([&] { handle = create(kPiece / 2); }) == 1);
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT(creates([&] { handle = create(kPiece, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR); }) == 1);
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_OK(cu.cuMemFree_v2(plain));
    // Cached memory is the program's again: it counts, moves, and belongs to nobody when it is released once more.
    EXPECT(creates([&] { handle = create(); }) == 0);
    EXPECT(swap().needed_bytes(0) == kPiece && charged_exactly(kPiece, 0));
    address = map(handle);
    fill(address, 8);
    go(carrier);
    EXPECT(free_on_gpu() >= free_before);
    come(carrier);
    expect_pattern(address, kPiece, 8, "in memory that was kept");
    unmap(address);
    EXPECT_OK(cu.cuMemRelease(handle));
    // No address is mapped to it.
    unsigned char byte = 0;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyDtoH_v2(&byte, address, 1));
    swap().drop_kept(0);
    EXPECT(free_on_gpu() == free_before && swap().resident_bytes(0) == 0);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory whose descriptor the program has given away serves nothing once it is released") {
  check([] {
    enter(0);
    const std::size_t free_before = free_on_gpu();
    const Handle handle = create(kPiece, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    // As if it had been exported.
    EXPECT(runtime().memory.own_physical().pin(handle, protocol::Pin::kDescriptor) != 0);
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT(swap().resident_bytes(0) == 0 && free_on_gpu() == free_before);
    const Handle other = create(kPiece, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    // Others may have registered it without any call.
    swap().pin(protocol::PinAll::kReached);
    EXPECT_OK(cu.cuMemRelease(other));
    EXPECT(swap().resident_bytes(0) == 0 && free_on_gpu() == free_before);
    const Handle later = create();  // which stays, and is counted so
    EXPECT(runtime().ledger.fixed_bytes(0) == kPiece);
    EXPECT_OK(cu.cuMemRelease(later));
    EXPECT_EMPTY_BOOKS();
  });
}
