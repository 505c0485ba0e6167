// Listeners that rotad is given, as systemd's socket units do.
#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>

#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

Descriptor listening(const std::string& path, int kind = SOCK_SEQPACKET) {
  Descriptor listener(socket(AF_UNIX, kind | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(listener.get(), 16) == 0);
  return listener;
}

// A service manager's part.
class Started {
 public:
  Started(int clients, int control, const std::string& names, const std::string& locks,
          const std::vector<std::string>& options = {}) {
    std::vector<std::string> arguments = {ROTAD, "--lock-directory", locks};
    arguments.insert(arguments.end(), options.begin(), options.end());
    std::vector<char*> argv;
    for (const std::string& text : arguments) argv.push_back(const_cast<char*>(text.c_str()));
    argv.push_back(nullptr);
    int errors[2];
    REQUIRE(pipe2(errors, O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      const int moved[] = {fcntl(clients, F_DUPFD, 20), fcntl(control, F_DUPFD, 20), fcntl(errors[1], F_DUPFD, 20)};
      dup2(moved[0], 3);
      dup2(moved[1], 4);
      dup2(moved[2], 2);
      for (const int each : moved) close(each);
      setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
      setenv("LISTEN_FDS", "2", 1);
      setenv("LISTEN_FDNAMES", names.c_str(), 1);
      execv(argv[0], argv.data());
      _exit(125);
    }
    close(errors[1]);
    errors_ = Descriptor(errors[0]);
  }
  ~Started() {
    if (pid_ > 0) end(SIGKILL);
  }
  int end(int signal) {
    kill(pid_, signal);
    return wait();
  }
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  std::string errors() const {
    char text[1024];
    const ssize_t length = read(errors_.get(), text, sizeof text);
    return {text, static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
  }

 private:
  pid_t pid_ = -1;
  Descriptor errors_;
};

const char* const kNames = "clients:control";

TEST_CASE("programs that connect before rotad runs, or between two, are served by the next on the same listeners") {
  const TemporaryFolder folder;
  const std::string path = folder / "clients";
  const std::string settings = folder / "control";
  const Descriptor clients = listening(path);
  const Descriptor control = listening(settings);
  const Descriptor early(connect_to(settings));
  send_packet(early.get(), "mode exclusive", 14);
  Started first(clients.get(), control.get(), kNames, folder / "locks");
  char answer[512];
  CHECK(recv(early.get(), answer, sizeof answer, 0) > 0);
  CHECK(std::string(answer).find("ok: exclusive mode") == 0);
  std::uint32_t gpu = 0;
  {
    Client client(path);
    REQUIRE_FALSE(client.add_gpu(1, &gpu));
  }
  SECTION("after one that was told to stop") {
    CHECK(ask_control(settings, "stop") == "ok: rotad is stopping; its programs continue");
    CHECK(first.wait() == 0);
  }
  SECTION("after one that was ended") {
    CHECK(first.end(SIGTERM) == 0);
  }
  SECTION("after one that was killed") {
    first.end(SIGKILL);
  }
  CHECK(access(path.c_str(), F_OK) == 0);
  CHECK(access(settings.c_str(), F_OK) == 0);
  const Descriptor between(connect_to(settings));
  REQUIRE(between);
  send_packet(between.get(), "grace 5s", 8);
  Started second(clients.get(), control.get(), kNames, folder / "locks");
  CHECK(recv(between.get(), answer, sizeof answer, 0) > 0);
  Client client(path);
  REQUIRE_FALSE(client.add_gpu(1, &gpu));
  client.want(std::uint64_t{1} << gpu);
  CHECK(client.wait_for_grant());
}

TEST_CASE("the listener of another rotad's place cannot be served twice, and stays with the first") {
  const TemporaryFolder folder;
  const Descriptor clients = listening(folder / "clients");
  const Descriptor control = listening(folder / "control");
  Started first(clients.get(), control.get(), kNames, folder / "locks");
  CHECK(ask_control(folder / "control", "mode exclusive").find("ok: ") == 0);
  Started second(clients.get(), control.get(), kNames, folder / "locks");
  CHECK_THAT(second.errors(), Catch::Contains("is already served by rotad pid"));
  CHECK(ask_control(folder / "control", "mode automatic").find("ok: ") == 0);
}

TEST_CASE("where the file of a listener that was given is removed, rotad says so and makes no other") {
  const TemporaryFolder folder;
  const std::string path = folder / "clients";
  const Descriptor clients = listening(path);
  const Descriptor control = listening(folder / "control");
  Started rotad(clients.get(), control.get(), kNames, folder / "locks", {"--log", "warn"});
  CHECK(ask_control(folder / "control", "mode exclusive").find("ok: ") == 0);
  REQUIRE(unlink(path.c_str()) == 0);
  CHECK_THAT(rotad.errors(), Catch::Contains("its socket " + path + " is gone: whoever made it"));
  CHECK(ask_control(folder / "control", "mode automatic").find("ok: ") == 0);
  CHECK(access(path.c_str(), F_OK) != 0);
}

TEST_CASE("what is no listener of rotad's is named") {
  const TemporaryFolder folder;
  const Descriptor clients = listening(folder / "clients");
  const Descriptor stream = listening(folder / "stream", SOCK_STREAM);
  const auto errors = [&](const Descriptor& control, const char* names, const std::vector<std::string>& options = {}) {
    return Started(clients.get(), control.get(), names, folder / "locks", options).errors();
  };
  CHECK_THAT(errors(stream, kNames), Catch::Contains("descriptor 4 (control) is no listening socket of packets"));
  const Descriptor control = listening(folder / "control");
  CHECK_THAT(errors(control, "clients:clients"), Catch::Contains("descriptor 4 is called 'clients'"));
  CHECK_THAT(errors(control, "clients:other"), Catch::Contains("descriptor 4 is called 'other'"));
  CHECK_THAT(
      errors(control, kNames, {"--socket", "/elsewhere"}),
      Catch::Contains("--socket is /elsewhere, and the listener that rotad was given is at " + folder / "clients"));
}

TEST_CASE("members of the group of a control socket that is given may change settings, and nobody else") {
  if (geteuid() != 0) return;  // only root can become somebody else
  const TemporaryFolder folder;
  REQUIRE(chmod(folder.path().c_str(), 0711) == 0);
  const std::string settings = folder / "control";
  const Descriptor clients = listening(folder / "clients");
  const Descriptor control = listening(settings);
  constexpr gid_t kGroup = 54321;
  REQUIRE(chown(settings.c_str(), 0, kGroup) == 0);
  REQUIRE(chmod(settings.c_str(), 0666) == 0);  // the kernel lets everybody come
  Started rotad(clients.get(), control.get(), kNames, folder / "locks");
  const auto may = [&](std::vector<gid_t> groups) {
    const pid_t other = fork();
    if (other == 0) {
      if (setgroups(groups.size(), groups.data()) != 0 || setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
      _exit(ask_control(settings, "mode exclusive").find("ok: ") == 0 ? 0 : 1);
    }
    int status = 0;
    waitpid(other, &status, 0);
    return WEXITSTATUS(status);
  };
  CHECK(may({kGroup}) == 0);
  CHECK(may({}) == 1);
  CHECK(may({0, 65534}) == 1);
  std::vector<gid_t> many(200, 7);
  CHECK(may(many) == 1);
  many.push_back(kGroup);
  CHECK(may(many) == 0);
}

}  // namespace
}  // namespace rota::test
