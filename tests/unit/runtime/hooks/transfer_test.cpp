// Which form of a set or copy rota calls: a synchronous one must not wait because rota serves plain memory as managed
// memory.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"
#include "tests/unit/runtime/hooks/program.h"

using namespace rota;

namespace {

std::vector<std::string> called;
api::CUresult answer_of_async = api::CUDA_SUCCESS;

template <typename Shape>
Shape row(api::CUdeviceptr to, api::CUdeviceptr from) {
  Shape shape{};
  shape.dstMemoryType = shape.srcMemoryType = api::CU_MEMORYTYPE_DEVICE;
  shape.dstDevice = static_cast<decltype(shape.dstDevice)>(to);
  shape.srcDevice = static_cast<decltype(shape.srcDevice)>(from);
  shape.WidthInBytes = 64;
  shape.Height = 1;
  return shape;
}

template <typename Shape>
api::CUresult shaped(api::CUresult (*copy)(const Shape*), api::CUdeviceptr to, api::CUdeviceptr from) {
  const auto shape = row<Shape>(to, from);
  return copy(&shape);
}

template <typename Shape>
api::CUresult shaped_async(api::CUresult (*copy)(const Shape*, api::CUstream), api::CUdeviceptr to,
                           api::CUdeviceptr from) {
  const auto shape = row<Shape>(to, from);
  return copy(&shape, nullptr);
}

const auto kStream = reinterpret_cast<api::CUstream>(0x5000);

// A batch of one.
template <typename Call>
api::CUresult batch(api::CUdeviceptr to, api::CUdeviceptr from, Call&& call) {
  std::size_t bytes = 64;
  api::CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = api::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  return call(&to, &from, &bytes, std::size_t{1}, &attributes, &first, std::size_t{1});
}

// A copy in rows with attributes.
template <typename Call>
api::CUresult rows(api::CUdeviceptr to, api::CUdeviceptr from, Call&& call) {
  api::CUDA_MEMCPY3D_BATCH_OP copy{};
  copy.src.type = copy.dst.type = api::CU_MEMCPY_OPERAND_TYPE_POINTER;
  copy.src.op.ptr.ptr = from;
  copy.dst.op.ptr.ptr = to;
  copy.extent = {.width = 64, .height = 1, .depth = 1};
  copy.srcAccessOrder = api::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return call(&copy);
}

template <typename Call>
api::CUresult with_attributes(Call&& call) {
  api::CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = api::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return call(&attributes);
}

struct Form {
  Symbol symbol;
  const char* asynchronous;

  api::CUresult (*call)(api::CUdeviceptr to, api::CUdeviceptr from);
};

// clang-format off
const test::Table<Form> kSets = {
    {Symbol::k_cuMemsetD8_v2, "cuMemsetD8Async", [](auto to, auto) { return overrides::cuMemsetD8_v2(to, 1, 64); }},
    {Symbol::k_cuMemsetD8_v2_ptds, "cuMemsetD8Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD8_v2_ptds(to, 1, 64); }},
    {Symbol::k_cuMemsetD16_v2, "cuMemsetD16Async", [](auto to, auto) { return overrides::cuMemsetD16_v2(to, 1, 64); }},
    {Symbol::k_cuMemsetD16_v2_ptds, "cuMemsetD16Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD16_v2_ptds(to, 1, 64); }},
    {Symbol::k_cuMemsetD32_v2, "cuMemsetD32Async", [](auto to, auto) { return overrides::cuMemsetD32_v2(to, 1, 64); }},
    {Symbol::k_cuMemsetD32_v2_ptds, "cuMemsetD32Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD32_v2_ptds(to, 1, 64); }},
    {Symbol::k_cuMemsetD2D8_v2, "cuMemsetD2D8Async", [](auto to, auto) { return overrides::cuMemsetD2D8_v2(to, 512, 1, 64, 4); }},
    {Symbol::k_cuMemsetD2D8_v2_ptds, "cuMemsetD2D8Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD2D8_v2_ptds(to, 512, 1, 64, 4); }},
    {Symbol::k_cuMemsetD2D16_v2, "cuMemsetD2D16Async", [](auto to, auto) { return overrides::cuMemsetD2D16_v2(to, 512, 1, 64, 4); }},
    {Symbol::k_cuMemsetD2D16_v2_ptds, "cuMemsetD2D16Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD2D16_v2_ptds(to, 512, 1, 64, 4); }},
    {Symbol::k_cuMemsetD2D32_v2, "cuMemsetD2D32Async", [](auto to, auto) { return overrides::cuMemsetD2D32_v2(to, 512, 1, 64, 4); }},
    {Symbol::k_cuMemsetD2D32_v2_ptds, "cuMemsetD2D32Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD2D32_v2_ptds(to, 512, 1, 64, 4); }},
};
const test::Table<Form> kCopies = {
    {Symbol::k_cuMemcpy, "cuMemcpyAsync", [](auto to, auto from) { return overrides::cuMemcpy(to, from, 64); }},
    {Symbol::k_cuMemcpy_ptds, "cuMemcpyAsync_ptsz", [](auto to, auto from) { return overrides::cuMemcpy_ptds(to, from, 64); }},
    {Symbol::k_cuMemcpyPeer, "cuMemcpyPeerAsync", [](auto to, auto from) { return overrides::cuMemcpyPeer(to, nullptr, from, nullptr, 64); }},
    {Symbol::k_cuMemcpyPeer_ptds, "cuMemcpyPeerAsync_ptsz", [](auto to, auto from) { return overrides::cuMemcpyPeer_ptds(to, nullptr, from, nullptr, 64); }},
    {Symbol::k_cuMemcpyDtoD_v2, "cuMemcpyDtoDAsync_v2", [](auto to, auto from) { return overrides::cuMemcpyDtoD_v2(to, from, 64); }},
    {Symbol::k_cuMemcpyDtoD_v2_ptds, "cuMemcpyDtoDAsync_v2_ptsz", [](auto to, auto from) { return overrides::cuMemcpyDtoD_v2_ptds(to, from, 64); }},
    {Symbol::k_cuMemcpy2D_v2, "cuMemcpy2DAsync_v2", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2D_v2, to, from); }},
    {Symbol::k_cuMemcpy2D_v2_ptds, "cuMemcpy2DAsync_v2_ptsz", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2D_v2_ptds, to, from); }},
    {Symbol::k_cuMemcpy2DUnaligned_v2, "cuMemcpy2DAsync_v2", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2DUnaligned_v2, to, from); }},
    {Symbol::k_cuMemcpy2DUnaligned_v2_ptds, "cuMemcpy2DAsync_v2_ptsz", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2DUnaligned_v2_ptds, to, from); }},
    {Symbol::k_cuMemcpy3D_v2, "cuMemcpy3DAsync_v2", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY3D>(overrides::cuMemcpy3D_v2, to, from); }},
    {Symbol::k_cuMemcpy3D_v2_ptds, "cuMemcpy3DAsync_v2_ptsz", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY3D>(overrides::cuMemcpy3D_v2_ptds, to, from); }},
    {Symbol::k_cuMemcpy3DPeer, "cuMemcpy3DPeerAsync", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY3D_PEER>(overrides::cuMemcpy3DPeer, to, from); }},
    {Symbol::k_cuMemcpy3DPeer_ptds, "cuMemcpy3DPeerAsync_ptsz", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY3D_PEER>(overrides::cuMemcpy3DPeer_ptds, to, from); }},
};

// Asynchronous copies, and those from and to the host, go to the driver as they are.
const test::Table<Form> kAsynchronous = {
    {Symbol::k_cuMemcpyAsync, "cuMemcpyAsync", [](auto to, auto from) { return overrides::cuMemcpyAsync(to, from, 64, nullptr); }},
    {Symbol::k_cuMemcpyAsync_ptsz, "cuMemcpyAsync_ptsz", [](auto to, auto from) { return overrides::cuMemcpyAsync_ptsz(to, from, 64, nullptr); }},
    {Symbol::k_cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync_v2", [](auto to, auto from) { return overrides::cuMemcpyDtoDAsync_v2(to, from, 64, nullptr); }},
    {Symbol::k_cuMemcpyDtoDAsync_v2_ptsz, "cuMemcpyDtoDAsync_v2_ptsz", [](auto to, auto from) { return overrides::cuMemcpyDtoDAsync_v2_ptsz(to, from, 64, nullptr); }},
    {Symbol::k_cuMemcpy2DAsync_v2, "cuMemcpy2DAsync_v2", [](auto to, auto from) { return shaped_async<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2DAsync_v2, to, from); }},
    {Symbol::k_cuMemcpy2DAsync_v2_ptsz, "cuMemcpy2DAsync_v2_ptsz", [](auto to, auto from) { return shaped_async<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2DAsync_v2_ptsz, to, from); }},
    {Symbol::k_cuMemcpy3DAsync_v2, "cuMemcpy3DAsync_v2", [](auto to, auto from) { return shaped_async<api::CUDA_MEMCPY3D>(overrides::cuMemcpy3DAsync_v2, to, from); }},
    {Symbol::k_cuMemcpy3DAsync_v2_ptsz, "cuMemcpy3DAsync_v2_ptsz", [](auto to, auto from) { return shaped_async<api::CUDA_MEMCPY3D>(overrides::cuMemcpy3DAsync_v2_ptsz, to, from); }},
    {Symbol::k_cuMemcpyPeerAsync, "cuMemcpyPeerAsync", [](auto to, auto from) { return overrides::cuMemcpyPeerAsync(to, nullptr, from, nullptr, 64, nullptr); }},
    {Symbol::k_cuMemcpyPeerAsync_ptsz, "cuMemcpyPeerAsync_ptsz", [](auto to, auto from) { return overrides::cuMemcpyPeerAsync_ptsz(to, nullptr, from, nullptr, 64, nullptr); }},
    {Symbol::k_cuMemcpy3DPeerAsync, "cuMemcpy3DPeerAsync", [](auto to, auto from) { return shaped_async<api::CUDA_MEMCPY3D_PEER>(overrides::cuMemcpy3DPeerAsync, to, from); }},
    {Symbol::k_cuMemcpy3DPeerAsync_ptsz, "cuMemcpy3DPeerAsync_ptsz", [](auto to, auto from) { return shaped_async<api::CUDA_MEMCPY3D_PEER>(overrides::cuMemcpy3DPeerAsync_ptsz, to, from); }},
    {Symbol::k_cuMemcpyAtoD_v2, "cuMemcpyAtoD_v2", [](auto to, auto) { return overrides::cuMemcpyAtoD_v2(to, nullptr, 0, 64); }},
    {Symbol::k_cuMemcpyAtoD_v2_ptds, "cuMemcpyAtoD_v2_ptds", [](auto to, auto) { return overrides::cuMemcpyAtoD_v2_ptds(to, nullptr, 0, 64); }},
    {Symbol::k_cuMemcpyDtoA_v2, "cuMemcpyDtoA_v2", [](auto, auto from) { return overrides::cuMemcpyDtoA_v2(nullptr, 0, from, 64); }},
    {Symbol::k_cuMemcpyDtoA_v2_ptds, "cuMemcpyDtoA_v2_ptds", [](auto, auto from) { return overrides::cuMemcpyDtoA_v2_ptds(nullptr, 0, from, 64); }},
    {Symbol::k_cuMemcpyBatchAsync, "cuMemcpyBatchAsync", [](auto to, auto from) { return batch(to, from, [](auto... all) { std::size_t failed = 0; return overrides::cuMemcpyBatchAsync(all..., &failed, kStream); }); }},
    {Symbol::k_cuMemcpyBatchAsync_ptsz, "cuMemcpyBatchAsync_ptsz", [](auto to, auto from) { return batch(to, from, [](auto... all) { std::size_t failed = 0; return overrides::cuMemcpyBatchAsync_ptsz(all..., &failed, kStream); }); }},
    {Symbol::k_cuMemcpyBatchAsync_v2, "cuMemcpyBatchAsync_v2", [](auto to, auto from) { return batch(to, from, [](auto... all) { return overrides::cuMemcpyBatchAsync_v2(all..., kStream); }); }},
    {Symbol::k_cuMemcpyBatchAsync_v2_ptsz, "cuMemcpyBatchAsync_v2_ptsz", [](auto to, auto from) { return batch(to, from, [](auto... all) { return overrides::cuMemcpyBatchAsync_v2_ptsz(all..., kStream); }); }},
    {Symbol::k_cuMemcpyWithAttributesAsync, "cuMemcpyWithAttributesAsync", [](auto to, auto from) { return with_attributes([=](auto* with) { return overrides::cuMemcpyWithAttributesAsync(to, from, 64, with, kStream); }); }},
    {Symbol::k_cuMemcpyWithAttributesAsync_ptsz, "cuMemcpyWithAttributesAsync_ptsz", [](auto to, auto from) { return with_attributes([=](auto* with) { return overrides::cuMemcpyWithAttributesAsync_ptsz(to, from, 64, with, kStream); }); }},
    {Symbol::k_cuMemcpy3DBatchAsync, "cuMemcpy3DBatchAsync", [](auto to, auto from) { return rows(to, from, [](auto* copy) { std::size_t failed = 0; return overrides::cuMemcpy3DBatchAsync(1, copy, &failed, 0, kStream); }); }},
    {Symbol::k_cuMemcpy3DBatchAsync_ptsz, "cuMemcpy3DBatchAsync_ptsz", [](auto to, auto from) { return rows(to, from, [](auto* copy) { std::size_t failed = 0; return overrides::cuMemcpy3DBatchAsync_ptsz(1, copy, &failed, 0, kStream); }); }},
    {Symbol::k_cuMemcpy3DBatchAsync_v2, "cuMemcpy3DBatchAsync_v2", [](auto to, auto from) { return rows(to, from, [](auto* copy) { return overrides::cuMemcpy3DBatchAsync_v2(1, copy, 0, kStream); }); }},
    {Symbol::k_cuMemcpy3DBatchAsync_v2_ptsz, "cuMemcpy3DBatchAsync_v2_ptsz", [](auto to, auto from) { return rows(to, from, [](auto* copy) { return overrides::cuMemcpy3DBatchAsync_v2_ptsz(1, copy, 0, kStream); }); }},
    {Symbol::k_cuMemcpy3DWithAttributesAsync, "cuMemcpy3DWithAttributesAsync", [](auto to, auto from) { return rows(to, from, [](auto* copy) { return overrides::cuMemcpy3DWithAttributesAsync(copy, 0, kStream); }); }},
    {Symbol::k_cuMemcpy3DWithAttributesAsync_ptsz, "cuMemcpy3DWithAttributesAsync_ptsz", [](auto to, auto from) { return rows(to, from, [](auto* copy) { return overrides::cuMemcpy3DWithAttributesAsync_ptsz(copy, 0, kStream); }); }},
    {Symbol::k_cuMemcpyHtoD_v2, "cuMemcpyHtoD_v2", [](auto to, auto from) { return overrides::cuMemcpyHtoD_v2(to, reinterpret_cast<const void*>(from), 64); }},
    {Symbol::k_cuMemcpyHtoD_v2_ptds, "cuMemcpyHtoD_v2_ptds", [](auto to, auto from) { return overrides::cuMemcpyHtoD_v2_ptds(to, reinterpret_cast<const void*>(from), 64); }},
    {Symbol::k_cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync_v2", [](auto to, auto from) { return overrides::cuMemcpyHtoDAsync_v2(to, reinterpret_cast<const void*>(from), 64, nullptr); }},
    {Symbol::k_cuMemcpyHtoDAsync_v2_ptsz, "cuMemcpyHtoDAsync_v2_ptsz", [](auto to, auto from) { return overrides::cuMemcpyHtoDAsync_v2_ptsz(to, reinterpret_cast<const void*>(from), 64, nullptr); }},
    {Symbol::k_cuMemcpyDtoH_v2, "cuMemcpyDtoH_v2", [](auto to, auto from) { return overrides::cuMemcpyDtoH_v2(reinterpret_cast<void*>(to), from, 64); }},
    {Symbol::k_cuMemcpyDtoH_v2_ptds, "cuMemcpyDtoH_v2_ptds", [](auto to, auto from) { return overrides::cuMemcpyDtoH_v2_ptds(reinterpret_cast<void*>(to), from, 64); }},
    {Symbol::k_cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync_v2", [](auto to, auto from) { return overrides::cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(to), from, 64, nullptr); }},
    {Symbol::k_cuMemcpyDtoHAsync_v2_ptsz, "cuMemcpyDtoHAsync_v2_ptsz", [](auto to, auto from) { return overrides::cuMemcpyDtoHAsync_v2_ptsz(reinterpret_cast<void*>(to), from, 64, nullptr); }},
};

// The forms of CUDA 3.1 and before.
struct OldForm {
  Symbol symbol;
  api::CUresult (*call)(api::CUdeviceptr_v1 to, api::CUdeviceptr_v1 from);
};
const test::Table<OldForm> kOldForms = {
    {Symbol::k_cuMemsetD8, [](auto to, auto) { return overrides::cuMemsetD8(to, 1, 64); }},
    {Symbol::k_cuMemsetD16, [](auto to, auto) { return overrides::cuMemsetD16(to, 1, 64); }},
    {Symbol::k_cuMemsetD32, [](auto to, auto) { return overrides::cuMemsetD32(to, 1, 64); }},
    {Symbol::k_cuMemsetD2D8, [](auto to, auto) { return overrides::cuMemsetD2D8(to, 512, 1, 64, 4); }},
    {Symbol::k_cuMemsetD2D16, [](auto to, auto) { return overrides::cuMemsetD2D16(to, 512, 1, 64, 4); }},
    {Symbol::k_cuMemsetD2D32, [](auto to, auto) { return overrides::cuMemsetD2D32(to, 512, 1, 64, 4); }},
    {Symbol::k_cuMemcpyDtoD, [](auto to, auto from) { return overrides::cuMemcpyDtoD(to, from, 64); }},
    {Symbol::k_cuMemcpyAtoD, [](auto to, auto) { return overrides::cuMemcpyAtoD(to, nullptr, 0, 64); }},
    {Symbol::k_cuMemcpyDtoA, [](auto, auto from) { return overrides::cuMemcpyDtoA(nullptr, 0, from, 64); }},
    {Symbol::k_cuMemcpyDtoDAsync, [](auto to, auto from) { return overrides::cuMemcpyDtoDAsync(to, from, 64, nullptr); }},
    {Symbol::k_cuMemcpyHtoD, [](auto to, auto) { return overrides::cuMemcpyHtoD(to, nullptr, 64); }},
    {Symbol::k_cuMemcpyHtoDAsync, [](auto to, auto) { return overrides::cuMemcpyHtoDAsync(to, nullptr, 64, nullptr); }},
    {Symbol::k_cuMemcpyDtoH, [](auto, auto from) { return overrides::cuMemcpyDtoH(nullptr, from, 64); }},
    {Symbol::k_cuMemcpyDtoHAsync, [](auto, auto from) { return overrides::cuMemcpyDtoHAsync(nullptr, from, 64, nullptr); }},
    {Symbol::k_cuMemcpy2D, [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D_v1>(overrides::cuMemcpy2D, to, from); }},
    {Symbol::k_cuMemcpy2DUnaligned, [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D_v1>(overrides::cuMemcpy2DUnaligned, to, from); }},
    {Symbol::k_cuMemcpy3D, [](auto to, auto from) { return shaped<api::CUDA_MEMCPY3D_v1>(overrides::cuMemcpy3D, to, from); }},
    {Symbol::k_cuMemcpy2DAsync, [](auto to, auto from) { return shaped_async<api::CUDA_MEMCPY2D_v1>(overrides::cuMemcpy2DAsync, to, from); }},
    {Symbol::k_cuMemcpy3DAsync, [](auto to, auto from) { return shaped_async<api::CUDA_MEMCPY3D_v1>(overrides::cuMemcpy3DAsync, to, from); }},
};

struct Attribute {
  Symbol symbol;
  api::CUresult (*call)(const void* value, api::CUpointer_attribute attribute, api::CUdeviceptr address);
};
const test::Table<Attribute> kAttributes = {{Symbol::k_cuPointerSetAttribute, overrides::cuPointerSetAttribute}};
// clang-format on

// The process's runtime as a program has it: managed memory, no rotad.
struct Program {
  Program() {
    setenv("ROTA_MEMORY", "managed", 1);                  // NOLINT(concurrency-mt-unsafe)
    setenv("ROTA_MEMORY_SMALL", "0", 1);                  // NOLINT(concurrency-mt-unsafe)
    setenv("ROTA_SOCKET", "/nonexistent/rotad.sock", 1);  // NOLINT(concurrency-mt-unsafe)
    answer_of_async = api::CUDA_SUCCESS;
#define SAYS(name)                                                            \
  driver.set<api::name##_fn>(Symbol::k_##name, [](auto...) {                  \
    called.emplace_back(#name);                                               \
    const bool async = std::string(#name).find("Async") != std::string::npos; \
    return async ? answer_of_async : api::CUDA_SUCCESS;                       \
  });
    SAYS(cuMemsetD8_v2)
    SAYS(cuMemsetD8Async)
    SAYS(cuMemsetD8_v2_ptds)
    SAYS(cuMemsetD8Async_ptsz)
    SAYS(cuMemsetD16_v2)
    SAYS(cuMemsetD16Async)
    SAYS(cuMemsetD16_v2_ptds)
    SAYS(cuMemsetD16Async_ptsz)
    SAYS(cuMemsetD32_v2)
    SAYS(cuMemsetD32Async)
    SAYS(cuMemsetD32_v2_ptds)
    SAYS(cuMemsetD32Async_ptsz)
    SAYS(cuMemsetD2D8_v2)
    SAYS(cuMemsetD2D8Async)
    SAYS(cuMemsetD2D8_v2_ptds)
    SAYS(cuMemsetD2D8Async_ptsz)
    SAYS(cuMemsetD2D16_v2)
    SAYS(cuMemsetD2D16Async)
    SAYS(cuMemsetD2D16_v2_ptds)
    SAYS(cuMemsetD2D16Async_ptsz)
    SAYS(cuMemsetD2D32_v2)
    SAYS(cuMemsetD2D32Async)
    SAYS(cuMemsetD2D32_v2_ptds)
    SAYS(cuMemsetD2D32Async_ptsz)
    SAYS(cuMemcpy)
    SAYS(cuMemcpyAsync)
    SAYS(cuMemcpy_ptds)
    SAYS(cuMemcpyAsync_ptsz)
    SAYS(cuMemcpyPeer)
    SAYS(cuMemcpyPeerAsync)
    SAYS(cuMemcpyPeer_ptds)
    SAYS(cuMemcpyPeerAsync_ptsz)
    SAYS(cuMemcpyDtoD_v2)
    SAYS(cuMemcpyDtoDAsync_v2)
    SAYS(cuMemcpyDtoD_v2_ptds)
    SAYS(cuMemcpyDtoDAsync_v2_ptsz)
    SAYS(cuMemcpyHtoD)
    SAYS(cuMemcpyHtoDAsync)
    SAYS(cuMemcpyDtoH)
    SAYS(cuMemcpyDtoHAsync)
    SAYS(cuMemcpyHtoD_v2)
    SAYS(cuMemcpyHtoD_v2_ptds)
    SAYS(cuMemcpyHtoDAsync_v2)
    SAYS(cuMemcpyHtoDAsync_v2_ptsz)
    SAYS(cuMemcpyDtoH_v2)
    SAYS(cuMemcpyDtoH_v2_ptds)
    SAYS(cuMemcpyDtoHAsync_v2)
    SAYS(cuMemcpyDtoHAsync_v2_ptsz)
    SAYS(cuMemcpy2D_v2)
    SAYS(cuMemcpy2DAsync_v2)
    SAYS(cuMemcpy2D_v2_ptds)
    SAYS(cuMemcpy2DAsync_v2_ptsz)
    SAYS(cuMemcpy2DUnaligned_v2)
    SAYS(cuMemcpy2DUnaligned_v2_ptds)
    SAYS(cuMemcpy3D_v2)
    SAYS(cuMemcpy3DAsync_v2)
    SAYS(cuMemcpy3D_v2_ptds)
    SAYS(cuMemcpy3DAsync_v2_ptsz)
    SAYS(cuMemcpy3DPeer)
    SAYS(cuMemcpy3DPeerAsync)
    SAYS(cuMemcpy3DPeer_ptds)
    SAYS(cuMemcpy3DPeerAsync_ptsz)
    SAYS(cuMemsetD8)
    SAYS(cuMemsetD16)
    SAYS(cuMemsetD32)
    SAYS(cuMemsetD2D8)
    SAYS(cuMemsetD2D16)
    SAYS(cuMemsetD2D32)
    SAYS(cuMemcpyDtoD)
    SAYS(cuMemcpyDtoDAsync)
    SAYS(cuMemcpy2D)
    SAYS(cuMemcpy2DUnaligned)
    SAYS(cuMemcpyBatchAsync)
    SAYS(cuMemcpyBatchAsync_ptsz)
    SAYS(cuMemcpyBatchAsync_v2)
    SAYS(cuMemcpyBatchAsync_v2_ptsz)
    SAYS(cuMemcpyWithAttributesAsync)
    SAYS(cuMemcpyWithAttributesAsync_ptsz)
    SAYS(cuMemcpy3DBatchAsync)
    SAYS(cuMemcpy3DBatchAsync_ptsz)
    SAYS(cuMemcpy3DBatchAsync_v2)
    SAYS(cuMemcpy3DBatchAsync_v2_ptsz)
    SAYS(cuMemcpy3DWithAttributesAsync)
    SAYS(cuMemcpy3DWithAttributesAsync_ptsz)
    SAYS(cuMemcpyAtoD)
    SAYS(cuMemcpyAtoD_v2)
    SAYS(cuMemcpyAtoD_v2_ptds)
    SAYS(cuMemcpyDtoA)
    SAYS(cuMemcpyDtoA_v2)
    SAYS(cuMemcpyDtoA_v2_ptds)
    SAYS(cuMemcpy2DAsync)
    SAYS(cuMemcpy3DAsync)
    SAYS(cuMemcpy3D)
#undef SAYS
    driver.set<api::cuMemAllocAsync_fn>(Symbol::k_cuMemAllocAsync,
                                        [](api::CUdeviceptr* address, size_t bytes, api::CUstream) {
                                          return test::FakeDriver::the().give_memory(address, bytes);
                                        });
    // The runtime is that of the previous tests, with the spans that it got from their drivers.
    static std::uint64_t addresses = driver.next_address;
    driver.next_address = addresses += std::uint64_t{1} << 30;
    driver.enter_context(0);
    REQUIRE(overrides::cuMemAlloc_v2(&converted, 4096) == api::CUDA_SUCCESS);
    REQUIRE(overrides::cuMemAllocAsync(&pooled, 4096, nullptr) == api::CUDA_SUCCESS);
    REQUIRE(overrides::cuMemAllocManaged(&managed, 4096, api::CU_MEM_ATTACH_GLOBAL) == api::CUDA_SUCCESS);
  }
  // The calls that the driver gets.
  static std::vector<std::string> asked(const Form& form, api::CUdeviceptr to, api::CUdeviceptr from) {
    called.clear();
    CHECK(form.call(to, from) == api::CUDA_SUCCESS);
    return called;
  }
  test::FakeDriver driver;
  api::CUdeviceptr converted = 0;
  api::CUdeviceptr pooled = 0;
  api::CUdeviceptr managed = 0;
};

using Calls = std::vector<std::string>;

}  // namespace

TEST_CASE("an asynchronous copy is the program's own call, and a refusal is the driver's, unless memory is swapped") {
  Program p;
  for (const Form& form : kAsynchronous) {
    INFO(test::name_of(form.symbol));
    CHECK(p.asked(form, p.converted, p.pooled) == Calls{form.asynchronous});
    answer_of_async = api::CUDA_ERROR_INVALID_VALUE;
    called.clear();
    // The fake driver refuses these.
    const bool async = std::string(form.asynchronous).find("Async") != std::string::npos;
    CHECK(form.call(p.converted, p.pooled) == (async ? api::CUDA_ERROR_INVALID_VALUE : api::CUDA_SUCCESS));
    CHECK(called == Calls{form.asynchronous});
    answer_of_async = api::CUDA_SUCCESS;
  }
}

TEST_CASE("a synchronous set of converted memory is its asynchronous form, of other memory the program's own call") {
  Program p;
  for (const Form& form : kSets) {
    INFO(test::name_of(form.symbol));
    CHECK(p.asked(form, p.converted + 100, 0) == Calls{form.asynchronous});
    CHECK(p.asked(form, p.pooled, 0) == Calls{test::name_of(form.symbol)});
    CHECK(p.asked(form, p.managed, 0) == Calls{test::name_of(form.symbol)});
    CHECK(p.asked(form, 0x1000, 0) == Calls{test::name_of(form.symbol)});
  }
}

TEST_CASE("a synchronous copy within the GPU that converted memory would make wait is its asynchronous form") {
  Program p;
  for (const Form& form : kCopies) {
    INFO(test::name_of(form.symbol));
    CHECK(p.asked(form, p.converted, p.converted + 2048) == Calls{form.asynchronous});
    CHECK(p.asked(form, p.pooled, p.converted) == Calls{form.asynchronous});
    CHECK(p.asked(form, p.converted, p.pooled) == Calls{form.asynchronous});
    CHECK(p.asked(form, p.pooled, p.pooled + 2048) == Calls{test::name_of(form.symbol)});
    // The program's own managed memory makes the driver wait without rota, too, and memory of the host always did.
    CHECK(p.asked(form, p.converted, p.managed) == Calls{test::name_of(form.symbol)});
    CHECK(p.asked(form, p.converted, 0x1000) == Calls{test::name_of(form.symbol)});
  }
}

TEST_CASE("a copy from or to the host or an array waits as it did") {
  Program p;
  for (const auto type : {api::CU_MEMORYTYPE_HOST, api::CU_MEMORYTYPE_ARRAY}) {
    api::CUDA_MEMCPY2D shape{};
    shape.srcMemoryType = type;
    shape.dstMemoryType = api::CU_MEMORYTYPE_DEVICE;
    shape.dstDevice = shape.srcDevice = p.converted;
    called.clear();
    CHECK(overrides::cuMemcpy2D_v2(&shape) == api::CUDA_SUCCESS);
    CHECK(called == Calls{"cuMemcpy2D_v2"});
  }
  called.clear();
  CHECK(overrides::cuMemcpy2D_v2(nullptr) == api::CUDA_SUCCESS);
  CHECK(called == Calls{"cuMemcpy2D_v2"});
}

TEST_CASE("the program's own call answers what the asynchronous form refuses, and while anything captures") {
  Program p;
  answer_of_async = api::CUDA_ERROR_INVALID_VALUE;
  for (const Form& form : kCopies) {
    CHECK(p.asked(form, p.converted, p.converted) == Calls{form.asynchronous, test::name_of(form.symbol)});
  }
  answer_of_async = api::CUDA_SUCCESS;
  const auto stream = reinterpret_cast<api::CUstream>(0x5000);
  const auto done = [] { return api::CUDA_SUCCESS; };
  REQUIRE(runtime().contexts.begin_capture(stream, false, done) == api::CUDA_SUCCESS);
  CHECK(p.asked(kSets.front(), p.converted, 0) == Calls{test::name_of(kSets.front().symbol)});
  REQUIRE(runtime().contexts.end_capture(stream, false, done) == api::CUDA_SUCCESS);
  CHECK(p.asked(kSets.front(), p.converted, 0) == Calls{kSets.front().asynchronous});
}

TEST_CASE("a set or copy of memory that the program wants to be waited for is the program's own call") {
  Program p;
  p.driver.set<api::cuPointerSetAttribute_fn>(
      Symbol::k_cuPointerSetAttribute,
      [](const void*, api::CUpointer_attribute, api::CUdeviceptr) { return api::CUDA_SUCCESS; });
  const auto want = [&](unsigned on) {
    return kAttributes.front().call(&on, api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p.converted + 64);
  };
  REQUIRE(want(1) == api::CUDA_SUCCESS);
  for (const Form& form : kSets) CHECK(p.asked(form, p.converted, 0) == Calls{test::name_of(form.symbol)});
  for (const Form& form : kCopies) {
    CHECK(p.asked(form, p.pooled, p.converted) == Calls{test::name_of(form.symbol)});
    CHECK(p.asked(form, p.converted, p.pooled) == Calls{test::name_of(form.symbol)});
  }
  REQUIRE(want(0) == api::CUDA_SUCCESS);
  CHECK(p.asked(kSets.front(), p.converted, 0) == Calls{kSets.front().asynchronous});
}

TEST_CASE("an attribute that the driver refuses, and another attribute, make no call wait") {
  Program p;
  static api::CUresult answer = api::CUDA_ERROR_INVALID_VALUE;
  p.driver.set<api::cuPointerSetAttribute_fn>(Symbol::k_cuPointerSetAttribute, [](auto...) { return answer; });
  const unsigned on = 1;
  const auto set = kAttributes.front().call;
  REQUIRE(set(&on, api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p.converted) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(p.asked(kSets.front(), p.converted, 0) == Calls{kSets.front().asynchronous});
  answer = api::CUDA_SUCCESS;
  REQUIRE(set(&on, api::CU_POINTER_ATTRIBUTE_BUFFER_ID, p.converted) == api::CUDA_SUCCESS);
  CHECK(p.asked(kSets.front(), p.converted, 0) == Calls{kSets.front().asynchronous});
}

TEST_CASE("the oldest forms, whose addresses managed memory does not have, are the program's own calls") {
  Program p;
  for (const OldForm& form : kOldForms) {
    INFO(test::name_of(form.symbol));
    called.clear();
    const auto low = static_cast<api::CUdeviceptr_v1>(p.converted);
    CHECK(form.call(low, low) == api::CUDA_SUCCESS);
    CHECK(called == Calls{test::name_of(form.symbol)});
  }
}
