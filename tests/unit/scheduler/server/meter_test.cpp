// The thread that queries NVML for rotad, with a slow NVML.
#include "scheduler/server/meter.h"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <mutex>

namespace rota::server {
namespace {

// A GPU's.
Uuid uuid(std::uint8_t number) {
  Uuid id{};
  id.bytes[0] = number;
  return id;
}

TEST_CASE("a meter answers one question at a time, the latest of those that wait, and none once it has gone") {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    int open = 0;     // how many reads may end
    int reading = 0;  // how many have begun
    std::vector<std::size_t> answers;
    bool closed = false;
  };
  const auto gate = std::make_shared<Gate>();
  auto meter = std::make_unique<Meter>(
      [gate](const std::vector<Uuid>& gpus) {
        std::unique_lock lock(gate->mutex);
        if (gpus.empty()) gate->closed = true;
        if (gpus.empty()) return Meter::Answer{};
        ++gate->reading;
        gate->changed.notify_all();
        gate->changed.wait(lock, [&] { return gate->open > 0; });
        --gate->open;
        Meter::Answer answer;
        answer.gpus.resize(gpus.size());
        return answer;
      },
      [gate](const Meter::Answer& answer) {
        const std::lock_guard lock(gate->mutex);
        gate->answers.push_back(answer.gpus.size());
        gate->changed.notify_all();
      });
  const auto read_begins = [&](int number) {
    std::unique_lock lock(gate->mutex);
    REQUIRE(gate->changed.wait_for(lock, std::chrono::seconds(20), [&] { return gate->reading == number; }));
  };
  const auto let_one_end = [&] {
    const std::lock_guard lock(gate->mutex);
    ++gate->open;
    gate->changed.notify_all();
  };
  REQUIRE(meter->ask({uuid(1)}));
  read_begins(1);
  REQUIRE(meter->ask({uuid(1), uuid(2)}));
  REQUIRE(meter->ask({uuid(1), uuid(2), uuid(3)}));
  let_one_end();
  read_begins(2);
  let_one_end();
  {
    std::unique_lock lock(gate->mutex);
    REQUIRE(gate->changed.wait_for(lock, std::chrono::seconds(20), [&] { return gate->answers.size() == 2; }));
    CHECK(gate->answers == std::vector<std::size_t>{1, 3});
  }
  REQUIRE(meter->ask({uuid(1)}));
  read_begins(3);
  SECTION("it ends with what it had opened closed") {
    let_one_end();
    meter.reset();
    const std::lock_guard lock(gate->mutex);
    CHECK(gate->closed);
  }
  SECTION("a thread that is stuck is left behind") {
    meter.reset();  // after two seconds
    const std::lock_guard lock(gate->mutex);
    CHECK(gate->answers.size() == 2);
    gate->open = 1;
    gate->changed.notify_all();
  }
}

}  // namespace
}  // namespace rota::server
