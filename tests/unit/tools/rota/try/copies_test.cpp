// Copies of real programs: how they end, what they print, and that nothing of them stays.
#include "tools/rota/try/copies.h"

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tools/rota/try/processes.h"

namespace rota::attempt {
namespace {

struct Scratch {
  Scratch() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Scratch() { std::filesystem::remove_all(path); }
  std::string read(const std::string& name) const {
    std::ifstream file(path + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string path = "/tmp/rota-copies-test-XXXXXX";
};

Together shell(
    const Scratch& scratch, unsigned copies, const std::string& script, const std::function<void()>& started = [] {}) {
  const SignalsTaken signals;
  return run_copies(
      signals, copies, scratch.path + "/copy",
      [&] {
        execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
        return 127;
      },
      started, [] {});
}

bool is_there(pid_t process) {
  return kill(process, 0) == 0 || errno != ESRCH;
}

TEST_CASE("each copy has its own output and exit code, and no input") {
  const Scratch scratch;
  const Together all = shell(scratch, 3, "cat; echo $$; echo wrong >&2; exit 7");
  CHECK(all.problem.empty());
  CHECK(all.interrupted == 0);
  REQUIRE(all.copies.size() == 3);
  std::set<std::string> said;
  for (const CopyEnd& copy : all.copies) {
    CHECK(copy.code == 7);
    CHECK(copy.signal == 0);
    CHECK(copy.seconds <= all.seconds);
    said.insert(scratch.read(std::filesystem::path(copy.output).filename()));
  }
  CHECK(said.size() == 3);
  for (const std::string& each : said) CHECK(each.ends_with("\nwrong\n"));
}

TEST_CASE("copies run at the same time") {
  const Scratch scratch;
  // Each waits for the other's file.
  const Together all = shell(scratch, 2, "cd " + scratch.path + R"(
mkdir one 2>/dev/null && other=two || { mkdir two; other=one; }
while [ ! -d $other ]; do sleep 0.01; done)");
  for (const CopyEnd& copy : all.copies) CHECK(copy.code == 0);
}

TEST_CASE("a copy that a signal ends is told from one that exits with such a code") {
  const Scratch scratch;
  const Together killed = shell(scratch, 1, "kill -KILL $$");
  CHECK(killed.copies.at(0).code == 137);
  CHECK(killed.copies.at(0).signal == SIGKILL);
  CHECK(shell(scratch, 1, "exit 137").copies.at(0).signal == 0);
}

TEST_CASE("what a copy leaves running is ended, however it detached itself") {
  const Scratch scratch;
  adopt_orphans();
  // The last of them does not listen when it is asked to end.
  shell(scratch, 1, "cd " + scratch.path + R"(
sleep 1000 & echo $! >a
setsid sh -c 'sleep 1000 & echo $! >b'
setsid sh -c 'trap "" TERM; echo $$ >c; while :; do sleep 1000; done' &
while [ ! -s c ]; do sleep 0.01; done)");
  for (const char* name : {"a", "b", "c"}) {
    INFO(name);
    const pid_t process = std::atoi(scratch.read(name).c_str());
    REQUIRE(process > 0);
    CHECK_FALSE(is_there(process));
  }
  CHECK(descendants().empty());
}

// Each process starts the next and ends: a listing of /proc may show none of them. Only the last one stays. Whoever has
// not ended holds the pipe.
void relay(int processes) {
  while (processes-- > 0) {
    if (fork() != 0) _exit(0);
  }
  pause();
  _exit(0);
}

TEST_CASE("processes that start others and end at once are ended, too") {
  adopt_orphans();
  for (int round = 0; round < 20; ++round) {
    int held[2];
    REQUIRE(pipe(held) == 0);
    if (const pid_t first = fork(); first == 0) relay(200);
    close(held[1]);
    end_descendants(0);
    pollfd end{held[0], POLLIN, 0};
    CHECK(poll(&end, 1, 0) == 1);  // POLLHUP: nobody is left
    close(held[0]);
  }
}

TEST_CASE("a signal ends the copies and is reported") {
  const Scratch scratch;
  adopt_orphans();
  const Together all =
      shell(scratch, 2, "sleep 1000", [] { kill(getpid(), SIGINT); });  // taken, so it waits for run_copies()
  CHECK(all.interrupted == SIGINT);
  CHECK(descendants().empty());
}

TEST_CASE("who was started by whom is known") {
  CHECK(descends_from(getpid(), getpid()));
  CHECK(descends_from(getpid(), getppid()));
  CHECK_FALSE(descends_from(getppid(), getpid()));
  CHECK_FALSE(descends_from(0, getpid()));
  CHECK_FALSE(process_name(getpid()).empty());
}

}  // namespace
}  // namespace rota::attempt
