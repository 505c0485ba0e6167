// Memory that the program creates itself (cuMemCreate) is evicted, and restored at every address at which it is mapped,
// with the same access. Meanwhile calls that rota's records can decide are answered as the driver would, without
// waiting.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/own_memory.h"

using namespace rota;
using namespace rota::test;

TEST_CASE("memory that the program made is evicted and restored at each address, with its contents") {
  check([] {
    Carrier carrier(enter(0));
    const std::size_t free_before = free_on_gpu();
    const Handle handle = create();
    const CUdeviceptr one = map(handle);
    const CUdeviceptr other = map(handle);
    EXPECT(swap().resident_bytes(0) == kPiece && swap().needed_bytes(0) == kPiece);
    EXPECT(charged_exactly(kPiece, 0) && runtime().ledger.fixed_bytes(0) == 0);
    for (unsigned char round = 1; round < 4; ++round) {
      fill(one, round);
      go(carrier);
      EXPECT(swap().out_bytes(0) == kPiece && free_on_gpu() >= free_before);
      come(carrier);
      expect_pattern(other, kPiece, round, "through the second mapping");
      expect_pattern(one, kPiece, round, "through the first mapping");
    }
    EXPECT_OK(cu.cuMemRelease(handle));
    go(carrier);
    come(carrier);
    unmap(one);
    expect_pattern(other, kPiece, 3, "the last mapping, without any handle");
    unmap(other);
    EXPECT(swap().resident_bytes(0) == kPiece && swap().needed_bytes(0) == 0);
    EXPECT(swap().drop_kept(0) == kPiece);
    EXPECT(free_on_gpu() == free_before);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE(
    "rota maps the program's memory for its own use only to evict it, and gives several ranges access by one call") {
  check([] {
    Carrier carrier(enter(0));
    std::map<Symbol, int> calls;
    counted = &calls;
    std::vector<Handle> handles;
    for (int number = 0; number < 8; ++number) handles.push_back(create());
    EXPECT_OK(cu.cuMemRelease(handles.back()));
    handles.pop_back();
    EXPECT(calls[Symbol::k_cuMemMap] == 0 && calls[Symbol::k_cuMemSetAccess] == 0);
    std::vector<CUdeviceptr> mapped;
    for (const Handle handle : handles) mapped.push_back(map(handle));
    for (std::size_t number = 0; number < mapped.size(); ++number) {
      fill(mapped[number], static_cast<unsigned char>(number + 1));
    }
    const int before = calls[Symbol::k_cuMemSetAccess];
    go(carrier);
    const int asked = calls[Symbol::k_cuMemSetAccess] - before;
    EXPECT(asked > 0 && asked < static_cast<int>(handles.size()));
    counted = nullptr;
    come(carrier);
    for (std::size_t number = 0; number < mapped.size(); ++number) {
      expect_pattern(mapped[number], kPiece, static_cast<unsigned char>(number + 1), "once restored");
    }
    // Created next to memory that has been evicted and restored.
    const Handle late = create();
    const CUdeviceptr also = map(late);
    fill(also, 77);
    go(carrier);
    come(carrier);
    expect_pattern(also, kPiece, 77, "created later");
    EXPECT_OK(cu.cuMemRelease(late));
    unmap(also);
    for (const CUdeviceptr address : mapped) unmap(address);
    for (const Handle handle : handles) EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("creating and releasing memory repeatedly makes no driver calls if it is cached, otherwise one of each") {
  check([] {
    Carrier carrier(enter(0));
    std::map<Symbol, int> calls;
    for (const std::size_t bytes : {kPiece, kNotKept}) {
      EXPECT_OK(cu.cuMemRelease(create(bytes)));
      counted = &calls;
      for (int round = 0; round < 100; ++round) EXPECT_OK(cu.cuMemRelease(create(bytes)));
      counted = nullptr;
      if (bytes == kPiece) EXPECT(calls.empty());
    }
    EXPECT(calls == (std::map<Symbol, int>{{Symbol::k_cuMemCreate, 100}, {Symbol::k_cuMemRelease, 100}}));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("adjacent small mappings of the program get their access by few calls when they are restored") {
  check([] {
    Carrier carrier(enter(0));
    constexpr std::size_t kPieces = 12;
    const CUdeviceptr place = reserve(kPieces * kPiece);
    std::vector<Handle> handles;
    for (std::size_t number = 0; number < kPieces; ++number) {
      handles.push_back(create());
      EXPECT_OK(cu.cuMemMap(place + number * kPiece, kPiece, 0, handles.back(), 0));
    }
    EXPECT_OK(allow(place, kPieces * kPiece));
    // One has no access.
    EXPECT_OK(allow(place + 5 * kPiece, kPiece, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    for (std::size_t number = 0; number < kPieces; ++number) {
      if (number != 5) fill(place + number * kPiece, static_cast<unsigned char>(number + 1));
    }
    go(carrier);
    std::map<Symbol, int> calls;
    counted = &calls;
    come(carrier);
    counted = nullptr;
    EXPECT(calls[Symbol::k_cuMemCreate] == kPieces && calls[Symbol::k_cuMemMap] == 2 * kPieces);
    EXPECT(calls[Symbol::k_cuMemSetAccess] <= 4);
    EXPECT(access_of(place + 5 * kPiece) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    for (std::size_t number = 0; number < kPieces; ++number) {
      if (number == 5) continue;
      EXPECT(access_of(place + number * kPiece) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      expect_pattern(place + number * kPiece, kPiece, static_cast<unsigned char>(number + 1), "once restored");
    }
    EXPECT_OK(cu.cuMemUnmap(place, kPieces * kPiece));
    EXPECT_OK(cu.cuMemAddressFree(place, kPieces * kPiece));
    for (const Handle handle : handles) EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory that is mapped nowhere is evicted and restored with its contents") {
  check([] {
    Carrier carrier(enter(0));
    const Handle handle = create();
    const CUdeviceptr first = map(handle);
    fill(first, 7);
    unmap(first);
    go(carrier);
    EXPECT(swap().out_bytes(0) == kPiece);
    come(carrier);
    const CUdeviceptr second = map(handle);
    expect_pattern(second, kPiece, 7, "mapped anew");
    EXPECT_OK(cu.cuMemRelease(handle));
    unmap(second);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("evicted memory can be mapped, given access, unmapped and released, and is restored accordingly") {
  check([] {
    Carrier carrier(enter(0));
    const std::size_t free_before = free_on_gpu();
    const Handle handle = create();
    const Handle gone = create(2 * kMiB);
    const CUdeviceptr one = map(handle);
    const CUdeviceptr left = map(gone, 2 * kMiB);
    fill(one, 9);
    go(carrier);
    const CUdeviceptr other = reserve(2 * kPiece);
    EXPECT_OK(cu.cuMemMap(other, kPiece, 0, handle, 0));
    EXPECT(access_of(other) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    EXPECT_OK(allow(other, kPiece));
    EXPECT_OK(cu.cuMemUnmap(one, kPiece));
    EXPECT_OK(cu.cuMemUnmap(left, 2 * kMiB));
    EXPECT_OK(cu.cuMemRelease(gone));
    EXPECT(swap().out_bytes(0) == kPiece && swap().needed_bytes(0) == kPiece && charged_exactly(kPiece, 0));
    Handle again = 0;
    EXPECT_OK(cu.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(other + 5)));
    EXPECT(again == handle && !runtime().unevictable());
    EXPECT_OK(cu.cuMemRelease(again));
    come(carrier);
    expect_pattern(other, kPiece, 9, "where it was mapped while it was evicted");
    unsigned char byte = 0;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyDtoH_v2(&byte, one, 1));
    EXPECT_OK(cu.cuMemAddressFree(one, kPiece));
    EXPECT_OK(cu.cuMemAddressFree(left, 2 * kMiB));
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_OK(cu.cuMemUnmap(other, kPiece));
    EXPECT_OK(cu.cuMemAddressFree(other, 2 * kPiece));
    swap().drop_kept(0);
    EXPECT(free_on_gpu() == free_before);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("each mapping has its own access, which outlasts eviction") {
  check([] {
    Carrier carrier(enter(0));
    enter(1);
    enter(0);
    constexpr CUmemLocation kPeer{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    const Handle first = create();
    const Handle second = create();
    const CUdeviceptr place = reserve(2 * kPiece);
    EXPECT_OK(cu.cuMemMap(place, kPiece, 0, first, 0));
    EXPECT_OK(cu.cuMemMap(place + kPiece, kPiece, 0, second, 0));
    EXPECT_OK(allow(place, 2 * kPiece));  // several mappings at once
    EXPECT_OK(allow(place, 2 * kPiece, CU_MEM_ACCESS_FLAGS_PROT_READ, kPeer));
    const CUdeviceptr alias = map(first);
    EXPECT_OK(allow(alias, kPiece, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    const CUdeviceptr never = reserve(kPiece);
    EXPECT_OK(cu.cuMemMap(never, kPiece, 0, second, 0));
    fill(place, 1, 2 * kPiece);
    for (int when = 0; when < 3; ++when) {
      if (when == 1) go(carrier);
      if (when == 2) come(carrier);
      for (const CUdeviceptr each : {place, place + kPiece + 17}) {
        EXPECT(access_of(each) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        EXPECT(access_of(each, kPeer) == CU_MEM_ACCESS_FLAGS_PROT_READ);
      }
      for (const CUdeviceptr each : {alias, never}) EXPECT(access_of(each) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
    // The driver itself reports this, too.
    unsigned long long flags = 99;
    EXPECT_OK(real::cuMemGetAccess(&flags, &kPeer, place));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
    EXPECT_OK(real::cuMemGetAccess(&flags, &kGpu, alias));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    expect_pattern(place, 2 * kPiece, 1, "both");
    // Access to two mappings at once, one of which is evicted.
    swap().evict(0, kPiece, carrier.mover());
    EXPECT(swap().out_bytes(0) == kPiece);
    EXPECT_OK(allow(place, 2 * kPiece, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    come(carrier);
    for (const CUdeviceptr each : {place, place + kPiece}) {
      EXPECT_OK(real::cuMemGetAccess(&flags, &kGpu, each));
      EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
    swap().evict(0, kPiece, carrier.mover());
    EXPECT_OK(cu.cuMemUnmap(place, 2 * kPiece));
    EXPECT_OK(cu.cuMemUnmap(alias, kPiece));
    EXPECT_OK(cu.cuMemUnmap(never, kPiece));
    EXPECT_OK(cu.cuMemRelease(first));
    EXPECT_OK(cu.cuMemRelease(second));
    EXPECT(swap().all_in_place());
    for (const auto& [address, bytes] : {std::pair{place, 2 * kPiece}, {alias, kPiece}, {never, kPiece}}) {
      EXPECT_OK(cu.cuMemAddressFree(address, bytes));
    }
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("the handle, BUFFER_ID and MEMORY_BLOCK_ID of memory do not change, although the driver's change") {
  check([] {
    Carrier carrier(enter(0));
    const Handle handle = create();
    const CUdeviceptr one = map(handle);
    const CUdeviceptr other = map(handle);
    fill(one, 1);
    std::set<unsigned long long> mappings;
    std::set<unsigned long long> memory;
    for (int round = 0; round < 3; ++round) {
      mappings.insert(number_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, one + 100));
      memory.insert(number_of(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, one));
      memory.insert(number_of(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, other));
      Handle again = 0;
      EXPECT_OK(cu.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(other)));
      EXPECT(again == handle);
      EXPECT_OK(cu.cuMemRelease(again));
      CUmemAllocationProp properties{};
      EXPECT_OK(cu.cuMemGetAllocationPropertiesFromHandle(&properties, handle));
      EXPECT(properties.type == CU_MEM_ALLOCATION_TYPE_PINNED && properties.requestedHandleTypes == 0);
      EXPECT(properties.location.type == kGpu.type && properties.location.id == 0);
      go(carrier);
      come(carrier);
    }
    EXPECT(mappings.size() == 1 && memory.size() == 1);
    EXPECT(number_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, other) != *mappings.begin());
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemRelease(handle));
    unmap(one);
    unmap(other);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory is pinned once a descriptor of it is exported, and is shared with the importer") {
  check([] {
    Carrier carrier(enter(0));
    const Handle handle = create(kPiece, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const CUdeviceptr address = map(handle);
    fill(address, 5);
    go(carrier);
    come(carrier);  // restored memory can be exported, too
    int file = -1;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
    EXPECT(swap().pinned_bytes(0) == 0);
    EXPECT_OK(cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    EXPECT(!runtime().unevictable() && swap().pinned_bytes(0) == kPiece);
    Handle imported = 0;
    EXPECT_OK(cu.cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    ::close(file);
    const CUdeviceptr other = map(imported);
    expect_pattern(other, kPiece, 5, "through the descriptor");
    // Other memory still moves, and the exporter still sees what the importer writes.
    const Handle later = create();
    const CUdeviceptr there = map(later);
    fill(there, 7);
    go(carrier);
    EXPECT(swap().out_bytes(0) == kPiece && swap().resident_bytes(0) == kPiece);
    come(carrier);
    fill(other, 9);
    expect_pattern(there, kPiece, 7, "the memory that is not shared");
    expect_pattern(address, kPiece, 9, "written through the descriptor");
    unmap(there);
    EXPECT_OK(cu.cuMemRelease(later));
    unmap(other);
    unmap(address);
    EXPECT_OK(cu.cuMemRelease(imported));
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("compressed memory and memory with unknown flags count as unevictable, but memory for RDMA moves") {
  check([] {
    Carrier carrier(enter(0));
    CUmemAllocationProp plain{};
    plain.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    plain.location = kGpu;
    std::vector<CUmemAllocationProp> all(2, plain);
    all[0].allocFlags.compressionType = 1;
    all[1].allocFlags.reserved[2] = 1;
    for (const CUmemAllocationProp& what : all) {
      Handle handle = 0;
      EXPECT_OK(cu.cuMemCreate(&handle, kPiece, &what, 0));
      EXPECT(runtime().ledger.fixed_bytes(0) == kPiece && swap().resident_bytes(0) == 0);
      EXPECT_OK(cu.cuMemRelease(handle));
    }
    // Memory for RDMA moves as long as this process has no device or library open that can reach it (swap/reach.h), and
    // is restored as memory for RDMA.
    plain.allocFlags.gpuDirectRDMACapable = 1;
    Handle handle = 0;
    EXPECT_OK(cu.cuMemCreate(&handle, kPiece, &plain, 0));
    const CUdeviceptr address = map(handle);
    fill(address, 3);
    go(carrier);
    come(carrier);
    Handle of_driver = 0;
    CUmemAllocationProp properties{};
    EXPECT_OK(real::cuMemRetainAllocationHandle(&of_driver, reinterpret_cast<void*>(address)));
    EXPECT_OK(real::cuMemGetAllocationPropertiesFromHandle(&properties, of_driver));
    EXPECT(properties.allocFlags.gpuDirectRDMACapable == 1);
    EXPECT_OK(real::cuMemRelease(of_driver));
    EXPECT_OK(cu.cuMemRelease(handle));
    unmap(address);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("only memory of TYPE_PINNED on a GPU can move, with no property but RDMA and no handle but a descriptor") {
  CUmemAllocationProp plain{};
  plain.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  plain.location = kGpu;
  const auto moves = [&](void (*change)(CUmemAllocationProp& what)) {
    CUmemAllocationProp what = plain;
    change(what);
    return memory::OwnPhysical::can_move(what).has_value();
  };
  using Prop = CUmemAllocationProp;
  CHECK(moves([](Prop&) {}));
  CHECK(moves([](Prop& what) { what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; }));
  CHECK(moves([](Prop& what) { what.allocFlags.gpuDirectRDMACapable = 1; }));
  static int metadata = 0;
  CHECK_FALSE(moves([](Prop& what) { what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC; }));
  CHECK_FALSE(moves([](Prop& what) {
    what.requestedHandleTypes =
        static_cast<CUmemAllocationHandleType>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC);
  }));
  CHECK_FALSE(moves([](Prop& what) { what.win32HandleMetaData = &metadata; }));
  CHECK_FALSE(moves([](Prop& what) { what.type = CU_MEM_ALLOCATION_TYPE_MANAGED; }));
  CHECK_FALSE(moves([](Prop& what) { what.location.type = CU_MEM_LOCATION_TYPE_HOST; }));
  CHECK_FALSE(moves([](Prop& what) { what.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA; }));
  CHECK_FALSE(moves([](Prop& what) { what.allocFlags.compressionType = 1; }));
  CHECK_FALSE(moves([](Prop& what) { what.allocFlags.gpuDirectRDMACapable = 2; }));
  CHECK_FALSE(moves([](Prop& what) { what.allocFlags.usage = 1; }));
  for (int byte = 0; byte < 4; ++byte) {
    Prop what = plain;
    what.allocFlags.reserved[byte] = 1;
    CHECK_FALSE(memory::OwnPhysical::can_move(what).has_value());
  }
}

TEST_CASE("one call can unmap, or give access to, a range in which some memory moves and some stays") {
  check([] {
    Carrier carrier(enter(0));
    CUmemAllocationProp staying{};
    staying.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    staying.location = kGpu;
    staying.allocFlags.compressionType = 1;
    for (const bool out : {false, true}) {
      Handle stays = 0;
      EXPECT_OK(cu.cuMemCreate(&stays, kPiece, &staying, 0));
      const Handle moves = create();
      const CUdeviceptr place = reserve(3 * kPiece);
      EXPECT_OK(cu.cuMemMap(place, kPiece, 0, stays, 0));
      EXPECT_OK(cu.cuMemMap(place + kPiece, kPiece, 0, moves, 0));
      EXPECT_OK(cu.cuMemMap(place + 2 * kPiece, kPiece, 0, stays, 0));
      EXPECT_OK(allow(place, 3 * kPiece));
      fill(place, 1, 3 * kPiece);
      if (out) go(carrier);
      EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(place, kPiece, 0, moves, 0));
      EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(place + kPiece, kPiece, 0, stays, 0));
      EXPECT_OK(cu.cuMemUnmap(place, 3 * kPiece));
      EXPECT_OK(cu.cuMemRelease(stays));
      EXPECT_OK(cu.cuMemRelease(moves));
      EXPECT_OK(cu.cuMemAddressFree(place, 3 * kPiece));
      EXPECT(swap().all_in_place());
      EXPECT_EMPTY_BOOKS();
    }
  });
}

TEST_CASE("a mapping leaves the ledger when it is unmapped, even while a free of its address is being refused") {
  check([] {
    enter(0);
    const Handle handle = create();
    const CUdeviceptr address = map(handle);
    const auto other = runtime().ledger.begin_free(address);
    EXPECT(other.has_value());
    EXPECT_OK(cu.cuMemUnmap(address, kPiece));
    if (other) runtime().ledger.cancel_free(*other);
    EXPECT(!runtime().ledger.find(address));
    EXPECT_OK(cu.cuMemAddressFree(address, kPiece));
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory freed during a restore is not confused with new memory at its address") {
  check([] {
    Carrier carrier(enter(0));
    FakeTurns turns;
    Swap own(turns);
    EXPECT(own.serves(0));
    const auto make = [&own](const memory::Making& making) {
      CUdeviceptr address = 0;
      bool for_others = false;
      EXPECT(own.reserve(0, kPiece, 0, for_others));
      EXPECT_OK(own.allocate_own(0, &address, kPiece, making));
      return address;
    };
    std::vector<CUdeviceptr> all;
    for (int number = 0; number < 3; ++number) all.push_back(make({}));
    std::sort(all.begin(), all.end());  // the order in which they are restored
    turns.our_turn = false;
    EXPECT(!own.evict(0, kAll, carrier.mover()).failed && own.resident_bytes(0) == 0);
    const memory::Making wanted{.exportable = false, .for_rdma = true};
    CUdeviceptr made = 0;
    int created = 0;
    before = [&](Symbol symbol) {
      if (symbol != Symbol::k_cuMemCreate || ++created != 2) return;
      own.free(all[1]);
      made = make(wanted);
    };
    EXPECT(!own.restore(0, carrier.mover()).failed);
    before = [](Symbol) {};
    EXPECT(made == all[1]);  // otherwise this shows nothing
    if (!own.all_in_place()) EXPECT(!own.restore(0, carrier.mover()).failed);
    EXPECT(own.all_in_place() && own.resident_bytes(0) == 3 * kPiece && own.out_bytes(0) == 0);
    CUmemAllocationProp has{};
    EXPECT_OK(real::cuMemGetAllocationPropertiesFromHandle(&has, own.own_mappings().handle_of(made)));
    EXPECT(has.allocFlags.gpuDirectRDMACapable != 0);
    for (const CUdeviceptr address : all) own.free(address);
    own.drop_kept(0);
    EXPECT(own.resident_bytes(0) == 0);
  });
}
