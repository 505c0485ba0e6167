// When a program that waits at the gate says so.
#include "runtime/client/waiting.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "scheduler/base/paced_lines.h"

using namespace std::chrono_literals;
using rota::client::Waiting;

TEST_CASE("a waiting program says so after 1, 10 and 60 s, and then no more, whichever wait that is") {
  int asked = 0;
  Waiting waiting([&] {
    ++asked;
    return std::string("GPU 0, held by pid 7 (other, alice)");
  });
  // Many short waits: no message.
  for (int i = 0; i < 100; ++i) {
    CHECK(waiting.stands(0s) == 1s);
    CHECK(waiting.stands(999ms) == 1s);
  }
  CHECK(asked == 0);
  CHECK(waiting.stands(1s) == 10s);
  CHECK(asked == 1);
  // The next wait of a second is not reported again.
  CHECK(waiting.stands(0s) == 10s);
  CHECK(waiting.stands(2s) == 10s);
  CHECK(asked == 1);
  CHECK(waiting.stands(10s) == 60s);
  CHECK(waiting.stands(60s) == std::nullopt);
  CHECK(asked == 3);
  CHECK(waiting.stands(1000s) == std::nullopt);
  CHECK(asked == 3);
}

TEST_CASE("each wait of many speaks after 1, 10 and 60 s, but a program that waits all the time says it now and then") {
  int asked = 0;
  const auto whom = [&] {
    ++asked;
    return std::string("memory of others on GPU 0");
  };
  for (int wait = 0; wait < 2; ++wait) {
    rota::client::WaitLines lines;
    for (const auto so_long : {0s, 1s, 2s, 10s, 60s, 1000s}) lines.stands(so_long, whom);
  }
  CHECK(asked == 6);
  for (int wait = 0; wait < 100; ++wait) rota::client::WaitLines().stands(1s, whom);
  CHECK(asked == rota::PacedLines::kAtOnce);
}

namespace {

rota::protocol::ProgramRow program(std::int32_t pid, std::uint64_t held, std::uint64_t wanted) {
  rota::protocol::ProgramRow row{};
  row.client = static_cast<std::uint32_t>(pid);
  row.pid = pid;
  row.uid = rota::protocol::kHiddenUser;  // the name alone
  row.held_gpus = held;
  row.wanted_gpus = wanted;
  std::snprintf(row.name, sizeof row.name, "program %d", pid);
  return row;
}

}  // namespace

TEST_CASE("of a GPU that is full those who have most are named") {
  using rota::client::memory_of;
  CHECK(memory_of({}, 0, 1).empty());
  rota::protocol::Snapshot all;
  for (int pid = 1; pid <= 6; ++pid) {
    all.programs.push_back(program(pid, 0, 0));
    rota::protocol::TaskRow& task = all.tasks.emplace_back();
    task.client = static_cast<std::uint32_t>(pid);
    task.gpu = pid == 6 ? 1 : 0;  // the last one is elsewhere
    task.device_bytes = static_cast<std::uint64_t>(pid) << 30;
  }
  all.tasks[1].context_bytes = std::uint64_t{10} << 30;
  CHECK(memory_of(all, 0, 1) == "program 2 12.0 GiB, program 5 5.0 GiB, program 4 4.0 GiB and 1 more");
  CHECK(memory_of(all, 1, 1) == "program 6 6.0 GiB");
  CHECK(memory_of(all, 2, 1).empty());
}

TEST_CASE("of programs whose memory cannot be evicted yet those with most of it are named") {
  namespace protocol = rota::protocol;
  using rota::client::staying_of;
  protocol::Snapshot all;
  for (std::uint32_t i = 0; i < 3; ++i) {
    all.programs.push_back(program(static_cast<std::int32_t>(i) + 1, 0, 0));
    protocol::TaskRow& task = all.tasks.emplace_back();
    task.client = i + 1;
    task.fixed_for_now_bytes = std::uint64_t{i} << 30;
  }
  protocol::TaskRow& elsewhere = all.tasks.emplace_back();
  elsewhere.client = elsewhere.gpu = 1;
  elsewhere.fixed_bytes = 1 << 30;
  elsewhere.fixed_for_now_bytes = 1 << 20;
  const auto named = [&](int gpu) { return staying_of(all, gpu, 99, &protocol::TaskRow::fixed_for_now_bytes); };
  CHECK(named(0) == "program 3 2.0 GiB, program 2 1.0 GiB");
  CHECK(named(1) == "program 1 1 MiB");
  CHECK(named(-1).empty());
}

TEST_CASE("a program that is passed over is told what is in its way, for good or for now") {
  namespace protocol = rota::protocol;
  constexpr std::uint64_t kMega = 1 << 20;
  protocol::Snapshot all;
  all.programs = {program(1, 0, 1), program(2, 0, 0)};
  all.tasks.resize(2);
  for (std::uint32_t i = 0; i < 2; ++i) all.tasks[i].client = i + 1;
  // nvidia-smi's number is said, not rotad's.
  protocol::GpuRow gpu{};
  gpu.number = 3;
  all.gpus = {gpu};
  const auto told = [&](std::uint64_t lacks, std::uint64_t for_now) {
    all.tasks[0].lacks_bytes = lacks * kMega;
    all.tasks[0].lacks_for_now_bytes = for_now * kMega;
    return rota::client::room_for(all, 1);
  };
  const std::string for_good =
      "; since the program has that memory already, no call is refused for it, and it waits until others free theirs "
      "or end";
  CHECK(told(0, 0).empty());
  CHECK(told(130, 0) ==
        "memory on GPU 3: 130 MiB of this program's memory do not fit next to what cannot be evicted" + for_good);
  all.tasks[1].fixed_bytes = 500 * kMega;
  CHECK(told(130, 130) ==
        "memory on GPU 3: 130 MiB of this program's memory do not fit next to what cannot be evicted while work of its "
        "programs may run: program 2 500 MiB");
  CHECK(told(130, 30) ==
        "memory on GPU 3: 130 MiB of this program's memory do not fit next to what cannot be evicted and, for 30 MiB "
        "of that, what cannot be evicted while work of its programs may run: program 2 500 MiB" +
            for_good);
  CHECK(rota::client::room_for(all, 2).empty());
}

TEST_CASE("programs with memory on a GPU are named, and which of them are stopped") {
  namespace protocol = rota::protocol;
  const pid_t stopped = fork();
  if (stopped == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  REQUIRE(waitpid(stopped, nullptr, WUNTRACED) == stopped);
  protocol::Snapshot all;
  all.programs = {program(1, 0, 0), program(stopped, 0, 0)};
  all.programs[1].client = 2;
  all.tasks.resize(2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    all.tasks[i].client = i + 1;
    all.tasks[i].device_bytes = std::uint64_t{300} << 20;
    all.tasks[i].mode = protocol::MemoryMode::kSwap;
    all.tasks[i].resident_bytes = std::uint64_t{150} << 20;
  }
  CHECK(rota::client::present_of(all, 0, 1) ==
        fmt::format("program {0} 150 MiB; pid {0} is stopped: `kill -CONT {0}` lets it go on", stopped));
  all.tasks[1].resident_bytes = 0;
  CHECK(rota::client::present_of(all, 0, 1).empty());
  all.tasks[1].mode = protocol::MemoryMode::kNativeChosen;
  CHECK(rota::client::present_of(all, 0, 99) == fmt::format("program {} 300 MiB, program 1 150 MiB", stopped));
  kill(stopped, SIGKILL);
  waitpid(stopped, nullptr, 0);
}

TEST_CASE("a program that waits for the rest of its gang is told so, until its turn can come") {
  namespace protocol = rota::protocol;
  protocol::Snapshot all;
  all.programs = {program(1, 0, 0), program(2, 0, 0)};
  protocol::TaskRow& task = all.tasks.emplace_back();
  task.client = 1;
  task.gang = 5;
  protocol::GangRow& gang = all.gangs.emplace_back();
  gang.number = 5;
  gang.programs = 1;
  gang.size = 4;
  std::snprintf(gang.name, sizeof gang.name, "train");
  CHECK(rota::client::gang_for(all, 1) == "3 of the 4 programs of gang train, which have not come yet");
  CHECK(rota::client::gang_for(all, 2).empty());
  gang.programs = 3;
  CHECK(rota::client::gang_for(all, 1) == "1 of the 4 programs of gang train, which has not come yet");
  all.programs[0].wanted_gpus = 1;
  CHECK(rota::client::gang_for(all, 1).empty());
  all.programs[0].wanted_gpus = 0;
  gang.programs = 4;
  CHECK(rota::client::gang_for(all, 1).empty());
  gang.size = 0;
  CHECK(rota::client::gang_for(all, 1).empty());
}

TEST_CASE("the holder of what a process waits for is named as far as rotad's list tells") {
  using rota::client::holder_of;
  CHECK(holder_of({}, 1) == "its turn on a GPU; no rotad says who holds it");
  rota::protocol::Snapshot all;
  all.programs = {program(1, 1, 0), program(2, 0, 1), program(3, 2, 0), program(4, 0, 2)};
  CHECK(holder_of(all, 2) == "GPU 0, held by program 1");
  CHECK(holder_of(all, 4) == "GPU 1, held by program 3");
  // In another pid namespace: it may be any of those that wait, and one that holds a GPU may have its number there.
  CHECK(holder_of(all, 77) == "its turn on a GPU");
  CHECK(holder_of(all, 1) == "its turn on a GPU");
  rota::protocol::Snapshot one_gpu;
  one_gpu.programs = {program(1, 1, 0), program(2, 0, 1), program(3, 0, 1)};
  CHECK(holder_of(one_gpu, 77) == "GPU 0, held by program 1");
  CHECK(holder_of(one_gpu, 1) == "GPU 0, held by program 1");
  auto named = one_gpu;
  named.programs[0].uid = 0;
  CHECK(holder_of(named, 2) == "GPU 0, held by pid 1 (program 1, root)");
  CHECK(holder_of(named, 77) == "GPU 0, held by another program (program 1, root)");
}
