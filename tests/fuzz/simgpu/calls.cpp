// The functions of the driver as the fuzzer calls them, written by generate.py.
#include "tests/fuzz/simgpu/machine.h"

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

const std::vector<Call>& simulated_calls() {
  static const std::vector<Call> kList = [] {
    std::vector<Call> list;
    for (const Call& call : kCalls) {
      if (simulated(call.symbol)) list.push_back(call);
    }
    return list;
  }();
  return kList;
}

const Call* call_of(Symbol symbol) {
  for (const Call& call : kCalls) {
    if (call.symbol == symbol) return &call;
  }
  return nullptr;
}

}  // namespace rota::fuzz
