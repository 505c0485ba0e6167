// Limits: exact to the byte, for everything that a client belongs to, and freed memory is available to the next client.

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include "tests/unit/scheduler/limits/limits_beside_books.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;

constexpr Bytes kGpu = 6400;  // so that a step is 100
constexpr Time kStart = 1s;
// Clients that report what they have as soon as they are asked, unless they are mute.
struct Rig {
  ClientId client(const std::vector<Quota::Membership>& accounts, Bytes context = 0) {
    const ClientId id = ++last;
    quota.join(id, accounts);
    quota.add_gpu(id, 0, kGpu, context);
    return id;
  }
  // The answer, if there is one, after the clients concerned have reported what they have.
  std::optional<Quota::Answer> reserve(ClientId id, Bytes device, Bytes movable = 0, GpuIndex gpu = 0) {
    answers.clear();
    used[{id, gpu}].number = ++number;
    hear(quota.reserve(id, gpu, number, {device, movable}, now += 1ms));  // all may be asked again
    const auto answer = answers.find(id);
    return answer == answers.end() ? std::nullopt : std::optional(answer->second);
  }
  bool granted(ClientId id, Bytes device, Bytes movable = 0, GpuIndex gpu = 0) {
    const auto answer = reserve(id, device, movable, gpu);
    REQUIRE(answer);
    if (!answer->granted) return false;
    CHECK(answer->reserved.device >= device);
    CHECK(answer->reserved.movable >= movable);
    used[{id, gpu}].has = {device, movable};
    return true;
  }
  void hear(const Quota::Outcome& outcome) {
    for (const GpuIndex gpu : outcome.measure) hear(quota.read(gpu, std::nullopt, now));
    for (const Quota::Answer& answer : outcome.answers) {
      answers[answer.client] = answer;
      used[{answer.client, answer.gpu}].answered = answer.number;
    }
    for (const ClientId id : outcome.tighten) {
      if (!mute.contains(id)) state(id, 0);
    }
  }
  void state(ClientId id, GpuIndex gpu) {
    const Use& use = used[{id, gpu}];
    hear(quota.state(id, gpu, use.has, use.answered, quota.round(), now));
  }
  struct Use {
    Reservation has;
    std::uint32_t number = 0;
    std::uint32_t answered = 0;
  };
  LimitsBesideBooks quota;
  Time now = kStart;
  ClientId last = 0;
  std::uint32_t number = 0;
  std::set<ClientId> mute;
  std::map<ClientId, Quota::Answer> answers;
  std::map<std::pair<ClientId, GpuIndex>, Use> used;
};

Quota::Membership account(const std::string& name, Limits limits) {
  return {name, name, limits};
}

}  // namespace

TEST_CASE("those who share a limit have it together, to the byte") {
  Rig rig;
  const auto session = account("session 1", {.device = 1000});
  const ClientId one = rig.client({session});
  const ClientId two = rig.client({session});
  const ClientId other = rig.client({account("session 2", {})});
  CHECK(rig.granted(one, 600));
  CHECK(rig.granted(two, 400));
  CHECK_FALSE(rig.granted(two, 401));
  CHECK_THAT(rig.answers.at(two).why,
             Contains("session 1 may have 1000 bytes on each GPU; 1000 bytes are in use; 1 bytes more"));
  CHECK_FALSE(rig.granted(one, 601));
  CHECK(rig.granted(other, 5000));
  CHECK(rig.quota.left(two, 0) == 0);
  CHECK(rig.quota.limit(two) == 1000);
  CHECK(rig.quota.limit(other) == kNoLimit);
}

TEST_CASE("a refusal names the remedy, of the lower limit, however long the name of the account is") {
  Rig rig;
  auto higher = account("cgroup /" + std::string(300, 'x') + "/job", {.device = 2000, .host = 5});
  higher.remedy = {.device = "raise the higher one", .host = "free host memory"};
  auto lower = higher;
  lower.limits = {.device = 1000};
  lower.remedy = {.device = "raise the lower one", .host = "not this"};
  rig.client({higher});
  const ClientId client = rig.client({lower});
  const std::string why = rig.granted(client, 1001) ? "" : rig.answers.at(client).why;
  CHECK_THAT(why, StartsWith("cgroup ...xxx") && Contains("x/job may have 1000 bytes on each GPU"));
  CHECK_THAT(why, EndsWith("1001 bytes more were requested: raise the lower one"));
  CHECK(why.size() < protocol::kTextLength);
}

TEST_CASE("each GPU has the limit for itself") {
  Rig rig;
  const ClientId one = rig.client({account("session", {.device = 1000})});
  rig.quota.add_gpu(one, 1, kGpu, 0);
  CHECK(rig.granted(one, 1000, 0, 0));
  CHECK(rig.granted(one, 1000, 0, 1));
}

TEST_CASE("what has been measured besides allocations counts for limits, and is never refused") {
  Rig rig;
  const auto session = account("session", {.device = 1000});
  const ClientId one = rig.client({session}, 400);
  const ClientId two = rig.client({session});
  CHECK(rig.granted(one, 900));  // assumed contexts count toward no limit
  rig.hear(rig.quota.measured(one, 0, 300, rig.now));
  CHECK(rig.quota.left(two, 0) == 0);
  CHECK_FALSE(rig.granted(two, 1));
  CHECK_THAT(rig.answers.at(two).why, Contains("1 KiB are in use, 300 bytes by contexts and modules; 1 bytes more"));
  CHECK_FALSE(rig.granted(one, 901));
  // What is released is available to others.
  rig.hear(rig.quota.measured(one, 0, 50, rig.now));
  CHECK(rig.quota.left(two, 0) == 50);
  CHECK(rig.granted(two, 50));
  // An account that the client joins later counts it, too, until the client leaves.
  rig.quota.join(one, {account("user", {.device = 950})});
  CHECK(rig.quota.left(one, 0) == 0);
  rig.quota.leave(one, rig.now);
  CHECK(rig.quota.left(two, 0) == 950);
}

TEST_CASE("what has been measured takes the place of what was assumed, for the host's memory too") {
  Rig rig;
  const ClientId one = rig.client({account("host", {.host = 100})}, 400);
  // 6000 and 400 fill the GPU; 100 more may have to be in host memory.
  CHECK_FALSE(rig.granted(one, 6101, 6101));
  CHECK(rig.granted(one, 6100, 6100));
  rig.hear(rig.quota.measured(one, 0, 300, rig.now));
  CHECK(rig.granted(one, 6200, 6200));
  CHECK_FALSE(rig.granted(one, 6201, 6201));
  // The same GPU again: its context is assumed again.
  rig.quota.add_gpu(one, 0, kGpu, 400);
  CHECK_FALSE(rig.granted(one, 6201, 6201));
}

TEST_CASE("nobody is granted more of what is limited until clients of an earlier daemon have said what they have") {
  Rig rig;
  const Time until = rig.now + 3s;
  rig.quota.hold_until(until);
  const auto session = account("session", {.device = 1000});
  const ClientId fresh = rig.client({session});
  const ClientId unlimited = rig.client({account("host", {.host = 1000})});
  CHECK(rig.granted(unlimited, 6000, 6000));
  CHECK_FALSE(rig.reserve(unlimited, 6500, 6500));  // beyond the GPU
  CHECK_FALSE(rig.reserve(fresh, 700));
  CHECK(rig.quota.next_deadline() == until);
  const ClientId old = rig.client({session});
  rig.used[{old, 0}].has = {400, 0};
  rig.state(old, 0);
  CHECK(rig.quota.reserved(old, 0).device == 400);
  CHECK(rig.answers.empty());
  rig.now = until;
  rig.hear(rig.quota.tick(rig.now));
  REQUIRE(rig.answers.contains(fresh));
  CHECK_FALSE(rig.answers.at(fresh).granted);
  CHECK(rig.answers.at(unlimited).granted);
  CHECK(rig.granted(fresh, 600));
}

TEST_CASE("who claims to have more than the GPU and the host hold is believed no more than that") {
  Rig rig;
  const auto host = account("host", {.host = 1000});
  const ClientId liar = rig.client({host, account("user", {.device = 5000})});
  const ClientId other = rig.client({host});
  const auto claim = [&](Bytes bytes) {
    rig.hear(rig.quota.state(liar, 0, {bytes, bytes}, 0, rig.quota.round(), rig.now));
    return rig.quota.reserved(liar, 0).device;
  };
  CHECK(claim(protocol::kMaxGpuBytes) == kGpu + 1000);
  CHECK(claim(UINT64_MAX) == kGpu + 1000);
  CHECK(claim(7000) == 7000);  // it may report more than its limit, up to what it can possibly have
  CHECK(rig.granted(other, 300, 300));
}

TEST_CASE("the tightest of several limits counts") {
  Rig rig;
  const ClientId one = rig.client({account("user", {.device = 1000}), account("session", {.device = 300})});
  const ClientId two = rig.client({account("user", {.device = 1000})});
  CHECK_FALSE(rig.granted(one, 301));
  CHECK(rig.granted(two, 800));
  CHECK_FALSE(rig.granted(one, 201));
  CHECK_THAT(rig.answers.at(one).why, Contains("user"));
  CHECK(rig.granted(one, 200));
}

TEST_CASE("far from the limit a client is granted more than it asked for, and gives it back when another needs it") {
  Rig rig;
  const auto session = account("session", {.device = 1000});
  const ClientId one = rig.client({session});
  const ClientId two = rig.client({session});
  CHECK(rig.granted(one, 10));
  CHECK(rig.quota.reserved(one, 0).device == 100);
  CHECK(rig.granted(two, 990));
  CHECK(rig.quota.reserved(one, 0).device == 10);
}

TEST_CASE("memory that a client has freed is available to another, which waits until the client has said so") {
  Rig rig;
  const auto session = account("session", {.device = 1000});
  const ClientId one = rig.client({session});
  const ClientId two = rig.client({session});
  CHECK(rig.granted(one, 900));
  rig.used[{one, 0}].has = {100, 0};
  rig.mute.insert(one);
  CHECK_FALSE(rig.reserve(two, 900));
  rig.state(one, 0);
  REQUIRE(rig.answers.contains(two));
  CHECK(rig.answers.at(two).granted);
}

TEST_CASE("a client that does not say what it has delays no other for long") {
  Rig rig;
  const auto session = account("session", {.device = 1000});
  const ClientId one = rig.client({session});
  const ClientId two = rig.client({session});
  CHECK(rig.granted(one, 900));
  rig.mute.insert(one);
  CHECK_FALSE(rig.reserve(two, 900));
  CHECK(rig.quota.next_deadline() == rig.now + Quota::kPatience);
  rig.now += Quota::kPatience;
  rig.hear(rig.quota.tick(rig.now));
  REQUIRE(rig.answers.contains(two));
  CHECK_FALSE(rig.answers.at(two).granted);
  CHECK_FALSE(rig.quota.next_deadline());
}

TEST_CASE("a dead client's bytes are there for those who wait") {
  Rig rig;
  const auto session = account("session", {.device = 1000});
  const ClientId one = rig.client({session});
  const ClientId two = rig.client({session});
  CHECK(rig.granted(one, 900));
  rig.mute.insert(one);
  CHECK_FALSE(rig.reserve(two, 900));
  rig.hear(rig.quota.leave(one, rig.now));
  REQUIRE(rig.answers.contains(two));
  CHECK(rig.answers.at(two).granted);
}

TEST_CASE("what a client says while an answer is on its way to it is not believed, and it is asked again") {
  Rig rig;
  const ClientId one = rig.client({account("session", {.device = 1000})});
  CHECK(rig.granted(one, 500));
  const Quota::Outcome outcome = rig.quota.state(one, 0, {10, 0}, rig.number - 1, rig.quota.round(), rig.now);
  CHECK(outcome.tighten.contains(one));
  CHECK(rig.quota.reserved(one, 0).device >= 500);
}

TEST_CASE("nothing has to lie in the host's memory while everything fits the GPU") {
  Rig rig;
  const auto host = account("the host", {.host = 100});
  const ClientId one = rig.client({host});
  const ClientId two = rig.client({host});
  CHECK(rig.granted(one, 3000, 3000));
  CHECK(rig.granted(two, 3400, 3400));
  CHECK(rig.granted(two, 3500, 3500));  // 100 bytes more than the GPU has
  CHECK_FALSE(rig.granted(two, 3501, 3501));
  CHECK_THAT(rig.answers.at(two).why, Contains("the host may have 100 bytes of GPU memory in host memory"));
  CHECK_FALSE(rig.granted(one, 3001, 3001));
}

TEST_CASE("contexts take memory that allocations then cannot have") {
  Rig rig;
  const auto host = account("the host", {.host = 100});
  const ClientId one = rig.client({host}, 400);
  CHECK(rig.granted(one, 6100, 6100));
  CHECK_FALSE(rig.granted(one, 6101, 6101));
}

TEST_CASE("unmanaged memory counts, too, and a client that waits for it has it when its programs have ended") {
  Rig rig;
  const auto host = account("the host", {.host = 100});
  const ClientId one = rig.client({host});
  const ClientId two = rig.client({host});
  rig.hear(rig.quota.set_outside(0, 400, rig.now));
  CHECK(rig.granted(one, 6000, 6000));
  CHECK(rig.granted(one, 6100, 6100));
  CHECK_FALSE(rig.granted(one, 6101, 6101));
  CHECK(rig.quota.exceeds_gpu(one, 0, 6001));
  rig.mute.insert(one);
  CHECK_FALSE(rig.reserve(two, 400, 400));
  rig.hear(rig.quota.set_outside(0, 0, rig.now));
  REQUIRE(rig.answers.contains(two));
  CHECK(rig.answers.at(two).granted);
  CHECK_FALSE(rig.quota.exceeds_gpu(two, 0, 300));
}

TEST_CASE("memory that cannot be evicted needs no host memory, but evicts memory that can") {
  Rig rig;
  const auto host = account("the host", {.host = 500});
  const ClientId fixed = rig.client({host});
  const ClientId movable = rig.client({host});
  CHECK(rig.granted(movable, 3000, 3000));
  CHECK(rig.granted(fixed, 3900, 0));
  CHECK_FALSE(rig.granted(fixed, 3901, 0));
  CHECK_THAT(rig.answers.at(fixed).why, Contains("the host may have 500 bytes"));
}

TEST_CASE("a session's part in the host's memory is no more than it has that can move") {
  Rig rig;
  const ClientId small = rig.client({account("small", {.host = 200})});
  const ClientId large = rig.client({account("large", {})});
  CHECK(rig.granted(small, 200, 200));
  CHECK(rig.granted(large, 60000, 60000));
  CHECK_FALSE(rig.granted(small, 201, 201));
}

TEST_CASE("a client asks on each GPU by itself, and is answered on each") {
  Rig rig;
  const auto session = account("session", {.device = 1000});
  const ClientId one = rig.client({session});
  const ClientId two = rig.client({session});
  for (const ClientId id : {one, two}) rig.quota.add_gpu(id, 1, kGpu, 0);
  CHECK(rig.granted(one, 900, 0, 0));
  CHECK(rig.granted(one, 900, 0, 1));
  rig.mute.insert(one);
  CHECK_FALSE(rig.reserve(two, 200, 0, 0));
  CHECK_FALSE(rig.reserve(two, 200, 0, 1));
  std::map<GpuIndex, bool> granted;
  for (const GpuIndex gpu : {0U, 1U}) {
    rig.used[{one, gpu}].has = {gpu == 0 ? Bytes{0} : Bytes{900}, 0};
    const auto& use = rig.used[{one, gpu}];
    const auto outcome = rig.quota.state(one, gpu, use.has, use.answered, rig.quota.round(), rig.now);
    for (const Quota::Answer& answer : outcome.answers) granted[answer.gpu] = answer.granted;
  }
  CHECK(granted == std::map<GpuIndex, bool>{{0, true}, {1, false}});
}

TEST_CASE("an account that is in the way only after another has freed memory is asked about, too") {
  Rig rig;
  const ClientId one = rig.client({account("session", {.device = 1000})});
  const ClientId other = rig.client({account("user", {.device = 1000})});
  const ClientId two = rig.client({account("session", {.device = 1000}), account("user", {.device = 1000})});
  CHECK(rig.granted(one, 900));
  CHECK(rig.granted(other, 900));
  rig.used[{one, 0}].has = rig.used[{other, 0}].has = {100, 0};
  CHECK(rig.granted(two, 900));
}

TEST_CASE("an index that another GPU has now has that one's size") {
  Rig rig;
  const auto host = account("the host", {.host = 0});
  const ClientId one = rig.client({host});
  rig.quota.add_gpu(one, 3, 100, 0);
  CHECK_FALSE(rig.granted(one, 200, 200, 3));
  rig.quota.leave(one, rig.now);
  const ClientId two = rig.client({host});
  rig.quota.add_gpu(two, 3, 1000, 0);
  CHECK(rig.granted(two, 200, 200, 3));
}

TEST_CASE("a client that says that it has more than it was granted is believed, and others have less") {
  Rig rig;  // as after the death of a rotad
  const auto session = account("session", {.device = 1000});
  const ClientId one = rig.client({session});
  const ClientId two = rig.client({session});
  rig.used[{one, 0}].has = {900, 900};
  rig.state(one, 0);
  CHECK_FALSE(rig.granted(two, 101));
  CHECK(rig.granted(two, 100));
}

// Clients allocate, free, die and keep silent, and messages cross; by their own accounts they never exceed what they
// were granted. Every answer is right given what all clients have, unless a client kept silent.
TEST_CASE("limits hold at every moment, and nobody who fits is refused") {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  struct Asked {
    std::uint32_t number = 0;
    Bytes bytes = 0;
    bool silence = false;  // a client may not have reported what it has
  };
  struct Member {
    std::vector<std::string> accounts;
    Bytes has = 0;
    Bytes granted = 0;
    std::uint32_t answered = 0;
    std::optional<Asked> asked;
    bool told = false;  // has to report what it has
  };
  std::map<std::string, Limits> limits;
  for (int i = 0; i < 4; ++i) limits["account " + std::to_string(i)] = {.device = 500 + Bytes{500} * below(8)};
  LimitsBesideBooks quota;
  Time now = kStart;
  std::map<ClientId, Member> members;
  ClientId last = 0;
  std::uint32_t number = 0;
  std::size_t refused = 0;
  std::size_t granted = 0;
  const auto sum_of = [&](const std::string& account) {
    Bytes sum = 0;
    for (const auto& [id, member] : members) {
      if (std::ranges::find(member.accounts, account) != member.accounts.end()) sum += member.granted;
    }
    return sum;
  };
  const auto used_of = [&](const std::string& account) {
    Bytes sum = 0;
    for (const auto& [id, member] : members) {
      if (std::ranges::find(member.accounts, account) != member.accounts.end()) sum += member.has;
    }
    return sum;
  };
  const std::function<void(const Quota::Outcome&)> hear = [&](const Quota::Outcome& outcome) {
    for (const Quota::Answer& answer : outcome.answers) {
      Member& member = members.at(answer.client);
      REQUIRE(member.asked);
      REQUIRE(member.asked->number == answer.number);
      member.answered = answer.number;
      member.granted = answer.reserved.device;
      if (answer.granted) {
        REQUIRE(member.granted >= member.asked->bytes);
        member.has = member.asked->bytes;
        ++granted;
      } else {
        ++refused;
        const Bytes more = member.asked->bytes - member.has;
        bool rightly = member.asked->silence;
        // Between an ask and its answer others may be granted memory, or free some; then what was granted decides.
        for (const std::string& account : member.accounts) {
          rightly = rightly || std::max(used_of(account), sum_of(account)) + more > limits.at(account).device;
        }
        REQUIRE(rightly);
      }
      member.asked.reset();
    }
    for (const ClientId id : outcome.tighten) members.at(id).told = true;
  };
  for (int step = 0; step < 200'000; ++step) {
    const auto any = [&]() -> std::pair<const ClientId, Member>& {
      return *std::next(members.begin(), static_cast<std::ptrdiff_t>(below(members.size())));
    };
    const std::size_t what = below(100);
    if (members.size() < 2 || (what < 2 && members.size() < 8)) {
      Member member;
      std::vector<Quota::Membership> accounts;
      for (const auto& [name, limit] : limits) {
        if (below(2) == 0) continue;
        member.accounts.push_back(name);
        accounts.push_back(account(name, limit));
      }
      const ClientId id = ++last;
      quota.join(id, accounts);
      quota.add_gpu(id, 0, kGpu, 0);
      members.emplace(id, member);
    } else if (what < 3) {
      const ClientId id = any().first;
      members.erase(id);
      hear(quota.leave(id, now));
    } else if (what < 40) {
      auto& [id, member] = any();
      if (member.asked) continue;
      const Bytes more = 1 + below(400);
      if (member.has + more <= member.granted) {
        member.has += more;
        continue;
      }
      member.asked = Asked{++number, member.has + more, false};
      hear(quota.reserve(id, 0, number, {member.has + more, 0}, now));
    } else if (what < 60) {
      Member& member = any().second;
      if (!member.asked) member.has -= below(member.has + 1);
    } else if (what < 97) {
      auto& [id, member] = any();
      if (!member.told) continue;
      member.told = false;
      member.granted = member.has;
      hear(quota.state(id, 0, {member.has, 0}, member.answered, quota.round(), now));
    } else {
      now += 100ms;
      for (auto& [id, member] : members) {
        if (member.asked) member.asked->silence = true;
      }
      hear(quota.tick(now));
    }
    for (const auto& [name, limit] : limits) REQUIRE(sum_of(name) <= limit.device);
  }
  CHECK(granted > 10'000);
  CHECK(refused > 1000);
}

}  // namespace rota::scheduler
