// What `rota top` makes of rotad's answers, one after another.
#include "tools/rota/top/view.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "scheduler/base/uuid.h"

namespace rota::top {
namespace {

using namespace std::chrono_literals;
using protocol::MemoryMode;

const auto kBegin = std::chrono::steady_clock::time_point() + 1h;

tool::Status one_program() {
  tool::Status status;
  status.daemon.pid = 5;
  protocol::GpuRow gpu{};
  gpu.number = 3;
  std::strcpy(gpu.name, "NVIDIA H200");
  gpu.clients = 1;
  gpu.total_bytes = 1 << 30;
  gpu.used_bytes = 1 << 20;
  status.gpus.push_back(gpu);
  protocol::ProgramRow program{};
  program.client = 9;
  program.pid = 77;
  std::strcpy(program.name, "train");
  status.programs.push_back(program);
  status.commands.push_back({"alice", "train --fast"});
  protocol::TaskRow task{};
  task.client = 9;
  task.mode = MemoryMode::kSwap;
  task.device_bytes = 100;
  task.resident_bytes = 40;
  task.holds = 1;
  task.since_ns = 5;
  status.tasks.push_back(task);
  return status;
}

TEST_CASE("what swaps says what is on the GPU and what is out, what the driver moves does not") {
  Viewer viewer;
  tool::Status status = one_program();
  View view = viewer.view({status, {}, ""}, kBegin);
  REQUIRE(view.rows.size() == 1);
  CHECK(view.rows[0].gpu == 3);
  CHECK(view.rows[0].user == "alice");
  CHECK(view.rows[0].command == "train --fast");
  CHECK(view.rows[0].doing == Doing::kHolds);
  CHECK(view.rows[0].resident_bytes == 40);
  CHECK(view.rows[0].out_bytes == 60);
  CHECK_FALSE(view.rows[0].held_part);
  status.tasks[0].mode = MemoryMode::kUnified;
  CHECK_FALSE(viewer.view({status, {}, ""}, kBegin + 1s).rows[0].out_bytes);
  status.tasks[0].mode = MemoryMode::kNativeChosen;
  CHECK(viewer.view({status, {}, ""}, kBegin + 2s).rows[0].out_bytes == 0);
}

TEST_CASE("rates are of the time since the answer before, and of the same rotad only") {
  Viewer viewer;
  tool::Status status = one_program();
  viewer.view({status, {}, ""}, kBegin);
  status.tasks[0].held_ns = 500'000'000;
  status.programs[0].moves.out_bytes = 3000;
  status.programs[0].moves.in_bytes = 1000;
  const View later = viewer.view({status, {}, ""}, kBegin + 2s);
  CHECK(later.rows[0].held_part == Approx(0.25));
  CHECK(later.rows[0].moved_rate == Approx(2000));
  CHECK(later.rows[0].moved_bytes == 4000);
  // Another rotad counts from the beginning.
  status.daemon.pid = 6;
  CHECK_FALSE(viewer.view({status, {}, ""}, kBegin + 3s).rows[0].held_part);
  // One that came back after it could not be asked does too.
  viewer.view({std::nullopt, {}, "no rotad is running"}, kBegin + 4s);
  CHECK_FALSE(viewer.view({status, {}, ""}, kBegin + 5s).rows[0].held_part);
}

TEST_CASE("all GPUs of the machine are there in nvidia-smi's order, also where there is no rotad") {
  Viewer viewer;
  tool::Status status = one_program();
  const std::string served = uuid_text(status.gpus[0].uuid);
  status.machine = {{.number = 0, .uuid = "GPU-a", .name = "NVIDIA H200", .busy_percent = 7},
                    {.number = 3, .uuid = served, .name = "NVIDIA H200", .used_bytes = 5, .busy_percent = 90}};
  status.elsewhere = {{.gpu = "GPU-a", .user = "bob"}};
  const View view = viewer.view({status, status.machine, ""}, kBegin);
  REQUIRE(view.gpus.size() == 2);
  CHECK(view.gpus[0].busy_percent == 7U);
  CHECK(view.gpus[0].note.find("bob") != std::string::npos);
  CHECK(view.gpus[1].busy_percent == 90U);
  CHECK(view.gpus[1].used_bytes == 5);
  CHECK(view.gpus[1].programs == 1);
  CHECK(view.notices.empty());
  const View none = viewer.view({std::nullopt, status.machine, "no rotad is running"}, kBegin);
  CHECK(none.gpus.size() == 2);
  CHECK(none.problem == "no rotad is running");
}

}  // namespace
}  // namespace rota::top
