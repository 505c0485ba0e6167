// What each message costs rotad with 10 to 2000 clients, a quarter of them with swap memory, on 8 GPUs: processor time
// of rotad by the kernel's account, with the rotad of ten clients as the baseline of the same run. Each client is a
// process of its own (a child that sleeps); this one speaks for all of them.
//
// Usage: rotad_bench ROTAD [clients...]
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/packet.h"
#include "scheduler/protocol/pages.h"
#include "scheduler/protocol/protocol.h"

namespace {

using namespace rota;
using namespace rota::protocol;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kGpus = 8;
constexpr std::uint64_t kGpuBytes = std::uint64_t{80} << 30;
constexpr std::uint64_t kMega = 1 << 20;
constexpr int kEverySwaps = 4;  // one of so many clients

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "rotad_bench: {}: {}\n", what, strerror(errno));
  exit(EXIT_FAILURE);
}

double seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Rotad {
 public:
  explicit Rotad(const char* program) {
    char pattern[] = "/tmp/rotad-bench-XXXXXX";
    if (mkdtemp(pattern) == nullptr) fail("mkdtemp");
    folder_ = pattern;
    std::ofstream(folder_ + "/rotad.toml") << "[limits]\nhost_memory = \"16G\"\n[limits.user]\nhost = \"15G\"\n";
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) fail("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(ready[1], 9);
      execl(program, program, "--socket", socket().c_str(), "--lock-directory", (folder_ + "/locks").c_str(),
            "--config", (folder_ + "/rotad.toml").c_str(), "--ready-fd", "9", "--log", "error", nullptr);
      _exit(127);
    }
    close(ready[1]);
    char byte = 0;
    if (read(ready[0], &byte, 1) != 1) fail("rotad does not start");
    close(ready[0]);
    if (clock_getcpuclockid(pid_, &clock_) != 0) fail("clock_getcpuclockid");
  }
  ~Rotad() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string socket() const { return folder_ + "/rotad.sock"; }
  double processor_seconds() const { return seconds(clock_); }

 private:
  std::string folder_;
  pid_t pid_ = -1;
  clockid_t clock_{};
};

Message message(Kind kind) {
  return Message{.version = kVersion, .kind = kind};
}

class Client {
 public:
  // Its process, which connects, or this one.
  Client(const Rotad& rotad, bool own_process) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    if (!socket_) fail("socket");
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int connected[2];
    if (pipe2(connected, O_CLOEXEC) != 0) fail("pipe");
    pid_ = own_process ? fork() : 0;
    if (pid_ < 0) fail("fork");
    if (pid_ == 0) {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      rotad.socket().copy(address.sun_path, sizeof address.sun_path - 1);
      if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
      if (own_process) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close_range(0, connected[1] - 1, 0);
        if (write(connected[1], "", 1) != 1) _exit(1);
        close_range(0, ~0U, 0);
        for (;;) pause();
      }
    }
    char byte = 0;
    if (own_process && read(connected[0], &byte, 1) != 1) fail("a client does not connect");
    close(connected[0]);
    close(connected[1]);
  }
  ~Client() {
    munmap(const_cast<LeasePage*>(lease), kPageBytes);
    munmap(usage, kPageBytes);
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const Message& message) const {
    if (write_packet(socket_.get(), &message, sizeof message, {}, 0) < 0) fail("send");
  }
  void hello() {
    Message hello = message(Kind::kHello);
    hello.version = kOldestVersion;
    hello.body.hello.newest_version = kVersion;
    strcpy(hello.body.hello.name, "bench");
    send(hello);
    Descriptor pages[2];
    Message welcome;
    if (read_packet(socket_.get(), &welcome, sizeof welcome, pages, 0) <= 0 || welcome.kind != Kind::kWelcome) {
      fail("no welcome");
    }
    lease = static_cast<const LeasePage*>(mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, pages[0].get(), 0));
    usage = static_cast<UsagePage*>(mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, pages[1].get(), 0));
    // Not for the processes of clients that come later: forking would take the longer the more there are.
    madvise(const_cast<LeasePage*>(lease), kPageBytes, MADV_DONTFORK);
    madvise(usage, kPageBytes, MADV_DONTFORK);
  }
  Message answer(Kind kind) {
    Message message;
    do {
      if (read_packet(socket_.get(), &message, sizeof message, {}, 0) <= 0) fail("no answer");
      if (message.kind == Kind::kRefused) fail(message.body.refused.text);
    } while (message.kind != kind);
    return message;
  }
  void session(int number) {
    Message session = message(Kind::kSession);
    session.body.session = {.id = {}, .device_bytes = kGpuBytes, .host_bytes = kUnlimited, .name = {}};
    fmt::format_to_n(session.body.session.id, kSessionLength - 1, "{}", number);
    send(session);
  }
  void add_gpu(std::uint32_t number) {
    Message add = message(Kind::kAddGpu);
    add.body.add_gpu.uuid.bytes[15] = static_cast<std::uint8_t>(number + 1);
    add.body.add_gpu.total_bytes = kGpuBytes;
    add.body.add_gpu.context_bytes = kMega;
    send(add);
    gpu = answer(Kind::kGpuAdded).body.gpu_added.index;
  }
  void reserve(std::uint64_t device, std::uint64_t swapped) {
    Message reserve = message(Kind::kReserve);
    reserve.body.reserve = {.gpu = gpu,
                            .number = ++asked_,
                            .device_bytes = device,
                            .movable_bytes = swapped,
                            .fixed_bytes = device - swapped,
                            .swapped_bytes = swapped};
    send(reserve);
    const Reserved answered = answer(Kind::kReserved).body.reserved;
    if (answered.granted == 0) fail(fmt::format("a reservation was refused: {}", answered.text));
  }
  void say(std::uint64_t device, std::uint64_t swapped) const {
    Message state = message(Kind::kState);
    state.body.state = {.gpu = gpu,
                        .answered = asked_,
                        .device_bytes = device,
                        .movable_bytes = swapped,
                        .round = 0,
                        .padding = 0,
                        .fixed_bytes = device - swapped,
                        .swapped_bytes = swapped};
    send(state);
  }
  void want() const {
    Message want = message(Kind::kWant);
    want.body.want = {.gpus = std::uint64_t{1} << gpu, .running = 0, .padding = 0, .urgent = 0, .alone = 0, .task = 0};
    send(want);
  }
  void give_back() const {
    Message back = message(Kind::kGiveBack);
    back.body.give_back.grant = lease->gpus[0].grant.load();
    send(back);
  }
  // All that was sent before has been dealt with.
  void sync() {
    reserve(reserved, swapped);
    say(reserved, swapped);  // it has no use for what it was granted beyond that
  }

  std::uint32_t gpu = 0;
  std::uint64_t reserved = 0;
  std::uint64_t swapped = 0;
  const LeasePage* lease = nullptr;
  UsagePage* usage = nullptr;

 private:
  Descriptor socket_;
  pid_t pid_ = 0;
  std::uint32_t asked_ = 0;
};

struct Row {
  std::string what;
  double micros = 0;  // of rotad's processor time, each
  double worst = 0;   // milliseconds until the answer, the 99th percentile; 0: there is none
};

class Crowd {
 public:
  Crowd(const char* program, int clients) : rotad_(program) {
    for (int i = 0; i < clients; ++i) {
      Client& client = *clients_.emplace_back(std::make_unique<Client>(rotad_, true));
      client.hello();
      client.session(i);
      client.add_gpu(static_cast<std::uint32_t>(i) / kEverySwaps % kGpus);
      const bool swaps = i % kEverySwaps == 0;
      client.usage->gpus[client.gpu].memory_mode =
          static_cast<std::uint8_t>(swaps ? MemoryMode::kSwap : MemoryMode::kUnified);
      // Swap memory lies on the host, and every second time still on the GPU.
      client.reserved = swaps ? 64 * kMega : 2 * kMega;
      client.swapped = swaps ? client.reserved : 0;
      client.usage->gpus[client.gpu].device_bytes = client.reserved;
      client.usage->gpus[client.gpu].resident_bytes = client.swapped;
      client.usage->host_bytes = client.swapped / 16;
      client.usage->host_spare_bytes = client.swapped / 16;
      client.sync();
    }
  }

  std::vector<Row> measure() {
    std::vector<Row> rows;
    rows.push_back(each("hello and end", 100, [&](int) {
      Client probe(rotad_, false);
      probe.hello();
    }));
    Client probe(rotad_, true);
    probe.hello();
    probe.session(1'000'000);
    probe.add_gpu(0);
    rows.push_back(each("reserve", 200, [&](int i) { probe.reserve(2 * kMega + (i % 7) * kMega, 0); }));
    rows.push_back(each(
        "say what is left", 200, [&](int i) { probe.say(2 * kMega + (i % 7) * kMega, 0); },
        [&] { probe.reserve(kMega, 0); }));
    rows.push_back(each("session", 10, [&](int i) { probe.session(2'000'000 + i); }, [&] { probe.reserve(kMega, 0); }));
    rows.push_back(each("name a GPU again", 50, [&](int) { probe.add_gpu(0); }));
    rows.push_back(each(
        "usage", 200,
        [&](int i) {
          probe.usage->gpus[probe.gpu].device_bytes = kMega + static_cast<std::uint64_t>(i) * 4096;
          probe.send(message(Kind::kUsage));
        },
        [&] { probe.reserve(kMega, 0); }));
    rows.push_back(each("turn", 100, [&](int) { turn(probe); }));
    probe.usage->gpus[probe.gpu].device_bytes = kMega;
    rows.push_back(clearing(probe));
    rows.push_back(each("status", 10, [&](int) { status(); }));
    return rows;
  }

  // Of one core, in percent, while all clients are idle.
  double idle() const {
    const double before = rotad_.processor_seconds();
    const auto begun = Clock::now();
    poll(nullptr, 0, 3000);
    return (rotad_.processor_seconds() - before) / std::chrono::duration<double>(Clock::now() - begun).count() * 100;
  }

 private:
  Row each(
      const std::string& what, int times, const std::function<void(int)>& act,
      const std::function<void()>& at_the_end = [] {}) const {
    std::vector<double> took;
    const double before = rotad_.processor_seconds();
    for (int i = 0; i < times; ++i) {
      const auto begun = Clock::now();
      act(i);
      took.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begun).count());
    }
    at_the_end();
    const double micros = (rotad_.processor_seconds() - before) / times * 1e6;
    std::ranges::sort(took);
    return {what, micros, took[took.size() * 99 / 100]};
  }

  // A client without memory takes its turn.
  static void turn(Client& client) {
    client.want();
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (client.lease->gpus[0].grant.load() == 0) {
      if (Clock::now() > until) fail("no turn");
    }
    client.give_back();
    client.sync();
  }

  // A holder has a deficit, and all clients with swap memory on its GPU evict some, a little at a time.
  Row clearing(Client& holder) {
    std::vector<Client*> swappers;
    for (const auto& client : clients_) {
      if (client->gpu == holder.gpu && client->swapped != 0) swappers.push_back(client.get());
    }
    const std::uint32_t gpu = holder.gpu;
    holder.usage->gpus[gpu].memory_mode = static_cast<std::uint8_t>(MemoryMode::kSwap);
    holder.usage->gpus[gpu].device_bytes = kGpuBytes - 32 * kMega;
    holder.usage->gpus[gpu].resident_bytes = kMega;
    holder.send(message(Kind::kUsage));
    holder.want();
    holder.reserve(kMega, 0);
    const Row row = each("memory leaves", 100, [&](int i) {
      holder.usage->gpus[gpu].short_bytes = kGpuBytes / 2;
      holder.usage->gpus[gpu].free_bytes = 0;
      ++holder.usage->gpus[gpu].refusals;
      Client& client = *swappers[static_cast<std::size_t>(i) % swappers.size()];
      client.usage->gpus[gpu].resident_bytes -= std::min<std::uint64_t>(client.usage->gpus[gpu].resident_bytes, 4096);
      client.send(message(Kind::kUsage));
      client.sync();
    });
    holder.usage->gpus[gpu].device_bytes = kMega;
    holder.usage->gpus[gpu].resident_bytes = 0;
    holder.usage->gpus[gpu].short_bytes = 0;
    holder.give_back();
    holder.sync();
    return row;
  }

  void status() {
    Client asker(rotad_, false);
    Message ask = message(Kind::kStatus);
    asker.send(ask);
    asker.answer(Kind::kStatusDaemon);
  }

  Rotad rotad_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: {} ROTAD [clients...]\n", argv[0]);
    return EXIT_FAILURE;
  }
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<int> counts;
  for (int i = 2; i < argc; ++i) counts.push_back(atoi(argv[i]));
  if (counts.empty()) counts = {10, 100, 500, 2000};
  std::map<std::string, double> baseline;
  for (const int clients : counts) {
    const auto begun = Clock::now();
    Crowd crowd(argv[1], clients);
    const std::chrono::duration<double> took = Clock::now() - begun;
    fmt::print("{} clients, there within {:.1f} s; idle: {:.1f} % of a core\n", clients, took.count(), crowd.idle());
    for (const Row& row : crowd.measure()) {
      const double first = baseline.emplace(row.what, row.micros).first->second;
      fmt::print("  {:<20} {:>9.1f} us of rotad, {:>7.1f} times that of {} clients; within {:.2f} ms\n", row.what,
                 row.micros, row.micros / first, counts[0], row.worst);
    }
    std::fflush(stdout);
  }
}
