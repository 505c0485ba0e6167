// Real processes for tests: a temporary folder, a program to run, a private rotad, and a client that speaks the
// protocol by hand, as librota-core would. Nothing here outlives its test, and nothing sleeps: everything waits for an
// event, with a timeout that only a failure reaches.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/pages.h"
#include "scheduler/protocol/protocol.h"

namespace rota::test {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& content, mode_t mode = 0644);

struct Outcome {
  int status = 0;  // as waitpid gives it
  std::string output;
  std::string errors;
  int code() const;    // exit status, -1 if a signal ended it
  int signal() const;  // the signal that ended it, or 0
};

struct Command {
  std::vector<std::string> arguments;
  std::vector<std::string>
      environment;  // NAME=value on top of PATH and what sanitizers need; nothing else is inherited
  uid_t user = 0;   // run as this user if we are root and it is not 0
};

// Runs it to completion.
Outcome run(const Command& command);

// A rotad. It is ended with SIGTERM, and its exit status is checked (a sanitizer's report is a failure).
class Daemon {
 public:
  // `descriptors`: how many it may have at most; 0: as many as this process.
  explicit Daemon(std::vector<std::string> options = {}, const std::string& socket = {}, unsigned descriptors = 0);
  ~Daemon();
  const std::string& socket() const { return socket_; }
  const std::string& locks() const { return locks_; }
  pid_t pid() const { return pid_; }
  bool alive() const;
  // Ends it with this signal; returns its wait status.
  int end(int signal);
  // Waits until it exits by itself; returns its wait status.
  int wait();

 private:
  TemporaryFolder folder_;
  std::string socket_;
  std::string locks_;
  pid_t pid_ = -1;
};

// Connects to a rotad's socket; -1 if nobody listens.
int connect_to(const std::string& socket);
protocol::Message message(protocol::Kind kind);
void send_packet(int descriptor, const void* bytes, std::size_t length);
// The next message, or nothing at the end of the connection. `descriptors` receives those that came with the message.
std::optional<protocol::Message> receive(int descriptor, std::span<Descriptor> descriptors = {});

Uuid uuid(std::uint8_t number);

class Client {
 public:
  // Says hello and maps its pages. `beside`: says that it shares memory with other processes, so that it runs
  // concurrently with others wherever its memory fits.
  explicit Client(const std::string& socket, const std::string& name = "test", bool beside = true);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // The refusal's text, or nothing and `index` set.
  std::optional<std::string> add_gpu(std::uint8_t number, std::uint32_t* index = nullptr,
                                     std::uint64_t total = std::uint64_t{1} << 30);
  // `task`: GPUs that form one task with these.
  void want(std::uint64_t gpus, bool running = false, std::uint64_t task = 0);
  // On this GPU and on those of the same task.
  void give_back(std::uint32_t grant, std::uint32_t gpu = 0);
  void ask(std::uint32_t gpu, std::uint64_t bytes);
  void hand_over(std::uint32_t gpu, std::uint64_t bytes, std::initializer_list<int> memory) const;
  void use(std::uint32_t gpu, std::uint64_t bytes) { usage->gpus[gpu].device_bytes = bytes; }
  // Waits until the page shows this; false after ten seconds.
  template <typename Condition>
  bool wait_for(Condition condition) const;
  bool wait_for_grant() const;

  int descriptor = -1;
  int lease_descriptor = -1;
  int usage_descriptor = -1;
  std::uint32_t number = 0;
  const protocol::LeasePage* lease = nullptr;
  protocol::UsagePage* usage = nullptr;

 private:
  void wait_for_change(std::uint32_t seen) const;
};

protocol::Snapshot status(const std::string& socket);

// Calls `condition` repeatedly, with short waits, until it is true; false after twenty seconds. For conditions without
// an event.
template <typename Condition>
bool eventually(Condition condition);

// The answer of a control socket to one line.
std::string ask_control(const std::string& control, const std::string& line);

// Whether the daemon still serves a new client, from hello to grant.
bool serves(const Daemon& daemon);

// ---- templates

bool wait_a_moment(std::chrono::steady_clock::time_point until);

template <typename Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (!wait_a_moment(until)) return false;
  }
  return true;
}

template <typename Condition>
bool Client::wait_for(Condition condition) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (true) {
    const std::uint32_t seen = lease->event;
    if (condition(*lease)) return true;
    if (std::chrono::steady_clock::now() > until) return false;
    wait_for_change(seen);
  }
}

}  // namespace rota::test
