// What `rota status` makes of the rows about how programs share a GPU.
#include "tools/rota/status/sharing.h"

#include <catch2/catch.hpp>

#include "scheduler/base/uuid.h"
#include "scheduler/core/event.h"

namespace rota::tool {
namespace {

using protocol::Mode;
using protocol::SharingReason;
using scheduler::Candidate;

protocol::GpuRow shared_gpu(SharingReason reason, Candidate candidate) {
  protocol::GpuRow gpu{};
  gpu.reason = reason;
  gpu.candidate = static_cast<std::uint32_t>(candidate);
  gpu.clients = gpu.active = 2;
  gpu.turn_ns = 50'000'000;
  gpu.switch_ns = 2'500'000;
  return gpu;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const protocol::ProgramRow kProgram{};

Status one_client(const protocol::GpuRow& gpu, const protocol::TaskRow& use) {
  Status status{};
  status.gpus.push_back(gpu);
  status.programs.push_back(kProgram);
  status.tasks.push_back(use);
  return status;
}

nlohmann::json on_gpu(const nlohmann::json& use) {
  return use["gpus"].front();
}

TEST_CASE("a trial is shown as the reason, with its figure, the turns and what a hand-over costs") {
  protocol::GpuRow gpu = shared_gpu(SharingReason::kTrial, Candidate::kTurns);
  gpu.trial_permille = 921;
  CHECK(sharing_text(gpu) ==
        "2 programs active: in turns, each of 50 ms: the other way gave 0.92 of what turns give; a hand-over costs 2.5 "
        "ms");
  gpu.candidate = static_cast<std::uint32_t>(Candidate::kTogether);
  gpu.trial_permille = 1310;
  CHECK(says(sharing_text(gpu), "all at once: it gave 1.31 of what turns give"));
  CHECK(sharing_json(gpu)["trial"] == 1.31);
  CHECK(sharing_json(gpu)["reason"] == "trial");
}

TEST_CASE("what is not known is not shown as zero") {
  protocol::GpuRow gpu = shared_gpu(SharingReason::kMeasuring, Candidate::kTurns);
  gpu.switch_ns = 0;
  CHECK(says(sharing_text(gpu), "the cost of a hand-over is not known yet"));
  CHECK(sharing_json(gpu)["switch_ns"].is_null());
  CHECK(sharing_json(gpu)["trial"].is_null());
  const protocol::TaskRow nothing{};
  CHECK(use_text(&nothing, gpu) ==
        "how busy it keeps the GPU is not known yet, its rate of calls alone is not known yet");
  const auto json = use_json(one_client(gpu, nothing), kProgram);
  CHECK(on_gpu(json)["busy"].is_null());
  CHECK(on_gpu(json)["calls_per_second"].is_null());
  protocol::ProgramRow other{};
  other.client = 1;
  CHECK(use_json(one_client(gpu, nothing), other).is_null());
  CHECK(use_text(nullptr, gpu).empty());
}

TEST_CASE("a share of zero that was measured is shown as zero") {
  const protocol::GpuRow gpu = shared_gpu(SharingReason::kFewContend, Candidate::kTurns);
  protocol::TaskRow use{};
  use.known = protocol::kKnowsBusy | protocol::kKnowsCalls;
  use.calls_per_1000s = 1'234'500;
  CHECK(use_text(&use, gpu) == "keeps the GPU busy 0% of its own time, 1234 calls/s alone");
  use.calls_per_1000s = 12'120;
  CHECK(says(use_text(&use, gpu), ", 12.1 calls/s alone"));
  use.calls_per_1000s = 1'234'500;
  const auto json = use_json(one_client(gpu, use), kProgram);
  CHECK(on_gpu(json)["busy"] == 0.0);
  CHECK(on_gpu(json)["calls_per_second"] == 1234.5);
}

TEST_CASE("a program that runs at any time is shown so on the GPU where it does") {
  protocol::GpuRow gpu = shared_gpu(SharingReason::kTrial, Candidate::kLightOpen);
  protocol::TaskRow use{};
  use.light = 1;
  use.holds = 1;
  use.waited_ns = 1'500'000'000;
  protocol::ProgramRow program{};
  program.held_ns = 7;
  program.waited_ns = 2'500'000'000;
  CHECK(says(use_text(&use, gpu), "runs at any time, has waited 1.5 s in all"));
  Status status = one_client(gpu, use);
  // And of another GPU it says otherwise.
  gpu.index = 1;
  gpu.uuid.bytes[0] = 1;
  status.gpus.push_back(gpu);
  use.gpu = 1;
  use.light = 0;
  use.holds = 0;
  use.waits = 1;
  status.tasks.push_back(use);
  const auto json = use_json(status, program);
  CHECK(json["held_ns"] == 7);
  CHECK(json["waited_ns"] == 2'500'000'000);
  REQUIRE(json["gpus"].size() == 2);
  CHECK(json["gpus"][uuid_text(status.gpus[0].uuid)]["runs_at_any_time"] == true);
  CHECK(json["gpus"][uuid_text(status.gpus[1].uuid)]["runs_at_any_time"] == false);
  CHECK(json["gpus"][uuid_text(status.gpus[0].uuid)]["holds"] == true);
  CHECK(json["gpus"][uuid_text(status.gpus[0].uuid)]["waits"] == false);
  CHECK(json["gpus"][uuid_text(status.gpus[1].uuid)]["holds"] == false);
  CHECK(json["gpus"][uuid_text(status.gpus[1].uuid)]["waits"] == true);
}

TEST_CASE("programs that have not collided, or did not fit a moment ago, are said to run at once for that reason") {
  protocol::GpuRow gpu = shared_gpu(SharingReason::kNoCollision, Candidate::kTogether);
  CHECK(says(sharing_text(gpu), "all at once: no two of them have kept the GPU busy at the same time so far"));
  CHECK(sharing_json(gpu)["reason"] == "no collision");
  gpu.reason = SharingReason::kMemoryLately;
  CHECK(says(sharing_text(gpu), "all at once: a moment ago their memory did not fit together"));
}

TEST_CASE("modes and memory are the reason shown where nothing is measured, whatever the candidate would be") {
  protocol::GpuRow gpu = shared_gpu(SharingReason::kMode, Candidate::kTogether);
  gpu.active = 0;
  gpu.mode = Mode::kExclusive;
  CHECK(says(sharing_text(gpu), "in turns, each of 50 ms: rotad is in exclusive mode"));
  CHECK(sharing_json(gpu)["candidate"] == "in turns");
  gpu.mode = Mode::kConcurrent;
  CHECK(sharing_text(gpu) == "all at once: rotad is in concurrent mode");
  gpu.mode = Mode::kAutomatic;
  gpu.reason = SharingReason::kMemory;
  CHECK(says(sharing_text(gpu), "in turns, each of 50 ms: their memory does not fit together"));
  const protocol::TaskRow use{};
  CHECK(use_text(&use, gpu).empty());
  gpu.clients = 1;
  CHECK(sharing_text(gpu).empty());
}

TEST_CASE("a reason of a newer rotad is not guessed at") {
  protocol::GpuRow gpu = shared_gpu(SharingReason::kUnknown, Candidate::kTurns);
  CHECK(sharing_json(gpu)["reason"].is_null());
  gpu.reason = static_cast<SharingReason>(77);
  gpu.candidate = 99;
  CHECK(says(sharing_text(gpu), "unknown"));
  CHECK(sharing_json(gpu)["reason"].is_null());
}

TEST_CASE("what cannot be evicted is shown with the reasons, if rotad gives any") {
  protocol::TaskRow use{};
  use.fixed_bytes = 10 << 20;
  CHECK(staying_text(&use, false) == ", 10 MiB cannot be evicted");
  use.pinned_bytes = 7 << 20;
  use.pinned_by[static_cast<std::size_t>(protocol::Pin::kDmaBuf)] = 2 << 20;
  use.pinned_by[static_cast<std::size_t>(protocol::Pin::kIpc)] = 1 << 20;
  use.pinned_all = protocol::PinAll::kReached;
  CHECK(staying_text(&use, false) ==
        ", 10 MiB cannot be evicted (2 MiB exported as a dma-buf; 1 MiB opened by IPC handles; 4 MiB: a device, a "
        "library or a debugger may reach all of it)");
  const nlohmann::json all = on_gpu(
      use_json(one_client(shared_gpu(SharingReason::kMemory, Candidate::kTurns), use), kProgram))["pinned_bytes"];
  CHECK(all["dma_buf"] == 2 << 20);
  CHECK(all["process"] == 4 << 20);
  CHECK(all["process_reason"] == "reached_from_outside");
  use.pinned_all = static_cast<protocol::PinAll>(250);  // of a later rotad
  CHECK(says(staying_text(&use, false), "1 MiB opened by IPC handles)"));
}

}  // namespace
}  // namespace rota::tool
