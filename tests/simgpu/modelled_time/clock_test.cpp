// The virtual clock by itself.
#include "tools/simgpu/state/clock.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

using namespace rota::sim;

namespace {

// A thread as a stream has it.
class Participant {
 public:
  Participant(Clock& clock, const std::function<void()>& work) : clock_(clock) {
    uint64_t number = clock.enlist();
    thread_ = std::thread([this, number, work] {
      clock_.enter(number);
      work();
      over_ = true;
      clock_.leave();
    });
  }
  void join() {
    clock_.wait([this] { return over_.load(); });
    thread_.join();
  }

 private:
  Clock& clock_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("virtual time stops while any thread can proceed, and jumps to the earliest sleeper") {
  auto clock = make_virtual_clock();
  std::vector<int64_t> woken;  // one thread runs at a time: no lock
  int64_t start = clock->now();
  std::thread starter([&] {
    clock->call(0);
    Participant late(*clock, [&] {
      clock->sleep_until(start + 3'000'000'000'000);
      woken.push_back(clock->now() - start);
    });
    Participant early(*clock, [&] {
      for (int64_t step = 1; step <= 3; ++step) {
        clock->sleep_until(start + step * 1'000'000'000'000);
        woken.push_back(clock->now() - start);
      }
    });
    late.join();
    early.join();
  });
  starter.join();
  CHECK(woken == std::vector<int64_t>{1'000'000'000'000, 2'000'000'000'000, 3'000'000'000'000, 3'000'000'000'000});
}

TEST_CASE("a call of the program takes its time, and everything that is due before runs first") {
  auto clock = make_virtual_clock();
  std::vector<int> order;
  std::thread program([&] {
    clock->call(100);
    int64_t start = clock->now();
    Participant stream(*clock, [&] {
      clock->sleep_until(start + 50);
      order.push_back(1);
      clock->sleep_until(start + 200);
      order.push_back(3);
    });
    clock->call(100);
    order.push_back(2);
    clock->call(100);  // the same time as the stream's: the stream comes first
    order.push_back(4);
    stream.join();
  });
  program.join();
  CHECK(order == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("a program that spins or blocks outside of the driver does not stop virtual time") {
  auto clock = make_virtual_clock();
  std::atomic<int> flag{0};
  std::thread program([&] {
    clock->call(1);
    clock->returned();
    int64_t start = clock->now();
    Participant stream(*clock, [&] {
      clock->sleep_until(start + 1'000'000);
      flag = 1;
      clock->wait([&] { return flag.load() == 2; });
      flag = 3;
      flag.notify_all();
    });
    while (flag.load() == 0) {
    }
    flag = 2;      // a store that the clock does not see
    flag.wait(2);  // asleep, not calling
    CHECK(flag.load() == 3);
    stream.join();
  });
  program.join();
}

TEST_CASE("the driver's code keeps its turn while the machine lets it wait, the program's does not") {
  auto clock = make_virtual_clock();
  auto asleep_for = [&](bool in_driver) {
    int64_t passed = 0;
    std::thread program([&] {
      clock->call(1);
      if (!in_driver) clock->returned();
      int64_t start = clock->now();
      std::atomic<bool> over{false};
      Participant stream(*clock, [&] {
        clock->sleep_until(start + 1'000'000);
        over = true;
      });
      // In the driver: longer than the watchdog lets a program sleep. In the program: until the other one had the turn.
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      while (!in_driver && !over) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      passed = clock->now() - start;
      stream.join();
    });
    program.join();
    return passed;
  };
  CHECK(asleep_for(true) == 0);
  CHECK(asleep_for(false) == 1'000'000);
}

TEST_CASE("threads that come and go, and threads that wait for each other, all get their turn") {
  auto clock = make_virtual_clock();
  std::atomic<int> done{0};
  std::vector<std::thread> programs;
  for (int number = 0; number < 8; ++number) {
    programs.emplace_back([&, number] {
      for (int round = 0; round < 50; ++round) {
        clock->call(240);
        int64_t until = clock->now() + 1000 * (number + 1);
        Participant stream(*clock, [&] { clock->sleep_until(until); });
        stream.join();
        ++done;
      }
    });
  }
  for (std::thread& program : programs) program.join();
  CHECK(done == 400);
}
