// Which accounts a client is charged to, with the files of a made-up machine.
#include "scheduler/server/limits.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/unit/scheduler/machine.h"

namespace rota::server {
namespace {

using scheduler::Limits;
using scheduler::Quota;

struct Machine : test::Machine {
  Machine() { file("/proc/meminfo", "MemAvailable:   1000 kB\n"); }
};

std::optional<Limits> limits_of(const std::vector<Quota::Membership>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &Quota::Membership::name);
  return found == all.end() ? std::nullopt : std::optional(found->limits);
}

Quota::Account account(const Quota& quota, const std::string& name) {
  std::optional<Quota::Account> found;
  quota.for_each_account([&](const std::string&, const Quota::Account& one) {
    if (one.name == name) found = one;
  });
  REQUIRE(found);
  return *found;
}

constexpr scheduler::Bytes kAvailable = scheduler::Bytes{1000} << 10;
constexpr pid_t kPid = 4711;

}  // namespace

TEST_CASE("without limits a client is charged to the host alone") {
  Machine machine;
  const LimitBook book({}, machine.root);
  const auto all = book.memberships(1, kPid, 54321);
  CHECK(all.size() == 1);
  CHECK(limits_of(all, "the host"));
}

TEST_CASE("processes, users and cgroups have the limits of the configuration") {
  Machine machine;
  machine.file("/proc/4711/cgroup", "0::/jobs/one\n");
  LimitSettings settings;
  settings.process.device = 10;
  settings.user.device = 20;
  settings.users["1001"].device = 30;
  settings.users["root"].device = 40;
  settings.cgroups["/jobs"].device = 50;
  settings.cgroups["/job"].device = 60;
  const LimitBook book(settings, machine.root);
  const auto all = book.memberships(1, kPid, 54321);
  CHECK(limits_of(all, "process 4711") == Limits{.device = 10});
  CHECK(limits_of(all, "user 54321") == Limits{.device = 20});
  CHECK(limits_of(all, "cgroup /jobs") == Limits{.device = 50});
  CHECK_FALSE(limits_of(all, "cgroup /job"));
  CHECK(limits_of(book.memberships(1, kPid, 1001), "user 1001") == Limits{.device = 30});
  CHECK(limits_of(book.memberships(1, kPid, 0), "user root") == Limits{.device = 40});
}

TEST_CASE("a session has its own limit or the configuration's, whichever is lower, and is its user's") {
  LimitSettings settings;
  settings.session.device = 100;
  const LimitBook book(settings);
  protocol::Session session{};
  std::strcpy(session.id, "one");
  session.device_bytes = 200;
  session.host_bytes = 5;
  CHECK(book.membership(session, 7).limits == Limits{.device = 100, .host = 5});
  CHECK(book.membership(session, 7).key != book.membership(session, 8).key);
}

TEST_CASE("what may lie in the host's memory is most of what the machine and the cgroup have left") {
  Machine machine;
  machine.file("/proc/4711/cgroup", "0::/pods/one\n");
  machine.file("/sys/fs/cgroup/pods/memory.max", "5000\n");
  machine.file("/sys/fs/cgroup/pods/memory.current", "1000\n");
  machine.file("/sys/fs/cgroup/pods/one/memory.max", "max\n");
  machine.file("/sys/fs/cgroup/pods/one/memory.current", "500\n");
  LimitBook book({}, machine.root);
  Quota quota;
  quota.join(1, book.memberships(1, kPid, 54321));
  quota.add_gpu(1, 0, 100'000, 0);
  book.follow_host(quota);
  CHECK(account(quota, "the host").limits.host == kAvailable / 10 * 9);
  CHECK(account(quota, "cgroup /pods").limits.host == 3600);

  SECTION("and no more than the configuration says") {
    LimitSettings settings;
    settings.host_budget = 77;
    LimitBook(settings, machine.root).follow_host(quota);
    CHECK(account(quota, "the host").limits.host == 77);
  }
  SECTION("while something is reserved there it grows to what is left, since what has been moved out is in use") {
    using namespace std::chrono_literals;
    const auto outcome = quota.reserve(1, 0, 1, {101'000, 101'000}, 1s);  // 1000 bytes beyond the GPU
    REQUIRE(outcome.answers.at(0).granted);
    machine.file("/sys/fs/cgroup/pods/memory.current", "2000\n");  // these, moved out
    book.follow_host(quota);
    CHECK(account(quota, "cgroup /pods").limits.host == 3600);
    machine.file("/sys/fs/cgroup/pods/memory.current", "1500\n");
    book.follow_host(quota);
    CHECK(account(quota, "cgroup /pods").limits.host == 3600);
    machine.file("/sys/fs/cgroup/pods/memory.current", "0\n");  // others have left
    book.follow_host(quota);
    CHECK(account(quota, "cgroup /pods").limits.host == 4500);
    machine.file("/sys/fs/cgroup/pods/memory.current", "4000\n");  // another program's
    book.follow_host(quota);
    CHECK(account(quota, "cgroup /pods").limits.host == 1900);
    quota.leave(1, 1s);
  }
}

}  // namespace rota::server
