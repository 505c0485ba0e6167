// Forks before and after it uses the GPU. A child forked before may use the GPU itself; one forked after must get an
// error (not hang or crash); the parent continues in both cases. Prints "ok". With --exec CMD a child runs that command
// instead and inherits nothing from its parent.
#include <sys/wait.h>
#include <unistd.h>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

void use_gpu() {
  CUfunction spin = kernel("_Z4spinm");
  unsigned long nanoseconds = 1000;
  void* parameters[] = {&nanoseconds};
  CUdeviceptr memory = 0;
  CHECK(cuMemAlloc_v2(&memory, 4096));
  CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK(cuCtxSynchronize());
  CHECK(cuMemFree_v2(memory));
}

template <class Work>
void in_child(const char* what, Work work) {
  pid_t child = fork();
  if (child < 0) fail("cannot fork");
  if (child == 0) {
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail("%s: its status is %d", what, status);
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv, "forker [--exec COMMAND]");
  std::string command = options.text("--exec", "");
  options.end();
  in_child("a child forked before the GPU was used", [] {
    start();
    use_gpu();
  });
  start();
  use_gpu();
  in_child("a child forked after the GPU was used", [&] {
    if (!command.empty()) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    CUdeviceptr memory = 0;
    if (cuda().cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS) {
      std::fprintf(stderr, "failed: the forked child could allocate in its parent's context\n");
      _exit(1);
    }
  });
  use_gpu();
  std::printf("ok\n");
  return 0;
}
