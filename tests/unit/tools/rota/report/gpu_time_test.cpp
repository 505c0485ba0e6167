// GPU time of processes that were busy on one GPU at the same time.
#include "tools/rota/report/gpu_time.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "account_builder.h"
#include "tools/rota/report/outputs.h"

namespace rota::report {
namespace {

constexpr auto kSecondNs = static_cast<std::uint64_t>(kSecond);

// Busy in each second from `began` on, for that part of it.
AccountBuilder busy(std::uint32_t number, std::int64_t began, const std::vector<double>& seconds,
                    unsigned char gpu = 1) {
  AccountBuilder account(4'000'000 + number, number);
  account.began(began);
  account.header().gpus[0].uuid[0] = gpu;
  double sum = 0;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    account.header().timeline[i].busy_us = static_cast<std::uint32_t>(seconds[i] * 1e6);
    sum += seconds[i];
  }
  account.header().busy_ns = static_cast<std::uint64_t>(sum * 1e9);
  account.exited(static_cast<std::int64_t>(seconds.size()));
  return account;
}

struct Job : ScratchFolder {
  void has(AccountBuilder account) const { account.write(path() / kProcessFolder); }
  Model model() const {
    write(kSessionFile, R"({"command": ["make", "check"], "exit_code": 0})");
    auto session = read_session(path().string());
    REQUIRE(session);
    return make_model(std::move(*session));
  }
};

double seconds(std::uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

TEST_CASE("processes that were busy on one GPU at once have no more of it together than passed") {
  const Job job;
  job.has(busy(1, 0, {1, 1, 1, 1}));
  job.has(busy(2, 0, {1, 1, 1, 1}));
  job.has(busy(3, 2, {1, 1, 1}));
  job.has(busy(4, 0, {1, 1, 1, 1}, 2));
  const Model model = job.model();
  CHECK(seconds(model.processes[0].use.gpu_ns) == Approx(2.0 / 2 + 2.0 / 3));
  CHECK(seconds(model.processes[1].use.gpu_ns) == Approx(2.0 / 2 + 2.0 / 3));
  CHECK(seconds(model.processes[3].use.gpu_ns) == Approx(2.0 / 3 + 1));
  CHECK(seconds(model.total.gpu_ns) == Approx(5 + 4));
  CHECK(seconds(model.processes[2].use.gpu_ns) == Approx(4));
  CHECK(model.processes[0].account.timeline.steps.at(0).busy_us == 500'000);
}

TEST_CASE("those that were busy in turns keep what they had") {
  const Job job;
  job.has(busy(1, 0, {0.6, 0.2, 0}));
  job.has(busy(2, 0, {0.4, 0.5, 1}));
  const Model model = job.model();
  CHECK(seconds(model.processes[0].use.gpu_ns) == Approx(0.8));
  CHECK(seconds(model.processes[1].use.gpu_ns) == Approx(1.9));
}

TEST_CASE("a test within a process has its share of the time in which it ran") {
  const Job job;
  AccountBuilder host = busy(1, 0, {1, 1, 1, 1});
  job.has(host);
  job.has(busy(2, 2, {1, 1}));
  const auto line = [](const char* what, const char* test, std::int64_t second, std::uint64_t busy_ns) {
    return nlohmann::json{{"event", what},
                          {"test", test},
                          {"runner", "pytest"},
                          {"attempt", 1},
                          {"time_ns", kBegan + second * kSecond},
                          {"outcome", "passed"},
                          {what, {{"busy_ns", busy_ns}, {"calls", 1}}}}
               .dump() +
           "\n";
  };
  job.write("tests/" + host.name() + ".jsonl", line("begin", "alone", 0, 0) + line("end", "alone", 2, 2 * kSecondNs) +
                                                   line("begin", "shared", 2, 2 * kSecondNs) +
                                                   line("end", "shared", 4, 4 * kSecondNs));
  const Model model = job.model();
  REQUIRE(model.tests.size() == 2);
  CHECK(seconds(model.tests[0].use.gpu_ns) == Approx(2));
  CHECK(seconds(model.tests[1].use.gpu_ns) == Approx(1));
}

TEST_CASE("accounts with times that no process has are divided all the same") {
  const Job job;
  AccountBuilder first = busy(1, 0, {1, 1});
  first.header().timeline_step_ns = 1'000'000'000'000'000;
  first.header().began_realtime_ns = INT64_MIN;
  AccountBuilder second = busy(2, 0, {1, 1});
  second.header().timeline_step_ns = 1;
  second.header().began_realtime_ns = INT64_MAX;
  job.has(first);
  job.has(second);
  CHECK(job.model().total.gpu_ns <= 4 * kSecondNs);
}

}  // namespace
}  // namespace rota::report
