// Handles of physical memory that rota moves are rota's own numbers. Wherever a function of the driver takes such a
// handle (generated/driver_physical.inc), also inside structures, the driver gets its own handle and never rota's.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <map>
#include <set>
#include <string_view>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/on_simgpu/out_of_place/places.h"

using namespace rota;
using namespace rota::test;

namespace {

using Handle = CUmemGenericAllocationHandle;

// Seconds that a child may take.
constexpr unsigned kPatienceOfHandles = 60;

const std::vector<Place>& handle_places() {
  static const std::vector<Place> kPlaces = {
#define ROTA_PHYSICAL_HANDLE(symbol, text, parameter, ...) {Symbol::k_##symbol, text, parameter, {__VA_ARGS__}},
#include "generated/driver_physical.inc"
#undef ROTA_PHYSICAL_HANDLE
  };
  return kPlaces;
}

// --- what the driver gets

const Place* asked_at = nullptr;  // the place at hand; null: the driver does its work
bool asked_driver = false;
std::uint64_t got = 0;

template <typename Type>
std::uint64_t word_of(Type value) {
  if constexpr (std::is_pointer_v<Type>) {
    return reinterpret_cast<std::uintptr_t>(value);
  } else {
    return static_cast<std::uint64_t>(value);
  }
}

template <Symbol kSymbol, typename Function>
struct Spy;
template <Symbol kSymbol, typename... Parameters>
struct Spy<kSymbol, CUresult(Parameters...)> {
  static inline CUresult (*simulated)(Parameters...) = nullptr;
  static CUresult call(Parameters... parameters) {
    if (asked_at == nullptr || asked_at->symbol != kSymbol) return simulated(parameters...);
    asked_driver = true;
    const std::array<std::uint64_t, sizeof...(Parameters)> words = {word_of(parameters)...};
    got = words[asked_at->parameter];
    for (std::size_t index = 1; index < asked_at->offsets.size(); ++index) {
      got = *reinterpret_cast<const std::uint64_t*>(got + asked_at->offsets[index]);
    }
    return CUDA_ERROR_ECC_UNCORRECTABLE;  // nothing is done
  }
};

void* spy(Symbol symbol, void* simulated) {
  static const auto kAll = [] {
    std::map<Symbol, void* (*)(void*)> all;
#define ROTA_PHYSICAL_HANDLE(name, ...)                                      \
  all[Symbol::k_##name] = [](void* real_one) {                               \
    using Here = Spy<Symbol::k_##name, name##_fn>;                           \
    Here::simulated = reinterpret_cast<decltype(Here::simulated)>(real_one); \
    return reinterpret_cast<void*>(&Here::call);                             \
  };
#include "generated/driver_physical.inc"
#undef ROTA_PHYSICAL_HANDLE
    return all;
  }();
  const auto found = kAll.find(symbol);
  return found != kAll.end() ? found->second(simulated) : nullptr;
}

// A multicast object's, which rota never gives a number of its own.
bool is_of_multicast(const Place& place) {
  return std::string_view(place.text) == "mcHandle";
}

// What rota answers by itself.
bool needs_no_driver(Symbol symbol) {
  return symbol == Symbol::k_cuMemGetAllocationPropertiesFromHandle;
}

// One that may be handed out.
Handle make_piece() {
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  Handle handle = 0;
  EXPECT_OK(cu.cuMemCreate(&handle, 2 * kMiB, &what, 0));
  return handle;
}

}  // namespace

TEST_CASE("wherever a function takes a handle of physical memory that moves, the driver gets its own") {
  for (const Place& place : handle_places()) {
    if (is_of_multicast(place)) continue;
    INFO(name_of(place.symbol) << " at " << place.text);
    CHECK(on_simgpu({.mode = Mode::kSwap, .limit = {}, .replace = spy, .neighbour = {}}, [&] {
            alarm(kPatienceOfHandles);
            enter(0);
            const Handle ours = make_piece();
            EXPECT(memory::OwnPhysical::is_ours(ours));
            const Handle of_driver = runtime().memory.own_physical().pin(ours, protocol::Pin::kDescriptor);
            EXPECT(of_driver != 0 && !memory::OwnPhysical::is_ours(of_driver));
            Arguments arguments(place.symbol);
            arguments.put(place, ours);
            if (plain_name(place.symbol) == "cuMemMapArrayAsync") arguments.value<unsigned>(1) = 1;
            asked_at = &place;
            const CUresult result = arguments.call();
            asked_at = nullptr;
            EXPECT(asked_driver != needs_no_driver(place.symbol));
            if (asked_driver) EXPECT(got == of_driver);
            // The last handle is given back to the driver, whose answer is not the program's.
            const bool answers = !asked_driver || place.symbol == Symbol::k_cuMemRelease;
            EXPECT_RESULT(answers ? CUDA_SUCCESS : CUDA_ERROR_ECC_UNCORRECTABLE, result);
          }) == "");
  }
}

TEST_CASE("a handle that rota does not know goes to the driver wherever a function takes one") {
  for (const Place& place : handle_places()) {
    INFO(name_of(place.symbol) << " at " << place.text);
    CHECK(on_simgpu({.mode = Mode::kSwap, .limit = {}, .replace = spy, .neighbour = {}}, [&] {
            alarm(kPatienceOfHandles);
            enter(0);
            constexpr Handle kForeign = 0x7654321;
            Arguments arguments(place.symbol);
            arguments.put(place, kForeign);
            if (plain_name(place.symbol) == "cuMemMapArrayAsync") arguments.value<unsigned>(1) = 1;
            asked_at = &place;
            EXPECT_RESULT(CUDA_ERROR_ECC_UNCORRECTABLE, arguments.call());
            EXPECT(asked_driver && got == kForeign);
          }) == "");
  }
}
