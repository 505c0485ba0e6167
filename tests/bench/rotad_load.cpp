// Runs thousands of programs under one rotad, and kills rotad and some of the programs again and again. Every program
// must still get turns, no GPU may have two holders, and rotad's memory must stay bounded. Each client is a process of
// its own that speaks the protocol as a program does: a client that loses rotad while it holds a GPU continues, and
// tells the next rotad that it is running.
//
//   rotad_load ROTAD [--clients 2000] [--active 500] [--gpus 8] [--seconds 600] [--every 1] [--descriptors N]
//              [--full-disk] [--most-mib 256] [--seed 1]
//
// --active of them ask for turns all the time, the others hold a connection. Every --every seconds a few random
// clients and rotad are ended and started again; rotad gets SIGKILL, each third time SIGTERM. --descriptors limits
// rotad's descriptors so that it cannot serve all clients; rotad is then not restarted. --full-disk lets it write no
// file beyond 64 KiB. The event log of each rotad that this program ended is replayed; no GPU may have two holders.
// Prints one line of JSON; exit status 1 if anything was wrong.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/packet.h"
#include "scheduler/protocol/pages.h"
#include "scheduler/protocol/protocol.h"

namespace {

using namespace rota;
using namespace rota::protocol;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kGpuBytes = std::uint64_t{80} << 30;
constexpr int kMostClients = 16384;

struct Options {
  std::string rotad;
  int clients = 0;
  int active = 0;
  int gpus = 0;
  double seconds = 0;
  double every = 0;        // seconds
  rlim_t descriptors = 0;  // 0: as many as this process may have
  bool full_disk = false;
  long most_mib = 0;
  unsigned seed = 0;
};

std::int64_t now_ns() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

// What all processes see. Clients are numbered from 1.
struct Shared {
  std::atomic<int> holder[kMaxGpus];             // 0: nobody
  std::atomic<bool> killed[kMostClients];        // it is being killed, perhaps while it holds a GPU
  std::atomic<std::int64_t> well[kMostClients];  // when it was started, last seen connected, or last had a turn
  std::atomic<std::uint64_t> turns;
  std::atomic<std::uint64_t> doubled;
  std::atomic<std::uint64_t> continued;  // holders whose rotad has ended
};

Shared* shared() {
  static Shared* const memory =
      static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return memory;
}

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "rotad_load: {}: {}\n", what, strerror(errno));
  exit(EXIT_FAILURE);
}

void pause_for(std::chrono::microseconds time) {
  usleep(static_cast<useconds_t>(time.count()));
}

// One program. Runs until it is killed.
class Client {
 public:
  Client(std::string socket, int number, const Options& options)
      : path_(std::move(socket)),
        number_(number),
        active_(number <= options.active),
        gpu_(static_cast<std::uint8_t>(number % options.gpus)),
        random_(options.seed * 7919 + static_cast<unsigned>(number)) {}

  [[noreturn]] void run() {
    for (;;) {
      while (!connected()) pause_for(std::chrono::microseconds(20'000 + random_() % 200'000));
      well();
      if (!active_) {
        wait_for_end();
        continue;
      }
      while (turn()) pause_for(std::chrono::microseconds(random_() % 20'000));
    }
  }

 private:
  void well() const { shared()->well[number_] = now_ns(); }

  bool connected() {
    forget();
    socket_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return false;
    Message hello{.version = kOldestVersion, .kind = Kind::kHello};
    hello.body.hello.newest_version = kVersion;
    strcpy(hello.body.hello.name, "load");
    Descriptor pages[2];
    Message answer;
    if (!send(hello) || read_packet(socket_.get(), &answer, sizeof answer, pages, 0) <= 0 ||
        answer.kind != Kind::kWelcome || !pages[1]) {
      return false;
    }
    void* const lease = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, pages[0].get(), 0);
    if (lease == MAP_FAILED) return false;
    lease_ = static_cast<const LeasePage*>(lease);
    Message add{.version = kVersion, .kind = Kind::kAddGpu};
    add.body.add_gpu.uuid.bytes[15] = static_cast<std::uint8_t>(gpu_ + 1);
    add.body.add_gpu.total_bytes = kGpuBytes;
    add.body.add_gpu.context_bytes = 1 << 20;
    if (!send(add)) return false;
    do {
      if (read_packet(socket_.get(), &answer, sizeof answer, {}, 0) <= 0 || answer.kind == Kind::kRefused) return false;
    } while (answer.kind != Kind::kGpuAdded);
    index_ = answer.body.gpu_added.index;
    return true;
  }

  void forget() {
    if (lease_ != nullptr) munmap(const_cast<LeasePage*>(lease_), kPageBytes);
    lease_ = nullptr;
    given_back_ = 0;
    socket_ = Descriptor();
  }

  bool send(const Message& message) const { return write_packet(socket_.get(), &message, sizeof message, {}, 0) > 0; }

  bool want(bool running) const {
    Message want{.version = kVersion, .kind = Kind::kWant};
    const std::uint64_t gpu = std::uint64_t{1} << index_;
    want.body.want = {.gpus = gpu, .running = running, .padding = 0, .urgent = 0, .alone = 0, .task = gpu};
    return send(want);
  }

  bool lost() const {
    char byte = 0;
    const ssize_t length = recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (length > 0) recv(socket_.get(), &byte, 1, MSG_DONTWAIT);  // a client need not answer any
    return length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR);
  }

  void wait_for_end() const {
    while (!lost()) {
      well();
      pollfd end{socket_.get(), POLLIN, 0};
      poll(&end, 1, 5000);
    }
  }

  // Waits for a grant. False: rotad is gone.
  bool granted() const {
    for (;;) {
      const std::uint32_t seen = lease_->event.load();
      const std::uint32_t grant = lease_->gpus[index_].grant.load();
      if (grant != 0 && grant != given_back_) return true;
      if (lost()) return false;
      const timespec limit{.tv_sec = 0, .tv_nsec = 100'000'000};
      syscall(SYS_futex, &lease_->event, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
  }

  // This client's work on the GPU begins. If another client's work is running there, that is counted as an error
  // (`doubled`).
  void begin() const {
    std::atomic<int>& holder = shared()->holder[gpu_];
    const int before = holder.exchange(number_);
    if (before != 0 && before != number_ && !shared()->killed[before]) ++shared()->doubled;
  }
  void end() const {
    int self = number_;
    shared()->holder[gpu_].compare_exchange_strong(self, 0);
  }

  // False: rotad is gone, and nothing runs.
  bool turn() {
    if (!want(false) || !granted()) return false;
    begin();
    // One turn in 16 lasts 250 ms, so that rotad is often killed during one: with so many connections it takes a while
    // until a client sees that rotad is gone.
    const bool long_one = random_() % 16 == 0;
    const auto until = Clock::now() + (long_one ? 250ms : std::chrono::microseconds(1000 + random_() % 4000));
    while (Clock::now() < until) {
      pause_for(500us);
      if (lost() && !taken_up()) return false;
    }
    ++shared()->turns;
    well();
    end();
    Message back{.version = kVersion, .kind = Kind::kGiveBack};
    given_back_ = lease_->gpus[index_].grant.load();
    back.body.give_back = {.grant = given_back_, .gpu = index_, .task = 0};
    return send(back);
  }

  // Continues the work without rotad for up to 10 s while it reconnects. Returns whether the next rotad has granted the
  // GPU; otherwise the work has ended.
  bool taken_up() {
    ++shared()->continued;
    const auto until = Clock::now() + 10s;
    while (Clock::now() < until) {
      if (connected() && want(true) && granted()) return true;
      pause_for(std::chrono::microseconds(5'000 + random_() % 50'000));
    }
    end();
    return false;
  }

  const std::string path_;
  const int number_;
  const bool active_;
  const std::uint8_t gpu_;
  std::uint32_t index_ = 0;
  std::uint32_t given_back_ = 0;  // the page may still show that grant
  std::minstd_rand random_;
  Descriptor socket_;
  const LeasePage* lease_ = nullptr;
};

class Load {
 public:
  explicit Load(const Options& options) : options_(options), random_(options.seed) {
    char pattern[] = "/tmp/rotad-load-XXXXXX";
    if (mkdtemp(pattern) == nullptr) fail("mkdtemp");
    folder_ = pattern;
    start_rotad();
    for (int number = 1; number <= options_.clients; ++number) start_client(number);
  }
  ~Load() {
    for (const auto& [number, pid] : clients_) kill(pid, SIGKILL);
    for (const auto& [number, pid] : clients_) waitpid(pid, nullptr, 0);
    end_rotad(SIGTERM);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // Whether all was well.
  bool run() {
    const auto begun = Clock::now();
    const auto end =
        begun + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.seconds));
    while (Clock::now() < end) {
      pause_for(std::chrono::microseconds(static_cast<long>(options_.every * 1e6)));
      if (waitpid(rotad_, nullptr, WNOHANG) != 0) {
        rotad_ = -1;
        ++rotad_died_;
        ++restarts_;
        start_rotad();
        continue;
      }
      for (int i = 0; i < std::max(1, options_.clients / 500); ++i) restart_client();
      // With few descriptors a holder might not be able to connect to the next rotad, so rotad is not restarted.
      if (options_.descriptors != 0) continue;
      const std::string log = log_;
      end_rotad(++restarts_ % 3 == 0 ? SIGTERM : SIGKILL);
      start_rotad();
      look_at(log);
    }
    settle();
    end_rotad(SIGTERM);
    look_at(log_);
    return report();
  }

 private:
  void start_rotad() {
    log_ = fmt::format("{}/events{}", folder_, restarts_);
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) fail("pipe");
    rotad_ = fork();
    if (rotad_ < 0) fail("fork");
    if (rotad_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(ready[1], 9);
      const rlimit descriptors{options_.descriptors, options_.descriptors};
      if (options_.descriptors != 0) setrlimit(RLIMIT_NOFILE, &descriptors);
      const rlimit bytes{64 << 10, 64 << 10};
      if (options_.full_disk) setrlimit(RLIMIT_FSIZE, &bytes);
      const std::string socket = path();
      const std::string locks = folder_ + "/locks";
      execl(options_.rotad.c_str(), "rotad", "--socket", socket.c_str(), "--lock-directory", locks.c_str(), "--mode",
            "exclusive", "--event-log", log_.c_str(), "--ready-fd", "9", "--log", "error", nullptr);
      _exit(127);
    }
    close(ready[1]);
    char byte = 0;
    if (read(ready[0], &byte, 1) != 1) fail("rotad does not start");
    close(ready[0]);
  }
  std::string path() const { return folder_ + "/rotad.sock"; }

  void end_rotad(int signal) {
    if (rotad_ <= 0) return;
    most_kib_ = std::max(most_kib_, peak_of(rotad_));
    kill(rotad_, signal);
    int status = 0;
    waitpid(rotad_, &status, 0);
    if (signal == SIGTERM && status != 0) ++rotad_died_;
    rotad_ = -1;
  }

  static long peak_of(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{}/status", pid));
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
    }
    return 0;
  }

  void start_client(int number) {
    shared()->well[number] = now_ns();
    const pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Client(path(), number, options_).run();
    }
    clients_[number] = pid;
  }

  void restart_client() {
    const int number = 1 + static_cast<int>(random_() % static_cast<unsigned>(options_.clients));
    shared()->killed[number] = true;
    kill(clients_[number], SIGKILL);
    waitpid(clients_[number], nullptr, 0);
    for (auto& holder : shared()->holder) {
      int self = number;
      holder.compare_exchange_strong(self, 0);
    }
    shared()->killed[number] = false;
    ++clients_killed_;
    start_client(number);
  }

  // Checks what rotad recorded: a replay must make the same decisions, and no GPU may have had two holders.
  void look_at(const std::string& log) {
    const pid_t pid = fork();
    if (pid == 0) {
      const int nothing = open("/dev/null", O_WRONLY);
      dup2(nothing, STDOUT_FILENO);
      execl(options_.rotad.c_str(), "rotad", "--replay", log.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) ++not_replayed_;
    std::map<std::string, std::string> gpu_of;
    std::map<std::string, std::set<std::string>> holders;
    std::ifstream file(log);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string first, second, client, gpu;
      words >> first >> second >> client >> gpu;
      if (second == "add_gpu") gpu_of[client] = gpu;
      if (first != ">") continue;
      std::set<std::string>& of = holders[gpu_of[client]];
      if (second == "granted") {
        ++grants_;
        if (!of.empty()) ++doubled_in_logs_;
        of.insert(client);
      }
      if (second == "ended" || second == "revoked") of.erase(client);
      if (second == "revoked") ++revoked_;
    }
    unlink(log.c_str());
  }

  // Waits up to a minute, from now on, until each client has had a turn or is connected; counts those that have not.
  void settle() {
    const std::int64_t from = now_ns();
    const auto until = Clock::now() + 60s;
    for (;;) {
      unwell_ = 0;
      for (const auto& [number, pid] : clients_) {
        if (waitpid(pid, nullptr, WNOHANG) != 0) ++died_;
        if (shared()->well[number] < from) ++unwell_;
      }
      if (died_ != 0 || unwell_ == 0 || Clock::now() > until) return;
      pause_for(200ms);
    }
  }

  bool report() const {
    const Shared& all = *shared();
    const bool short_of = options_.descriptors != 0;
    const bool well = all.doubled == 0 && doubled_in_logs_ == 0 && not_replayed_ == 0 && died_ == 0 &&
                      rotad_died_ == 0 && revoked_ == 0 && all.turns != 0 && (short_of || unwell_ == 0) &&
                      most_kib_ / 1024 <= options_.most_mib;
    fmt::print(
        "{{\"clients\":{},\"active\":{},\"seconds\":{},\"rotad_ended\":{},\"clients_killed\":{},\"turns\":{},"
        "\"grants\":{},"
        "\"continued\":{},\"doubled\":{},\"doubled_in_logs\":{},\"not_replayed\":{},\"revoked\":{},\"died\":{},"
        "\"rotad_died\":{},\"without_turn\":{},\"rotad_mib\":{}}}\n",
        options_.clients, options_.active, options_.seconds, restarts_, clients_killed_, all.turns.load(), grants_,
        all.continued.load(), all.doubled.load(), doubled_in_logs_, not_replayed_, revoked_, died_, rotad_died_,
        unwell_, most_kib_ / 1024);
    return well;
  }

  const Options options_;
  std::minstd_rand random_;
  std::string folder_;
  std::string log_;
  pid_t rotad_ = -1;
  std::map<int, pid_t> clients_;
  int restarts_ = 0;
  int clients_killed_ = 0;
  int rotad_died_ = 0;
  int died_ = 0;
  int unwell_ = 0;
  int not_replayed_ = 0;
  std::uint64_t grants_ = 0;
  std::uint64_t doubled_in_logs_ = 0;
  std::uint64_t revoked_ = 0;
  long most_kib_ = 0;
};

std::optional<Options> parse(int argc, char** argv) {
  std::map<std::string, double> numbers = {{"--clients", 2000}, {"--active", 500}, {"--gpus", 8},
                                           {"--seconds", 600},  {"--every", 1},    {"--descriptors", 0},
                                           {"--most-mib", 256}, {"--seed", 1}};
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--full-disk") {
      options.full_disk = true;
    } else if (!word.starts_with("--")) {
      options.rotad = word;
    } else if (const auto number = numbers.find(word); number != numbers.end() && i + 1 < argc) {
      number->second = std::atof(argv[++i]);
    } else {
      return std::nullopt;
    }
  }
  options.clients = static_cast<int>(numbers["--clients"]);
  options.active = static_cast<int>(numbers["--active"]);
  options.gpus = static_cast<int>(numbers["--gpus"]);
  options.seconds = numbers["--seconds"];
  options.every = numbers["--every"];
  options.descriptors = static_cast<rlim_t>(numbers["--descriptors"]);
  options.most_mib = static_cast<long>(numbers["--most-mib"]);
  options.seed = static_cast<unsigned>(numbers["--seed"]);
  const bool sound = !options.rotad.empty() && options.clients > 0 && options.clients < kMostClients &&
                     options.gpus > 0 && options.gpus <= static_cast<int>(kMaxGpus) && options.seconds > 0 &&
                     options.every > 0 && options.active <= options.clients;
  return sound ? std::optional(options) : std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = parse(argc, argv);
  if (!options) {
    fmt::print(stderr,
               "usage: rotad_load ROTAD [--clients 2000] [--active 500] [--gpus 8] [--seconds 600] [--every 1]\n"
               "                  [--descriptors N] [--full-disk] [--most-mib 256] [--seed 1]\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  return Load(*options).run() ? 0 : 1;
}
