// What holds for every override of runtime/overrides.inc: the driver is called with the program's own arguments,
// through the gate if the function has one; the driver decides about null pointers; and its error is the program's
// answer, with nothing changed in rota's ledger or in the program's memory.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/attach.h"
#include "tests/unit/runtime/fake_preload.h"
#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;

namespace {

// No override answers with this by itself.
constexpr api::CUresult kRefusal = api::CUDA_ERROR_ECC_UNCORRECTABLE;

// What a program's pointers point to: descriptions read as zero; where the driver writes, there is a pattern that would
// be noticed if it were taken for an answer.
constexpr std::size_t kRoomBytes = 4096;
constexpr unsigned char kPattern = 0x11;
using Room = std::array<unsigned char, kRoomBytes>;
alignas(64) std::array<Room, 16> rooms;
constexpr std::uint64_t kUnwritten = 0x1111111111111111;

// A structure that is passed by value.
template <typename Argument>
Argument structure(std::size_t index) {
  static_assert(std::is_trivially_copyable_v<Argument>);
  Argument value{};
  std::memset(static_cast<void*>(&value), static_cast<int>(index + 3), sizeof value);
  return value;
}

template <typename Argument>
Argument argument(std::size_t index) {
  if constexpr (std::is_pointer_v<Argument>) {
    using Target = std::remove_pointer_t<Argument>;
    rooms[index].fill(std::is_const_v<Target> ? 0 : kPattern);
    return reinterpret_cast<Argument>(const_cast<unsigned char*>(rooms[index].data()));
  } else if constexpr (std::is_class_v<Argument>) {
    return structure<Argument>(index);
  } else {
    return static_cast<Argument>(index + 3);
  }
}

template <typename Argument>
Argument nothing(std::size_t index) {
  if constexpr (std::is_pointer_v<Argument>) {
    return nullptr;
  } else if constexpr (std::is_class_v<Argument>) {
    return structure<Argument>(index);
  } else {
    return static_cast<Argument>(index + 3);
  }
}

// What a call of the driver looked like.
struct Asked {
  int times = 0;
  std::vector<std::uint64_t> arguments;
  std::uint32_t inside_gate = 0;
};
Asked asked;
api::CUresult answer = kRefusal;

template <typename Argument>
std::uint64_t word(Argument value) {
  if constexpr (std::is_pointer_v<Argument>) {
    return reinterpret_cast<std::uintptr_t>(value);
  } else if constexpr (std::is_class_v<Argument>) {
    std::uint64_t first = 0;
    std::memcpy(&first, &value, std::min(sizeof first, sizeof value));
    return first;
  } else {
    return static_cast<std::uint64_t>(value);
  }
}

struct Subject {
  Symbol symbol;
  void (*install)(FakeDriver& driver);
  // Calls it; `given` gets the arguments.
  api::CUresult (*call)(bool with_nulls, std::vector<std::uint64_t>& given);
};

template <Symbol kSymbol, auto* kOverride, typename Function>
struct Of;
template <Symbol kSymbol, auto* kOverride, typename... Arguments>
struct Of<kSymbol, kOverride, api::CUresult(Arguments...)> {
  static api::CUresult real(Arguments... arguments) {
    ++asked.times;
    asked.arguments = {word(arguments)...};
    asked.inside_gate = runtime().gate.traffic().inside;
    return answer;
  }
  template <std::size_t... kIndex>
  static std::tuple<Arguments...> values([[maybe_unused]] bool with_nulls, std::index_sequence<kIndex...>) {
    return {(with_nulls ? nothing<Arguments>(kIndex) : argument<Arguments>(kIndex))...};
  }
  static Subject subject() {
    return {kSymbol, [](FakeDriver& driver) { driver.set<api::CUresult(Arguments...)>(kSymbol, real); },
            [](bool with_nulls, std::vector<std::uint64_t>& given) {
              const auto all = values(with_nulls, std::index_sequence_for<Arguments...>());
              std::apply([&](auto... each) { given = {word(each)...}; }, all);
              return std::apply(kOverride, all);
            }};
  }
};

const std::vector<Subject> kOverrides = {
#define ROTA_OVERRIDE(name) Of<Symbol::k_##name, &overrides::name, api::name##_fn>::subject(),
#include "runtime/overrides.inc"
#undef ROTA_OVERRIDE
};

// An attached core: cuGetProcAddress is called only if the driver has it.
void attach() {
  FakePreload& preload = FakePreload::fresh();
  std::copy_n(real::table, kSymbolCount, preload.real.begin());
  EXPECT(interpose::attach(preload.attachment, nullptr) == 0);
}

// It waits for others, so memory is not held in place meanwhile.
bool waits_for_others(Symbol symbol) {
  return symbol == Symbol::k_cuMulticastBindAddr || symbol == Symbol::k_cuMulticastBindAddr_v2 ||
         symbol == Symbol::k_cuMulticastBindMem || symbol == Symbol::k_cuMulticastBindMem_v2;
}

// Nothing is recorded that the driver did not give.
void expect_empty_books() {
  EXPECT(runtime().ledger.entries() == 0);
  EXPECT(live_bytes() == 0);
  EXPECT(runtime().contexts.captures() == 0);
  EXPECT(!runtime().unevictable());
  EXPECT(runtime().unknown_pointers == 0);
  EXPECT(!runtime().memory.has_deferred());
  EXPECT(!runtime().contexts.known(reinterpret_cast<api::CUcontext>(kUnwritten)));
  // Except the current context, which a gated call makes known.
  for (int device = 1; device < memory::kMaxDevices; ++device) EXPECT(!runtime().contexts.any(device));
}

// Where the managed backend serves, the driver is asked for another kind of memory.
bool converts(Symbol symbol) {
  return symbol == Symbol::k_cuMemAlloc_v2 || symbol == Symbol::k_cuMemAllocPitch_v2;
}

// Calls every override once; `check` compares what the driver was asked and what the program was answered.
template <typename Check>
void call_all(const char* memory, bool with_nulls, Check&& check) {
  CHECK(holds({.memory = memory}, [&](FakeDriver& driver) {
    driver.enter_context(0);
    attach();
    for (const Subject& subject : kOverrides) {
      if (std::strcmp(memory, "managed") == 0 && converts(subject.symbol) && !with_nulls) continue;
      now_testing(name_of(subject.symbol));
      // Only while its turn in this loop lasts: rota calls some of these functions itself.
      void*& function = real::table[static_cast<std::size_t>(subject.symbol)];
      void* const before = function;
      subject.install(driver);
      asked = {};
      std::vector<std::uint64_t> given;
      const api::CUresult got = subject.call(with_nulls, given);
      check(subject, got, given);
      function = before;
      expect_empty_books();
    }
  }));
}

bool untouched(const Room& room) {
  return (room.front() == 0 || room.front() == kPattern) &&
         std::all_of(room.begin(), room.end(), [&](unsigned char byte) { return byte == room.front(); });
}

}  // namespace

TEST_CASE("every override asks the driver once, with the program's own arguments, and hands its error on") {
  for (const char* memory : {"native", "managed"}) {
    INFO(memory);
    for (auto& room : rooms) room.fill(0);
    call_all(memory, false, [](const Subject&, api::CUresult got, const std::vector<std::uint64_t>& given) {
      EXPECT(asked.times == 1);
      EXPECT(asked.arguments == given);
      EXPECT(got == kRefusal);
      for (const Room& room : rooms) EXPECT(untouched(room));
    });
  }
}

TEST_CASE("every override leaves it to the driver to refuse null pointers") {
  answer = api::CUDA_ERROR_INVALID_VALUE;
  for (const char* memory : {"native", "managed"}) {
    INFO(memory);
    call_all(memory, true, [](const Subject&, api::CUresult got, const std::vector<std::uint64_t>& given) {
      EXPECT(asked.times == 1);
      EXPECT(asked.arguments == given);
      EXPECT(got == api::CUDA_ERROR_INVALID_VALUE);
    });
  }
  answer = kRefusal;
}

TEST_CASE("every override of a gated function is inside the gate while the driver works, and of others is not") {
  call_all("native", false, [](const Subject& subject, api::CUresult, const std::vector<std::uint64_t>&) {
    // For calls that create a stream or an event the gate only ensures that memory is in place: such a call is not
    // inside.
    const bool makes = subject.symbol == Symbol::k_cuStreamCreate ||
                       subject.symbol == Symbol::k_cuStreamCreateWithPriority ||
                       subject.symbol == Symbol::k_cuEventCreate;
    const bool gated = !makes && !waits_for_others(subject.symbol) &&
                       gates::table[static_cast<std::size_t>(subject.symbol)] != nullptr;
    EXPECT(asked.inside_gate == (gated ? 1U : 0U));
    EXPECT(runtime().gate.traffic().inside == 0);
  });
}
