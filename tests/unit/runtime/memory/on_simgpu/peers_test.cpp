// Converted memory and peer access: a GPU may use another GPU's memory where it lies if it natively could, and no other
// memory.
#include <catch2/catch.hpp>

#include <set>

#include "tests/unit/runtime/memory/on_simgpu/machine.h"

using namespace rota;
using namespace rota::test;

namespace {

CUdeviceptr taken(std::uint64_t bytes = kMiB) {
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAlloc_v2(&address, bytes));
  return address;
}

// The GPUs that the driver has been advised of for all of the range.
std::set<int> accessed_by(CUdeviceptr address) {
  CUdevice devices[4] = {};
  EXPECT_OK(cu.cuMemRangeGetAttribute(devices, sizeof devices, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, address, kMiB));
  std::set<int> set(std::begin(devices), std::end(devices));
  set.erase(-2);  // CU_DEVICE_INVALID: none
  return set;
}

CUcontext make(int device) {
  CUcontext context = nullptr;
  EXPECT_OK(cu.cuCtxCreate_v2(&context, 0, device));
  return context;
}

void use(CUcontext context) {
  EXPECT_OK(cu.cuCtxSetCurrent(context));
}

Machine machine(Mode mode) {
  return {.mode = mode, .limit = {}, .replace = {}, .neighbour = {}};
}

const std::set<int> kNone;
const std::set<int> kOther{1};

}  // namespace

TEST_CASE("converted memory of a context is mapped for the GPU that has peer access to it, before and after") {
  CHECK(on_simgpu(machine(Mode::kManaged), [] {
          const CUcontext owner = make(0);
          const CUdeviceptr before = taken();
          const CUcontext bystander = make(0);
          const CUdeviceptr unshared = taken();
          const CUcontext accessing = make(1);
          EXPECT(accessed_by(before) == kNone);
          EXPECT_OK(cu.cuCtxEnablePeerAccess(owner, 0));
          EXPECT(accessed_by(before) == kOther);
          EXPECT_RESULT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cu.cuCtxEnablePeerAccess(owner, 0));
          use(owner);
          const CUdeviceptr after = taken();
          EXPECT(accessed_by(after) == kOther);
          use(bystander);
          EXPECT(accessed_by(unshared) == kNone);
          EXPECT(accessed_by(taken()) == kNone);
          // The program's own managed memory is not changed.
          CUdeviceptr own = 0;
          use(owner);
          EXPECT_OK(cu.cuMemAllocManaged(&own, kMiB, CU_MEM_ATTACH_GLOBAL));
          EXPECT(accessed_by(own) == kNone);
          use(accessing);
          EXPECT_OK(cu.cuCtxDisablePeerAccess(owner));
          EXPECT(accessed_by(before) == kNone);
          EXPECT(accessed_by(after) == kNone);
          EXPECT_RESULT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cu.cuCtxDisablePeerAccess(owner));
          use(owner);
          EXPECT(accessed_by(taken()) == kNone);
        }) == "");
}

TEST_CASE("a GPU keeps its way to converted memory until the last of its contexts gives its access back or ends") {
  CHECK(on_simgpu(machine(Mode::kManaged), [] {
          const CUcontext owner = make(0);
          const CUdeviceptr memory = taken();
          const CUcontext first = make(1);
          EXPECT_OK(cu.cuCtxEnablePeerAccess(owner, 0));
          const CUcontext second = make(1);
          EXPECT_OK(cu.cuCtxEnablePeerAccess(owner, 0));
          use(first);
          EXPECT_OK(cu.cuCtxDisablePeerAccess(owner));
          use(owner);
          EXPECT(accessed_by(memory) == kOther);
          EXPECT_OK(cu.cuCtxDestroy_v2(second));
          EXPECT(accessed_by(memory) == kNone);
          EXPECT(accessed_by(taken()) == kNone);
          // And a new context at an old one's address has no access.
          const CUcontext third = make(1);
          use(third);
          EXPECT_OK(cu.cuCtxEnablePeerAccess(owner, 0));
          EXPECT_OK(cu.cuCtxDestroy_v2(owner));
          const CUcontext next = make(0);
          use(next);
          EXPECT(accessed_by(taken()) == kNone);
          EXPECT_OK(cu.cuCtxDestroy_v2(third));
        }) == "");
}

TEST_CASE("memory that serves again after a free in stream order has the access that holds by then") {
  CHECK(on_simgpu(machine(Mode::kManaged), [] {
          const CUcontext owner = make(0);
          const CUcontext accessing = make(1);
          EXPECT_OK(cu.cuCtxEnablePeerAccess(owner, 0));
          use(owner);
          const CUdeviceptr first = taken();
          EXPECT(accessed_by(first) == kOther);
          EXPECT_OK(cu.cuMemFreeAsync(first, nullptr));
          use(accessing);
          EXPECT_OK(cu.cuCtxDisablePeerAccess(owner));
          use(owner);
          EXPECT_OK(cu.cuCtxSynchronize());
          EXPECT(accessed_by(taken()) == kNone);
        }) == "");
}

TEST_CASE("native memory is advised nothing") {
  CHECK(on_simgpu(machine(Mode::kNative), [] {
          const CUcontext owner = make(0);
          const CUdeviceptr memory = taken();
          make(1);
          EXPECT_OK(cu.cuCtxEnablePeerAccess(owner, 0));
          CUdevice device = 0;
          EXPECT_RESULT(
              CUDA_ERROR_INVALID_VALUE,
              cu.cuMemRangeGetAttribute(&device, sizeof device, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory, kMiB));
          EXPECT_OK(cu.cuCtxDisablePeerAccess(owner));
        }) == "");
}
