// Memory that the program creates itself, while another program has the turn: calls that only record something or free
// memory return at once; those that have to ask the driver wait at the gate until the memory is restored.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <atomic>
#include <deque>
#include <functional>
#include <thread>

#include "tests/unit/runtime/memory/on_simgpu/out_of_place/program.h"
#include "tests/unit/runtime/memory/on_simgpu/own_memory.h"

using namespace rota;
using namespace rota::test;

namespace {

using api::CUresult;

// Calls that have to wait until the memory is restored, each on a separate thread.
class Waiting {
 public:
  void start(std::function<CUresult()> call) {
    Call& made = calls_.emplace_back();
    CUcontext context = nullptr;
    EXPECT_OK(cu.cuCtxGetCurrent(&context));
    made.thread = std::thread([&made, context, call = std::move(call)] {
      EXPECT_OK(cu.cuCtxSetCurrent(context));
      made.result = call();
      made.done.store(true);
    });
  }
  // All of them wait at the gate.
  void expect_waiting() const {
    while (runtime().gate.standing() < calls_.size()) std::this_thread::yield();
    for (const Call& each : calls_) EXPECT(!each.done.load());
  }
  std::vector<CUresult> results() {
    std::vector<CUresult> all;
    for (Call& each : calls_) {
      each.thread.join();
      all.push_back(each.result);
    }
    return all;
  }

 private:
  struct Call {
    std::thread thread;
    std::atomic<bool> done{false};
    CUresult result = CUDA_SUCCESS;
  };
  std::deque<Call> calls_;
};

void in_turns(const std::function<void(Turns& turns)>& program,
              const std::function<void*(Symbol symbol, void* simulated)>& replace = {}) {
  CHECK(on_simgpu({.mode = Mode::kSwap, .limit = {}, .replace = replace, .neighbour = {}}, [&] {
          alarm(kPatience);
          Turns turns;
          enter(0);
          program(turns);
        }) == "");
}

// Only this memory stays on the GPU when the turn ends, until it is released.
void check_stays(Turns& turns, Handle handle, CUdeviceptr address) {
  const Handle moves = create();
  const CUdeviceptr elsewhere = map(moves);
  fill(elsewhere, 6);
  EXPECT(!runtime().unevictable() && !turns.take_away());
  EXPECT(swap().resident_bytes(0) == kPiece && swap().pinned_bytes(0) == kPiece);
  EXPECT(eventually([&] { return turns.usage().gpus[0].fixed_bytes.load() == kPiece; }));
  turns.give();
  expect_pattern(address, kPiece, 5, "which stayed");
  expect_pattern(elsewhere, kPiece, 6, "which left and came back");
  EXPECT_OK(cu.cuMemRelease(handle));
  unmap(address);
  EXPECT(swap().pinned_bytes(0) == 0 && turns.take_away());
  turns.give();
  expect_pattern(elsewhere, kPiece, 6, "which left again");
}

}  // namespace

TEST_CASE("without a turn a program maps, allows, unmaps, releases and makes memory at once, and finds it so later") {
  in_turns([](Turns& turns) {
    const Handle handle = create();
    const Handle gone = create(2 * kMiB);
    const CUdeviceptr one = map(handle);
    const CUdeviceptr left = map(gone, 2 * kMiB);
    fill(one, 0x11);
    EXPECT(turns.take_away());
    const CUdeviceptr other = map(handle);
    EXPECT(access_of(other) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    unmap(one);
    EXPECT_OK(cu.cuMemRelease(gone));
    unmap(left, 2 * kMiB);
    Handle again = 0;
    EXPECT_OK(cu.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(other)));
    EXPECT(again == handle);
    EXPECT_OK(cu.cuMemRelease(again));
    const Handle fresh = create();
    const CUdeviceptr third = map(fresh);
    EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) == 2 * kPiece);
    turns.give();
    expect_pattern(other, kPiece, 0x11, "mapped while it was out");
    expect_pattern(third, kPiece, 0, "made while nothing was on the GPU");
    EXPECT(swap().all_in_place() && swap().resident_bytes(0) == 2 * kPiece);
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_OK(cu.cuMemRelease(fresh));
    unmap(other);
    unmap(third);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("what the driver reports of evicted memory is reported once it is restored") {
  in_turns([](Turns& turns) {
    CUmemLocation peer{};
    peer.type = CU_MEM_LOCATION_TYPE_DEVICE;
    peer.id = 1;
    CUmemLocation host{};
    host.type = CU_MEM_LOCATION_TYPE_HOST;
    const Handle handle = create();
    const CUdeviceptr address = map(handle);
    const unsigned long long number = number_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    EXPECT(turns.take_away());
    Waiting waiting;
    unsigned long long number_then = 0;
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    waiting.start([&] { return cu.cuPointerGetAttribute(&number_then, CU_POINTER_ATTRIBUTE_BUFFER_ID, address + 9); });
    waiting.start([&] { return cu.cuMemGetAddressRange_v2(&base, &bytes, address + 9); });
    // Another GPU's access may be refused.
    waiting.start([&] { return allow(address, kPiece, CU_MEM_ACCESS_FLAGS_PROT_READ, peer); });
    // And these are.
    waiting.start([&] { return cu.cuMemMap(address, kPiece, 0, handle, 0); });
    waiting.start([&] { return cu.cuMemMap(address + kPiece, 2 * kMiB, 0, handle, 0); });
    waiting.start([&] { return allow(address, kPiece, static_cast<CUmemAccess_flags>(2)); });
    waiting.start([&] { return allow(address, kPiece, CU_MEM_ACCESS_FLAGS_PROT_READ, host); });
    waiting.expect_waiting();
    turns.give();
    const std::vector<CUresult> answers = waiting.results();
    EXPECT(answers ==
           std::vector<CUresult>({CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE,
                                  CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE}));
    EXPECT(number_then == number && base == address && bytes == kPiece);
    EXPECT(!runtime().unevictable());
    EXPECT_OK(cu.cuMemRelease(handle));
    unmap(address);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("a request for a descriptor of evicted memory restores it first, and only that memory stays from then on") {
  in_turns([](Turns& turns) {
    const Handle handle = create(kPiece, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const CUdeviceptr address = map(handle);
    fill(address, 5);
    EXPECT(turns.take_away());
    int file = -1;
    Waiting waiting;
    waiting.start(
        [&] { return cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0); });
    waiting.expect_waiting();
    turns.give();
    EXPECT(waiting.results() == std::vector<CUresult>{CUDA_SUCCESS});
    ::close(file);
    check_stays(turns, handle, address);
  });
}

namespace {

// --- what reaches memory without the gate, where simgpu refuses it or lacks the function: the driver agrees

// The driver's last call of those below: the handle that it got, and whether all memory was in place.
struct {
  Handle handle = 0;
  bool in_place = false;
  CUresult agrees(Handle given = 0) {
    handle = given;
    in_place = swap().all_in_place();
    return CUDA_SUCCESS;
  }
} agreed;

template <typename Function>
void* as(Function* function) {
  return reinterpret_cast<void*>(function);
}

void* takes_handles(Symbol symbol, void*) {
  switch (symbol) {
    case Symbol::k_cuMulticastBindMem:
      return as<cuMulticastBindMem_fn>([](auto, auto, Handle handle, auto...) { return agreed.agrees(handle); });
    case Symbol::k_cuMulticastBindMem_v2:
      return as<cuMulticastBindMem_v2_fn>(
          [](auto, auto, auto, Handle handle, auto...) { return agreed.agrees(handle); });
    case Symbol::k_cuLogicalEndpointBindMem:
      return as<cuLogicalEndpointBindMem_fn>(
          [](auto, auto, auto, Handle handle, auto...) { return agreed.agrees(handle); });
    case Symbol::k_cuMemMapArrayAsync:
      return as<cuMemMapArrayAsync_fn>(
          [](CUarrayMapInfo* list, auto...) { return agreed.agrees(list->memHandle.memHandle); });
    default:
      return nullptr;
  }
}

CUresult map_array(Handle handle) {
  CUarrayMapInfo what{};
  what.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  what.memHandle.memHandle = handle;
  return cu.cuMemMapArrayAsync(&what, 1, nullptr);
}

void* lets_the_host_in(Symbol symbol, void* simulated) {
  if (symbol != Symbol::k_cuMemSetAccess) return nullptr;
  static cuMemSetAccess_fn* real_one = nullptr;
  real_one = reinterpret_cast<cuMemSetAccess_fn*>(simulated);
  return as<cuMemSetAccess_fn>([](CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* all,
                                  std::size_t count) {
    return all->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? real_one(address, bytes, all, count) : agreed.agrees();
  });
}

void* has_tokens(Symbol symbol, void*) {
  switch (symbol) {
    case Symbol::k_cuPointerGetAttribute:
      return as<cuPointerGetAttribute_fn>([](auto...) { return agreed.agrees(); });
    case Symbol::k_cuPointerGetAttributes:
      return as<cuPointerGetAttributes_fn>([](auto...) { return agreed.agrees(); });
    default:
      return nullptr;
  }
}

std::atomic<bool> copies_fail{false};

void* may_fail_to_copy(Symbol symbol, void* simulated) {
  if (symbol != Symbol::k_cuMemcpyDtoHAsync_v2) return nullptr;
  static cuMemcpyDtoHAsync_v2_fn* real_one = nullptr;
  real_one = reinterpret_cast<cuMemcpyDtoHAsync_v2_fn*>(simulated);
  return as<cuMemcpyDtoHAsync_v2_fn>([](void* host, CUdeviceptr address, std::size_t bytes, CUstream stream) {
    return copies_fail.load() ? CUDA_ERROR_UNKNOWN : real_one(host, address, bytes, stream);
  });
}

// Makes a piece, has it taken away, and makes the call, which must wait until it is back and after which it stays.
void check_pins(const std::function<CUresult(Handle handle, CUdeviceptr address)>& call,
                const std::function<void*(Symbol symbol, void* simulated)>& driver) {
  in_turns(
      [&](Turns& turns) {
        const Handle handle = create();
        const CUdeviceptr address = map(handle);
        fill(address, 5);
        EXPECT(turns.take_away());
        Waiting waiting;
        waiting.start([&] { return call(handle, address); });
        waiting.expect_waiting();
        turns.give();
        EXPECT(waiting.results() == std::vector<CUresult>{CUDA_SUCCESS});
        EXPECT(agreed.in_place);
        const bool by_handle = agreed.handle != 0;
        EXPECT(!by_handle || agreed.handle == runtime().memory.own_physical().pin(handle, protocol::Pin::kDescriptor));
        EXPECT(by_handle == (driver(Symbol::k_cuMulticastBindMem, nullptr) != nullptr));
        check_stays(turns, handle, address);
      },
      driver);
}

}  // namespace

TEST_CASE("what is bound to a multicast object, a logical endpoint or a sparse array is back before, and stays") {
  for (const auto& call : std::vector<CUresult (*)(Handle handle)>{
           [](Handle handle) { return cu.cuMulticastBindMem(1, 0, handle, 0, kPiece, 0); },
           [](Handle handle) { return cu.cuMulticastBindMem_v2(1, 0, 0, handle, 0, kPiece, 0); },
           [](Handle handle) { return cu.cuLogicalEndpointBindMem(1, 0, 0, handle, 0, kPiece, 0); }, &map_array}) {
    check_pins([&](Handle handle, CUdeviceptr) { return call(handle); }, takes_handles);
  }
}

TEST_CASE("what others than GPUs may use is back before they may, and stays") {
  constexpr CUmemLocation kHost{.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  check_pins(
      [&](Handle, CUdeviceptr address) { return allow(address, kPiece, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, kHost); },
      lets_the_host_in);
}

TEST_CASE("the P2P tokens of memory that the program made are told once it is back, and it stays") {
  SECTION("asked for by themselves") {
    check_pins(
        [](Handle, CUdeviceptr address) {
          CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens{};
          return cu.cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, address + 9);
        },
        has_tokens);
  }
  SECTION("asked for among others") {
    check_pins(
        [](Handle, CUdeviceptr address) {
          CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_P2P_TOKENS};
          unsigned type = 0;
          CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens{};
          void* into[] = {&type, &tokens};
          return cu.cuPointerGetAttributes(2, attributes, into, address + 9);
        },
        has_tokens);
  }
}

TEST_CASE("memory whose copy failed counts as pinned temporarily, until the program's next turn") {
  in_turns(
      [](Turns& turns) {
        const Handle handle = create();
        const CUdeviceptr address = map(handle);
        fill(address, 5);
        const auto fixed = [&] { return turns.usage().gpus[0].fixed_for_now_bytes.load(); };
        EXPECT(fixed() == 0);
        copies_fail.store(true);
        EXPECT(!turns.take_away());
        while (fixed() != kPiece) std::this_thread::yield();
        copies_fail.store(false);
        turns.give();
        expect_pattern(address, kPiece, 5, "as nothing has left");
        while (fixed() != 0) std::this_thread::yield();
        EXPECT(turns.take_away());
        turns.give();
        expect_pattern(address, kPiece, 5, "after it has left");
      },
      may_fail_to_copy);
}
