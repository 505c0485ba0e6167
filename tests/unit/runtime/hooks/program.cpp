#include "tests/unit/runtime/hooks/program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace rota::test {
namespace {

std::string at_hand;
int failures = 0;

}  // namespace

void now_testing(std::string what) {
  at_hand = std::move(what);
}

void expect(bool holds, const char* text, const char* file, int line) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: %s: not so: %s\n", file, line, at_hand.c_str(), text);
}

bool holds(const Settings& settings, const std::function<void(FakeDriver& driver)>& program) {
  // NOLINTBEGIN(concurrency-mt-unsafe): no other thread. Before the fork: a runtime made in this process is made anew
  // in the child at once.
  setenv("ROTA_MEMORY", settings.memory, 1);
  setenv("ROTA_GPU_MEM_LIMIT", settings.limit, 1);
  setenv("ROTA_MEMORY_SMALL", settings.small, 1);
  setenv("ROTA_SOCKET", "/nonexistent/rotad.sock", 1);
  const pid_t child = fork();
  if (child == 0) {
    {
      FakeDriver driver;
      program(driver);
    }
    _exit(failures == 0 ? 0 : 1);
  }
  unsetenv("ROTA_MEMORY");
  unsetenv("ROTA_GPU_MEM_LIMIT");
  unsetenv("ROTA_MEMORY_SMALL");
  // NOLINTEND(concurrency-mt-unsafe)
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child) return false;
  if (!WIFEXITED(status)) std::fprintf(stderr, "the child ended by signal %d\n", WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::set<Symbol>& covered() {
  static std::set<Symbol> symbols;
  return symbols;
}

}  // namespace rota::test
