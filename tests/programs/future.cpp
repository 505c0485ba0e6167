// Uses a function of a driver that is newer than rota (tools/simgpu/driver/entry/posed.h), looked up as a new program
// does, between functions that rota knows: it fills memory that they allocated. Prints "ok", or "absent" on a driver
// without it.
#include "tests/programs/program.h"

using namespace program;  // NOLINT

using Call = CUresult(int*);
using FillAsync = CUresult(CUdeviceptr, unsigned, size_t, CUstream);

int main(int argc, char** argv) {
  Options options(argc, argv, "future [--version N]");
  auto version = static_cast<int>(options.number("--version", 14000));
  options.end();
  start();
  auto* call = reinterpret_cast<Call*>(cuda().find("cuRotaSimFutureCall", "cuRotaSimFutureCall", version, 0));
  auto* fill =
      reinterpret_cast<FillAsync*>(cuda().find("cuRotaSimFutureFillAsync", "cuRotaSimFutureFillAsync", version, 0));
  if (call == nullptr || fill == nullptr) {
    std::printf("absent\n");
    return 0;
  }
  int answer = 0;
  check(call(&answer), "cuRotaSimFutureCall");
  for (size_t words : {size_t{1024}, size_t{8} << 20}) {  // a small allocation and one of 32 MiB
    CUdeviceptr plain = 0, in_stream_order = 0;
    CHECK(cuMemAlloc_v2(&plain, words * sizeof(unsigned)));
    check(fill(plain, 77, words, nullptr), "cuRotaSimFutureFillAsync");
    CHECK(cuMemAllocAsync(&in_stream_order, words * sizeof(unsigned), nullptr));
    check(fill(in_stream_order, 77, words, nullptr), "cuRotaSimFutureFillAsync");
    CHECK(cuCtxSynchronize());
    for (CUdeviceptr memory : {plain, in_stream_order}) {
      unsigned last = 0;
      CHECK(cuMemcpyDtoH_v2(&last, memory + (words - 1) * sizeof(unsigned), sizeof last));
      if (answer != 1 || last != 77) fail("the future call answered %d and filled with %u", answer, last);
      CHECK(cuMemFree_v2(memory));
    }
  }
  std::printf("ok\n");
  return 0;
}
