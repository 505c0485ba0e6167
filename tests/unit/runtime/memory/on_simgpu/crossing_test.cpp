#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <sstream>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/on_simgpu/crossing.h"
#include "tests/unit/runtime/memory/on_simgpu/matrix.h"

using namespace rota;
using namespace rota::test;

namespace {

// What happens between taking and freeing.
struct Between {
  const char* name;
  void (*happen)(Scene& scene);
  bool primary = false;  // the scene is in GPU 0's primary context
  bool ends_context = false;
};

// Memory that rota serves from Unified Memory in place of a pool ends with the context of its stream, while the
// driver's memory outlives it: later frees find nothing.
bool ends_with_context(const std::string& crossing) {
  for (const char* route : {"default pool", "current pool", "own pool"}) {
    if (crossing.starts_with(route)) return true;
  }
  return false;
}

Scene set(bool primary) {
  Scene scene;
  enter(0);
  scene.other = enter(1);
  EXPECT_OK(cu.cuStreamCreate(&scene.stream_of_other, CU_STREAM_NON_BLOCKING));
  if (primary) {
    scene.context = enter(0);
  } else {
    EXPECT_OK(cu.cuCtxCreate_v2(&scene.context, 0, 0));
  }
  EXPECT_OK(cu.cuStreamCreate(&scene.stream, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(cu.cuStreamCreate(&scene.capturing, CU_STREAM_NON_BLOCKING));
  return scene;
}

// Frees whatever is left of the crossing, and ignores the driver's answers.
void clear(Scene& scene, CUdeviceptr address, bool primary) {
  enter(0);
  CUgraph captured = nullptr;
  ANSWERED(cu.cuStreamEndCapture(scene.capturing, &captured));
  if (captured != nullptr) scene.graphs.push_back(captured);
  ANSWERED(cu.cuMemFree_v2(address));
  ANSWERED(cu.cuMemFreeHost(reinterpret_cast<void*>(address)));
  ANSWERED(cu.cuMemHostUnregister(reinterpret_cast<void*>(address)));
  ANSWERED(cu.cuIpcCloseMemHandle(address));
  ANSWERED(cu.cuMemUnmap(address, kCrossedBytes));
  ANSWERED(cu.cuMemAddressFree(address, kCrossedBytes));
  for (CUgraphExec executable : scene.executables) ANSWERED(cu.cuGraphExecDestroy(executable));
  for (CUgraph graph : scene.graphs) ANSWERED(cu.cuGraphDestroy(graph));
  if (scene.pool != nullptr) ANSWERED(cu.cuMemPoolDestroy(scene.pool));
  ANSWERED(cu.cuStreamDestroy_v2(scene.stream_of_other));
  if (!primary) ANSWERED(cu.cuCtxDestroy_v2(scene.context));
  for (const int device : {1, 0}) {
    enter(device);
    ANSWERED(cu.cuCtxSynchronize());
    ANSWERED(cu.cuDeviceGraphMemTrim(device));
    ANSWERED(cu.cuDevicePrimaryCtxReset_v2(device));
  }
}

// The free memory of both GPUs by the driver.
std::array<std::size_t, 2> left() {
  std::array<std::size_t, 2> bytes{};
  for (const int device : {1, 0}) {
    enter(device);
    std::size_t total = 0;
    std::size_t& free = bytes[static_cast<std::size_t>(device)];
    EXPECT_OK(mode() == Mode::kBare ? cu.cuMemGetInfo_v2(&free, &total) : real::cuMemGetInfo_v2(&free, &total));
  }
  return bytes;
}

void cross(const Route& route, const Between& between, const Free& free) {
  note(fmt::format("{} | {} | {}", route.name, between.name, free.name));
  Scene scene = set(between.primary);
  const CUdeviceptr address = route.take(scene);
  between.happen(scene);
  free.give(scene, address);
  free.give(scene, address);
  // Memory whose free the streams have not reached may be freed once more or not, depending on timing. The handle of a
  // context that has ended may have been reused or not.
  for (const CUcontext context : {scene.context, scene.other}) {
    if (between.ends_context && context == scene.context) continue;
    const bool pushed = ANSWERED(cu.cuCtxPushCurrent_v2(context)) == CUDA_SUCCESS;
    if (pushed) ANSWERED(cu.cuCtxSynchronize());
    CUcontext popped = nullptr;
    if (pushed) ANSWERED(cu.cuCtxPopCurrent_v2(&popped));
  }
  clear(scene, address, between.primary);
  EXPECT_EMPTY_BOOKS();
}

std::string crossed(Mode mode, const Between& between) {
  return on_simgpu({.mode = mode, .limit = "", .replace = {}, .neighbour = export_memory}, [&] {
    const auto before = left();
    for (const Route& route : routes()) {
      for (const Free& free : frees()) cross(route, between, free);
    }
    EXPECT(left() == before);
  });
}

// The first lines in which they differ, with the crossing to which these belong.
std::string difference(const std::string& one, const std::string& other, bool but_for_ended = false) {
  std::istringstream ones(one);
  std::istringstream others(other);
  std::string crossing;
  std::string text;
  int differences = 0;
  for (std::string left, right; differences < 10;) {
    const bool more = static_cast<bool>(std::getline(ones, left));
    if (more != static_cast<bool>(std::getline(others, right)))
      return text + "one of them ends early after " + crossing;
    if (!more) break;
    if (left == right) {
      if (!left.starts_with(' ')) crossing = left;
      continue;
    }
    if (but_for_ended && ends_with_context(crossing) && right.starts_with(' ')) continue;
    ++differences;
    text += fmt::format("{}\n without rota {}\n with         {}\n", crossing, left, right);
    if (!right.starts_with(' ')) break;  // a failed check
  }
  return text;
}

void compare(const Between& between) {
  const std::string bare = crossed(Mode::kBare, between);
  CHECK(std::ranges::count(bare, '\n') > 1000);
  for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    INFO(name_of(mode));
    const std::string with = crossed(mode, between);
    const bool ended = between.ends_context && mode == Mode::kManaged;
    const std::string differences = difference(bare, with, ended);
    CHECK(differences == "");
    if (ended) CHECK(difference(bare, with) != "");  // else nothing needs to be excepted
  }
}

void nothing(Scene&) {}

void make_other_current(Scene& scene) {
  EXPECT_OK(cu.cuCtxSetCurrent(scene.other));
}

void make_none_current(Scene&) {
  CUcontext popped = nullptr;
  while (cu.cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS) {
  }
}

void destroy_pool(Scene& scene) {
  if (scene.pool != nullptr) ANSWERED(cu.cuMemPoolDestroy(scene.pool));
}

void destroy_stream(Scene& scene) {
  ANSWERED(cu.cuStreamDestroy_v2(scene.stream));
}

void destroy_context(Scene& scene) {
  ANSWERED(cu.cuCtxDestroy_v2(scene.context));
  EXPECT_OK(cu.cuCtxSetCurrent(scene.other));
}

void reset(Scene&) {
  ANSWERED(cu.cuDevicePrimaryCtxReset_v2(0));
  enter(0);
}

void capture_globally(Scene& scene) {
  ANSWERED(cu.cuStreamBeginCapture_v2(scene.capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

void capture_relaxed(Scene& scene) {
  ANSWERED(cu.cuStreamBeginCapture_v2(scene.capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
}

}  // namespace

TEST_CASE("every route crossed with every free answers as without rota, and leaves nothing in the accounting") {
  compare({"at once", nothing});
}
TEST_CASE("so it does from a context of the other GPU") {
  compare({"another context current", make_other_current});
}
TEST_CASE("so it does without a context") {
  compare({"no context current", make_none_current});
}
TEST_CASE("so it does after the pool was destroyed") {
  compare({"pool destroyed", destroy_pool});
}
TEST_CASE("so it does after the stream was destroyed") {
  compare({"stream destroyed", destroy_stream});
}
TEST_CASE("so it does after the context was destroyed") {
  compare({"context destroyed", destroy_context, false, true});
}
TEST_CASE("so it does after the GPU was reset") {
  compare({"reset", reset, true, true});
}
TEST_CASE("so it does while another stream captures in global mode, which frees may break") {
  compare({"while another stream captures", capture_globally});
}
TEST_CASE("so it does while another stream captures in relaxed mode") {
  compare({"while another stream captures, relaxed", capture_relaxed});
}
