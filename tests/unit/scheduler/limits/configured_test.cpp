// Limits of a configuration that is read again, for those who are there.
#include <catch2/catch.hpp>

#include "tests/unit/scheduler/limits/limits_beside_books.h"

namespace rota::scheduler {

using namespace std::chrono_literals;

namespace {

constexpr Bytes kGpu = 6400;

Quota::Membership account(const std::string& name, Limits limits) {
  return {name, name, limits};
}

}  // namespace

TEST_CASE("other limits apply to those who are there, and grant what waits") {
  LimitsBesideBooks quota;
  auto user = account("user", {.device = 1000});
  for (const ClientId id : {1U, 2U}) {
    quota.join(id, {user});
    quota.add_gpu(id, 0, kGpu, 0);
  }
  REQUIRE(quota.reserve(1, 0, 1, {.device = 600}, 1s).answers.at(0).granted);
  REQUIRE(quota.reserve(2, 0, 1, {.device = 100}, 1s).answers.at(0).granted);
  CHECK(quota.reserve(1, 0, 2, {.device = 1100}, 2s).answers.empty());  // the other may have freed something
  user.limits.device = 1200;
  quota.configure(user);
  const Quota::Outcome outcome = quota.tick(2s);
  REQUIRE(outcome.answers.size() == 1);
  CHECK(outcome.answers[0].granted);
  CHECK(outcome.answers[0].number == 2);
  user.limits.device = 500;
  user.remedy.device = "ask for more";
  quota.configure(user);
  CHECK(quota.limit(1) == 500);
  CHECK(quota.left(1, 0) == 0);
  quota.reserve(1, 0, 3, {.device = 1101}, 3s);
  const Quota::Outcome refused = quota.tick(4s);
  REQUIRE(refused.answers.size() == 1);
  CHECK_FALSE(refused.answers[0].granted);
  CHECK(refused.answers[0].reserved.device == 1100);  // it keeps what it has
  CHECK_THAT(refused.answers[0].why, Catch::EndsWith("ask for more"));
  quota.configure(account("nobody", {.device = 1}));
  CHECK(quota.limit(1) == 500);
}

TEST_CASE("a limit on the host that has been lowered by what is left does not rise with the configuration alone") {
  LimitsBesideBooks quota;
  auto host = account("host", {.host = 1000});
  host.shared = true;
  quota.join(1, {host});
  const auto now = [&] { return quota.account_after("")->second; };
  quota.set_limits("host", {.host = 700});
  host.limits.host = 2000;
  quota.configure(host);
  CHECK(now().limits.host == 700);
  CHECK(now().host_budget == 2000);
  host.limits.host = 300;
  quota.configure(host);
  CHECK(now().limits.host == 300);
}

}  // namespace rota::scheduler
