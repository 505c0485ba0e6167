// The rotad that `rota run` starts: what it inherits of the program that happened to be the first, and what programs
// meet when it is stopped or killed.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "tests/unit/tools/rota/run/installation.h"
#include "tools/rota/run/fresh_start.h"

namespace rota::test {
namespace {

namespace fs = std::filesystem;

// Starts `command` from a process in which `state` was called, and waits for its end.
Outcome run_from(const Installation& installed, const Command& command, const std::function<void()>& state) {
  const std::string errors = installed.folder() / "errors";
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (const std::string& text : command.arguments) argv.push_back(const_cast<char*>(text.c_str()));
  for (const std::string& text : command.environment) envp.push_back(const_cast<char*>(text.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const int said = open(errors.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const pid_t child = fork();
  if (child == 0) {
    dup2(said, 2);
    state();
    execve(argv[0], argv.data(), envp.data());
    _exit(125);
  }
  close(said);
  Outcome outcome;
  waitpid(child, &outcome.status, 0);
  outcome.errors = read_file(errors);
  return outcome;
}

pid_t rotad_of(const Installation& installed) {
  return static_cast<pid_t>(status(installed.socket()).daemon.pid);
}

std::string in_proc(pid_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

// What a line of /proc/PID/status says: "Umask" gives "0022".
std::string says(pid_t pid, const std::string& name) {
  std::ifstream file(in_proc(pid, "status"));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) == 0) return line.substr(line.find_first_not_of(" \t", name.size() + 1));
  }
  return {};
}

// The soft limit, as /proc/PID/limits has it.
std::string limit_of(pid_t pid, const std::string& name) {
  std::ifstream file(in_proc(pid, "limits"));
  std::string limit;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name, 0) == 0) std::istringstream(line.substr(name.size())) >> limit;
  }
  return limit;
}

// System call `number` fails with `error` from now on, as in a sandbox or an older kernel.
void forbid(unsigned number, unsigned error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = 4, .filter = filter};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(77);
}

std::ptrdiff_t lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST_CASE("a rotad of one's own has nothing of its first program's environment but what names its place and machine") {
  const Installation installed;
  Command command = installed.command({"run", "true"});
  const std::vector<std::string> others = {"RUNNER_TRACKING_ID=github_1",
                                           "BUILD_ID=1",
                                           "JENKINS_NODE_COOKIE=1",
                                           "LD_LIBRARY_PATH=/nowhere",
                                           "ROTA_TRACE=/nowhere",
                                           "ROTA_REPORT=/x",
                                           "ROTA_LOG=warn",
                                           "ROTA_MEMORY=native",
                                           "ROTA_CACHE=/nowhere",
                                           "LD_PRELOAD_OTHER=1",
                                           "HOMEPAGE=x"};
  const std::vector<std::string> needed = {"HOME=/nowhere", "XDG_CONFIG_HOME=/nowhere", "XDG_RUNTIME_DIR=/nowhere",
                                           "ROTA_SIM_GPUS=2"};
  command.environment.insert(command.environment.end(), others.begin(), others.end());
  command.environment.insert(command.environment.end(), needed.begin(), needed.end());
  const Outcome outcome = run(command);
  CHECK(outcome.code() == 0);
  std::set<std::string> found;
  std::istringstream has(read_file(in_proc(rotad_of(installed), "environ")));
  for (std::string variable; std::getline(has, variable, '\0');) found.insert(variable);
  std::set<std::string> expected(needed.begin(), needed.end());
  for (const std::string& place : installed.environment()) expected.insert(place);
  CHECK(found == expected);
}

TEST_CASE("of LD_LIBRARY_PATH a rotad gets the folders with the NVML that it loads, a simulated one's too") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "sim");
  fs::create_directories(folder / "other");
  write_file(folder / "sim/libnvidia-ml.so.1", "");
  std::string path = "LD_LIBRARY_PATH=" + (folder / "other") + ":" + (folder / "sim") + "::relative";
  std::string home = "HOME=/h";
  char* const given[] = {path.data(), home.data(), nullptr};
  CHECK(tool::daemon_environment(given) == std::vector<std::string>{"LD_LIBRARY_PATH=" + (folder / "sim"), "HOME=/h"});
  std::string none = "LD_LIBRARY_PATH=" + (folder / "other");
  char* const without[] = {none.data(), nullptr};
  CHECK(tool::daemon_environment(without).empty());
}

TEST_CASE("a rotad of one's own keeps no descriptor of its starter's, whatever the kernel can close") {
  const unsigned error = GENERATE(0U, static_cast<unsigned>(ENOSYS), static_cast<unsigned>(EPERM));
  CAPTURE(error);
  const Installation installed;
  const std::string lock = installed.folder() / "cron.lock";
  const Outcome outcome = run_from(installed, installed.command({"run", "true"}), [&] {
    const int low = open(lock.c_str(), O_RDWR | O_CREAT, 0600);
    if (flock(low, LOCK_EX | LOCK_NB) != 0) _exit(76);
    // One that is above the limit by now.
    if (fcntl(low, F_DUPFD, 300) < 0) _exit(76);
    const rlimit fewer{.rlim_cur = 100, .rlim_max = 1024};
    setrlimit(RLIMIT_NOFILE, &fewer);
    if (error != 0) forbid(SYS_close_range, error);
  });
  if (outcome.code() == 77) return;  // no seccomp here
  CHECK(outcome.code() == 0);
  const int again = open(lock.c_str(), O_RDWR | O_CLOEXEC);
  CHECK(flock(again, LOCK_EX | LOCK_NB) == 0);
  close(again);
  for (const auto& entry : fs::directory_iterator(in_proc(rotad_of(installed), "fd"))) {
    std::error_code closed;  // in the meantime
    CHECK(fs::read_symlink(entry, closed).string() != lock);
  }
}

TEST_CASE("descriptors are closed where neither the kernel nor /proc helps") {
  if (geteuid() != 0) return;  // chroot
  const TemporaryFolder folder;
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const int high = fcntl(ends[1], F_DUPFD, 700);
    if (high < 0 || chroot(folder.path().c_str()) != 0) _exit(76);
    const rlimit fewer{.rlim_cur = 100, .rlim_max = 100};
    setrlimit(RLIMIT_NOFILE, &fewer);
    forbid(SYS_close_range, ENOSYS);
    tool::close_descriptors_from(3);
    _exit(fcntl(high, F_GETFD) < 0 && fcntl(ends[0], F_GETFD) < 0 ? 0 : 1);
  }
  int ended = 0;
  waitpid(child, &ended, 0);
  close(ends[0]);
  close(ends[1]);
  REQUIRE(WIFEXITED(ended));
  if (WEXITSTATUS(ended) < 76) CHECK(WEXITSTATUS(ended) == 0);
}

TEST_CASE(
    "a rotad of one's own has default signals, session, limits, CPUs, umask and folder, and not its first program's") {
  const Installation installed;
  const Outcome outcome = run_from(installed, installed.command({"run", "true"}), [&] {
    for (const int number : {SIGHUP, SIGINT, SIGUSR1, SIGCHLD, SIGTERM}) signal(number, SIG_IGN);
    sigset_t blocked;
    sigfillset(&blocked);
    sigprocmask(SIG_SETMASK, &blocked, nullptr);
    umask(077);
    if (chdir(installed.folder().path().c_str()) != 0) _exit(76);
    for (const auto which : {RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_AS, RLIMIT_DATA, RLIMIT_CPU, RLIMIT_STACK}) {
      rlimit limit{};
      getrlimit(which, &limit);
      const rlim_t low = which == RLIMIT_NOFILE ? 64 : which == RLIMIT_CPU ? 1000 : rlim_t{512} << 20;
      limit.rlim_cur = std::min(limit.rlim_max, low);
#ifdef __SANITIZE_ADDRESS__
      if (which == RLIMIT_AS || which == RLIMIT_DATA) continue;  // AddressSanitizer maps far more
#endif
      setrlimit(which, &limit);
    }
    const rlimit all{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &all);
    cpu_set_t one;
    CPU_ZERO(&one);
    sched_getaffinity(0, sizeof one, &one);
    for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &one) && kept++ != 0) CPU_CLR(cpu, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
    const sched_param usual{};
    if (geteuid() == 0) sched_setscheduler(0, SCHED_BATCH, &usual);
    if (geteuid() == 0) setpriority(PRIO_PROCESS, 0, 5);
    prctl(PR_SET_TIMERSLACK, 1'000'000UL);
  });
  CHECK(outcome.code() == 0);
  CHECK(outcome.errors == "");
  const pid_t rotad = rotad_of(installed);
  CHECK(getsid(rotad) == rotad);
  CHECK(getpgid(rotad) == rotad);
  // Signals that rotad ignores itself.
  std::uint64_t ignored = 0;
  for (const int number : {SIGPIPE, SIGXFSZ, SIGTTOU}) ignored |= std::uint64_t{1} << (number - 1);
  CHECK(std::stoull(says(rotad, "SigIgn"), nullptr, 16) == ignored);
  CHECK(std::stoull(says(rotad, "SigBlk"), nullptr, 16) == 0);
  CHECK(says(rotad, "Umask") == "0022");
  CHECK(fs::read_symlink(in_proc(rotad, "cwd")) == "/");
  rlimit own{};
  getrlimit(RLIMIT_NOFILE, &own);
  CHECK(std::stoull(limit_of(rotad, "Max open files")) >= own.rlim_max);
  for (const auto& [which, name] :
       {std::pair{RLIMIT_FSIZE, "Max file size"}, std::pair{RLIMIT_CPU, "Max cpu time"},
        std::pair{RLIMIT_AS, "Max address space"}, std::pair{RLIMIT_DATA, "Max data size"}}) {
    getrlimit(which, &own);
    if (own.rlim_max == RLIM_INFINITY) CHECK(limit_of(rotad, name) == "unlimited");
  }
  const std::string core = limit_of(rotad, "Max core file size");
  CHECK((core == "0" || core == "1"));  // AddressSanitizer sets 1, which is also no file
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  std::array<unsigned long, 128> every;
  every.fill(~0UL);
  syscall(SYS_sched_setaffinity, 0, sizeof every, every.data());
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  sched_setaffinity(0, sizeof before, &before);
  cpu_set_t of_rotad;
  REQUIRE(sched_getaffinity(rotad, sizeof of_rotad, &of_rotad) == 0);
  CHECK(CPU_EQUAL(&all, &of_rotad));
  CHECK(sched_getscheduler(rotad) == SCHED_OTHER);
  CHECK(getpriority(PRIO_PROCESS, static_cast<id_t>(rotad)) == 0);
  if (geteuid() == 0) CHECK(read_file(in_proc(rotad, "timerslack_ns")) == "50000\n");
}

// A program that may have 20 open files and cannot have more, of this user unless we are root.
std::function<void()> with_few_files(uid_t user) {
  return [user] {
    const rlimit limit{.rlim_cur = 20, .rlim_max = 20};
    setrlimit(RLIMIT_NOFILE, &limit);
    if (geteuid() == 0 && user != 0 && (setgid(user) != 0 || setuid(user) != 0)) _exit(76);
  };
}

TEST_CASE("a first program that may have few open files does not limit the rotad that root starts") {
  if (geteuid() != 0) return;
  constexpr std::uint64_t kResources = std::uint64_t{1} << 24;                         // CAP_SYS_RESOURCE
  if ((std::stoull(says(getpid(), "CapEff"), nullptr, 16) & kResources) == 0) return;  // nor may this root
  const Installation installed;
  const Outcome outcome = run_from(installed, installed.command({"run", "true"}), with_few_files(0));
  CHECK(outcome.code() == 0);
  CHECK(outcome.errors == "");
  CHECK(std::stoull(limit_of(rotad_of(installed), "Max open files")) >= 1024);
}

TEST_CASE("a rotad that may have few open files is said to be limited, and makes way for that of a program with more") {
  constexpr uid_t kNobody = 65534;
  const Installation installed;
  Command command = installed.command({"run", "true"});
  if (geteuid() == 0) REQUIRE(chown(installed.folder().path().c_str(), kNobody, kNobody) == 0);
  const Outcome outcome = run_from(installed, command, with_few_files(kNobody));
  CHECK(outcome.code() == 0);
  CHECK(outcome.errors.find("20 open files") != std::string::npos);
  CHECK(lines(outcome.errors) == 1);
  CHECK(read_file(installed.socket() + ".log").find("20 open files") != std::string::npos);
  const pid_t limited = rotad_of(installed);
  CHECK(limit_of(limited, "Max open files") == "20");
  // A program that has no more files itself leaves the rotad alone.
  CHECK(run_from(installed, command, with_few_files(kNobody)).errors == "");
  CHECK(rotad_of(installed) == limited);
  rlimit own{};
  getrlimit(RLIMIT_NOFILE, &own);
  if (own.rlim_max < 1024) return;
  command.user = kNobody;
  const Outcome next = run(command);
  CHECK(next.code() == 0);
  CHECK(next.errors == "");
  CHECK(rotad_of(installed) != limited);
  CHECK(std::stoull(limit_of(rotad_of(installed), "Max open files")) >= 1024);
}

TEST_CASE("SIGHUP does not end a rotad, which reads its configuration again and logs it") {
  const Installation installed;
  CHECK(installed.rota({"run", "true"}).code() == 0);
  const pid_t rotad = rotad_of(installed);
  for (int times = 1; times <= 2; ++times) {
    REQUIRE(kill(rotad, SIGHUP) == 0);
    CHECK(eventually([&] { return lines(read_file(installed.socket() + ".log")) >= times; }));
  }
  CHECK(read_file(installed.socket() + ".log").find("no rotad.toml, so the defaults: nothing has changed") !=
        std::string::npos);
  CHECK(rotad_of(installed) == rotad);
}

TEST_CASE("a program starts soon although rotad is stopped, with one line that says what helps, and joins it later") {
  const Installation installed;
  Daemon daemon({}, installed.folder() / "t/rotad.sock");
  Command command = installed.command({"run", "sh", "-c", "echo $ROTA_SOCKET $ROTA_SILENT_ROTAD"});
  command.environment[0] = "ROTA_SOCKET=" + daemon.socket();
  kill(daemon.pid(), SIGSTOP);
  const auto begun = std::chrono::steady_clock::now();
  const Outcome outcome = run(command);
  const auto took = std::chrono::steady_clock::now() - begun;
  command.arguments = {command.arguments[0], "status"};
  const Outcome asked = run(command);
  kill(daemon.pid(), SIGCONT);
  CHECK(outcome.code() == 0);
  const std::string pid = std::to_string(daemon.pid());
  // It finds the rotad there, and knows about which rotad the user has been told.
  CHECK(outcome.output == daemon.socket() + " " + pid + "\n");
  CHECK(outcome.errors.find("(pid " + pid + ") is stopped: `kill -CONT " + pid + "`") != std::string::npos);
  CHECK(lines(outcome.errors) == 1);
  CHECK(took < std::chrono::seconds(60));  // generous: half a second is usual
  CHECK(asked.code() == 1);
  CHECK(asked.errors.find("kill -CONT " + pid) != std::string::npos);
  CHECK(eventually([&] { return run(command).code() == 0; }));
}

TEST_CASE("a rotad that is merely slow is waited for") {
  const Installation installed;
  Daemon daemon({}, installed.folder() / "t/rotad.sock");
  Command command = installed.command({"run", "true"});
  command.environment[0] = "ROTA_SOCKET=" + daemon.socket();
  // Stopped for moments, as by a debugger.
  std::atomic<bool> over{false};
  std::thread debugger([&] {
    while (!over.load()) {
      kill(daemon.pid(), SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      kill(daemon.pid(), SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const Outcome outcome = run(command);
  over.store(true);
  debugger.join();
  CHECK(outcome.code() == 0);
  CHECK(outcome.errors == "");
}

TEST_CASE("a rotad that was killed, with its job's cgroup for one, is followed by another at the next program") {
  const Installation installed;
  CHECK(installed.rota({"run", "true"}).code() == 0);
  const pid_t first = rotad_of(installed);
  kill(first, SIGKILL);
  const Outcome outcome = installed.rota({"run", "true"});
  CHECK(outcome.code() == 0);
  CHECK(outcome.errors == "");
  CHECK(rotad_of(installed) != first);
}

}  // namespace
}  // namespace rota::test
