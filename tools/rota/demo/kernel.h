// The kernel of `rota demo`: PTX text, and its expected result, computed on the host in another way.
#pragma once

#include <cstdint>

namespace rota::demo {

// A step of a linear congruential generator, modulo 2^32 (Numerical Recipes' constants).
inline constexpr std::uint32_t kFactor = 1664525;
inline constexpr std::uint32_t kAddend = 1013904223;

// This many steps at once, by squaring: after them x is x * factor + addend.
struct Steps {
  std::uint32_t factor = 1;
  std::uint32_t addend = 0;

  explicit Steps(std::uint64_t count) {
    std::uint32_t square_factor = kFactor;
    std::uint32_t square_addend = kAddend;
    for (; count != 0; count >>= 1) {
      if ((count & 1) != 0) {
        addend = addend * square_factor + square_addend;
        factor *= square_factor;
      }
      square_addend *= square_factor + 1;
      square_factor *= square_factor;
    }
  }
  std::uint32_t from(std::uint32_t start) const { return start * factor + addend; }
};

inline constexpr const char* kKernelName = "rota_demo_mix";

// (data, count, stride, steps): for each of `count` words, `stride` words apart, `steps` steps, one by one. For PTX of
// CUDA 9.0 and the oldest GPUs that rota's drivers know, so that any driver compiles it. Its stand-in for simulated
// GPUs is in tools/simgpu/kernels/simkernels.cpp.
inline constexpr const char* kKernelText = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry rota_demo_mix(
  .param .u64 data, .param .u64 count, .param .u64 stride, .param .u32 steps)
{
  .reg .pred %p<3>;
  .reg .b32 %r<8>;
  .reg .b64 %d<7>;
  ld.param.u64 %d1, [data];
  cvta.to.global.u64 %d1, %d1;
  ld.param.u64 %d2, [count];
  ld.param.u64 %d3, [stride];
  ld.param.u32 %r1, [steps];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mul.wide.u32 %d4, %r2, %r3;
  mov.u32 %r4, %tid.x;
  cvt.u64.u32 %d5, %r4;
  add.u64 %d4, %d4, %d5;      // this thread's first word
  mov.u32 %r5, %nctaid.x;
  mul.wide.u32 %d5, %r5, %r3; // how many threads there are
next_word:
  setp.ge.u64 %p1, %d4, %d2;
  @%p1 bra done;
  mul.lo.u64 %d6, %d4, %d3;
  shl.b64 %d6, %d6, 2;
  add.u64 %d6, %d1, %d6;
  ld.global.u32 %r6, [%d6];
  mov.u32 %r7, 0;
next_step:
  setp.ge.u32 %p2, %r7, %r1;
  @%p2 bra store;
  mad.lo.u32 %r6, %r6, 1664525, 1013904223;
  add.u32 %r7, %r7, 1;
  bra next_step;
store:
  st.global.u32 [%d6], %r6;
  add.u64 %d4, %d4, %d5;
  bra next_word;
done:
  ret;
}
)";

}  // namespace rota::demo
