// What a rig's tests may have of each GPU, by what rotad says of others.
#include "tools/rota/ci/room.h"

#include <catch2/catch.hpp>

#include "scheduler/base/uuid.h"

namespace {

using namespace rota;
using namespace rota::ci;

constexpr std::int32_t kOwn = 10;
constexpr std::int32_t kOther = 20;

Uuid uuid_of(unsigned char number) {
  Uuid uuid{};
  uuid.bytes[0] = number;
  return uuid;
}

std::string name_of(unsigned char number) {
  return uuid_text(uuid_of(number));
}

protocol::GpuRow gpu(std::uint32_t index, std::uint64_t outside) {
  protocol::GpuRow made{};
  made.uuid = uuid_of(static_cast<unsigned char>(index + 1));
  made.index = index;
  made.outside_bytes = outside;
  return made;
}

protocol::ProgramRow client(std::uint32_t number, std::int32_t pid) {
  protocol::ProgramRow made{};
  made.client = number;
  made.pid = pid;
  return made;
}

protocol::TaskRow task(std::uint32_t client, std::uint32_t gpu, std::uint64_t bytes, std::uint64_t context) {
  protocol::TaskRow made{};
  made.client = client;
  made.gpu = gpu;
  made.device_bytes = bytes;
  made.context_bytes = context;
  return made;
}

const Load kTotals = {{name_of(1), 1000}, {name_of(2), 1000}, {name_of(9), 1000}};

Load room(std::uint64_t first, std::uint64_t second, std::uint64_t unknown = 1000) {
  return {{name_of(1), first}, {name_of(2), second}, {name_of(9), unknown}};
}

}  // namespace

TEST_CASE("what others have counts on the GPU that they use, and the rig's own processes nowhere") {
  tool::Status status;
  status.gpus = {gpu(0, 50), gpu(1, 0)};
  status.programs = {client(1, kOwn), client(2, kOther)};
  status.tasks = {task(1, 0, 400, 10), task(2, 1, 300, 20)};
  CHECK(room_of(kTotals, status, {kOwn}) == room(950, 680));
}

TEST_CASE("what a program has on several GPUs counts on each where it is") {
  tool::Status status;
  status.gpus = {gpu(0, 0), gpu(1, 0)};
  status.programs = {client(2, kOther)};
  status.tasks = {task(2, 0, 200, 0), task(2, 1, 100, 0)};
  CHECK(room_of(kTotals, status, {}) == room(800, 900));
}

TEST_CASE("a GPU on which others have more than fits leaves no memory") {
  tool::Status status;
  status.gpus = {gpu(0, 600), gpu(1, 0)};
  status.programs = {client(2, kOther)};
  status.tasks = {task(2, 0, 600, 0)};
  CHECK(room_of(kTotals, status, {}) == room(0, 1000));
}

TEST_CASE("memory is evicted in every mode in which rota or the driver moves it, and in no other") {
  using protocol::MemoryMode;
  const std::set<MemoryMode> movable{MemoryMode::kUnified,
                                     MemoryMode::kSwap,
                                     MemoryMode::kUnifiedMps,
                                     MemoryMode::kUnifiedMig,
                                     MemoryMode::kUnifiedConfidential,
                                     MemoryMode::kUnifiedCoherent,
                                     MemoryMode::kUnifiedLarger};
  tool::Status status;
  status.gpus = {gpu(0, 0)};
  status.programs = {client(1, kOwn)};
  status.tasks = {task(1, 0, 0, 0)};
  for (std::uint8_t number = 0; number <= protocol::kLastMemoryMode; ++number) {
    const auto mode = static_cast<MemoryMode>(number);
    INFO("mode " << int{number});
    status.tasks[0].mode = mode;
    CHECK(leaving_of(status).contains(kOwn) == movable.contains(mode));
  }
}

TEST_CASE("of a program whose memory can be evicted only its contexts stay on the GPU") {
  tool::Status status;
  status.gpus = {gpu(0, 0), gpu(1, 0)};
  status.programs = {client(1, kOwn), client(2, kOther)};
  status.tasks = {task(1, 0, 0, 0), task(1, 1, 0, 0), task(2, 1, 0, 0)};
  status.tasks[0].mode = protocol::MemoryMode::kSwap;
  status.tasks[1].mode = protocol::MemoryMode::kNativeShared;
  status.tasks[2].mode = protocol::MemoryMode::kUnified;
  const auto leaving = leaving_of(status);
  CHECK(leaving.at(kOwn) == std::set{name_of(1)});
  CHECK(leaving.at(kOther) == std::set{name_of(2)});
  report::ProcessAccount process;
  for (const unsigned char number : {1, 2}) {
    report::GpuRecord record;
    record.uuid = name_of(number);
    record.used_bytes = 300;
    record.peak_bytes = 400;
    record.reserved_peak_bytes = 450;
    process.gpus.push_back(record);
  }
  Load sum;
  Load staying;
  add_used(sum, staying, process, leaving.at(kOwn));
  CHECK(sum == Load{{name_of(1), 350}, {name_of(2), 350}});
  CHECK(staying == Load{{name_of(1), 50}, {name_of(2), 350}});
}
