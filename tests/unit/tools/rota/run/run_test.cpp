// `rota run` and `rota status` as a person meets them. Each test has an installation of its own, with a stand-in for
// librota.so that does nothing: what is looked at here is the starting of programs, not what rota does inside them.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/tools/rota/run/installation.h"

namespace rota::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("a program's exit status and its arguments pass through") {
  const Installation installed;
  const Outcome outcome =
      installed.rota({"run", "sh", "-c", "echo \"$@\"; exit 7", "x", "--help", "--", "-v", "--mode", "a b"});
  CHECK(outcome.code() == 7);
  CHECK(outcome.output == "--help -- -v --mode a b\n");
  CHECK(outcome.errors == "");
  CHECK(installed.rota({"run", "--", "sh", "-c", "exit 3"}).code() == 3);
  CHECK(installed.rota({"run", "--mode=exclusive", "--", "echo", "a", "--", "b"}).output == "a -- b\n");
  CHECK(installed.rota({"run", "echo", "a", "--", "b"}).output == "a -- b\n");
  CHECK(installed.rota({"run", "--mode", "exclusive", "--quantum", "2s", "--", "true"}).code() == 0);
}

TEST_CASE("a program that a signal ends is seen to end by that signal") {
  const Installation installed;
  CHECK(installed.rota({"run", "sh", "-c", "kill -9 $$"}).signal() == SIGKILL);
  CHECK(installed.rota({"run", "sh", "-c", "kill -TERM $$"}).signal() == SIGTERM);
}

// An instrumented rota would not start behind a foreign preload: AddressSanitizer wants to be first.
#ifndef __SANITIZE_ADDRESS__
TEST_CASE("librota.so is preloaded, an existing LD_PRELOAD kept, and the program told where its rotad is") {
  const Installation installed;
  Command command = installed.command({"run", "sh", "-c", "echo $LD_PRELOAD; echo $ROTA_SOCKET"});
  const std::string other = installed.folder() / "other.so";
  fs::copy_file(EMPTY_PRELOAD, other);
  command.environment.push_back("LD_PRELOAD=" + other);
  const Outcome outcome = run(command);
  CHECK(outcome.output == installed.shim() + ":" + other + "\n" + installed.socket() + "\n");
}
#endif

TEST_CASE("a command that does not exist, or cannot be executed, is one line and the code a shell would give") {
  const Installation installed;
  const Outcome missing = installed.rota({"run", "no-such-command-of-rota"});
  CHECK(missing.code() == 127);
  CHECK(missing.errors == "rota: no-such-command-of-rota: command not found\n");
  write_file(installed.folder() / "plain", "text");
  const Outcome plain = installed.rota({"run", installed.folder() / "plain"});
  CHECK(plain.code() == 126);
  CHECK(plain.errors == "rota: " + (installed.folder() / "plain") + ": Permission denied\n");
  CHECK_FALSE(fs::exists(installed.socket()));
  write_file(installed.folder() / "script", "#!/no/such/interpreter\n", 0755);
  CHECK(installed.rota({"run", installed.folder() / "script"}).code() == 127);
}

TEST_CASE("many rota run at once start one rotad between them, which ends after its last program") {
  const Installation installed;
  // The programs wait until all of them have reported.
  int pipes[2];
  int hold[2];
  REQUIRE(pipe(pipes) == 0);
  REQUIRE(pipe(hold) == 0);
  constexpr int kPrograms = 8;
  std::vector<pid_t> programs;
  for (int i = 0; i < kPrograms; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      dup2(hold[0], 0);
      dup2(pipes[1], 1);
      close(hold[1]);
      for (const std::string& variable : installed.environment()) putenv(strdup(variable.c_str()));
      execl((installed.folder() / "bin/rota").c_str(), "rota", "run", "sh", "-c", "echo x; read line", nullptr);
      _exit(125);
    }
    programs.push_back(child);
  }
  close(pipes[1]);
  close(hold[0]);
  for (int reported = 0; reported < 2 * kPrograms;) {
    char bytes[64];
    const ssize_t length = read(pipes[0], bytes, sizeof bytes);
    REQUIRE(length > 0);
    reported += static_cast<int>(length);
  }
  int daemons = 0;
  for (const auto& process : fs::directory_iterator("/proc")) {
    std::string arguments;  // of one that ends meanwhile: none
    std::getline(std::ifstream(process.path().string() + "/cmdline"), arguments, '\0');
    std::string name;  // a worker of rotad's has its arguments
    std::getline(std::ifstream(process.path().string() + "/comm"), name);
    if (arguments.rfind(installed.folder() / "bin/rotad", 0) == 0 && name == "rotad") ++daemons;
  }
  CHECK(daemons == 1);
  const pid_t daemon = static_cast<pid_t>(status(installed.socket()).daemon.pid);
  // Nobody of the programs is its parent: they would find a child that they never made.
  const std::string stat = read_file("/proc/" + std::to_string(daemon) + "/stat");
  const std::string after_name = stat.substr(stat.rfind(')') + 4);
  const pid_t parent = std::stoi(after_name);
  CHECK(std::find(programs.begin(), programs.end(), parent) == programs.end());
  close(hold[1]);
  close(pipes[0]);
  for (const pid_t program : programs) {
    int ended = 0;
    waitpid(program, &ended, 0);
    CHECK(WIFEXITED(ended));
  }
  CHECK(eventually([&] { return !fs::exists(installed.socket()); }));
}

TEST_CASE("where no rotad can be started the program runs all the same, after one line") {
  const Installation installed(false);
  const Outcome outcome = installed.rota({"run", "sh", "-c", "exit 5"});
  CHECK(outcome.code() == 5);
  CHECK(outcome.errors.find("rota: cannot start a rotad at " + installed.socket()) == 0);
  CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
}

TEST_CASE("a folder that somebody else made under the user's own name in /tmp does not keep the user from a rotad") {
  if (geteuid() != 0) return;  // only root can become a user whom nobody else is
  const Installation installed;
  const uid_t user = 1'000'000 + static_cast<uid_t>(getpid());
  const std::string trap = "/tmp/rota-" + std::to_string(user);
  const std::string runtime = installed.folder() / "runtime";
  fs::create_directory(runtime);
  REQUIRE(chown(runtime.c_str(), user, user) == 0);
  REQUIRE(mkdir(trap.c_str(), 0700) == 0);
  REQUIRE(chown(trap.c_str(), 4242, 4242) == 0);
  Command command{.arguments = {installed.folder() / "bin/rota", "run", "sh", "-c", "echo $ROTA_SOCKET"},
                  .environment = {"XDG_RUNTIME_DIR=" + runtime, "ROTA_LOCK_DIRECTORY=" + runtime + "/locks"},
                  .user = user};
  const Outcome outcome = run(command);
  const int removed = rmdir(trap.c_str());
  CHECK(removed == 0);
  CHECK(outcome.code() == 0);
  CHECK(outcome.output == runtime + "/rota/rotad.sock\n");
  CHECK(outcome.errors.find(trap) != std::string::npos);
  CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
  const pid_t daemon = static_cast<pid_t>(status(runtime + "/rota/rotad.sock").daemon.pid);
  kill(daemon, SIGTERM);
  CHECK(eventually([&] { return !fs::exists(runtime + "/rota/rotad.sock"); }));
}

TEST_CASE("a starter that never finishes is named after a while, and the program runs without turns") {
  const Installation installed;
  fs::create_directory(fs::path(installed.socket()).parent_path());
  const std::string lock = installed.socket() + ".start";
  const int held = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(held >= 0);
  REQUIRE(flock(held, LOCK_EX) == 0);
  const std::string owner = std::to_string(getpid()) + "\n";
  REQUIRE(write(held, owner.data(), owner.size()) == static_cast<ssize_t>(owner.size()));
  const Outcome outcome = installed.rota({"run", "sh", "-c", "exit 5"});
  close(held);
  CHECK(outcome.code() == 5);
  CHECK(outcome.errors.find("pid " + std::to_string(getpid())) != std::string::npos);
  CHECK(outcome.errors.find("ROTA_SOCKET") != std::string::npos);
  CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
}

TEST_CASE("a rotad that never says it listens is given up after a while, and the program runs without turns") {
  const Installation installed(false);
  write_file(installed.folder() / "bin/rotad", "#!/bin/sh\necho $$ > \"$0.pid\"\nexec sleep 1000\n", 0755);
  const Outcome outcome = installed.rota({"run", "sh", "-c", "exit 5"});
  kill(std::stoi(read_file(installed.folder() / "bin/rotad.pid")), SIGKILL);
  CHECK(outcome.code() == 5);
  CHECK(outcome.errors.find("cannot start a rotad at " + installed.socket()) != std::string::npos);
  CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
}

TEST_CASE("where one may not talk to the rotad the program runs all the same, after one line") {
  const Installation installed;
  const Daemon daemon({}, installed.folder() / "t/rotad.sock");
  // Root may open everything, so root becomes somebody else; others are kept out by the socket's own mode.
  REQUIRE(chmod((installed.folder() / "t/rotad.sock").c_str(), 0) == 0);
  REQUIRE(chmod((installed.folder() / "t").c_str(), geteuid() == 0 ? 0711 : 0700) == 0);
  Command command = installed.command({"run", "sh", "-c", "exit 6"});
  command.environment[0] = "ROTA_SOCKET=" + daemon.socket();
  command.user = 65534;
  const Outcome outcome = run(command);
  CHECK(outcome.code() == 6);
  CHECK(outcome.errors.find("permission denied") != std::string::npos);
  CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
}

TEST_CASE("a shim that is missing is one line, and the program runs") {
  const Installation installed;
  fs::remove(installed.shim());
  const Outcome outcome = installed.rota({"run", "sh", "-c", "exit 4"});
  CHECK(outcome.code() == 4);
  CHECK(outcome.errors.find(installed.shim()) != std::string::npos);
}

TEST_CASE("a mode that a running rotad does not have is said, not obeyed") {
  const Installation installed;
  const Daemon daemon({"--mode", "exclusive"}, installed.folder() / "t/rotad.sock");
  Command command = installed.command({"run", "--mode", "concurrent", "true"});
  command.environment[0] = "ROTA_SOCKET=" + daemon.socket();
  const Outcome outcome = run(command);
  CHECK(outcome.code() == 0);
  CHECK(outcome.errors.find("is already running, in exclusive mode") != std::string::npos);
}

TEST_CASE("nonsense for rota run is refused before anything starts") {
  const Installation installed;
  CHECK(installed.rota({"run", "--quantum", "0", "true"}).errors.find("--quantum") != std::string::npos);
  CHECK(installed.rota({"run", "--mode", "fair", "true"}).code() != 0);
  CHECK(installed.rota({"run"}).code() != 0);
  CHECK(installed.rota({"run", "--unknown", "true"}).code() != 0);
  CHECK(installed.rota({}).code() != 0);
  CHECK_FALSE(fs::exists(installed.socket()));
}

TEST_CASE("rota status without a rotad is one line and a failure") {
  const Installation installed;
  const Outcome outcome = installed.rota({"status"});
  CHECK(outcome.code() == 1);
  CHECK(outcome.output.empty());
  CHECK(outcome.errors.find("rota: no rotad is running") == 0);
}

TEST_CASE("rota status tells people and programs who holds and who waits") {
  const Installation installed;
  const Daemon daemon({"--mode", "exclusive"}, installed.folder() / "t/rotad.sock");
  Client holder(daemon.socket(), "trainer");
  Client waiter(daemon.socket(), "note\"book\xff");
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(holder.add_gpu(3, &gpu));
  REQUIRE_FALSE(waiter.add_gpu(3));
  holder.use(gpu, 5 << 20);
  holder.usage->gpus[gpu].memory_mode = static_cast<std::uint8_t>(protocol::MemoryMode::kNativeNoPaging);
  waiter.usage->gpus[gpu].memory_mode = static_cast<std::uint8_t>(protocol::MemoryMode::kUnifiedMig);
  holder.want(std::uint64_t{1} << gpu);
  REQUIRE(holder.wait_for_grant());
  waiter.want(std::uint64_t{1} << gpu);
  REQUIRE(holder.wait_for([](const protocol::LeasePage& page) { return page.gpus[0].waiters != 0; }));
  Command command = installed.command({"status"});
  command.environment[0] = "ROTA_SOCKET=" + daemon.socket();
  const Outcome text = run(command);
  CHECK(text.code() == 0);
  CHECK(text.output.find("GPU 0  Test GPU  GPU-00000000-0000-0000-0000-000000000003") != std::string::npos);
  CHECK(text.output.find("5 MiB of 1.0 GiB allocated by 2 programs; 1 holds it, 1 waits") != std::string::npos);
  CHECK(text.output.find("  holds  pid ") != std::string::npos);
  CHECK(text.output.find("  waits  pid ") != std::string::npos);
  CHECK(text.output.find("trainer, memory: native (no concurrent managed access)") != std::string::npos);
  CHECK(text.output.find(", memory: Unified Memory (swap has not been tested on MIG instances)") != std::string::npos);
  command.arguments.push_back("--json");
  const Outcome json = run(command);
  const auto parsed = nlohmann::json::parse(json.output);
  CHECK(parsed["daemon"]["pid"] == daemon.pid());
  CHECK(parsed["daemon"]["mode"] == "exclusive");
  CHECK(parsed["daemon"]["version"] == ROTA_VERSION);
  CHECK(parsed["gpus"][0]["used_bytes"] == 5 << 20);
  REQUIRE(parsed["clients"].size() == 2);
  CHECK(parsed["clients"][0]["name"] == "trainer");
  CHECK(parsed["clients"][0]["holds"] == true);
  CHECK(parsed["clients"][0]["waits"] == false);
  CHECK(parsed["clients"][0]["bytes"] == 5 << 20);
  CHECK(parsed["clients"][1]["waits"] == true);
  CHECK(parsed["clients"][1]["pid"] == getpid());
  CHECK(parsed["clients"][1]["gpus"][0] == "GPU-00000000-0000-0000-0000-000000000003");
  const auto& served = parsed["clients"][0]["memory"]["GPU-00000000-0000-0000-0000-000000000003"];
  CHECK(served["mode"] == "native");
  CHECK(served["reason"] == "no concurrent managed access");
  // In the words of --memory.
  const auto& other = parsed["clients"][1]["memory"]["GPU-00000000-0000-0000-0000-000000000003"];
  CHECK(other["mode"] == "managed");
  CHECK(other["reason"] == "swap has not been tested on MIG instances");
}

TEST_CASE("rota status says how much of a program's swap memory lies on the GPU") {
  const Installation installed;
  const Daemon daemon({}, installed.folder() / "t/rotad.sock");
  Client swapper(daemon.socket(), "swapper");
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(swapper.add_gpu(3, &gpu));
  swapper.use(gpu, 5 << 20);
  swapper.usage->gpus[gpu].memory_mode = static_cast<std::uint8_t>(protocol::MemoryMode::kSwap);
  swapper.usage->gpus[gpu].resident_bytes = 3 << 20;
  swapper.usage->out_bytes = 10 << 20;
  swapper.usage->out_ns = 200'000;
  swapper.usage->spared_bytes = 30 << 20;
  swapper.usage->in_bytes = 40 << 20;
  swapper.usage->in_ns = 1'000'000;
  REQUIRE(eventually([&] { return status(daemon.socket()).tasks.at(0).resident_bytes != 0; }));
  Command command = installed.command({"status"});
  command.environment[0] = "ROTA_SOCKET=" + daemon.socket();
  CHECK(run(command).output.find("swapper, memory: swap, 3 MiB resident, evicted: 10 MiB at 52.4 GB/s and 30 MiB "
                                 "unchanged without a copy, back: 40 MiB at 41.9 GB/s") != std::string::npos);
  command.arguments.push_back("--json");
  const auto parsed = nlohmann::json::parse(run(command).output);
  CHECK(parsed["clients"][0]["resident_bytes"] == 3 << 20);
  CHECK(parsed["clients"][0]["moved"]["spared_bytes"] == 30 << 20);
  CHECK(parsed["clients"][0]["memory"]["GPU-00000000-0000-0000-0000-000000000003"]["mode"] == "swap");
}

TEST_CASE("rota control changes the rotad that serves one, and says what holds now or why not") {
  const Installation installed;
  const Daemon daemon({"--mode", "automatic"}, installed.folder() / "t/rotad.sock");
  Command command = installed.command({"control", "mode", "exclusive"});
  command.environment[0] = "ROTA_SOCKET=" + daemon.socket();
  const Outcome changed = run(command);
  CHECK(changed.code() == 0);
  CHECK(changed.output.find("exclusive mode, quantum automatic") == 0);
  CHECK(status(daemon.socket()).daemon.mode == protocol::Mode::kExclusive);
  command.arguments.back() = "fair";
  const Outcome refused = run(command);
  CHECK(refused.code() == 1);
  CHECK(refused.errors.find("rota: 'fair' is not a mode") == 0);
  CHECK(installed.rota({"control", "stop"}).errors.find("rota: no rotad is running") == 0);
}

TEST_CASE("rota says its version") {
  const Installation installed;
  CHECK(installed.rota({"--version"}).output == "rota " ROTA_VERSION "\n");
}

}  // namespace
}  // namespace rota::test
