// Launches a kernel that runs until stdin closes into a non-blocking stream, and makes no further call meanwhile: the
// GPU is busy, although the program looks idle if one counts only its calls.
//
//   linger [--destroy]      --destroy: also destroys the stream, which leaves its kernel running
//
// Prints "ready" once the kernel runs, and "done" once it has ended.
#include <unistd.h>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

int main(int argc, char** argv) {
  Options options(argc, argv, "linger [--stream non-blocking | blocking | per-thread | legacy] [--destroy]");
  std::string kind = options.text("--stream", "non-blocking");
  bool destroy = options.flag("--destroy");
  options.end();
  start();
  void* pinned = nullptr;
  CHECK(cuMemHostAlloc(&pinned, sizeof(unsigned), 0));
  auto* flag = static_cast<unsigned*>(pinned);
  __atomic_store_n(flag, 0U, __ATOMIC_RELEASE);
  auto address = reinterpret_cast<CUdeviceptr>(pinned);
  void* parameters[] = {&address};
  CUstream stream = nullptr;
  if (kind == "non-blocking") CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if (kind == "blocking") CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  auto* launch = kind == "per-thread" ? cuda().cuLaunchKernel_ptsz : cuda().cuLaunchKernel;
  check(launch(kernel("_Z10spin_untilPj"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel");
  if (destroy) CHECK(cuStreamDestroy_v2(stream));
  std::printf("ready\n");
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  // Printed before the kernel can end: if "done" appears only after this program's successor runs, the two overlapped.
  std::printf("done\n");
  std::fflush(stdout);
  __atomic_store_n(flag, 1U, __ATOMIC_RELEASE);
  CHECK(cuCtxSynchronize());
  return 0;
}
