// Which programs are members of a gang, which one, and that rotad is told.
#include "runtime/client/gang_evidence.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "generated/driver_gates.h"
#include "runtime/client/gang_name.h"
#include "runtime/core/mappings.h"
#include "runtime/memory/memory.h"
#include "runtime/monitor/monitor.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"

using namespace rota;
using namespace std::chrono_literals;
using protocol::GangWhy;
using protocol::Kind;

namespace {

constexpr const char* kAllReduce = "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE";

using Variables = std::map<std::string, std::string>;

client::Launch launch(const Variables& variables) {
  return client::launched_gang([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// Empty: none.
std::string gang(const Variables& variables) {
  const client::Launch found = launch(variables);
  CHECK_FALSE(found.several_machines);
  if (!found.gang) return {};
  CHECK(found.gang->size == 0);
  CHECK(std::string(found.gang->name).size() <= client::kGangNameBytes);
  return found.gang->name;
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kAddress = {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};
const Variables kTwo = with(kAddress, {{"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}});
const Variables kMpi = {
    {"PMIX_NAMESPACE", "prterun-node-17@1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kSlurm = {
    {"SLURM_JOB_ID", "31"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NUM_NODES", "1"}};

// The environment of this process, until the end of the scope.
struct Environment {
  explicit Environment(Variables all) : variables(std::move(all)) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
  }
  Variables variables;
};

struct Program {
  Program() { context = driver.enter_context(0); }
  ~Program() { monitor.at_exit(); }
  void make_context() { monitor.context_made(context, 0, true); }
  std::thread launcher() {
    return std::thread([this] {
      driver.enter_context(0);
      gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
      driver.leave_context();
    });
  }

  test::FakeDriver driver;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory{ledger, {.small_bytes = 0}};
  monitor::Monitor monitor{gate, contexts, memory};
  api::CUcontext context = nullptr;
};

// The gang that rotad is told next.
std::string named(test::FakeRotad& rotad, GangWhy why, std::uint32_t size) {
  protocol::Message message = rotad.next();
  while (message.kind != Kind::kGang) message = rotad.next();
  CHECK(message.body.gang.why == why);
  CHECK(message.body.gang.size == size);
  return message.body.gang.name;
}

}  // namespace

TEST_CASE("a gang is named by a name that is not too long, and by a size where one is wanted") {
  const auto name = [](const char* text) {
    const auto gang = client::named_gang(text);
    if (gang) CHECK(gang->why == GangWhy::kNamed);
    return gang ? std::string(gang->name) + "/" + std::to_string(gang->size) : "none";
  };
  CHECK(name("train") == "train/0");
  CHECK(name("train:4") == "train/4");
  CHECK(name("my train:256") == "my train/256");
  CHECK(name("1234567890123456789012345678901") == "1234567890123456789012345678901/0");
  for (const char* bad :
       {"", ":", ":4", "train:", "train:0", "train:257", "train:-1", "train:+1", "train: 4", "train:4x", "train:4:4",
        "a\nb", "a\033b", "train:99999999999", "12345678901234567890123456789012"}) {
    INFO(bad);
    CHECK(name(bad) == "none");
  }
}

TEST_CASE("collective kernels are known by their names, mangled or not") {
  for (const char* name :
       {kAllReduce, "ncclDevKernel_Generic_4", "_Z42ncclKernel_AllReduce_RING_LL_Sum_int8_tP11ncclDevCommm",
        "_ZL20ncclKernel_SendRecvP8ncclComm", "ncclSymkDevKernel_AllGather_LL",
        "_Z47ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf1614ncclSymDevArgs",
        "_Z36barrier_on_stream_kernel_threadgroupIL13threadgroup_t1EEvii",
        "_ZN4vllm26cross_device_reduce_1stageIfLi2EEEvPNS_8RankDataE"}) {
    INFO(name);
    CHECK(client::is_collective_kernel(name));
  }
  for (const char* name : {"", "_Z", "_ZL", "_Z4", "_Z5saxpyifPKfPf", "nccl", "my_ncclDevKernel",
                           "_Z16my_ncclDevKernelv", "_ZncclDevKernel", "_Z7barrierv"}) {
    INFO(name);
    CHECK_FALSE(client::is_collective_kernel(name));
  }
  CHECK_FALSE(client::is_collective_kernel(nullptr));
}

TEST_CASE(
    "each launch is another gang, the same for all its ranks, and where nobody has launched ranks there is none") {
  const Variables elastic = with(kTwo, {{"TORCHELASTIC_RUN_ID", "7e1f"}});
  std::set<std::string> names;
  for (const Variables& variables :
       {kAddress, with(kAddress, {{"MASTER_PORT", "29501"}}), with(kAddress, {{"MASTER_ADDR", "node1"}}), elastic,
        with(elastic, {{"TORCHELASTIC_RUN_ID", "7e20"}}), kMpi, with(kMpi, {{"PMIX_NAMESPACE", "prterun-node-18@1"}}),
        kSlurm, with(kSlurm, {{"SLURM_STEP_ID", "1"}})}) {
    const std::string name = gang(variables);
    CHECK_FALSE(name.empty());
    CHECK(names.insert(name).second);
    CHECK(gang(with(variables, {{"RANK", "1"}, {"LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_RANK", "1"}})) == name);
  }
  // The first launcher that has said all.
  CHECK(gang(with(elastic, kSlurm)) == gang(elastic));
  CHECK(gang(with(kTwo, {{"TORCHELASTIC_RUN_ID", "none"}})) == gang(kAddress));
  CHECK(gang(with(kMpi, {{"MASTER_ADDR", "localhost"}})) == gang(kMpi));
  Variables old = kMpi;
  old.erase("PMIX_NAMESPACE");
  CHECK(gang(old).empty());
  CHECK_FALSE(gang(with(old, {{"OMPI_MCA_ess_base_jobid", "12"}})).empty());
  for (const Variables& variables :
       {Variables{}, Variables{{"MASTER_ADDR", "localhost"}}, with(kAddress, {{"MASTER_PORT", ""}}),
        Variables{{"WORLD_SIZE", "2"}}, Variables{{"SLURM_JOB_ID", "31"}}}) {
    CHECK(gang(variables).empty());
  }
  // The name that builds of different ages have to agree on.
  CHECK(gang(kAddress) == "master-76294c0b4c7ef006");
}

TEST_CASE("one rank is no gang, and ranks on several machines are none") {
  CHECK(gang(with(kAddress, {{"WORLD_SIZE", "1"}, {"LOCAL_WORLD_SIZE", "1"}})).empty());
  CHECK(gang(with(kMpi, {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})).empty());
  CHECK(gang(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})).empty());
  for (const Variables& variables :
       {with(kTwo, {{"WORLD_SIZE", "16"}, {"LOCAL_WORLD_SIZE", "8"}}),
        with(kMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), with(kSlurm, {{"SLURM_JOB_NUM_NODES", "2"}}),
        // Only the outer launcher says so.
        with(with(kAddress, {{"WORLD_SIZE", "16"}}),
             {{"SLURM_JOB_ID", "31"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NNODES", "2"}})}) {
    const client::Launch found = launch(variables);
    CHECK(found.several_machines);
    CHECK_FALSE(found.gang);
  }
  // A launch on one of a job's machines.
  CHECK_FALSE(gang(with(with(kSlurm, {{"SLURM_JOB_NUM_NODES", "2"}}), kTwo)).empty());
  // Of a step on one machine of the job's two.
  CHECK_FALSE(gang(with(kSlurm, {{"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_STEP_NUM_NODES", "1"}})).empty());
}

TEST_CASE("a rank that looks up a collective kernel is a member of its launch's gang, on each connection") {
  const Environment environment(kTwo);
  test::FakeRotad rotad;
  rotad.hang_up_on_wants();
  Program program;
  program.monitor.kernel_found("_Z5saxpyifPKfPf");
  program.monitor.kernel_found(kAllReduce);
  program.make_context();
  CHECK(named(rotad, GangWhy::kCollective, 0) == gang(kTwo));
  std::thread thread = program.launcher();
  CHECK(named(rotad, GangWhy::kCollective, 0) == gang(kTwo));
  CHECK(rotad.clients() >= 2);
  rotad.die();
  thread.join();
}

TEST_CASE("rotad is told once, also of a kernel that is looked up later") {
  const Environment environment(kTwo);
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  program.monitor.kernel_found(kAllReduce);
  program.monitor.kernel_found(kAllReduce);
  int times = 0;
  std::thread thread = program.launcher();
  for (protocol::Message message = rotad.next(); message.kind != Kind::kWant; message = rotad.next()) {
    if (message.kind != Kind::kGang) continue;
    ++times;
    CHECK(std::string(message.body.gang.name) == gang(kTwo));
  }
  CHECK(times == 1);
  rotad.grant(1);
  thread.join();
}

TEST_CASE("what ROTA_GANG names counts, whatever the program looks up, unless it names nothing") {
  {
    const Environment environment(with(kTwo, {{"ROTA_GANG", "train:2"}}));
    test::FakeRotad rotad;
    Program program;
    program.monitor.kernel_found(kAllReduce);
    program.make_context();
    CHECK(named(rotad, GangWhy::kNamed, 2) == "train");
  }
  const Environment environment(with(kTwo, {{"ROTA_GANG", "train:none"}}));
  test::FakeRotad rotad;
  Program program;
  program.monitor.kernel_found(kAllReduce);
  program.make_context();
  CHECK(named(rotad, GangWhy::kCollective, 0) == gang(kTwo));
}

TEST_CASE(
    "the environment counts that there is when a kernel is looked up, and a job on several machines has no gang") {
  client::GangEvidence evidence;
  CHECK_FALSE(evidence.kernel_found(kAllReduce));
  const Environment environment(kTwo);  // as a program does that starts its own ranks
  CHECK(evidence.kernel_found(kAllReduce));
  CHECK_FALSE(evidence.kernel_found(kAllReduce));
  CHECK(evidence.take_untold().has_value());
  CHECK_FALSE(evidence.take_untold().has_value());
  evidence.connected();
  CHECK(evidence.take_untold().has_value());

  client::GangEvidence several;
  const Environment more(Variables{{"WORLD_SIZE", "4"}});
  CHECK(several.kernel_found(kAllReduce));
  const auto none = several.take_untold();
  REQUIRE(none);
  CHECK(std::string(none->name).empty());  // rotad is told that it is of none
}

TEST_CASE("the gang of a `rota run` gives way to that of a launch that comes later, and is not named again") {
  client::GangEvidence evidence("1234-5678");
  CHECK(evidence.memory_shared());
  CHECK_FALSE(evidence.memory_shared());
  REQUIRE(evidence.take_untold());
  const Environment environment(kTwo);
  CHECK(evidence.kernel_found(kAllReduce));
  CHECK_FALSE(evidence.memory_shared());
  for (int connection = 0; connection < 2; ++connection) {
    const auto gang = evidence.take_untold();
    REQUIRE(gang);
    CHECK(gang->why == GangWhy::kCollective);
    CHECK(std::string(gang->name) == ::gang(kTwo));
    CHECK_FALSE(evidence.take_untold());
    evidence.connected();
  }
}

TEST_CASE("ranks of one launch that share memory with other processes are a gang, and others are none") {
  client::GangEvidence alone;
  CHECK_FALSE(alone.memory_shared());
  const Environment environment(kTwo);
  client::GangEvidence evidence;
  CHECK(evidence.memory_shared());
  CHECK_FALSE(evidence.kernel_found(kAllReduce));
  const auto gang = evidence.take_untold();
  REQUIRE(gang);
  CHECK(gang->why == GangWhy::kMemory);
  CHECK(std::string(gang->name) == ::gang(kTwo));
}

TEST_CASE("processes of one `rota run` that share memory are a gang, and collective kernels alone make none there") {
  client::GangEvidence evidence("1234-5678");
  CHECK_FALSE(evidence.kernel_found(kAllReduce));
  CHECK(evidence.memory_shared());
  const auto gang = evidence.take_untold();
  REQUIRE(gang);
  CHECK(gang->why == GangWhy::kMemory);
  CHECK(gang->size == 0);
  const auto name_in = [](const char* session) {
    client::GangEvidence each{session};
    CHECK(each.memory_shared());
    return std::string(each.take_untold().value().name);
  };
  CHECK(name_in("1234-5678") == gang->name);
  CHECK(name_in("1234-5679") != gang->name);
  const Environment environment(kTwo);  // a launcher knows better who belongs together
  CHECK(name_in("1234-5678") == ::gang(kTwo));
}

TEST_CASE("registered host memory is evidence where it is a shared mapping") {
  const auto mapping = [](int flags) {
    void* const memory = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return std::unique_ptr<char, void (*)(char*)>(static_cast<char*>(memory), [](char* each) { munmap(each, 8192); });
  };
  const auto shared = mapping(MAP_SHARED);
  const auto own = mapping(MAP_PRIVATE);
  const auto found = [](const char* address) { return mapping_at(reinterpret_cast<std::uintptr_t>(address)); };
  REQUIRE((found(shared.get()) && found(shared.get() + 8191) && found(own.get())));
  CHECK(found(shared.get())->shared);
  CHECK(found(shared.get() + 8191)->shared);
  CHECK_FALSE(found(own.get())->shared);
  CHECK_FALSE(found(nullptr));
  client::GangEvidence alone;
  CHECK_FALSE(alone.host_registered(shared.get()));
  const Environment environment(kTwo);
  client::GangEvidence evidence;
  CHECK_FALSE(evidence.host_registered(own.get()));
  CHECK(evidence.host_registered(shared.get()));
  CHECK_FALSE(evidence.host_registered(shared.get()));
}

TEST_CASE("a rank that registers private memory again and again does not look for ever whether it is shared") {
  const Environment environment(kTwo);
  client::GangEvidence evidence;
  const int local = 0;
  const auto per_call = [&] {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) CHECK_FALSE(evidence.host_registered(&local));
    return (std::chrono::steady_clock::now() - begin) / 100;
  };
  // The mappings of this process take some microseconds to look through, and only so many looks.
  CHECK(test::eventually([&] { return per_call() < 2us; }));
}
