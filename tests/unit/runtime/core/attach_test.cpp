// The core's side of interposing, without a process around it: a made-up attachment in the place of the thin preload's.
#include "runtime/core/attach.h"

#include <fmt/format.h>
#include <array>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "runtime/core/tables.h"
#include "runtime/hooks/lookup.h"
#include "runtime/hooks/overrides.h"
#include "tests/unit/recorded_lookups.h"
#include "tests/unit/runtime/fake_preload.h"

using rota::kSymbolCount;
using rota::kSymbolNames;
using rota::Symbol;
using rota::test::FakePreload;

namespace {

FakePreload& fresh_preload() {
  return FakePreload::fresh();
}

std::string name_at(const FakePreload& preload, const void* thunk) {
  return preload.name_at(thunk);
}

}  // namespace

TEST_CASE("a preload of another build keeps its slots") {
  FakePreload& preload = fresh_preload();
  preload.attachment.symbol_count = kSymbolCount - 1;
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) != 0);
  preload.attachment.symbol_count = kSymbolCount;
  preload.attachment.version = kRotaAttachmentVersion + 1;
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) != 0);
  preload.attachment.version = kRotaAttachmentVersion;
  preload.attachment.symbol_list ^= 1;
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) != 0);
  for (const void* slot : preload.slots) REQUIRE(slot == nullptr);
}

TEST_CASE("a list of symbols is told from one of other names, another order and another division into names") {
  const auto known = rota::symbol_list_hash("cuA\0cuB\0");
  CHECK(rota::symbol_list_hash("cuA\0cuC\0") != known);
  CHECK(rota::symbol_list_hash("cuB\0cuA\0") != known);
  CHECK(rota::symbol_list_hash("cuAc\0uB\0") != known);
}

TEST_CASE("an override comes before a gate and a gate before the real function") {
  FakePreload& preload = fresh_preload();
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) == 0);
  REQUIRE(preload.slot_of(Symbol::k_cuGetProcAddress_v2) ==
          reinterpret_cast<void*>(&rota::overrides::cuGetProcAddress_v2));
  std::size_t gates = 0;
  std::set<std::string> undeclared;
#define ROTA_UNDECLARED(name) undeclared.insert(#name);
#include "generated/driver_undeclared.inc"
#undef ROTA_UNDECLARED
  REQUIRE(undeclared.count("cuMemGetAttribute") == 1);
  for (std::size_t index = 0; index < kSymbolCount; ++index) {
    void* wanted = rota::overrides::find(static_cast<Symbol>(index));
    if (wanted == nullptr && rota::gates::table[index] != nullptr) {
      wanted = rota::gates::table[index];
      ++gates;
    }
    if (wanted == nullptr) wanted = preload.real[index];
    INFO(kSymbolNames[index]);
    // What no header declares goes on leading to the resolver, which notes the first call.
    REQUIRE(preload.slots[index] == (undeclared.count(kSymbolNames[index]) != 0 ? nullptr : wanted));
    REQUIRE(rota::next::table[index] == wanted);
    REQUIRE(rota::real::table[index] == preload.real[index]);
  }
  REQUIRE(gates > 50);
}

TEST_CASE("while tracing, a tracer comes before everything else and finds the rest behind it") {
  static std::array<void*, kSymbolCount> tracers{};
  static char tracer;
  tracers[static_cast<std::size_t>(Symbol::k_cuInit)] = &tracer;
  tracers[static_cast<std::size_t>(Symbol::k_cuGetProcAddress_v2)] = &tracer;
  FakePreload& preload = fresh_preload();
  REQUIRE(rota::interpose::attach(preload.attachment, []() -> void* const* { return tracers.data(); }) == 0);
  REQUIRE(preload.slot_of(Symbol::k_cuInit) == &tracer);
  REQUIRE(preload.slot_of(Symbol::k_cuGetProcAddress_v2) == &tracer);
  REQUIRE(rota::next::table[static_cast<std::size_t>(Symbol::k_cuGetProcAddress_v2)] ==
          reinterpret_cast<void*>(&rota::overrides::cuGetProcAddress_v2));
  REQUIRE(preload.slot_of(Symbol::k_cuCtxGetCurrent) == preload.real_of(Symbol::k_cuCtxGetCurrent));
}

TEST_CASE("a real address leads to its export, and among several names to the one asked for") {
  FakePreload& preload = fresh_preload();
  preload.real_of(Symbol::k_cuStreamQuery) = preload.real_of(Symbol::k_cuEventQuery);
  preload.real_of(Symbol::k_cuMemAlloc_v2) = preload.real_of(Symbol::k_cuMemAlloc);
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) == 0);
  using rota::interpose::symbol_at;
  REQUIRE(symbol_at(preload.real_of(Symbol::k_cuInit), "cuInit") == Symbol::k_cuInit);
  REQUIRE(symbol_at(preload.real_of(Symbol::k_cuInit), nullptr) == Symbol::k_cuInit);
  REQUIRE(symbol_at(preload.real_of(Symbol::k_cuEventQuery), "cuStreamQuery") == Symbol::k_cuStreamQuery);
  REQUIRE(symbol_at(preload.real_of(Symbol::k_cuEventQuery), "cuEventQuery") == Symbol::k_cuEventQuery);
  const char foreign = 0;
  REQUIRE_FALSE(symbol_at(&foreign, "cuInit").has_value());
}

TEST_CASE("a function that the driver lacks has no address of its own") {
  FakePreload& preload = fresh_preload();
  const char error_function = 0;
  preload.real_of(Symbol::k_cuInit) = const_cast<char*>(&error_function);
  preload.available[static_cast<std::size_t>(Symbol::k_cuInit)] = 0;
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) == 0);
  REQUIRE_FALSE(rota::interpose::symbol_at(&error_function, "cuInit").has_value());
  REQUIRE_FALSE(rota::interpose::available(Symbol::k_cuInit));
  REQUIRE(rota::interpose::available(Symbol::k_cuCtxGetCurrent));
}

TEST_CASE("a function that rota does not know pins the process's memory and is counted once") {
  FakePreload& preload = fresh_preload();
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) == 0);
  REQUIRE(preload.note_unknown != nullptr);
  const auto before = rota::runtime().unknown_pointers.load();
  REQUIRE_FALSE(rota::runtime().unevictable());
  preload.note_unknown("cuFromTheFuture", 1);
  preload.note_unknown("cuFromTheFuture", 0);
  REQUIRE(rota::runtime().unevictable());
  REQUIRE(rota::runtime().unknown_pointers.load() == before + 1);
}

TEST_CASE("an undeclared function that this driver lacks leads nowhere else than any other that it lacks") {
  FakePreload& preload = fresh_preload();
  preload.available[static_cast<std::size_t>(Symbol::k_cuMemGetAttribute)] = 0;
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) == 0);
  REQUIRE(preload.slot_of(Symbol::k_cuMemGetAttribute) == preload.real_of(Symbol::k_cuMemGetAttribute));
}

TEST_CASE("every row that a real driver answered is what we answer where there is no cuGetProcAddress") {
  FakePreload& preload = fresh_preload();
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) == 0);
  const auto rows = rota::test::recorded_lookups(ROTA_TEST_DATA "/cugetprocaddress-580.159.txt");
  for (const rota::test::RecordedLookup& row : rows) {
    void* function = nullptr;
    int status = 99;
    const int result =
        rota::interpose::emulated_proc_address(row.name.c_str(), row.version, row.flags, 13000, &function, &status);
    const std::string refusal = result != 0 ? fmt::format("-[{} rc {}]", status, result) : fmt::format("-[{}]", status);
    const std::string got = function != nullptr ? name_at(preload, function) : refusal;
    INFO(row.text() << "; got " << got);
    CHECK(got == row.answer);
  }
  REQUIRE(rows.size() > 4000);
}

TEST_CASE("bad requests for an address are refused as the driver refuses them") {
  FakePreload& preload = fresh_preload();
  REQUIRE(rota::interpose::attach(preload.attachment, nullptr) == 0);
  void* function = nullptr;
  int status = 99;
  using rota::interpose::emulated_proc_address;
  REQUIRE(emulated_proc_address(nullptr, 12000, 0, 13000, &function, &status) == rota::api::CUDA_ERROR_INVALID_VALUE);
  REQUIRE(emulated_proc_address("cuInit", 12000, 0, 13000, nullptr, &status) == rota::api::CUDA_ERROR_INVALID_VALUE);
  REQUIRE(emulated_proc_address("cuInit", 12000, 64, 13000, &function, &status) == rota::api::CUDA_ERROR_INVALID_VALUE);
  REQUIRE(status == 99);
}

TEST_CASE("nvshare 1: launches, copies, sets and allocations of every kind and stream form are gated or overridden") {
  for (const char* name : {"cuLaunchKernel",
                           "cuLaunchKernel_ptsz",
                           "cuLaunchKernelEx",
                           "cuLaunchKernelEx_ptsz",
                           "cuLaunchCooperativeKernel",
                           "cuLaunchCooperativeKernel_ptsz",
                           "cuLaunchCooperativeKernelMultiDevice",
                           "cuLaunch",
                           "cuLaunchGrid",
                           "cuLaunchGridAsync",
                           "cuLaunchHostFunc",
                           "cuGraphLaunch",
                           "cuGraphLaunch_ptsz",
                           "cuGraphUpload",
                           "cuMemsetD8_v2",
                           "cuMemsetD8_v2_ptds",
                           "cuMemsetD32Async",
                           "cuMemsetD32Async_ptsz",
                           "cuMemsetD2D16_v2",
                           "cuMemsetD2D16Async_ptsz",
                           "cuMemcpy",
                           "cuMemcpy_ptds",
                           "cuMemcpyHtoD",
                           "cuMemcpyHtoD_v2",
                           "cuMemcpyDtoHAsync_v2_ptsz",
                           "cuMemcpy2D_v2",
                           "cuMemcpy2DUnaligned_v2_ptds",
                           "cuMemcpy2DAsync_v2",
                           "cuMemcpy3D_v2",
                           "cuMemcpy3DAsync_v2_ptsz",
                           "cuMemcpy3DPeer",
                           "cuMemcpyPeerAsync_ptsz",
                           "cuMemcpyBatchAsync_v2",
                           "cuMemcpy3DBatchAsync_v2_ptsz",
                           "cuMemPrefetchAsync",
                           "cuMemPrefetchAsync_v2_ptsz",
                           "cuStreamWriteValue32",
                           "cuStreamBatchMemOp_v2_ptsz",
                           "cuMemAlloc",
                           "cuMemAlloc_v2",
                           "cuMemAllocPitch",
                           "cuMemAllocPitch_v2",
                           "cuMemAllocManaged",
                           "cuMemAllocAsync",
                           "cuMemAllocAsync_ptsz",
                           "cuMemAllocFromPoolAsync_ptsz",
                           "cuMemFreeAsync",
                           "cuMemFreeAsync_ptsz",
                           "cuMemCreate"}) {
    INFO(name);
    const auto symbol = rota::find_symbol(name);
    REQUIRE(symbol);
    CHECK((rota::overrides::find(*symbol) != nullptr ||
           rota::gates::table[static_cast<std::size_t>(*symbol)] != nullptr));
  }
  // And what only asks goes straight to the driver, whoever holds the GPU.
  for (const char* name : {"cuCtxGetDevice", "cuStreamQuery_ptsz", "cuEventQuery", "cuDeviceGetAttribute"}) {
    INFO(name);
    const auto symbol = rota::find_symbol(name);
    REQUIRE(symbol);
    CHECK(rota::gates::table[static_cast<std::size_t>(*symbol)] == nullptr);
  }
}
