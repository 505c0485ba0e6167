// The state that processes share: capacity, the dead, and what thrashing costs, counted in bytes and not in time.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "tests/unit/tools/simgpu/process.h"
#include "tools/simgpu/profile.h"
#include "tools/simgpu/state/layout.h"
#include "tools/simgpu/state/shared_state.h"

using namespace rota::sim;
using simgpu_test::Child;
using simgpu_test::TemporaryFolder;

namespace {

constexpr uint64_t kMega = uint64_t{1} << 20;

Options options_for(const TemporaryFolder& folder, uint64_t memory = 64 * kMega) {
  Options options;
  options.state_path = folder.file("state");
  options.memory = memory;
  options.time_scale = 0;
  return options;
}

std::unique_ptr<SharedState> attach(const Options& options) {
  auto state = SharedState::attach(options);
  return std::unique_ptr<SharedState>(state ? *state : nullptr);
}

// Two pipes: the child says that it is ready and waits until it is told to go on (or for ever, to be killed).
struct Handshake {
  int ready[2] = {-1, -1};
  int go[2] = {-1, -1};
  Handshake() {
    if (pipe(ready) != 0 || pipe(go) != 0) std::abort();
  }
  ~Handshake() {
    for (int end : {ready[0], ready[1], go[0], go[1]}) close(end);
  }
  bool say_ready() const { return write(ready[1], "r", 1) == 1; }
  bool wait_ready() const {
    char byte = 0;
    return read(ready[0], &byte, 1) == 1;
  }
  bool say_go() const { return write(go[1], "g", 1) == 1; }
  bool wait_go() const {
    char byte = 0;
    return read(go[0], &byte, 1) == 1;
  }
};

}  // namespace

TEST_CASE("two processes share one GPU's memory, and the second is refused what does not fit") {
  TemporaryFolder folder;
  Options options = options_for(folder);
  auto state = attach(options);
  REQUIRE(state);
  Handshake handshake;
  Child other([&]() -> std::string {
    auto theirs = attach(options);
    Migration migration;
    EXPECT(theirs && theirs->take(0, 40 * kMega, &migration));
    EXPECT(handshake.say_ready() && handshake.wait_go());
    theirs->give_back(0, 40 * kMega);
    EXPECT(handshake.say_ready() && handshake.wait_go());
    return "";
  });
  REQUIRE(handshake.wait_ready());
  Migration migration;
  CHECK(state->use(0).plain == 40 * kMega);
  CHECK_FALSE(state->take(0, 40 * kMega, &migration));
  CHECK(state->take(0, 24 * kMega, &migration));
  REQUIRE(handshake.say_go());
  REQUIRE(handshake.wait_ready());
  CHECK(state->take(0, 40 * kMega, &migration));
  CHECK(state->use(0).plain == 64 * kMega);
  REQUIRE(handshake.say_go());
  CHECK(other.wait().empty());
}

TEST_CASE("what a killed process held is free for the next one that asks") {
  TemporaryFolder folder;
  Options options = options_for(folder);
  auto state = attach(options);
  REQUIRE(state);
  Handshake handshake;
  Child other([&]() -> std::string {
    auto theirs = attach(options);
    Migration migration;
    EXPECT(theirs && theirs->take(0, 40 * kMega, &migration));
    uint32_t managed = theirs->add_managed(0, 20 * kMega);
    theirs->touch(managed, 0, 20 * kMega, Access::kKernel, 0);
    EXPECT(handshake.say_ready());
    handshake.wait_go();
    return "";
  });
  REQUIRE(handshake.wait_ready());
  CHECK(state->use(0).managed_resident == 20 * kMega);
  other.kill();
  // Dead but not yet waited for: a zombie holds no memory either.
  siginfo_t information{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(other.pid()), &information, WEXITED | WNOWAIT) == 0);
  Migration migration;
  CHECK(state->take(0, 60 * kMega, &migration));
  CHECK(state->use(0).plain == 60 * kMega);
  CHECK(state->use(0).managed_resident == 0);
  CHECK(migration.evicted == 0);
  CHECK(other.wait() == "killed by signal 9");
}

TEST_CASE("a process whose main thread has ended keeps what it holds while another thread goes on") {
  TemporaryFolder folder;
  Options options = options_for(folder);
  auto state = attach(options);
  REQUIRE(state);
  Handshake handshake;
  Child other([&]() -> std::string {
    auto theirs = attach(options);
    Migration migration;
    EXPECT(theirs && theirs->take(0, 40 * kMega, &migration));
    std::thread([&] {
      // Not /proc/PID/stat, which qemu-user makes up for the process itself.
      std::string path = "/proc/self/task/" + std::to_string(getpid()) + "/stat";
      for (std::string text; text.find(") Z") == std::string::npos;) std::getline(std::ifstream(path), text);
      bool said = handshake.say_ready() && handshake.wait_go();
      bool held = theirs->use(0).plain == 40 * kMega;
      theirs->give_back(0, 40 * kMega);
      _exit(said && held && theirs->use(0).plain == 0 ? 0 : 1);
    }).detach();
    syscall(SYS_exit, 0);  // what pthread_exit does, without unwinding the test
    return "";
  });
  REQUIRE(handshake.wait_ready());
  CHECK(state->use(0).plain == 40 * kMega);
  REQUIRE(handshake.say_go());
  CHECK(other.wait().empty());
  CHECK(state->use(0).plain == 0);
}

TEST_CASE("what the process held before execve is free again") {
  TemporaryFolder folder;
  auto state = attach(options_for(folder));
  REQUIRE(state);
  Migration migration;
  REQUIRE(state->take(0, 20 * kMega, &migration));
  // execve keeps the pid and the start time, so its entry is like ours but for the serial.
  int file = open(folder.file("state").c_str(), O_RDWR);
  void* memory = mmap(nullptr, sizeof(SharedLayout), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  REQUIRE(memory != MAP_FAILED);
  auto* layout = static_cast<SharedLayout*>(memory);
  layout->processes[1] = layout->processes[0];
  layout->processes[1].serial = layout->next_serial++;
  layout->gpu[0].plain += 20 * kMega;
  CHECK(state->use(0).plain == 20 * kMega);
  CHECK(layout->processes[1].pid == 0);
  munmap(memory, sizeof(SharedLayout));
}

TEST_CASE("two states of one process leave each other's memory alone") {
  TemporaryFolder folder;
  Options options = options_for(folder);
  auto first = attach(options);
  auto second = attach(options);
  REQUIRE((first && second));
  Migration migration;
  REQUIRE(first->take(0, 20 * kMega, &migration));
  CHECK(second->use(0).plain == 20 * kMega);
}

TEST_CASE("no more is given back than was taken") {
  TemporaryFolder folder;
  auto state = attach(options_for(folder));
  REQUIRE(state);
  Migration migration;
  REQUIRE(state->take(0, 20 * kMega, &migration));
  state->give_back(0, 21 * kMega);
  CHECK(state->use(0).plain == 0);
}

TEST_CASE("a GPU's identity differs between state files and stays the same for one") {
  TemporaryFolder folder;
  Options options = options_for(folder);
  Options elsewhere = options;
  elsewhere.state_path = folder.file("other");
  unsigned char first[16];
  unsigned char again[16];
  unsigned char other[16];
  attach(options)->uuid(0, first);
  attach(options)->uuid(0, again);
  attach(elsewhere)->uuid(0, other);
  CHECK(std::memcmp(first, again, sizeof first) == 0);
  CHECK(std::memcmp(first, other, sizeof first) != 0);
}

TEST_CASE("a file that is no state is refused by name and left as it was") {
  TemporaryFolder folder;
  Options options = options_for(folder);
  std::FILE* file = std::fopen(options.state_path.c_str(), "w");
  REQUIRE(file != nullptr);
  std::fputs("somebody's data", file);
  std::fclose(file);
  auto state = SharedState::attach(options);
  REQUIRE_FALSE(state);
  CHECK(state.error().text.find(options.state_path) != std::string::npos);
  CHECK(std::filesystem::file_size(options.state_path) == 15);
}

TEST_CASE(
    "working sets that exceed the GPU push each other out at every turn, and taking turns moves each once a turn") {
  constexpr uint64_t kSet = 40 * kMega;  // two of them do not fit into 64 MiB
  constexpr int kRounds = 10;
  constexpr uint64_t kPiece = 8 * kMega;
  auto moved = [&](bool turns) {
    TemporaryFolder folder;
    auto state = attach(options_for(folder));
    REQUIRE(state);
    std::vector<uint32_t> sets[2];
    for (auto& set : sets) {
      for (uint64_t at = 0; at < kSet; at += kPiece) set.push_back(state->add_managed(0, kPiece));
    }
    auto round = [&](int job, size_t piece) { state->touch(sets[job][piece], 0, kPiece, Access::kKernel, 0); };
    auto full_round = [&](int job) {
      for (size_t piece = 0; piece < sets[job].size(); ++piece) round(job, piece);
    };
    if (turns) {
      for (int job : {0, 1}) {
        for (int count = 0; count < kRounds; ++count) full_round(job);
      }
    } else {
      for (int count = 0; count < kRounds; ++count) {
        for (size_t piece = 0; piece < sets[0].size(); ++piece) {
          for (int job : {0, 1}) round(job, piece);
        }
      }
    }
    Counters counters = state->counters(0);
    CHECK(counters.first_touched == 2 * kSet);
    return counters.faulted_in + counters.evicted;
  };
  uint64_t interleaved = moved(false);
  uint64_t in_turns = moved(true);
  // In turns: the second job pushes out what does not fit, once.
  CHECK(in_turns == 2 * kSet - 64 * kMega);
  CHECK(interleaved >= 4 * in_turns);
  CHECK(interleaved >= uint64_t{kRounds} * kSet);
}

TEST_CASE("migration costs what the profile says, for each way in") {
  TemporaryFolder folder;
  auto state = attach(options_for(folder));
  REQUIRE(state);
  uint32_t id = state->add_managed(0, 32 * kMega);
  auto nanoseconds = [](uint64_t bytes, double rate) {
    return Approx(static_cast<double>(bytes) / rate * 1e9).epsilon(1e-4);
  };
  const CostFigures& cost = state->profile().cost;
  Migration first = state->touch(id, 0, 16 * kMega, Access::kKernel, 0);
  CHECK(first.first_touched == 16 * kMega);
  CHECK(static_cast<double>(first.nanoseconds) == nanoseconds(16 * kMega, cost.first_touch));
  CHECK(state->touch(id, 0, 16 * kMega, Access::kKernel, 0).nanoseconds == 0);
  Migration out = state->touch(id, 0, 16 * kMega, Access::kPrefetchToHost, 0);
  CHECK(out.evicted == 16 * kMega);
  CHECK(static_cast<double>(out.nanoseconds) == nanoseconds(16 * kMega, cost.eviction()));
  CHECK(state->resident_bytes(id) == 0);
  Migration fault = state->touch(id, 0, 8 * kMega, Access::kKernel, 0);
  CHECK(static_cast<double>(fault.nanoseconds) == nanoseconds(8 * kMega, cost.fault_in()));
  Migration prefetch = state->touch(id, 8 * kMega, 8 * kMega, Access::kPrefetchToDevice, 0);
  CHECK(static_cast<double>(prefetch.nanoseconds) == nanoseconds(8 * kMega, cost.prefetch_in));
  CHECK(fault.nanoseconds > 4 * prefetch.nanoseconds);
}

TEST_CASE("an allocation larger than the GPU can be gone over, and is paged at every round") {
  TemporaryFolder folder;
  auto state = attach(options_for(folder, 16 * kMega));
  REQUIRE(state);
  uint32_t id = state->add_managed(0, 24 * kMega);
  state->touch(id, 0, 24 * kMega, Access::kKernel, 0);
  CHECK(state->resident_bytes(id) == 16 * kMega);
  Migration second = state->touch(id, 0, 24 * kMega, Access::kKernel, 0);
  CHECK(second.faulted_in == 24 * kMega);
  CHECK(state->use(0).managed_resident == 16 * kMega);
}

TEST_CASE("plain memory takes the place of managed memory, which comes back when there is room") {
  TemporaryFolder folder;
  auto state = attach(options_for(folder));
  REQUIRE(state);
  uint32_t id = state->add_managed(0, 48 * kMega);
  state->touch(id, 0, 48 * kMega, Access::kKernel, 0);
  Migration migration;
  REQUIRE(state->take(0, 32 * kMega, &migration));
  CHECK(migration.evicted == 16 * kMega);
  CHECK(state->use(0).managed_resident == 32 * kMega);
  state->give_back(0, 32 * kMega);
  CHECK(state->touch(id, 0, 48 * kMega, Access::kKernel, 0).faulted_in == 16 * kMega);
}

TEST_CASE("memory that nobody holds any more comes back only for a descriptor that kept it") {
  TemporaryFolder folder;
  auto state = attach(options_for(folder));
  REQUIRE(state);
  Migration migration;
  CHECK_FALSE(state->hold(0, 0, 4 * kMega, true, &migration));  // a free entry's id
  uint64_t id = state->share(0, 4 * kMega, false, &migration);
  REQUIRE(id != 0);
  REQUIRE(state->let_go(id));
  CHECK_FALSE(state->hold(id, 0, 4 * kMega, false, &migration));
  CHECK(state->use(0).plain == 0);
  CHECK(state->hold(id, 0, 4 * kMega, true, &migration));
  CHECK(state->use(0).plain == 4 * kMega);
}
