// Threads that end inside a call: one is cancelled and makes calls until that takes effect, one ends in a callback. The
// program continues without them.
//
//   cancelled
//
// Prints how many of its threads ended this way.
#include <pthread.h>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

// The request is pending before the first call: the first call that may block ends the thread.
void* call_until_cancelled(void* spin) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  pthread_cancel(pthread_self());
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  unsigned long nanoseconds = 1000;
  void* parameters[] = {&nanoseconds};
  start();
  for (int call = 0; call < 100; ++call) {
    CUstream stream = nullptr;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuLaunchKernel(static_cast<CUfunction>(spin), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    CHECK(cuStreamDestroy_v2(stream));
    CHECK(cuCtxSynchronize());
  }
  pthread_testcancel();  // a driver may have no call that blocks
  return nullptr;
}

void* end_in_callback(void* spin) {
  int blocks = 0;
  int threads = 0;
  start();
  auto* end = +[](int) -> size_t { pthread_exit(PTHREAD_CANCELED); };
  CHECK(cuOccupancyMaxPotentialBlockSize(&blocks, &threads, static_cast<CUfunction>(spin), end, 0, 0));
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv, "cancelled");
  options.end();
  start();
  CUfunction spin = kernel("_Z4spinm");
  int ended = 0;
  for (auto* work : {&call_until_cancelled, &end_in_callback}) {
    pthread_t thread{};
    void* result = nullptr;
    if (pthread_create(&thread, nullptr, work, spin) != 0) fail("cannot start a thread");
    pthread_join(thread, &result);
    ended += result == PTHREAD_CANCELED ? 1 : 0;
  }
  CHECK(cuCtxSynchronize());
  std::printf("%d threads ended in a call\n", ended);
  return ended == 2 ? 0 : 1;
}
