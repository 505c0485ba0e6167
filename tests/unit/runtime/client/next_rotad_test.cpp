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
using namespace std::chrono_literals;
using rota::client::command_for_another;
using rota::client::RotadStarts;
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

// What is written to the command's standard error until every process that has it open has ended.
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

TEST_CASE("another rotad is started a second after the last has gone, and then ever later") {
  RotadStarts starts;
  starts.served(100s);
  starts.lost(101s);
  CHECK_FALSE(starts.is_due(101s + 999ms));
  CHECK(starts.is_due(102s));
  CHECK(starts.is_due(200s));  // nobody has asked before
  auto now = 200s;
  for (const auto pause : {10s, 20s, 40s, 80s, 160s, 320s, 600s, 600s}) {
    INFO(pause.count());
    starts.started(now);
    CHECK_FALSE(starts.is_due(now + pause - 1ns));
    CHECK(starts.is_due(now + pause));
    now += pause;
  }
}

TEST_CASE("a rotad that has lived for a minute is replaced soon again, and one that has not is not") {
  RotadStarts starts;
  starts.served(0s);
  starts.lost(10s);
  for (const auto at : {11s, 21s, 41s}) starts.started(at);  // 40 s until the next
  starts.served(42s);
  starts.lost(42s + 60s - 1ns);
  CHECK_FALSE(starts.is_due(41s + 40s - 1ns));
  starts.started(103s);  // 80 s until the next
  starts.served(104s);
  starts.lost(163s);
  CHECK_FALSE(starts.is_due(182s));
  CHECK(starts.is_due(183s));
  starts.served(200s);
  starts.lost(260s);
  CHECK(starts.is_due(261s));
  starts.started(261s);
  CHECK_FALSE(starts.is_due(270s));
  CHECK(starts.is_due(271s));
}

TEST_CASE("what a command says is heard as a whole, in however many pieces it comes") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  rota::client::Heard heard{rota::Descriptor(ends[0])};
  rota::Descriptor writing(ends[1]);
  const auto says = [&](const std::string& text) {
    REQUIRE(write(writing.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  };
  CHECK(heard.first_line() == std::nullopt);
  says("rota: no ");
  CHECK(heard.first_line() == std::nullopt);
  says("rotad can be started");
  CHECK(heard.first_line() == std::nullopt);
  SECTION("until its line ends") {
    says(": the folder is somebody else's\nmore");
    CHECK(heard.first_line() == "rota: no rotad can be started: the folder is somebody else's");
  }
  SECTION("until it ends") {
    writing = {};
    CHECK(heard.first_line() == "rota: no rotad can be started");
  }
  SECTION("but no line without end") {
    says(std::string(8192, '.'));
    CHECK(heard.first_line().value_or("").size() >= 4096);
  }
  CHECK(heard.first_line() == std::nullopt);
}

TEST_CASE("a command that says nothing is heard to have ended") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  rota::client::Heard heard{rota::Descriptor(ends[0])};
  rota::Descriptor writing(ends[1]);
  CHECK(heard.first_line() == std::nullopt);
  writing = {};
  CHECK(heard.first_line() == "");
  CHECK(heard.first_line() == std::nullopt);
  CHECK(rota::client::Heard().first_line() == std::nullopt);
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
