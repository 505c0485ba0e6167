// The functions of the driver as the fuzzer calls them, written by generate.py.
#include "tests/simgpu/fuzz/machine.h"

namespace rota::fuzz {

#include "calls.inc"

namespace {

// Whether the symbol's slot no longer leads to its stub of exports.S: `endbr64; movl $index, %edi; jmp …`.
bool simulated(Symbol symbol) {
  unsigned char stub[9] = {0xf3, 0x0f, 0x1e, 0xfa, 0xbf};
  auto index = static_cast<uint32_t>(symbol);
  std::memcpy(stub + 5, &index, sizeof index);
  return std::memcmp(rota_sim_table[index], stub, sizeof stub) != 0;
}

}  // namespace

const Call& chosen_call(size_t choice) {
  // The list is the same whatever simgpu simulates, so that inputs keep their meaning when it simulates more.
  static const std::vector<size_t> kNext = [] {
    std::vector<size_t> next(std::size(kCalls));
    size_t after = 0;
    for (size_t i = 2 * std::size(kCalls); i-- > 0;) {
      size_t at = i % std::size(kCalls);
      if (simulated(kCalls[at].symbol)) after = at;
      next[at] = after;
    }
    return next;
  }();
  return kCalls[kNext[choice % std::size(kCalls)]];
}

}  // namespace rota::fuzz
