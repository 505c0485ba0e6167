// Starting another rotad from inside a program (runtime/client/next_rotad.h, detached.h).
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/client/detached.h"
#include "runtime/client/next_rotad.h"
#include "scheduler/base/descriptor.h"

using namespace std::string_literals;
using rota::client::command_for_another;
using Command = std::vector<std::string>;

namespace {

// All signals blocked, as in the monitor's thread.
class Blocked {
 public:
  Blocked() {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before_);
  }
  ~Blocked() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// What the command writes to its standard error until it, and all that has it, has ended.
std::string run(const Command& arguments, const Command& environment) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const rota::Descriptor reading(ends[0]);
  rota::Descriptor writing(ends[1]);
  REQUIRE(rota::client::start_detached(arguments, environment, writing.get()) == 0);
  writing = {};
  std::string said;
  char bytes[512];
  for (ssize_t length; (length = read(reading.get(), bytes, sizeof bytes)) > 0;) {
    said.append(bytes, static_cast<std::size_t>(length));
  }
  return said;
}

}  // namespace

TEST_CASE("another rotad is started as the one that rota run has started") {
  const auto of = [](const std::string& options) {
    return command_for_another("/opt/rota/bin/rotad\0--socket\0/tmp/s\0--idle-exit\0"s + "5\0"s + options);
  };
  CHECK(of("--ready-fd\0"s + "3\0"s) == Command{"/opt/rota/bin/rota", "start-rotad"});
  CHECK(of("--ready-fd\0"s + "3\0--mode\0exclusive\0--quantum\0"s + "50ms\0"s) ==
        Command{"/opt/rota/bin/rota", "start-rotad", "--mode", "exclusive", "--quantum", "50ms"});
  CHECK(of("--ready-fd\0"s + "3\0--mode"s) == Command{"/opt/rota/bin/rota", "start-rotad"});
}

TEST_CASE("a rotad that somebody else has started is theirs to start again") {
  CHECK(command_for_another("/usr/bin/rotad\0--socket\0/run/rota/rotad.sock\0"s) == std::nullopt);
  CHECK(command_for_another("rotad\0--ready-fd\0"s + "3\0"s) == std::nullopt);
  CHECK(command_for_another("") == std::nullopt);
}

TEST_CASE("a detached command has its environment and nothing else of the program, which sees no child") {
  const Blocked blocked;
  const rota::Descriptor inherited(dup(STDERR_FILENO));  // not close-on-exec
  const std::string script = "echo $ONE $$ >&2; test -e /proc/self/fd/" + std::to_string(inherited.get()) +
                             " && echo open >&2; env | grep -v -e '^PWD=' -e '^_=' -e '^SHLVL=' >&2";
  const std::string said = run({"/bin/sh", "-c", script}, {"ONE=two", "PATH=/usr/bin:/bin"});
  CHECK(said.starts_with("two "));
  CHECK(said.find("open") == std::string::npos);
  CHECK(said.find("ONE=two") != std::string::npos);
  CHECK(said.find("HOME") == std::string::npos);
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
  sigset_t pending;
  sigpending(&pending);
  CHECK(sigismember(&pending, SIGCHLD) == 0);
}

TEST_CASE("a command can be detached from a program that has no descriptor left") {
  const Blocked blocked;
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const rota::Descriptor reading(ends[0]);
  rota::Descriptor writing(ends[1]);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  int next = 0;  // all below are open
  while (fcntl(next, F_GETFD) >= 0) ++next;
  const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  // It complains without redirecting anything: the shell would put aside what it redirects beyond a low limit.
  const int error = rota::client::start_detached({"/bin/sh", "-c", "/nowhere"}, {}, writing.get());
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(error == 0);
  writing = {};
  std::string heard;
  for (char piece[64];;) {
    const ssize_t length = read(reading.get(), piece, sizeof piece);
    if (length <= 0) break;
    heard.append(piece, static_cast<std::size_t>(length));
  }
  INFO(heard);
  CHECK(heard.find("/nowhere") != std::string::npos);
}

TEST_CASE("a detached command that cannot be executed says so") {
  const Blocked blocked;
  CHECK(run({"/nowhere/rota"}, {}) == "it cannot be executed");
}
