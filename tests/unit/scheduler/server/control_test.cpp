// Settings of a running rotad, changed by users who may change them.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <functional>
#include <thread>

#include "scheduler/address/socket_path.h"
#include "scheduler/server/control.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

TEST_CASE("mode and quantum of a running rotad are changed over its control socket, and hold at once") {
  const Daemon daemon({"--mode", "exclusive", "--quantum", "1000s"});
  const std::string control = daemon.socket() + ".control";
  Client holder(daemon.socket());
  Client waiter(daemon.socket());
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(holder.add_gpu(1, &gpu));
  REQUIRE_FALSE(waiter.add_gpu(1));
  holder.want(std::uint64_t{1} << gpu);
  REQUIRE(holder.wait_for_grant());
  waiter.want(std::uint64_t{1} << gpu);
  REQUIRE(holder.wait_for([](const protocol::LeasePage& page) { return page.gpus[0].waiters != 0; }));
  const std::uint64_t before = holder.lease->gpus[0].drain_at_ns;
  CHECK(ask_control(control, "quantum 100ms") == "ok: exclusive mode, quantum 100 ms, grace 10000 ms");
  CHECK(holder.wait_for([&](const protocol::LeasePage& page) { return page.gpus[0].drain_at_ns < before; }));
  CHECK(status(daemon.socket()).daemon.quantum_ns == 100'000'000);
  CHECK(waiter.lease->gpus[0].grant == 0);
  CHECK(ask_control(control, "mode concurrent") == "ok: concurrent mode, quantum 100 ms, grace 10000 ms");
  CHECK(waiter.wait_for_grant());
  CHECK(holder.lease->gpus[0].grant != 0);
  CHECK(status(daemon.socket()).daemon.mode == protocol::Mode::kConcurrent);
}

TEST_CASE("a rotad that is told to stop answers, ends cleanly and takes both of its sockets with it") {
  Daemon daemon;
  const std::string control = daemon.socket() + ".control";
  CHECK(ask_control(control, "stop") == "ok: rotad is stopping; its programs continue");
  CHECK(daemon.wait() == 0);
  CHECK(access(control.c_str(), F_OK) != 0);
  CHECK(access(daemon.socket().c_str(), F_OK) != 0);
}

TEST_CASE("while rotad has no descriptor for a connection to the control socket, it waits and does not spin") {
#ifdef __SANITIZE_ADDRESS__
  WARN("not run: the undefined-behaviour sanitizer looks at objects through a pipe, and has no descriptor for that");
  return;
#endif
  const TemporaryFolder folder;
  const std::string path = folder / "control.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  REQUIRE(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(listener.get(), 4) == 0);
  asio::io_context io(1);
  server::Workers workers(io);
  server::Control control(io, {std::move(listener)}, path, server::Trust::kUser, workers,
                          [](const server::ControlRequest&) { return std::string("done"); });
  control.start();
  const Descriptor asks(connect_to(path));
  send_packet(asks.get(), "mode exclusive", 14);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const std::size_t steps = io.run_for(std::chrono::milliseconds(250));
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(steps < 20);
  io.run_for(std::chrono::milliseconds(500));
  char answer[64];
  const ssize_t length = recv(asks.get(), answer, sizeof answer, MSG_DONTWAIT);
  CHECK(std::string(answer, static_cast<std::size_t>(std::max<ssize_t>(length, 0))) == "ok: done");
}

// The exit status of `program`, run as a user without permissions who can reach the daemon's control socket.
int as_stranger(const Daemon& daemon, const std::string& control, const std::function<bool()>& program) {
  const std::string folder = daemon.socket().substr(0, daemon.socket().rfind('/'));
  REQUIRE(chmod(control.c_str(), 0666) == 0);
  REQUIRE(chmod(folder.c_str(), 0711) == 0);
  REQUIRE(chmod(folder.substr(0, folder.rfind('/')).c_str(), 0711) == 0);
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
    _exit(program() ? 0 : 1);
  }
  int ended = 0;
  waitpid(stranger, &ended, 0);
  return ended;
}

TEST_CASE("another user may not change settings, even one who can reach the socket") {
  if (geteuid() != 0) return;  // only root can become somebody else
  const Daemon daemon({"--mode", "automatic"});
  const std::string control = daemon.socket() + ".control";
  struct stat info{};
  REQUIRE(stat(control.c_str(), &info) == 0);
  CHECK((info.st_mode & 0007) == 0);
  CHECK(as_stranger(daemon, control,
                    [&] { return ask_control(control, "mode exclusive").rfind("error: only root", 0) == 0; }) == 0);
  CHECK(status(daemon.socket()).daemon.mode == protocol::Mode::kAutomatic);
}

TEST_CASE("another user is told why, also one whose request came before rotad checked the user") {
  if (geteuid() != 0) return;
  const Daemon daemon({"--mode", "automatic"});
  const std::string control = daemon.socket() + ".control";
  int asked[2];
  REQUIRE(pipe2(asked, O_CLOEXEC) == 0);
  REQUIRE(kill(daemon.pid(), SIGSTOP) == 0);
  std::thread waker([&] {
    char byte = 0;
    CHECK(read(asked[0], &byte, 1) == 1);
    kill(daemon.pid(), SIGCONT);
  });
  CHECK(as_stranger(daemon, control, [&] {
          const int descriptor = connect_to(control);
          send_packet(descriptor, "mode exclusive", 14);
          if (write(asked[1], "a", 1) != 1) return false;
          char answer[512];
          const ssize_t length = recv(descriptor, answer, sizeof answer, 0);
          return length > 0 && std::string(answer, static_cast<std::size_t>(length)).rfind("error: only root", 0) == 0;
        }) == 0);
  // In case the child fails before it writes.
  CHECK(write(asked[1], "b", 1) == 1);
  waker.join();
  close(asked[0]);
  close(asked[1]);
  CHECK(status(daemon.socket()).daemon.mode == protocol::Mode::kAutomatic);
}

TEST_CASE("what is not a setting, or no value of it, is refused in words and changes nothing") {
  const Daemon daemon({"--mode", "automatic"});
  const std::string control = daemon.socket() + ".control";
  for (const auto& [line, word] : std::vector<std::pair<std::string, std::string>>{
           {"colour blue", "'colour' is not a setting"},
           {"mode fair", "'fair' is not a mode"},
           {"mode", "'' is not a mode"},
           {"quantum 0", "'0' is not a duration"},
           {"quantum -1s", "is not a duration"},
           {"grace 1", "is not a duration"},
           {"stop now", "stop takes no value"},
           {"quantum 100 ms", "'100 ms' is not a duration"},
           {"quantum 100ms mode exclusive",
            "one setting at a time: ask for 'quantum 100ms' by itself, and "
            "then for 'mode exclusive'"},
           {"mode exclusive stop", "then for 'stop'"},
           {std::string("\x1b[2J\0x", 6), "is not a setting"},
           {std::string(300, 'm'), "the request has 300 bytes"}}) {
    const std::string answer = ask_control(control, line);
    INFO(answer);
    CHECK(answer.rfind("error: ", 0) == 0);
    CHECK(answer.find(word) != std::string::npos);
    for (const char character : answer) CHECK((character >= ' ' && character <= '~'));
  }
  CHECK(status(daemon.socket()).daemon.mode == protocol::Mode::kAutomatic);
}

TEST_CASE("those who hold the control socket open do not keep others from it") {
  const Daemon daemon;
  const std::string control = daemon.socket() + ".control";
  std::vector<int> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(connect_to(control));
  CHECK(ask_control(control, "mode exclusive").rfind("ok: ", 0) == 0);
  for (const int descriptor : idle) close(descriptor);
}

TEST_CASE(
    "the control socket of the machine's rotad lies in a folder of its own, a user's next to the clients' socket") {
  char path[protocol::kSocketPathLength];
  REQUIRE(protocol::control_path(protocol::kSystemSocket, path));
  CHECK(std::string(path) == "/run/rota-control/control.sock");
  REQUIRE(protocol::control_path("/tmp/rota-7/rotad.sock", path));
  CHECK(std::string(path) == "/tmp/rota-7/rotad.sock.control");
  CHECK_FALSE(protocol::control_path(std::string(protocol::kSocketPathLength - 2, 'x').c_str(), path));
}

TEST_CASE("a configuration that is read again sets mode, quantum and grace, and says what needs a restart") {
  const TemporaryFolder folder;
  const std::string file = folder / "rotad.toml";
  write_file(file, "mode = \"exclusive\"\n");
  const Daemon daemon({"--config", file, "--grace", "3s"});
  const std::string control = daemon.socket() + ".control";
  const auto mode = [&] { return status(daemon.socket()).daemon.mode; };
  CHECK(ask_control(control, "reload") == "ok: " + file + ": nothing has changed");
  write_file(file, "mode = \"concurrent\"\nquantum = \"2s\"\ngrace = \"1s\"\ntrust = \"none\"\n");
  CHECK(ask_control(control, "reload") ==
        "ok: " + file + ": mode, quantum or grace changed; trust takes effect after a restart");
  CHECK(mode() == protocol::Mode::kConcurrent);
  CHECK(ask_control(control, "quantum 3s") == "ok: concurrent mode, quantum 3000 ms, grace 3000 ms");
  SECTION("also after a SIGHUP, and then as the file says and not as it was changed since") {
    REQUIRE(kill(daemon.pid(), SIGHUP) == 0);
    CHECK(eventually([&] { return status(daemon.socket()).daemon.quantum_ns == 2'000'000'000; }));
  }
  SECTION("an error changes nothing, and says which line it is") {
    write_file(file, "mode = \"exclusive\"\nquantum = \"soon\"\n");
    const std::string answer = ask_control(control, "reload");
    CHECK(answer.find("error: nothing has changed: " + file + ", line 2: 'soon' is not a duration") == 0);
    CHECK(mode() == protocol::Mode::kConcurrent);
    CHECK(status(daemon.socket()).daemon.quantum_ns == 3'000'000'000);
  }
  SECTION("a file that is named and gone is an error, too") {
    REQUIRE(unlink(file.c_str()) == 0);
    CHECK(ask_control(control, "reload").find("error: nothing has changed: " + file) == 0);
    CHECK(mode() == protocol::Mode::kConcurrent);
  }
  CHECK(ask_control(control, "reload now") == "error: reload takes no value");
}

}  // namespace
}  // namespace rota::test
