// Every function of the policy that takes or gives back memory, called on simgpu: its memory is treated as the policy
// says (and runtime/memory/ALLOCATIONS.md with it). One case for each symbol; a symbol without a row fails.
#include <catch2/catch.hpp>

#include "tests/unit/runtime/memory/on_simgpu/matrix.h"

using namespace rota;
using namespace rota::test;

namespace {

enum class Treatment : std::uint8_t { kRedirected, kCounted, kPassed };

struct Subject {
  Symbol symbol;
  bool takes;
  bool gives_back;
  Treatment treatment;
  CUresult (*call_with_nothing)();
};

template <typename Function>
struct Empty;
template <typename... Arguments>
struct Empty<CUresult(Arguments...)> {
  static CUresult call(CUresult (*function)(Arguments...)) { return function(Arguments{}...); }
};

template <typename Row>
const Row* find(std::initializer_list<std::map<Symbol, Row>> parts, Symbol symbol) {
  static std::map<Symbol, Row> all;
  for (const auto& part : parts) all.insert(part.begin(), part.end());
  const auto found = all.find(symbol);
  return found == all.end() ? nullptr : &found->second;
}

bool charged_is(int device, std::uint64_t bytes) {
  return charged_exactly(device == 0 ? bytes : 0, device == 1 ? bytes : 0);
}

// What the ledger has at an address is the driver's own memory, unless the function is redirected and rota's backend
// has memory of its own.
void expect_backing(std::uint64_t address, Treatment treatment) {
  if (address == 0) return;
  const auto entry = runtime().ledger.find(address);
  EXPECT(entry.has_value());
  if (!entry) return;
  const bool own = entry->kind.converted();
  EXPECT(own == (treatment == Treatment::kRedirected && mode() != Mode::kNative));
}

void check_in_each_mode(const std::function<void()>& program) {
  const auto with_contexts = [&] {
    enter(0);
    enter(1);
    program();
  };
  for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    const std::string report =
        on_simgpu({.mode = mode, .limit = "", .replace = {}, .neighbour = export_memory}, with_contexts);
    CHECK(report == "");
  }
}

void check_takes(const Takes& row, Treatment treatment) {
  if (treatment == Treatment::kPassed) EXPECT(row.bytes == 0);
  check_in_each_mode([&] {
    const Taken taken = row.take();
    EXPECT(charged_is(row.device, row.bytes));
    if (treatment == Treatment::kPassed) EXPECT(live_entries() == 0);
    expect_backing(taken.address, treatment);
    taken.give_back();
    EXPECT_EMPTY_BOOKS();
  });
}

void check_gives_back(const GivesBack& row) {
  check_in_each_mode([&] {
    const Taken taken = row.take();
    EXPECT(charged_is(row.device, row.bytes));
    row.give(taken);
    EXPECT(charged_is(row.device, row.left));
    if (row.leaves_something) taken.give_back();
    EXPECT_EMPTY_BOOKS();
  });
}

void check(const Subject& subject) {
  const Takes* const takes = find<Takes>({linear_takes(), mapped_takes(), graph_takes()}, subject.symbol);
  const GivesBack* const gives = find<GivesBack>({linear_gives(), mapped_gives(), graph_gives()}, subject.symbol);
  if (not_simulated().contains(subject.symbol)) {
    CHECK((takes == nullptr && gives == nullptr));
    const std::string report = on_simgpu({}, [&] {
      enter(1);
      EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, subject.call_with_nothing());
      EXPECT_EMPTY_BOOKS();
    });
    CHECK(report == "");
    return;
  }
  INFO("write a row in tests/unit/runtime/memory/on_simgpu/matrix_*.cpp");
  CHECK((takes != nullptr) == subject.takes);
  CHECK((gives != nullptr) == subject.gives_back);
  if (takes != nullptr) check_takes(*takes, subject.treatment);
  if (gives != nullptr) check_gives_back(*gives);
}

}  // namespace

#define ROTA_ALLOCATION(symbol, base, takes, gives_back, treatment)                          \
  TEST_CASE("what becomes of the memory of " #symbol " on simgpu is what the policy says") { \
    check({Symbol::k_##symbol, takes, gives_back, Treatment::treatment,                      \
           [] { return Empty<api::symbol##_fn>::call(cu.symbol); }});                        \
  }
#include "generated/driver_allocations.inc"
#undef ROTA_ALLOCATION
