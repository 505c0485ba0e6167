// Which accounts a client is charged to, with the files of a made-up machine.
#include "scheduler/server/limits.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/unit/scheduler/limits/limits_beside_books.h"
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
  for (auto each = quota.account_after(""); each != nullptr; each = quota.account_after(each->first)) {
    if (each->second.name == name) found = each->second;
  }
  REQUIRE(found);
  return *found;
}

constexpr scheduler::Bytes kAvailable = scheduler::Bytes{1000} << 10;
constexpr pid_t kPid = 4711;

}  // namespace

void follow_host(const LimitBook& book, scheduler::Quota& quota) {
  book.follow_host(
      quota, [&](const std::string& account, const scheduler::Limits& limits) { quota.set_limits(account, limits); });
}

TEST_CASE("without limits a client is charged to the host alone") {
  Machine machine;
  const LimitBook book({}, machine.root);
  const auto all = book.memberships(1, kPid, 54321, 54321);
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
  const auto all = book.memberships(1, kPid, 54321, 54321);
  CHECK(limits_of(all, "process 4711") == Limits{.device = 10});
  CHECK(limits_of(all, "user 54321") == Limits{.device = 20});
  CHECK(limits_of(all, "cgroup /jobs") == Limits{.device = 50});
  CHECK_FALSE(limits_of(all, "cgroup /job"));
  CHECK(limits_of(book.memberships(1, kPid, 1001, 1001), "user 1001") == Limits{.device = 30});
  CHECK(limits_of(book.memberships(1, kPid, 0, 0), "user root") == Limits{.device = 40});
}

TEST_CASE("a refusal with the longest numbers, names and remedies fits into its message, remedy included") {
  constexpr scheduler::Bytes kLimit = scheduler::Bytes{1000} << 30;  // "1000.0 GiB": no size has a longer text
  constexpr scheduler::Bytes kWanted = scheduler::Bytes{1023} << 30;
  constexpr Limits kLimits{.device = kLimit, .host = kLimit};
  const std::string deep = "/jobs/" + std::string(300, 'x');
  Machine machine;
  machine.file("/proc/4711/cgroup", "0::" + deep + "\n");
  LimitSettings settings;
  settings.process = settings.session = settings.cgroups[deep] = kLimits;
  settings.users["4294967294"] = kLimits;
  settings.host_budget = kLimit;
  const LimitBook book(settings, machine.root);
  auto all = book.memberships(1, kPid, 4294967294, 4294967294);
  protocol::Session session{};
  std::memset(session.id, 'f', sizeof session.id - 1);
  session.device_bytes = session.host_bytes = UINT64_MAX;
  all.push_back(book.membership(session, 4294967294));
  std::strcpy(session.id, "slurm-");
  std::memset(session.id + 6, '7', sizeof session.id - 7);
  all.push_back(book.membership(session, 4294967294));
  CHECK(all.size() == 6);
  const auto check = [](Quota::Membership membership, bool host) {
    membership.limits = host ? Limits{.host = kLimit} : Limits{.device = kLimit};
    if (membership.name.starts_with("user ")) membership.name = "user " + std::string(32, 'n');
    scheduler::LimitsBesideBooks quota;
    quota.join(1, {membership});
    quota.add_gpu(1, 0, host ? 1 << 20 : protocol::kMaxGpuBytes, 0);
    quota.measured(1, 0, host ? 0 : kLimit, scheduler::Time{1});
    const auto outcome = quota.reserve(1, 0, 1, {.device = kWanted, .movable = kWanted}, scheduler::Time{1});
    REQUIRE(outcome.answers.size() == 1);
    const std::string why = outcome.answers[0].why;
    INFO(why);
    CHECK(why.size() < protocol::kTextLength);
    CHECK(why.ends_with(host ? membership.remedy.host : membership.remedy.device));
    CHECK(why.starts_with(membership.name.substr(0, 4)));
  };
  for (const Quota::Membership& membership : all) {
    check(membership, true);
    if (membership.name != "the host") check(membership, false);
  }
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
  // Whoever is refused is told which of the two to raise.
  CHECK(book.membership(session, 7).remedy.device == "raise gpu in limits.session of rotad.toml");
  CHECK(book.membership(session, 7).remedy.host == "raise `rota run --host-mem`");
  session.device_bytes = 50;
  CHECK(book.membership(session, 7).remedy.device == "raise `rota run --gpu-mem`");
}

TEST_CASE("of a Slurm job the remedy is to ask Slurm for more shards, unless the configuration allows less") {
  LimitSettings settings;
  settings.session.device = 100;
  const LimitBook book(settings);
  protocol::Session session{};
  std::strcpy(session.id, "slurm-4711.0");
  session.device_bytes = 50;
  session.host_bytes = protocol::kUnlimited;
  CHECK(book.membership(session, 7).remedy.device == "ask Slurm for more: `--gres=shard:N`");
  session.device_bytes = 200;
  CHECK(book.membership(session, 7).remedy.device == "raise gpu in limits.session of rotad.toml");
}

TEST_CASE("the remedy for a limit names where it was set") {
  Machine machine;
  machine.file("/proc/4711/cgroup", "0::/jobs/one\n");
  machine.file("/sys/fs/cgroup/jobs/one/memory.max", "5000\n");
  machine.file("/sys/fs/cgroup/jobs/one/memory.current", "500\n");
  LimitSettings settings;
  settings.process.device = 10;
  settings.user.device = 20;
  settings.users["1001"].device = 30;
  settings.cgroups["/jobs"].host = 50;
  settings.cgroups["/"].device = 60;
  const auto remedy = [&](const std::string& name, uid_t uid = 54321) {
    for (const Quota::Membership& each : LimitBook(settings, machine.root).memberships(1, kPid, uid, uid)) {
      if (each.name == name) return each.remedy;
    }
    return Quota::Remedy{"none", "none"};
  };
  CHECK(remedy("process 4711").device == "raise gpu in limits.process of rotad.toml");
  CHECK(remedy("user 54321").device == "raise gpu in limits.user of rotad.toml");
  CHECK(remedy("user 1001", 1001).device == "raise gpu in limits.users of rotad.toml");
  CHECK(remedy("cgroup /jobs").host == "raise host in limits.cgroups of rotad.toml");
  CHECK(remedy("cgroup /").host == "free memory in it, or let programs need less");
  CHECK(remedy("cgroup /jobs/one").host == "free memory in it, or let programs need less");
  CHECK(remedy("the host").host == "free memory of the host, or let programs need less");
  settings.host_budget = 70;
  CHECK(remedy("the host").host == "raise limits.host_memory in rotad.toml, or free host memory");
}

TEST_CASE("what may lie in the host's memory is most of what the machine and the cgroup have left") {
  Machine machine;
  machine.file("/proc/4711/cgroup", "0::/pods/one\n");
  machine.file("/sys/fs/cgroup/pods/memory.max", "5000\n");
  machine.file("/sys/fs/cgroup/pods/memory.current", "1000\n");
  machine.file("/sys/fs/cgroup/pods/one/memory.max", "max\n");
  machine.file("/sys/fs/cgroup/pods/one/memory.current", "500\n");
  LimitBook book({}, machine.root);
  scheduler::LimitsBesideBooks quota;
  quota.join(1, book.memberships(1, kPid, 54321, 54321));
  quota.add_gpu(1, 0, 100'000, 0);
  follow_host(book, quota);
  CHECK(account(quota, "the host").limits.host == kAvailable / 10 * 9);
  CHECK(account(quota, "cgroup /pods").limits.host == 3600);

  SECTION("and no more than the configuration says") {
    LimitSettings settings;
    settings.host_budget = 77;
    follow_host(LimitBook(settings, machine.root), quota);
    CHECK(account(quota, "the host").limits.host == 77);
  }
  SECTION("while something is reserved there it grows to what is left, since what has been evicted is in use") {
    using namespace std::chrono_literals;
    const auto outcome = quota.reserve(1, 0, 1, {101'000, 101'000}, 1s);  // 1000 bytes beyond the GPU
    REQUIRE(outcome.answers.at(0).granted);
    quota.state(1, 0, {101'000, 101'000}, 1, 0, 1s);               // and not what it was granted beyond that
    machine.file("/sys/fs/cgroup/pods/memory.current", "2000\n");  // these 1000 are evicted
    follow_host(book, quota);
    CHECK(account(quota, "cgroup /pods").limits.host == 3600);
    machine.file("/sys/fs/cgroup/pods/memory.current", "1500\n");
    follow_host(book, quota);
    CHECK(account(quota, "cgroup /pods").limits.host == 3600);
    machine.file("/sys/fs/cgroup/pods/memory.current", "0\n");  // others have ended
    follow_host(book, quota);
    CHECK(account(quota, "cgroup /pods").limits.host == 4500);
    machine.file("/sys/fs/cgroup/pods/memory.current", "4000\n");  // another program's
    follow_host(book, quota);
    CHECK(account(quota, "cgroup /pods").limits.host == 1900);
    quota.leave(1, 1s);
  }
  SECTION("and what programs could give back at once counts as left") {
    using namespace std::chrono_literals;
    REQUIRE(quota.reserve(1, 0, 1, {.device = 101'000, .movable = 101'000}, 1s).answers.at(0).granted);
    quota.state(1, 0, {101'000, 101'000}, 1, 0, 1s);
    machine.file("/sys/fs/cgroup/pods/memory.current", "4000\n");
    quota.use_host(1, {.has = 3000, .spare = 2500});
    follow_host(book, quota);
    CHECK(account(quota, "cgroup /pods").limits.host == 3600);  // without them 1900
    quota.leave(1, 1s);
  }
}

TEST_CASE("what programs have on the host for swapping is within configured limits only, whatever is left") {
  Machine machine;
  LimitSettings settings;
  scheduler::LimitsBesideBooks quota;
  const auto share = [&](std::optional<scheduler::Bytes> budget) {
    settings.host_budget = budget;
    const LimitBook book(settings, machine.root);
    quota.join(1, book.memberships(1, kPid, 54321, 54321));
    follow_host(book, quota);
    quota.add_gpu(1, 0, 100'000, 0);
    quota.confirm(1, 0, 0, 90'000, scheduler::Time{1});
    quota.state(1, 0, {.device = 90'000, .movable = 90'000, .swapped = 90'000}, 0, 0, scheduler::Time{1});
    quota.share_host(scheduler::Time{1});
    const auto most = quota.host_share(1).most;
    quota.leave(1, scheduler::Time{1});
    return most;
  };
  CHECK(share(std::nullopt) == scheduler::kNoLimit);
  CHECK(share(77) == 77);
}

}  // namespace rota::server
