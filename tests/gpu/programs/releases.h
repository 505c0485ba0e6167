// A CUDA program of several releases: releases_runtime.cpp and releases_driver.cpp compile against the headers of CUDA
// 11.8 and later and are linked to that release's libcudart (tests/gpu/build-releases). Each part writes what it got,
// line by line: the same natively and under rota, whatever the release.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace releases {

class Report {
 public:
  __attribute__((format(printf, 2, 3))) void line(const char* format, ...) {
    char text[512];
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_ += text;
    text_ += '\n';
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

inline void check(int result, const char* call) {
  if (result != 0) throw std::runtime_error(std::string(call) + ": error " + std::to_string(result));
}
#define CHECK(call) releases::check(static_cast<int>(call), #call)

// y = a * x + y over n floats, for any NVIDIA GPU since Volta: every driver compiles it when it is loaded. The name is
// the one under which simgpu has it too.
constexpr const char* kSaxpyName = "_Z5saxpyifPKfPf";
constexpr const char* kSaxpy = R"(.version 6.0
.target sm_70
.address_size 64
.visible .entry _Z5saxpyifPKfPf(.param .u32 count, .param .f32 factor, .param .u64 input, .param .u64 output)
{
  .reg .pred %outside;
  .reg .b32 %index, %block, %width, %thread, %limit;
  .reg .f32 %a, %x, %y;
  .reg .b64 %from, %to, %offset;
  ld.param.u32 %limit, [count];
  ld.param.f32 %a, [factor];
  ld.param.u64 %from, [input];
  ld.param.u64 %to, [output];
  mov.u32 %block, %ctaid.x;
  mov.u32 %width, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.s32 %index, %block, %width, %thread;
  setp.ge.s32 %outside, %index, %limit;
  @%outside bra done;
  mul.wide.s32 %offset, %index, 4;
  add.s64 %from, %from, %offset;
  add.s64 %to, %to, %offset;
  ld.f32 %x, [%from];
  ld.f32 %y, [%to];
  fma.rn.f32 %y, %a, %x, %y;
  st.f32 [%to], %y;
done:
  ret;
}
)";
constexpr int kCount = 10'000;
constexpr int kBlock = 256;
constexpr int kBlocks = (kCount + kBlock - 1) / kBlock;

void run_driver(Report& report);
void run_runtime(Report& report);

}  // namespace releases

// What a program that loads several releases at once calls: both parts; 0 if all went well. The text is the library's.
extern "C" __attribute__((visibility("default"))) int run_release(const char** text);
