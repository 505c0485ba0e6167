// Shares of the host's memory: together they never exceed a limit, and a client that needs room gets what others do not
// need.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "scheduler/base/byte_text.h"
#include "scheduler/limits/quota.h"
#include "tests/unit/scheduler/limits/limits_beside_books.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr Bytes kGpu = 6400;
constexpr Time kNow = 1s;

// Clients that keep to the rules of pages.h.
struct Rig {
  struct Client {
    Quota::HostUse use;
    Bytes most() const { return quota->host_share(id).most; }
    Bytes spare() const { return quota->host_share(id).spare; }
    Quota* quota;
    ClientId id;
  };
  Client& client(const std::vector<Quota::Membership>& accounts, Bytes reserved = 5000) {
    const ClientId id = ++last;
    quota.join(id, accounts);
    quota.add_gpu(id, 0, kGpu, 0);
    quota.confirm(id, 0, reserved, 0, kNow);
    quota.state(id, 0, {reserved, reserved, 0, reserved}, 0, quota.round(), kNow);
    return clients.emplace(id, Client{.use = {}, .quota = &quota, .id = id}).first->second;
  }
  // As rotad does it, while the clients do nothing.
  void share(Time now = kNow) {
    for (auto& [id, each] : clients) quota.use_host(id, each.use);
    for (int round = 0; round < 4; ++round) {
      const auto changed = quota.share_host(now);
      if (changed.empty()) return;
      for (const ClientId id : changed) {
        if (const auto found = clients.find(id); found != clients.end()) quota.use_host(id, found->second.use);
      }
    }
    FAIL("shares do not settle");
  }
  LimitsBesideBooks quota;
  std::map<ClientId, Client> clients;
  ClientId last = 0;
};

Quota::Membership account(const std::string& name, Bytes host) {
  return {name, name, {.host = host}};
}

}  // namespace

TEST_CASE("without a limit on the host's memory everybody may have any of it") {
  Rig rig;
  auto& one = rig.client({account("host", kNoLimit)});
  one.use = {.has = 1'000'000, .spare = 500'000};
  CHECK(rig.quota.share_host(kNow).empty());
  CHECK(one.most() == kNoLimit);
  CHECK(one.spare() == kNoLimit);
}

TEST_CASE("a limit that the configuration no longer has bounds nobody any more") {
  Rig rig;
  auto host = account("host", 1000);
  auto& one = rig.client({host});
  one.use = {.has = 900, .spare = 900};
  rig.share();
  CHECK(one.most() == 1000);
  host.limits.host = kNoLimit;
  rig.quota.configure(host);
  rig.share();
  CHECK(one.most() == kNoLimit);
  CHECK(one.spare() == kNoLimit);
  one.use.has = 3000;
  host.limits.host = 2000;
  rig.quota.configure(host);
  rig.share();
  CHECK(one.most() != kNoLimit);
}

TEST_CASE("what programs have in the host's memory beyond their need is theirs until another one needs it") {
  Rig rig;
  const auto host = account("host", 1000);
  auto& one = rig.client({host});
  auto& other = rig.client({host});
  one.use = {.has = 900, .spare = 900};
  rig.share();
  CHECK(one.spare() >= 900);
  CHECK(one.most() + other.most() <= 1000);
  other.use.lacks = 600;
  rig.share();
  CHECK(one.spare() == 400);
  CHECK(other.most() <= 100);  // the rest is not there yet
  one.use = {.has = 400, .spare = 400};
  rig.share();
  CHECK(other.most() == 600);
  CHECK(one.spare() == 400);
}

TEST_CASE("what may have to be on the host is counted in extents, which are larger than what is allocated in them") {
  Rig rig;
  const auto host = account("host", 3000);
  for (const ClientId id : {ClientId{1}, ClientId{2}}) {
    rig.quota.join(id, {host});
    rig.quota.add_gpu(id, 0, kGpu, 0);
  }
  // Each allocates 3000 in extents of 6000: together they need 5600 more.
  rig.quota.confirm(1, 0, 0, 6000, kNow);
  rig.quota.state(1, 0, {3000, 3000, 0, 6000}, 0, rig.quota.round(), kNow);
  rig.quota.reserve(2, 0, 1, {3000, 3000, 0, 6000}, kNow);
  CHECK(rig.quota.reserved(2, 0).swapped == 0);
  rig.quota.reserve(2, 0, 2, {400, 400, 0, 800}, kNow);
  CHECK(rig.quota.reserved(2, 0).swapped >= 800);
}

TEST_CASE("until a new rotad knows what there is, all keep what they have, also what they could give back") {
  Rig rig;
  rig.quota.hold_until(kNow + 3s);
  auto& one = rig.client({account("host", 1000)});
  one.use = {.has = 700, .spare = 500};
  rig.share();
  CHECK(one.most() == 700);
  CHECK(one.spare() == 500);
  rig.share(kNow + 3s);
  CHECK(one.spare() >= 500);
}

TEST_CASE("what is on the host and nowhere else is nobody else's, however much another one lacks") {
  Rig rig;
  const auto host = account("host", 1000);
  auto& one = rig.client({host});
  auto& other = rig.client({host});
  one.use = {.has = 900, .spare = 100};
  other.use.lacks = 5000;
  rig.share();
  CHECK(one.most() == 800);
  CHECK(one.spare() == 0);
  one.use = {.has = 800};
  rig.share();
  CHECK(one.most() == 800);
  CHECK(other.most() == 200);
}

TEST_CASE("a client without host memory keeps its own copies: what it evicts goes to their places") {
  Rig rig;
  const auto host = account("host", 1000);
  auto& one = rig.client({host});
  auto& other = rig.client({host});
  other.use = {.has = 700};
  one.use = {.has = 300, .spare = 300, .lacks = 500};
  rig.share();
  CHECK(one.spare() == 300);
  CHECK(one.most() == 300);
}

TEST_CASE("clients with a deficit get host memory in the order in which they said so") {
  Rig rig;
  const auto host = account("host", 1000);
  auto& one = rig.client({host});
  auto& other = rig.client({host});
  auto& full = rig.client({host});
  full.use = {.has = 800};
  other.use.lacks = 150;
  rig.share();
  one.use.lacks = 150;
  rig.share();
  CHECK(other.most() == 150);
  CHECK(one.most() == 50);
}

TEST_CASE("the tightest of a client's limits counts, and leaves the rest of the others to others") {
  Rig rig;
  const auto host = account("host", 1000);
  auto& one = rig.client({host, account("session", 100)});
  auto& other = rig.client({host});
  one.use.lacks = 500;
  other.use.lacks = 5000;
  rig.share();
  CHECK(one.most() == 100);
  CHECK(other.most() == 900);
}

TEST_CASE("a refusal for the host's sake names the bytes asked for, also of memory that moves as a whole") {
  LimitsBesideBooks quota;
  for (const ClientId client : {1, 2}) {
    quota.join(client, client == 1 ? std::vector<Quota::Membership>{} : std::vector{account("the host", 100)});
    quota.add_gpu(client, 0, kGpu, 0);
  }
  CHECK(quota.reserve(1, 0, 1, {.device = 3000, .movable = 3000}, kNow).answers.at(0).granted);
  CHECK(quota.reserve(2, 0, 1, {.device = 3300}, kNow).answers.at(0).granted);
  // The allocation is among the GPU's bytes already; now it is requested as memory that moves.
  Quota::Outcome outcome = quota.reserve(2, 0, 2, {.device = 3300, .swapped = 3500}, kNow);
  if (outcome.answers.empty()) outcome = quota.tick(kNow + Quota::kPatience);  // others have been asked first
  REQUIRE(outcome.answers.size() == 1);
  CHECK_FALSE(outcome.answers[0].granted);
  CHECK_THAT(outcome.answers[0].why, Catch::Contains(fmt::format("too little for {} more", bytes_text(3500))));
}

TEST_CASE("host memory that Unified Memory may take is in no share") {
  Rig rig;
  const auto host = account("host", 1000);
  auto& one = rig.client({host});
  rig.quota.join(99, {host});
  rig.quota.add_gpu(99, 0, kGpu, 0);
  rig.quota.confirm(99, 0, 0, 1800, kNow);
  rig.quota.state(99, 0, {1800, 1800}, 0, rig.quota.round(), kNow);  // 400 bytes more than the GPU has
  one.use.lacks = 5000;
  rig.share();
  CHECK(one.most() == 600);
}

TEST_CASE("after a rotad had programs nobody's share grows until they have said what they have") {
  Rig rig;
  rig.quota.hold_until(kNow + 3s);
  auto& one = rig.client({account("host", 1000)});
  one.use = {.has = 200, .lacks = 500};
  rig.share();
  CHECK(one.most() == 200);
  rig.share(kNow + 3s);
  CHECK(one.most() >= 700);
}

TEST_CASE("a client that claims more of the host than it may have takes no more from others than it has on GPUs") {
  Rig rig;
  const auto host = account("host", 1000);
  auto& liar = rig.client({host}, 300);
  auto& other = rig.client({host});
  rig.share();
  liar.use = {.has = UINT64_MAX, .spare = 0, .lacks = UINT64_MAX};
  rig.share();
  CHECK(liar.most() <= 500);  // it could have taken that
  other.use.lacks = 5000;
  rig.share();
  CHECK(other.most() >= 500);
}

TEST_CASE("what could be given back is counted for an account, and no more than its clients have on GPUs") {
  Rig rig;
  const auto host = account("host", 1000);
  auto& one = rig.client({host}, 300);
  auto& other = rig.client({host, account("session", 700)});
  rig.share();
  one.use = {.has = 500, .spare = 400};
  other.use = {.has = 300, .spare = 200};
  rig.share();
  std::map<std::string, Bytes> spare;
  for (auto each = rig.quota.account_after(""); each != nullptr; each = rig.quota.account_after(each->first)) {
    spare[each->first] = each->second.host.spare;
  }
  CHECK(spare == std::map<std::string, Bytes>{{"host", 500}, {"session", 200}});
}

TEST_CASE(
    "an allocation of swap memory leaves host memory for one more extent, so that two clients can change places") {
  LimitsBesideBooks quota;
  quota.join(1, {account("host", 1000)});
  quota.add_gpu(1, 0, kGpu, 0);
  std::uint32_t number = 0;
  const auto granted = [&](Reservation wanted) {
    auto outcome = quota.reserve(1, 0, ++number, wanted, kNow);
    if (outcome.answers.empty()) outcome = quota.tick(kNow + Quota::kPatience);
    return outcome.answers.at(0).granted;
  };
  CHECK(granted({6400, 6400, 0, 300}));
  CHECK_FALSE(granted({7101, 7101, 0, 300}));
  CHECK(granted({7100, 7100, 0, 300}));
}

// Clients take, give back and ask at any moment between rotad's writing and reading, by the rules of pages.h.
TEST_CASE("together programs never have more of the host than a limit, and a deficit is met in the end") {
  std::mt19937 random(11);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  LimitsBesideBooks quota;
  struct Client {
    Bytes has = 0;
    Bytes spare = 0;
    Bytes lacks = 0;
    Quota::HostShare page;  // as published
    std::size_t account = 0;
  };
  std::map<ClientId, Client> clients;
  const std::vector<Bytes> limits = {1000, 400, 700};  // the host's, and two sessions' in it
  ClientId last = 0;
  const auto sum_of = [&](std::size_t account) {
    Bytes sum = 0;
    for (const auto& [id, each] : clients) sum += account == 0 || each.account == account ? each.has : 0;
    return sum;
  };
  const auto act = [&](Client& client) {
    if (below(2) == 0 && client.page.most != kNoLimit) {  // takes
      const Bytes bytes = 1 + below(120);
      const bool there = client.has + bytes <= client.page.most;
      if (there) client.has += bytes;
      client.lacks = there ? 0 : bytes;
    } else if (below(2) == 0) {  // it has come to the GPU
      client.spare = std::min(client.has, client.spare + below(200));
    } else if (below(3) == 0) {  // it is the only copy again
      client.spare -= std::min<Bytes>(client.spare, below(200));
    } else {  // gives back what it has to
      Bytes gone = client.spare - std::min(client.spare, client.page.spare);
      gone = std::max(gone, std::min(client.spare, client.has - std::min(client.has, client.page.most)));
      client.has -= gone;
      client.spare -= gone;
    }
  };
  const auto read = [&](ClientId id) {
    const Client& client = clients.at(id);
    quota.use_host(id, {.has = client.has, .spare = client.spare, .lacks = client.lacks});
  };
  std::size_t took = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (clients.size() < 5 && below(10) == 0) {
      const ClientId id = ++last;
      const std::size_t which = below(3);
      std::vector<Quota::Membership> all = {account("host", limits[0])};
      if (which != 0) all.push_back(account("session " + std::to_string(which), limits[which]));
      quota.join(id, all);
      quota.add_gpu(id, 0, kGpu, 0);
      quota.confirm(id, 0, 0, 900, kNow);
      quota.state(id, 0, {900, 900, 0, 900}, 0, quota.round(), kNow);
      clients[id].account = which;
    } else if (!clients.empty() && below(40) == 0) {
      const auto gone = std::next(clients.begin(), static_cast<std::ptrdiff_t>(below(clients.size())));
      quota.leave(gone->first, kNow);
      clients.erase(gone);
    }
    for (auto& [id, each] : clients) {
      if (below(2) == 0) act(each);
    }
    for (auto& [id, each] : clients) {
      if (below(2) == 0) read(id);
    }
    for (int round = 0; round < 3; ++round) {
      for (const ClientId id : quota.share_host(kNow)) {
        clients.at(id).page = quota.host_share(id);
        for (auto& [other, each] : clients) {
          if (below(4) == 0) act(each);
        }
        read(id);
      }
    }
    for (std::size_t account = 0; account < limits.size(); ++account) {
      if (sum_of(account) > limits[account]) FAIL("account " << account << " at step " << step);
    }
    if (step % 100 != 0 || clients.empty()) continue;
    // All but one have their memory on the GPU, and that one needs all that there is.
    for (auto& [id, each] : clients) each.spare = each.has, each.lacks = 0;
    auto& [asker, lacking] = *clients.begin();
    lacking.lacks = 250;
    const Bytes most = std::min({lacking.has + 250, limits[lacking.account], Bytes{900}});
    for (int round = 0; round < 8; ++round) {
      for (auto& [id, each] : clients) read(id);
      for (const ClientId id : quota.share_host(kNow)) clients.at(id).page = quota.host_share(id);
      for (auto& [id, each] : clients) {
        const Bytes gone = each.spare - std::min(each.spare, each.page.spare);
        each.has -= gone;
        each.spare -= gone;
      }
    }
    REQUIRE(lacking.page.most >= most);
    lacking.lacks = 0;
    ++took;
  }
  CHECK(took > 100);
}

}  // namespace rota::scheduler
