// See processes.h. ROTAD is the path of the daemon under test.
#include "tests/unit/scheduler/server/processes.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "scheduler/protocol/packet.h"
#include "scheduler/protocol/rows.h"

namespace rota::test {

using protocol::Kind;
using protocol::Message;

TemporaryFolder::TemporaryFolder() {
  const char* base = getenv("TMPDIR");
  std::string pattern = std::string(base != nullptr && strlen(base) < 40 ? base : "/tmp") + "/rota-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void write_file(const std::string& path, const std::string& content, mode_t mode) {
  std::ofstream(path, std::ios::binary) << content;
  chmod(path.c_str(), mode);
}

int Outcome::code() const {
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
int Outcome::signal() const {
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

Outcome run(const Command& command) {
  int output[2];
  int errors[2];
  if (pipe2(output, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  std::vector<std::string> environment = {"PATH=/usr/local/bin:/usr/bin:/bin"};
  for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LD_LIBRARY_PATH"}) {
    if (const char* value = getenv(name)) environment.push_back(std::string(name) + "=" + value);
  }
  environment.insert(environment.end(), command.environment.begin(), command.environment.end());
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (const std::string& text : command.arguments) argv.push_back(const_cast<char*>(text.c_str()));
  for (const std::string& text : environment) envp.push_back(const_cast<char*>(text.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(output[1], 1);
    dup2(errors[1], 2);
    if (command.user != 0 && geteuid() == 0 && (setgid(command.user) != 0 || setuid(command.user) != 0)) _exit(125);
    execve(argv[0], argv.data(), envp.data());
    _exit(125);
  }
  close(output[1]);
  close(errors[1]);
  Outcome outcome;
  pollfd ends[2] = {{output[0], POLLIN, 0}, {errors[0], POLLIN, 0}};
  std::string* texts[2] = {&outcome.output, &outcome.errors};
  for (int open_ends = 2; open_ends > 0;) {
    poll(ends, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (ends[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t length = read(ends[i].fd, buffer, sizeof buffer);
      if (length > 0) {
        texts[i]->append(buffer, static_cast<std::size_t>(length));
      } else {
        close(ends[i].fd);
        ends[i].fd = -1;
        --open_ends;
      }
    }
  }
  waitpid(child, &outcome.status, 0);
  return outcome;
}

Daemon::Daemon(std::vector<std::string> options, const std::string& socket, unsigned descriptors)
    : socket_(socket.empty() ? folder_ / "s/rotad.sock" : socket), locks_(folder_ / "locks") {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  std::vector<std::string> arguments = {ROTAD, "--socket", socket_, "--ready-fd", "9", "--log", "error"};
  bool chosen = false;
  for (const std::string& option : options) chosen = chosen || option == "--lock-directory";
  if (!chosen) arguments.insert(arguments.end(), {"--lock-directory", locks_});
  arguments.insert(arguments.end(), options.begin(), options.end());
  std::vector<char*> argv;
  for (const std::string& text : arguments) argv.push_back(const_cast<char*>(text.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    const int moved = fcntl(ready[1], F_DUPFD, 20);
    dup2(moved, 9);
    close(moved);
    const rlimit limit{.rlim_cur = descriptors, .rlim_max = descriptors};
    if (descriptors != 0 && setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(125);
    execv(argv[0], argv.data());
    _exit(125);
  }
  close(ready[1]);
  char byte = 0;
  const bool listens = read(ready[0], &byte, 1) == 1;
  close(ready[0]);
  if (!listens) {
    waitpid(pid_, nullptr, 0);
    throw std::runtime_error("rotad did not start");
  }
}

Daemon::~Daemon() {
  if (pid_ <= 0) return;
  const int status = end(SIGTERM);
  if (status != 0) FAIL_CHECK("rotad ended with status " << status);
}

bool Daemon::alive() const {
  return pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == 0;
}

int Daemon::end(int signal) {
  kill(pid_, signal);
  return wait();
}

int Daemon::wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

int connect_to(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(descriptor);
    return -1;
  }
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return descriptor;
}

Message message(Kind kind) {
  return Message{.kind = kind};
}

void send_packet(int descriptor, const void* bytes, std::size_t length) {
  send(descriptor, bytes, length, MSG_NOSIGNAL);
}

std::optional<Message> receive(int descriptor, std::span<Descriptor> descriptors) {
  Message result;
  const ssize_t length = protocol::read_packet(descriptor, &result, sizeof result, descriptors, 0);
  return length >= static_cast<ssize_t>(protocol::kHeaderBytes) ? std::optional(result) : std::nullopt;
}

Uuid uuid(std::uint8_t number) {
  Uuid result{};
  result.bytes[15] = number;
  return result;
}

Client::Client(const std::string& socket, const std::string& name, bool beside) : descriptor(connect_to(socket)) {
  Message hello = message(Kind::kHello);
  hello.body.hello.newest_version = protocol::kVersion;
  name.copy(hello.body.hello.name, protocol::kNameLength - 1);
  send_packet(descriptor, &hello, sizeof hello);
  Descriptor pages[2];
  const auto welcome = receive(descriptor, pages);
  if (!welcome || welcome->kind != Kind::kWelcome || !pages[1]) throw std::runtime_error("no welcome");
  number = welcome->body.welcome.client;
  lease_descriptor = pages[0].release();
  usage_descriptor = pages[1].release();
  lease = static_cast<const protocol::LeasePage*>(
      mmap(nullptr, protocol::kPageBytes, PROT_READ, MAP_SHARED, lease_descriptor, 0));
  usage = static_cast<protocol::UsagePage*>(
      mmap(nullptr, protocol::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, usage_descriptor, 0));
  if (lease == MAP_FAILED || usage == MAP_FAILED) throw std::runtime_error("cannot map the pages");
  usage->shares = beside ? 1 : 0;
}

Client::~Client() {
  munmap(const_cast<protocol::LeasePage*>(lease), protocol::kPageBytes);
  munmap(usage, protocol::kPageBytes);
  for (const int number : {descriptor, lease_descriptor, usage_descriptor}) close(number);
}

std::optional<std::string> Client::add_gpu(std::uint8_t which, std::uint32_t* index, std::uint64_t total) {
  Message add = message(Kind::kAddGpu);
  add.body.add_gpu.uuid = uuid(which);
  add.body.add_gpu.total_bytes = total;
  add.body.add_gpu.context_bytes = 1 << 20;
  strcpy(add.body.add_gpu.name, "Test GPU");
  send_packet(descriptor, &add, sizeof add);
  const auto answer = receive(descriptor);
  if (!answer) return "no answer";
  if (answer->kind != Kind::kGpuAdded) return answer->body.refused.text;
  if (index != nullptr) *index = answer->body.gpu_added.index;
  return std::nullopt;
}

void Client::want(std::uint64_t gpus, bool running, std::uint64_t task) {
  Message want = message(Kind::kWant);
  want.body.want.gpus = gpus;
  want.body.want.running = running ? 1 : 0;
  want.body.want.task = task;
  send_packet(descriptor, &want, sizeof want);
}

void Client::give_back(std::uint32_t grant, std::uint32_t gpu) {
  Message back = message(Kind::kGiveBack);
  back.body.give_back = {.grant = grant, .gpu = gpu, .task = 0};
  send_packet(descriptor, &back, sizeof back);
}

void Client::ask(std::uint32_t gpu, std::uint64_t bytes) {
  Message room = message(Kind::kRoom);
  room.body.room = {.gpu = gpu, .padding = 0, .bytes = bytes};
  send_packet(descriptor, &room, sizeof room);
}

void Client::hand_over(std::uint32_t gpu, std::uint64_t bytes, std::initializer_list<int> memory) const {
  Message handed = message(Kind::kHandOver);
  handed.body.extent = {.gpu = gpu, .padding = 0, .bytes = bytes};
  if (protocol::write_packet(descriptor, &handed, sizeof handed, memory, 0) < 0) throw std::runtime_error("sendmsg");
}

bool Client::wait_for_grant() const {
  return wait_for([](const protocol::LeasePage& page) {
    return std::ranges::any_of(page.gpus, [](const protocol::GpuLease& gpu) { return gpu.grant != 0; });
  });
}

void Client::wait_for_change(std::uint32_t seen) const {
  const timespec limit{.tv_sec = 1, .tv_nsec = 0};
  syscall(SYS_futex, &lease->event, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

protocol::Snapshot status(const std::string& socket) {
  const int descriptor = connect_to(socket);
  if (descriptor < 0) throw std::runtime_error("nobody listens at " + socket);
  const Message ask = message(Kind::kStatus);
  send_packet(descriptor, &ask, sizeof ask);
  protocol::Snapshot all;
  while (const auto row = receive(descriptor)) {
    if (protocol::add_row(all, *row) != protocol::RowAdded::kLast) continue;
    close(descriptor);
    return all;
  }
  close(descriptor);
  throw std::runtime_error("the status broke off");
}

bool wait_a_moment(std::chrono::steady_clock::time_point until) {
  poll(nullptr, 0, 5);
  return std::chrono::steady_clock::now() < until;
}

std::string ask_control(const std::string& control, const std::string& line) {
  const int descriptor = connect_to(control);
  if (descriptor < 0) return "cannot connect";
  send_packet(descriptor, line.data(), line.size());
  char answer[512];
  const ssize_t length = recv(descriptor, answer, sizeof answer, 0);
  close(descriptor);
  return {answer, static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

bool serves(const Daemon& daemon) {
  Client client(daemon.socket());
  std::uint32_t gpu = 0;
  if (client.add_gpu(200, &gpu)) return false;
  client.want(std::uint64_t{1} << gpu);
  return client.wait_for_grant();
}

}  // namespace rota::test
