// Memory that the program makes itself, while another program has the turn: what only notes something, or gives memory
// back, goes on at once; what has to ask the driver stands at the gate until the memory is back.
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

// Calls that are to wait, each on a thread of its own, until the memory is back.
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
  // All of them stand at the gate.
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

void in_turns(const std::function<void(Turns& turns)>& program) {
  CHECK(on_simgpu({.mode = Mode::kSwap, .limit = {}, .replace = {}, .neighbour = {}}, [&] {
          alarm(kPatience);
          Turns turns;
          enter(0);
          program(turns);
        }) == "");
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
    EXPECT(swap().in_place() && swap().resident_bytes(0) == 2 * kPiece);
    EXPECT_OK(cu.cuMemRelease(handle));
    EXPECT_OK(cu.cuMemRelease(fresh));
    unmap(other);
    unmap(third);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("what the driver has to say of memory that is out is said once it is back") {
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

TEST_CASE("a descriptor of memory that is out brings it back first, and nothing moves from then on") {
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
    EXPECT(!turns.take_away());
    EXPECT(swap().in_place());
    turns.give();
    expect_pattern(address, kPiece, 5, "after all");
    EXPECT_OK(cu.cuMemRelease(handle));
    unmap(address);
  });
}
