// What rotad reads from NVML, using a made-up library, and the resulting accounts of a real rotad.
#include "scheduler/server/nvml.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/uuid.h"
#include "tests/unit/scheduler/server/nvml/rig.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

using Catch::Contains;
using protocol::Kind;
using server::GpuReading;
using server::Nvml;

// A pid that no process has: that of one that has just ended.
pid_t nobody() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
  return pid;
}

std::optional<GpuReading> read_one(const std::string& library) {
  auto nvml = Nvml::open(library);
  REQUIRE(nvml);
  return (*nvml)->read(uuid(1));
}

}  // namespace

TEST_CASE("NVML says how much of a GPU is in use, and by which process") {
  const Answers answers;
  const std::string driver = GENERATE("580.159.04", "535.54.03");
  answers.are("driver " + driver + "\ngpu " + gpu_line(2, 5) + "gpu " + gpu_line(1, 300 * kMega) +
              process_line(getpid(), 200 * kMega) + process_line(getppid(), 70 * kMega) +
              process_line(getpid(), kMega));
  for (const std::string& library : {kRecent, kOlder}) {
    const auto reading = read_one(library);
    REQUIRE(reading);
    CHECK(reading->used == 300 * kMega);
    CHECK(reading->free == 700 * kMega);
    // The older function counts what the driver has reserved as used.
    CHECK(reading->total == (library == kRecent ? 1000 : 1024) * kMega);
    REQUIRE(reading->processes);
    CHECK(reading->processes->at(getpid()) == 201 * kMega);
    CHECK(reading->processes->at(getppid()) == 70 * kMega);
  }
}

TEST_CASE("a MIG instance is known by its own UUID, and a GPU that NVML does not know has no figures") {
  const Answers answers;
  answers.are("gpu " + gpu_line(1, 300 * kMega, "MIG"));
  CHECK(read_one(kRecent)->used == 300 * kMega);
  answers.are("gpu " + gpu_line(3, 300 * kMega));
  CHECK_FALSE(read_one(kRecent));
}

TEST_CASE("processes of another pid namespace are nobody's, and those whose memory is unknown are left out") {
  const Answers answers;
  const std::string gpu = "gpu " + gpu_line(1, 300 * kMega);
  answers.are(gpu + process_line(getpid(), 200 * kMega) + process_line(nobody(), 5 * kMega));
  CHECK_FALSE(read_one(kRecent)->processes);
  answers.are(gpu + process_line(getpid(), -1) + process_line(getppid(), 5 * kMega));
  CHECK(read_one(kRecent)->processes == std::map<pid_t, std::uint64_t>{{getppid(), 5 * kMega}});
  answers.are(gpu + "processes 3\n");  // NVML_ERROR_NOT_SUPPORTED
  CHECK_FALSE(read_one(kRecent)->processes);
}

TEST_CASE("what draws on a GPU has memory there, too, and who draws and computes has it once") {
  const Answers answers;
  const std::string driver = GENERATE("580.159.04", "535.54.03");
  const auto graphics = [](pid_t pid, std::int64_t bytes) {
    return "graphics " + std::to_string(pid) + " " + std::to_string(bytes) + "\n";
  };
  answers.are("driver " + driver + "\ngpu " + gpu_line(1, 300 * kMega) + process_line(getpid(), 200 * kMega) +
              graphics(getppid(), 70 * kMega) + graphics(getpid(), 200 * kMega));
  for (const std::string& library : {kRecent, kOlder}) {
    CHECK(read_one(library)->processes ==
          std::map<pid_t, std::uint64_t>{{getpid(), 200 * kMega}, {getppid(), 70 * kMega}});
  }
}

TEST_CASE("a process that ends while the list is read is not taken for one of another pid namespace") {
  const Answers answers;
  answers.are("gpu " + gpu_line(1, 300 * kMega) + process_line(getpid(), 200 * kMega) + "ended " +
              std::to_string(nobody()) + " 5\n");
  CHECK(read_one(kRecent)->processes == std::map<pid_t, std::uint64_t>{{getpid(), 200 * kMega}});
}

TEST_CASE("more processes than expected are asked for again") {
  const Answers answers;
  std::string text = "gpu " + gpu_line(1, 300 * kMega);
  for (int i = 0; i < 100; ++i) text += process_line(getpid(), kMega);
  answers.are(text);
  CHECK(read_one(kRecent)->processes->at(getpid()) == 100 * kMega);
}

TEST_CASE("where NVML is missing, does not start, or is rota's own, that is said") {
  const Answers answers;
  CHECK_THAT(Nvml::open("libnvidia-ml-that-is-not-there.so").error().text, Contains("no NVML"));
  answers.are("init 9\n");
  CHECK_THAT(Nvml::open(kRecent).error().text, Contains("error 9"));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK_THAT(Nvml::open(ROTA_NVML_SHIM).error().text, Contains("rota's own"));
#endif
}

TEST_CASE("what a process has besides its allocations is measured, counted and shown") {
  const Answers answers;
  const std::string gpu = "gpu " + gpu_line(1, 300 * kMega);
  const MeasuringDaemon rotad(answers, gpu + process_line(getpid(), 200 * kMega));
  Measured client(*rotad.daemon);
  CHECK(client.context_becomes(200 * kMega));
  protocol::TaskRow shown = status(rotad.daemon->socket()).tasks.at(0);
  CHECK(shown.context_bytes == 200 * kMega);
  CHECK(shown.driver_bytes == 200 * kMega);
  CHECK(shown.measured == 1);
  const protocol::GpuRow shown_gpu = status(rotad.daemon->socket()).gpus.at(0);
  CHECK(shown_gpu.measured == 1);
  CHECK(shown_gpu.driver_used_bytes == 300 * kMega);
  CHECK(shown_gpu.driver_free_bytes == 700 * kMega);

  SECTION("less what it has allocated that the driver counts for it, and growth is seen") {
    client.usage->gpus[client.gpu].device_bytes = 500 * kMega;
    client.usage->gpus[client.gpu].fixed_bytes = 120 * kMega;
    CHECK(client.context_becomes(80 * kMega));
    answers.are(gpu + process_line(getpid(), 260 * kMega));
    CHECK(client.context_becomes(140 * kMega));
  }
  SECTION("but not of a program that serves memory in a way that this rotad does not know") {
    client.usage->gpus[client.gpu].memory_mode = 15;
    answers.are(gpu + process_line(getpid(), 500 * kMega));
    CHECK(eventually([&] { return status(rotad.daemon->socket()).tasks.at(0).measured == 0; }));
    CHECK(client.lease->gpus[client.gpu].context_bytes == 200 * kMega);
  }
  SECTION("it stands when the driver no longer tells, and is no longer called measured") {
    answers.are(gpu + process_line(getpid(), 200 * kMega) + process_line(nobody(), kMega));
    CHECK(eventually([&] { return status(rotad.daemon->socket()).tasks.at(0).measured == 0; }));
    CHECK(client.lease->gpus[client.gpu].context_bytes == 200 * kMega);
    CHECK(status(rotad.daemon->socket()).gpus.at(0).measured == 1);
  }
  SECTION("a GPU that NVML knows no more is one that programs report of") {
    answers.are("gpu " + gpu_line(9, 0));
    CHECK(eventually([&] { return status(rotad.daemon->socket()).gpus.at(0).measured == 0; }));
  }
}

TEST_CASE("memory that was handed over, which the driver counts for no process, does not lower what a context takes") {
  const Answers answers;
  const std::string gpu = "gpu " + gpu_line(1, 300 * kMega);
  const MeasuringDaemon rotad(answers, gpu + process_line(getpid(), 200 * kMega));
  Measured taker(*rotad.daemon);
  Measured giver(*rotad.daemon);
  REQUIRE(taker.context_becomes(200 * kMega));
  for (Measured* client : {&taker, &giver}) {
    client->usage->gpus[client->gpu].resident_bytes = 20 * kMega;
    client->use(client->gpu, 500 * kMega);
  }
  taker.want(1);
  REQUIRE(taker.wait_for_grant());
  const Descriptor memory(memfd_create("memory", MFD_CLOEXEC));
  giver.hand_over(giver.gpu, 128 * kMega, {memory.get()});
  REQUIRE(eventually([&] { return status(rotad.daemon->socket()).gpus.at(0).handed_over_bytes == 128 * kMega; }));
  taker.usage->gpus[taker.gpu].resident_bytes = 148 * kMega;
  giver.usage->gpus[giver.gpu].resident_bytes = 0;
  answers.are(gpu + process_line(getpid(), 220 * kMega));
  REQUIRE(receive(taker.descriptor));  // what was handed over
  for (int readings = 0; readings < 3; ++readings) REQUIRE_FALSE(taker.add_gpu(1));
  CHECK(taker.lease->gpus[taker.gpu].context_bytes >= 180 * kMega);
  // That it has grown is seen nevertheless.
  answers.are(gpu + process_line(getpid(), 420 * kMega));
  CHECK(taker.context_becomes(272 * kMega));  // at least: the driver may count none of the 148
}

TEST_CASE("one reading alone does not lower what a context takes: memory that is leaving is counted by one side only") {
  const Answers answers;
  const std::string gpu = "gpu " + gpu_line(1, 300 * kMega);
  const MeasuringDaemon rotad(answers, gpu + process_line(getpid(), 200 * kMega));
  const Measured client(*rotad.daemon);
  REQUIRE(client.context_becomes(200 * kMega));
  answers.are(gpu + "once " + process_line(getpid(), 180 * kMega) + process_line(getpid(), 201 * kMega));
  bool lowered = false;
  CHECK(eventually([&] {
    const protocol::TaskRow shown = status(rotad.daemon->socket()).tasks.at(0);
    lowered = lowered || shown.context_bytes != 200 * kMega;
    return shown.driver_bytes == 201 * kMega;
  }));
  CHECK_FALSE(lowered);
  answers.are(gpu + process_line(getpid(), 180 * kMega));
  CHECK(client.context_becomes(180 * kMega));
}

TEST_CASE("a process whose contexts have ended has none, and has some again once there are") {
  const Answers answers;
  const std::string gpu = "gpu " + gpu_line(1, 176 * kMega);  // 24 are missing in its free bytes
  const MeasuringDaemon rotad(answers, gpu + process_line(getpid(), 200 * kMega));
  const Measured client(*rotad.daemon);
  REQUIRE(client.context_becomes(200 * kMega));
  SECTION("that is named no more") {
    answers.are(gpu);
    CHECK(client.context_becomes(1));  // a byte: 0 would be unknown
    CHECK(eventually([&] {
      const protocol::TaskRow shown = status(rotad.daemon->socket()).tasks.at(0);
      return shown.driver_bytes == 0 && shown.measured == std::uint64_t{1} << client.gpu;
    }));
    answers.are(gpu + process_line(getpid(), 150 * kMega));
    CHECK(client.context_becomes(150 * kMega));
  }
  SECTION("but not one whose memory the driver does not know for now") {
    answers.are(gpu + process_line(getpid(), -1));
    CHECK(eventually([&] { return status(rotad.daemon->socket()).tasks.at(0).measured == 0; }));
    // Two readings later.
    answers.are(gpu + process_line(getpid(), -1) + process_line(getppid(), 40 * kMega));
    CHECK(eventually([&] { return status(rotad.daemon->socket()).gpus.at(0).outside_bytes == 40 * kMega; }));
    answers.are(gpu + process_line(getpid(), -1) + process_line(getppid(), 50 * kMega));
    CHECK(eventually([&] { return status(rotad.daemon->socket()).gpus.at(0).outside_bytes >= 50 * kMega; }));
    CHECK(client.lease->gpus[client.gpu].context_bytes == 200 * kMega);
  }
}

namespace {

// A second client on the GPU: a process that sends only hello, with this process's pid. Both hold the GPU if they fit
// it together.
struct Pair {
  explicit Pair(const Daemon& daemon) : one(daemon), two(daemon) {
    for (Measured* client : {&one, &two}) {
      client->use(client->gpu, 300 * kMega);
      client->want(1);
      if (client == &one) REQUIRE(one.wait_for_grant());  // over two sockets either could arrive first
    }
  }
  bool together() const { return one.lease->gpus[0].grant != 0 && two.lease->gpus[0].grant != 0; }
  std::uint64_t outside(const Daemon& daemon) const { return status(daemon.socket()).gpus.at(0).outside_bytes; }
  Measured one;
  Measured two;
};

}  // namespace

TEST_CASE("two programs that do not fit next to unmanaged memory take turns, until a meter that fell silent is old") {
  const Answers answers;
  const std::string gpu = "gpu " + gpu_line(1, 586 * kMega) + process_line(getpid(), 10 * kMega);
  const MeasuringDaemon rotad(answers, gpu + process_line(getppid(), 600 * kMega));
  const Measured first(*rotad.daemon);
  REQUIRE(eventually([&] { return status(rotad.daemon->socket()).gpus.at(0).outside_bytes == 600 * kMega; }));
  const Pair pair(*rotad.daemon);
  REQUIRE(pair.one.wait_for_grant());
  CHECK(pair.one.wait_for([](const protocol::LeasePage& page) { return page.gpus[0].waiters != 0; }));
  CHECK(pair.two.lease->gpus[0].grant == 0);
  SECTION("the others have gone") {
    answers.are(gpu);
    CHECK(pair.two.wait_for_grant());
    CHECK(pair.together());
  }
  SECTION("the driver says nothing any more") {
    answers.are(gpu + process_line(getppid(), 600 * kMega) + "hangs\n");
    const auto silent = std::chrono::steady_clock::now();
    CHECK(pair.two.wait_for_grant());
    CHECK(std::chrono::steady_clock::now() - silent > std::chrono::seconds(8));  // ten since its last report
    CHECK(pair.together());
    CHECK(status(rotad.daemon->socket()).gpus.at(0).measured == 0);
    CHECK(pair.outside(*rotad.daemon) == 0);
    answers.are(gpu + process_line(getppid(), 600 * kMega));
    CHECK(eventually([&] { return pair.outside(*rotad.daemon) == 600 * kMega; }));
    CHECK(pair.two.wait_for([](const protocol::LeasePage& page) { return page.gpus[0].waiters != 0; }));
  }
}

TEST_CASE("the first client of a GPU is answered once the unmanaged memory there is known") {
  const Answers answers;
  const MeasuringDaemon rotad(answers, "gpu " + gpu_line(1, 586 * kMega) + process_line(getpid(), 10 * kMega) +
                                           process_line(getppid(), 600 * kMega) + "slow 50\n");
  const Pair pair(*rotad.daemon);
  CHECK(pair.outside(*rotad.daemon) == 600 * kMega);
  CHECK(pair.one.wait_for([](const protocol::LeasePage& page) { return page.gpus[0].waiters != 0; }));
  CHECK_FALSE(pair.together());
}

TEST_CASE("a client of a GPU of which NVML says nothing in time is answered nevertheless") {
  const Answers answers;
  const MeasuringDaemon rotad(answers, "gpu " + gpu_line(1, 586 * kMega) + "hangs\n");
  const Pair pair(*rotad.daemon);
  CHECK(pair.two.wait_for_grant());
  CHECK(pair.together());
}

TEST_CASE("a client that names a GPU is answered once the size of its contexts is known, each time") {
  const Answers answers;
  write_file(answers.folder / "rotad.toml", "[limits.process]\ngpu = \"500M\"\n");
  const std::string gpu = "gpu " + gpu_line(1, 400 * kMega);
  const MeasuringDaemon rotad(answers, gpu + process_line(getpid(), 200 * kMega),
                              {"--config", answers.folder / "rotad.toml"});
  Measured first(*rotad.daemon);
  CHECK(first.lease->gpus[first.gpu].left_bytes == 300 * kMega);
  const Measured second(*rotad.daemon);  // of the same process, whose contexts count once
  CHECK(second.lease->gpus[second.gpu].left_bytes == 500 * kMega);
  for (const std::uint64_t mega : {240, 290}) {
    answers.are(gpu + process_line(getpid(), mega * kMega));
    std::uint32_t same = 99;
    REQUIRE_FALSE(first.add_gpu(1, &same));
    CHECK(same == first.gpu);
    CHECK(first.lease->gpus[first.gpu].left_bytes == (500 - mega) * kMega);
  }
  CHECK(status(rotad.daemon->socket()).gpus.at(0).clients == 2);
}

TEST_CASE("a context that the list does not name yet counts with its assumed size, and with none if nothing names it") {
  const Answers answers;
  write_file(answers.folder / "rotad.toml", "[limits.process]\ngpu = \"500M\"\n");
  const auto granted = [](const Measured& client, std::uint32_t number, std::uint64_t mega) {
    protocol::Message message{.version = protocol::kVersion, .kind = Kind::kReserve};
    message.body.reserve = {.gpu = client.gpu,
                            .number = number,
                            .device_bytes = mega * kMega,
                            .movable_bytes = mega * kMega,
                            .fixed_bytes = 0,
                            .swapped_bytes = 0};
    send_packet(client.descriptor, &message, sizeof message);
    return receive(client.descriptor)->body.reserved.granted != 0;
  };
  const std::string gpu = "gpu " + gpu_line(1, 400 * kMega);
  SECTION("while it is not named") {
    const MeasuringDaemon rotad(answers, gpu, {"--config", answers.folder / "rotad.toml"});
    const Measured client(*rotad.daemon);
    CHECK(client.lease->gpus[client.gpu].left_bytes == 499 * kMega);
    CHECK_FALSE(granted(client, 1, 500));
    CHECK(granted(client, 2, 499));
  }
  SECTION("where no process is") {
    const MeasuringDaemon rotad(answers, gpu + "processes 3\n", {"--config", answers.folder / "rotad.toml"});
    const Measured client(*rotad.daemon);
    CHECK(client.lease->gpus[client.gpu].left_bytes == 499 * kMega);  // all the same, nobody is told that it is free
    CHECK(granted(client, 1, 500));
  }
}

TEST_CASE("pages say what nobody can have: contexts and what programs without rota have") {
  const Answers answers;
  const std::string own = process_line(getpid(), 24 * kMega);
  const MeasuringDaemon rotad(answers, "gpu " + gpu_line(1, 624 * kMega) + own + process_line(getppid(), 600 * kMega));
  const Measured client(*rotad.daemon);
  CHECK(client.lease->gpus[client.gpu].all_context_bytes == 624 * kMega);
  answers.are("gpu " + gpu_line(1, 24 * kMega) + own);
  CHECK(client.wait_for(
      [&](const protocol::LeasePage& page) { return page.gpus[client.gpu].all_context_bytes == 24 * kMega; }));
}

TEST_CASE(
    "what the driver takes for contexts and counts for no process counts at once, as far as contexts explain it") {
  const Answers answers;
  const std::string own = process_line(getpid(), 24 * kMega);
  const std::string other = process_line(getppid(), 600 * kMega);
  const MeasuringDaemon rotad(answers, "gpu " + gpu_line(1, 626 * kMega) + own + other);
  const Measured client(*rotad.daemon);
  CHECK(client.lease->gpus[client.gpu].all_context_bytes == 626 * kMega);
  // Of a contradictory reading, no more than a 1024th of the GPU for each process, and one more.
  answers.are("gpu " + gpu_line(1, 700 * kMega) + own + other);
  CHECK(client.wait_for(
      [&](const protocol::LeasePage& page) { return page.gpus[client.gpu].all_context_bytes == 627 * kMega; }));
}

TEST_CASE("memory that is in use and nobody's counts after some readings, listed or not") {
  const Answers answers;
  const std::string gpu = "gpu " + gpu_line(1, 700 * kMega);
  const MeasuringDaemon rotad(answers, gpu + "processes 3\n");  // NVML_ERROR_NOT_SUPPORTED
  const Measured client(*rotad.daemon);
  // 1 024 of which 300 are free, and its own context.
  CHECK(eventually([&] { return status(rotad.daemon->socket()).gpus.at(0).outside_bytes == 723 * kMega; }));
}

TEST_CASE("unmanaged memory on the GPU reduces what limits on the host's memory allow") {
  const Answers answers;
  write_file(answers.folder / "rotad.toml", "[limits.user]\nhost = \"100M\"\n");
  const MeasuringDaemon rotad(
      answers,
      "gpu " + gpu_line(1, 624 * kMega) + process_line(getpid(), 24 * kMega) + process_line(getppid(), 600 * kMega),
      {"--config", answers.folder / "rotad.toml"});
  const Measured client(*rotad.daemon);
  REQUIRE(client.context_becomes(24 * kMega));
  REQUIRE(eventually([&] { return status(rotad.daemon->socket()).gpus.at(0).outside_bytes == 600 * kMega; }));
  const auto granted = [&](std::uint32_t number, std::uint64_t mega) {
    protocol::Message message{.version = protocol::kVersion, .kind = Kind::kReserve};
    message.body.reserve = {.gpu = client.gpu,
                            .number = number,
                            .device_bytes = mega * kMega,
                            .movable_bytes = mega * kMega,
                            .fixed_bytes = 0,
                            .swapped_bytes = 0};
    send_packet(client.descriptor, &message, sizeof message);
    return receive(client.descriptor)->body.reserved.granted != 0;
  };
  CHECK_FALSE(granted(1, 501));  // 400 are left of 1 024, and 100 of host memory
  CHECK(granted(2, 500));
}

TEST_CASE("without NVML the client's own figure, or an assumption, counts") {
  const Answers answers;
  const MeasuringDaemon rotad(answers, "init 9\n");
  const Measured client(*rotad.daemon);
  CHECK(client.context_becomes(kMega));  // as this client reports
  const protocol::Snapshot rows = status(rotad.daemon->socket());
  CHECK(rows.gpus.at(0).measured == 0);
  CHECK(rows.tasks.at(0).measured == 0);
  CHECK(rows.tasks.at(0).context_bytes == kMega);
}

TEST_CASE("limits count what has been measured") {
  const Answers answers;
  write_file(answers.folder / "rotad.toml", "[limits.process]\ngpu = \"500M\"\n");
  const MeasuringDaemon rotad(answers, "gpu " + gpu_line(1, 300 * kMega) + process_line(getpid(), 200 * kMega),
                              {"--config", answers.folder / "rotad.toml"});
  const Measured client(*rotad.daemon);
  REQUIRE(client.context_becomes(200 * kMega));
  CHECK(client.wait_for(
      [&](const protocol::LeasePage& page) { return page.gpus[client.gpu].left_bytes == 300 * kMega; }));
  const auto reserve = [&](std::uint32_t number, std::uint64_t mega) {
    protocol::Message message{.version = protocol::kVersion, .kind = Kind::kReserve};
    message.body.reserve = {.gpu = client.gpu,
                            .number = number,
                            .device_bytes = mega * kMega,
                            .movable_bytes = 0,
                            .fixed_bytes = mega * kMega,
                            .swapped_bytes = 0};
    send_packet(client.descriptor, &message, sizeof message);
    const auto answer = receive(client.descriptor);
    REQUIRE(answer);
    return answer->body.reserved;
  };
  const protocol::Reserved refused = reserve(1, 301);
  CHECK(refused.granted == 0);
  CHECK_THAT(refused.text, Contains("200 MiB by contexts and modules"));
  CHECK(reserve(2, 300).granted == 1);
  CHECK(status(rotad.daemon->socket()).accounts.at(0).device_used == 500 * kMega);
}

}  // namespace rota::test
