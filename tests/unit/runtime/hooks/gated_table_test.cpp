// Copies of private tables whose functions pass the gate: they pass all arguments and results on, whatever their types.
#include "runtime/hooks/gated_table.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdint>

#include "runtime/core/runtime.h"
#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;

namespace {

struct Two {
  std::uint64_t first;
  std::uint64_t second;
};
struct Wide {
  std::array<std::uint64_t, 5> words;
};

std::uint32_t inside = 0;

std::uint64_t of_many(int a, long b, const char* c, void* d, unsigned e, char f, double g, float h, int i, double j,
                      long k) {
  inside = runtime().gate.traffic().inside;
  return a == -1 && b == 2L << 40 && c[0] == 'c' && d == nullptr && e == 5 && f == 'f' && g == 1.5 && h == -2.5F &&
                 i == -9 && j == 0.125 && k == -11
             ? 0x1122334455667788
             : 0;
}
// Nine in registers for floating point would be one too many.
double of_doubles(double a, double b, double c, double d, double e, double f, double g, double h, double i) {
  return a + 2 * b + 4 * c + 8 * d + 16 * e + 32 * f + 64 * g + 128 * h + 256 * i;
}
Two of_two(std::uint64_t value) {
  return {value, ~value};
}
// In vector registers where there are four for results.
struct Doubles {
  double first, second, third, fourth;
};
Doubles of_four(double value) {
  return {value, value + 1, value + 2, value + 3};
}
Wide of_wide(std::uint64_t value) {
  return {{value, value + 1, value + 2, value + 3, value + 4}};
}
int of_variable(int count, ...) {  // al says how many vector registers are used
  __builtin_va_list list;
  __builtin_va_start(list, count);
  int sum = 0;
  for (int index = 0; index < count; ++index) sum += __builtin_va_arg(list, int);
  sum += static_cast<int>(__builtin_va_arg(list, double));
  __builtin_va_end(list);
  return sum;
}

template <typename Function>
std::uint64_t word(Function* function) {
  return reinterpret_cast<std::uint64_t>(function);
}
template <typename Function>
Function* as(const void* table, std::size_t index, Function*) {
  return reinterpret_cast<Function*>(static_cast<const std::uint64_t*>(table)[index]);
}

}  // namespace

TEST_CASE("functions of a gated table get their arguments and give their results, inside the gate") {
  CHECK(holds({}, [](FakeDriver&) {
    runtime();
    const std::array<std::uint64_t, 8> table{64,           word(of_many), word(of_doubles),  0,
                                             word(of_two), word(of_wide), word(of_variable), word(of_four)};
    const void* copy = interpose::gated_copy(table.data(), sizeof table);
    EXPECT(copy != nullptr && copy != table.data());
    EXPECT(interpose::gated_copy(table.data(), sizeof table) == copy);
    const auto* words = static_cast<const std::uint64_t*>(copy);
    EXPECT(words[0] == 64 && words[3] == 0);
    EXPECT(as(copy, 1, of_many)(-1, 2L << 40, "c", nullptr, 5, 'f', 1.5, -2.5F, -9, 0.125, -11) == 0x1122334455667788);
    EXPECT(inside == 1);
    EXPECT(runtime().gate.traffic().inside == 0 && runtime().gate.traffic().calls == 1);
    EXPECT(as(copy, 2, of_doubles)(1, 1, 1, 1, 1, 1, 1, 1, 1) == 511);
    const Two two = as(copy, 4, of_two)(7);
    EXPECT(two.first == 7 && two.second == ~std::uint64_t{7});
    EXPECT(as(copy, 5, of_wide)(3).words[4] == 7);
    EXPECT(as(copy, 6, of_variable)(3, 1, 2, 3, 4.0) == 10);
    const Doubles four = as(copy, 7, of_four)(0.5);
    EXPECT(four.first == 0.5 && four.second == 1.5 && four.third == 2.5 && four.fourth == 3.5);
  }));
}

TEST_CASE("where memory is lost, a function of a gated table is not called") {
  CHECK(holds({}, [](FakeDriver&) {
    static int calls = 0;
    const std::array<std::uint64_t, 2> table{16, word(+[] { return ++calls; })};
    auto* const function = as(interpose::gated_copy(table.data(), sizeof table), 1, static_cast<int (*)()>(nullptr));
    runtime().gate.close();
    runtime().gate.refuse(api::CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(function() == api::CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(calls == 0);
  }));
}

TEST_CASE("there are no gated tables where every stream has to be known, nor without end") {
  static std::array<std::uint64_t, 200> table;
  table.fill(0x1000);
  CHECK(holds({}, [](FakeDriver& driver) {
    driver.set<api::cuDriverGetVersion_fn>(Symbol::k_cuDriverGetVersion, [](int* version) {
      *version = 12040;
      return api::CUDA_SUCCESS;
    });
    EXPECT(interpose::gated_copy(table.data(), sizeof table) == nullptr);
  }));
  CHECK(holds({}, [](FakeDriver&) {
    EXPECT(interpose::gated_copy(table.data(), sizeof table) != nullptr);
    static const auto other = table;
    EXPECT(interpose::gated_copy(other.data(), sizeof other) == nullptr);
    EXPECT(interpose::gated_copy(table.data(), sizeof table) != nullptr);
  }));
}
