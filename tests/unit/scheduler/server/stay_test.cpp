// Processes that ask a daemon not to exit as idle while they live (as `rota run` does), and how many of them it
// accepts.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>

#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

using protocol::Kind;
using protocol::Message;

// Processes that each ask the daemon to stay, hang up, and live until they are released.
class Stayers {
 public:
  explicit Stayers(const Daemon& daemon) : daemon_(daemon) { REQUIRE(pipe2(release_, O_CLOEXEC) == 0); }
  ~Stayers() {
    close(release_[1]);
    close(release_[0]);
    for (const pid_t stayer : stayers_) waitpid(stayer, nullptr, 0);
  }
  // Returns once the daemon has received it.
  pid_t add() {
    int asked[2];
    REQUIRE(pipe2(asked, O_CLOEXEC) == 0);
    const pid_t stayer = fork();
    if (stayer == 0) {
      close(release_[1]);
      const int own = connect_to(daemon_.socket());
      const Message stay = message(Kind::kStay);
      send_packet(own, &stay, sizeof stay);
      const Message ask = message(Kind::kStatus);
      send_packet(own, &ask, sizeof ask);
      char byte = receive(own) ? 'y' : 'n';
      close(own);  // as exec does it: from here on only the process itself counts
      if (write(asked[1], &byte, 1) != 1) _exit(1);
      _exit(read(release_[0], &byte, 1) == 0 ? 0 : 1);
    }
    char answer = 0;
    CHECK(read(asked[0], &answer, 1) == 1);
    CHECK(answer == 'y');
    close(asked[0]);
    close(asked[1]);
    stayers_.push_back(stayer);
    return stayer;
  }
  void end(pid_t stayer) {
    kill(stayer, SIGKILL);
    waitpid(stayer, nullptr, 0);
    std::erase(stayers_, stayer);
  }

 private:
  const Daemon& daemon_;
  int release_[2];
  std::vector<pid_t> stayers_;
};

// The processes that a daemon watches.
int watched_by(const Daemon& daemon) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(daemon.pid()) + "/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().find("pidfd") != std::string::npos) ++count;
  }
  return count;
}

TEST_CASE("only so many processes can make a daemon stay, a quarter kept for other users, and others are served") {
  const Daemon daemon({}, {}, 150);  // room for 16
  const int most = geteuid() == 0 ? 16 : 12;
  Stayers stayers(daemon);
  std::vector<pid_t> heard;
  heard.reserve(20);
  for (int i = 0; i < 20; ++i) heard.push_back(stayers.add());
  CHECK(eventually([&] { return watched_by(daemon) == most; }));
  CHECK(serves(daemon));
  // A process that ends makes room for another.
  stayers.end(heard.front());
  CHECK(eventually([&] { return watched_by(daemon) == most - 1; }));
  stayers.add();
  CHECK(eventually([&] { return watched_by(daemon) == most; }));
}

TEST_CASE("a process that asks the daemon to stay over and over costs it one descriptor") {
  Daemon daemon;
  const rlimit few{.rlim_cur = 256, .rlim_max = 256};
  REQUIRE(prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);
  const Message stay = message(Kind::kStay);
  const Message ask = message(Kind::kStatus);
  for (int i = 0; i < 300; ++i) {
    const int descriptor = connect_to(daemon.socket());
    REQUIRE(descriptor >= 0);
    send_packet(descriptor, &stay, sizeof stay);
    send_packet(descriptor, &ask, sizeof ask);
    REQUIRE(receive(descriptor));
    close(descriptor);
  }
  CHECK(serves(daemon));
}

TEST_CASE("an idle daemon ends by itself, but not while a process that asked it to stay lives") {
  Daemon daemon({"--idle-exit", "1"});
  {
    Stayers stayers(daemon);
    stayers.add();
    // Longer than the idle time, with nobody connected.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1600);
    while (wait_a_moment(until)) {
    }
    CHECK(daemon.alive());
  }
  CHECK(daemon.wait() == 0);
}

}  // namespace
}  // namespace rota::test
