// Memory with handles: physical memory, which is mapped, released, retained and unmapped in every order, and arrays.
// The answers are those of simgpu without rota; the ledger counts the memory exactly as long as a handle or mapping is
// left.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/crossing.h"

using namespace rota;
using namespace rota::test;

namespace {

constexpr std::size_t kPiece = 2 * kMiB;

// Some of GPU 1's memory, used from a context of GPU 0, and two places to map it to.
struct Piece {
  CUmemGenericAllocationHandle handle = 0;
  std::array<CUdeviceptr, 2> places{};
  int handles = 0;
  int mappings = 0;

  void create() {
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    EXPECT_OK(cu.cuMemCreate(&handle, kPiece, &what, 0));
    handles = 1;
  }
  void map(std::size_t place) {
    mappings += ANSWERED(cu.cuMemMap(places[place], kPiece, 0, handle, 0)) == CUDA_SUCCESS;
  }
  void unmap(std::size_t place) { mappings -= ANSWERED(cu.cuMemUnmap(places[place], kPiece)) == CUDA_SUCCESS; }
  void release() { handles -= ANSWERED(cu.cuMemRelease(handle)) == CUDA_SUCCESS; }
  void retain() {
    CUmemGenericAllocationHandle again = 0;
    if (ANSWERED(cu.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(places[0] + 4096))) != CUDA_SUCCESS) {
      return;
    }
    // If every handle was released, it may have another value.
    handle = again;
    ++handles;
  }
  bool charged_rightly() const { return charged_exactly(0, handles > 0 || mappings > 0 ? kPiece : 0); }
};

using Step = void (*)(Piece& piece);
const std::vector<Step> kSteps = {[](Piece& piece) { piece.map(0); },    [](Piece& piece) { piece.map(1); },
                                  [](Piece& piece) { piece.release(); }, [](Piece& piece) { piece.retain(); },
                                  [](Piece& piece) { piece.unmap(0); },  [](Piece& piece) { piece.unmap(1); },
                                  [](Piece& piece) { piece.release(); }};

void every_order_of_mapping() {
  enter(0);
  enter(1);
  enter(0);
  Piece piece;
  for (CUdeviceptr& place : piece.places) EXPECT_OK(cu.cuMemAddressReserve(&place, kPiece, 0, 0, 0));
  std::vector<std::size_t> order(kSteps.size());
  for (std::size_t index = 0; index < order.size(); ++index) order[index] = index;
  do {
    std::string text;
    for (const std::size_t step : order) text += std::to_string(step);
    note(text);
    piece.create();
    bool rightly = piece.charged_rightly();
    for (const std::size_t step : order) {
      kSteps[step](piece);
      rightly &= piece.charged_rightly();
    }
    while (piece.mappings > 0) {
      piece.unmap(0);
      piece.unmap(1);
    }
    while (piece.handles > 0) piece.release();
    if (!EXPECT(rightly)) return;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EMPTY_BOOKS();
}

struct Array {
  const char* name;
  void (*create_and_destroy)(void (*between)());
};

CUcontext of_test = nullptr;

// Made in `of_test`; destroyed twice.
template <typename Handle, typename Create, typename Destroy>
void twice(const Create& create, const Destroy& destroy, void (*between)()) {
  Handle handle = nullptr;
  ANSWERED(create(&handle));
  between();
  ANSWERED(destroy(handle));
  ANSWERED(destroy(handle));
}

constexpr CUDA_ARRAY_DESCRIPTOR kFlat{1024, 512, CU_AD_FORMAT_FLOAT, 1};
constexpr CUDA_ARRAY3D_DESCRIPTOR kLayered{256, 256, 4, CU_AD_FORMAT_HALF, 2, 1};

const std::vector<Array> kArrays = {
    {"array",
     [](void (*between)()) {
       twice<CUarray>([](CUarray* handle) { return cu.cuArrayCreate_v2(handle, &kFlat); },
                      [](CUarray handle) { return cu.cuArrayDestroy(handle); }, between);
     }},
    {"layered array",
     [](void (*between)()) {
       twice<CUarray>([](CUarray* handle) { return cu.cuArray3DCreate_v2(handle, &kLayered); },
                      [](CUarray handle) { return cu.cuArrayDestroy(handle); }, between);
     }},
    {"mipmapped array",
     [](void (*between)()) {
       twice<CUmipmappedArray>([](CUmipmappedArray* handle) { return cu.cuMipmappedArrayCreate(handle, &kLayered, 4); },
                               [](CUmipmappedArray handle) { return cu.cuMipmappedArrayDestroy(handle); }, between);
     }},
};

const std::vector<void (*)()> kBetween = {
    [] {},
    [] { enter(1); },
    [] {
      CUcontext popped = nullptr;
      while (cu.cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS) {
      }
    },
    [] {
      ANSWERED(cu.cuCtxDestroy_v2(of_test));
      enter(1);
    },
};

void arrays() {
  for (const Array& array : kArrays) {
    for (const auto between : kBetween) {
      note(array.name);
      EXPECT_OK(cu.cuCtxCreate_v2(&of_test, 0, 0));
      array.create_and_destroy(between);
      ANSWERED(cu.cuCtxDestroy_v2(of_test));
      EXPECT_EMPTY_BOOKS();
    }
  }
}

void compare(void (*program)()) {
  const std::string bare = on_simgpu({.mode = Mode::kBare, .limit = "", .replace = {}, .neighbour = {}}, program);
  CHECK(bare.size() > 1000);
  CHECK(bare.find("not so") == std::string::npos);
  for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    const std::string with = on_simgpu({.mode = mode, .limit = "", .replace = {}, .neighbour = {}}, program);
    INFO(name_of(mode) << ": ..." << with.substr(std::max<std::size_t>(with.size(), 2000) - 2000));
    CHECK((with == bare));
  }
}

}  // namespace

TEST_CASE("physical memory is charged as long as a handle or a mapping is left, in every order of the calls") {
  compare(every_order_of_mapping);
}

TEST_CASE("arrays are given back once, or with their context, whichever context is current") {
  compare(arrays);
}
