// Leaves a call that waits, by siglongjmp in the handler of a timer, as watchdogs do, and goes on.
//
//   jumps [--call total|context] [--after-ms N]
//
// The call is cuDeviceTotalMem, or what makes the first context. Says "ready" and makes it after a line of input; says
// "left" if it was left, makes it again, now to its end, and says "went on".
#include <sys/time.h>
#include <unistd.h>
#include <csetjmp>
#include <csignal>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

sigjmp_buf back;

void total() {
  static auto* const function =
      reinterpret_cast<cuDeviceTotalMem_v2_fn*>(cuda().find("cuDeviceTotalMem_v2", "cuDeviceTotalMem", 3020, 0));
  size_t size = 0;
  if (function(&size, 0) != CUDA_SUCCESS) fail("cuDeviceTotalMem");
}

void set_timer(long milliseconds) {
  const itimerval timer{{0, 0}, {milliseconds / 1000, milliseconds % 1000 * 1000}};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void say(const char* text) {
  std::puts(text);
  std::fflush(stdout);
}

void leave(long milliseconds, void (*call)()) {
  std::signal(SIGALRM, [](int) { siglongjmp(back, 1); });
  if (sigsetjmp(back, 1) == 0) {
    set_timer(milliseconds);
    call();
    set_timer(0);
  } else {
    say("left");
  }
  std::signal(SIGALRM, SIG_DFL);
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv, "jumps [--call total|context] [--after-ms N]");
  const bool context = options.text("--call", "context") == "context";
  const long after = static_cast<long>(options.number("--after-ms", 100));
  options.end();
  CHECK(cuInit(0));
  say("ready");
  std::getchar();
  auto* const call = context ? +[] { start(); } : &total;
  leave(after, call);
  call();
  say("went on");
  return 0;
}
