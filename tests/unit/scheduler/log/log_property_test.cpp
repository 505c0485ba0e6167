// Logs of real runs, with gangs and limits in them, as they were and with deaths, stops and lies put into them:
// whatever the core and the limits decide then, these properties hold after every step.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "scheduler/core/core.h"
#include "scheduler/log/event_log.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

struct Log {
  std::string name;
  Settings settings;
  std::vector<Logged> events;
};

Settings settings_of(const std::string& first_line) {
  // As any log says them, by the event that has the same words.
  std::istringstream log(first_line + "\n0 configure " + first_line.substr(first_line.find("mode=")) + "\n");
  Settings settings;
  const Replay result = replay(log, {.event = [&](const Logged& logged) {
                                 settings = std::get<event::Configure>(std::get<Event>(logged.event)).settings;
                               }});
  REQUIRE(result.problem == "");
  return settings;
}

std::vector<Log> logs() {
  std::vector<Log> all;
  for (const auto& entry : std::filesystem::directory_iterator(EVENT_LOGS)) {
    if (entry.path().extension() != ".txt") continue;
    std::ifstream file(entry.path());
    std::string first;
    std::getline(file, first);
    file.seekg(0);
    Log log{.name = entry.path().stem(), .settings = settings_of(first), .events = {}};
    // Whatever the core decides now: event_log_test.cpp compares that.
    const Watch watch{.event = [&](const Logged& logged) { log.events.push_back(logged); }, .compares = false};
    const Replay result = replay(file, watch);
    REQUIRE(result.problem == "");
    all.push_back(std::move(log));
  }
  return all;
}

enum class Lie {
  kNone,
  kDeath,     // a client leaves in the middle
  kStop,      // from some moment on a client says nothing any more
  kWantsAll,  // a client wants every GPU that it has, again and again
  kClaims,    // it says that it has far more memory than it was granted
  kReserves,  // all want to reserve far more than they need
};

class Played {
 public:
  Played(const Log& log, Lie lie, unsigned seed)
      : log_(log), lie_(lie), random_(seed), core_(log.settings), quota_(core_.books()) {
    lies_at_ = std::uniform_int_distribution<std::size_t>(0, log.events.size() - 1)(random_);
    // By the end of the log all programs are gone, and nobody is left who could starve.
    ends_at_ = std::uniform_int_distribution<std::size_t>(lies_at_, log.events.size())(random_);
  }

  void play() {
    for (std::size_t index = 0; index < ends_at_; ++index) {
      const Logged& logged = log_.events[index];
      advance(logged.now);
      limits_now_ = std::max(limits_now_, logged.limits_now);
      if (index == lies_at_) begin_to_lie();
      if (const auto* event = std::get_if<Event>(&logged.event)) {
        if (!is_silent(*event)) step(as_told(*event));
      } else {
        step(as_told(std::get<LimitEvent>(logged.event)));
      }
    }
    everybody_has_a_turn();
  }

  // A case that is never reached is not tested.
  std::set<ClientId> gangs() const { return gangs_; }
  std::uint64_t limited() const { return limited_; }
  std::uint64_t revoked() const { return revoked_; }
  std::uint64_t waited() const { return waited_; }

 private:
  // The core is called when it is due.
  void advance(Time to) {
    for (int calls = 0; const auto due = core_.next_deadline(); ++calls) {
      if (*due > to) break;
      if (calls == 100'000) FAIL("the core is due again and again");
      now_ = std::max(now_, *due);
      step(event::Tick{});
    }
    now_ = std::max(now_, to);
  }

  void begin_to_lie() {
    if (clients_.empty()) return;
    auto some = clients_.begin();
    std::advance(some, std::uniform_int_distribution<std::size_t>(0, clients_.size() - 1)(random_));
    liar_ = *some;
    if (lie_ == Lie::kDeath) step(event::Leave{liar_});
  }

  ClientId client_of(const Event& event) const {
    return std::visit(
        [](const auto& which) -> ClientId {
          if constexpr (requires { which.client; }) return which.client;
          return 0;
        },
        event);
  }

  bool is_silent(const Event& event) const {
    if (liar_ == 0 || client_of(event) != liar_) return false;
    return lie_ == Lie::kDeath || (lie_ == Lie::kStop && !std::holds_alternative<event::Leave>(event));
  }

  Event as_told(Event event) const {
    if (liar_ == 0 || client_of(event) != liar_) return event;
    if (auto* want = std::get_if<event::Want>(&event); want != nullptr && lie_ == Lie::kWantsAll)
      want->gpus = ~GpuMask{0};
    if (auto* usage = std::get_if<event::Usage>(&event); usage != nullptr && lie_ == Lie::kClaims) usage->used *= 1000;
    return event;
  }

  LimitEvent as_told(LimitEvent event) {
    if (auto* reserve = std::get_if<limit::Reserve>(&event); reserve != nullptr && lie_ == Lie::kReserves) {
      const Bytes times = std::uniform_int_distribution<Bytes>(1, 100)(random_);
      reserve->wanted.device *= times;
      reserve->wanted.movable *= times;
    }
    return event;
  }

  void step(const Event& event) {
    if (const auto* join = std::get_if<event::Join>(&event)) clients_.insert(join->client);
    if (const auto* leave = std::get_if<event::Leave>(&event)) clients_.erase(leave->client);
    std::map<ClientId, GpuMask> wanted;
    for (const ClientId id : clients_) {
      if (const ClientState* const state = core_.client(id)) wanted[id] = state->wanted;
    }
    if (const auto* want = std::get_if<event::Want>(&event); want != nullptr && core_.client(want->client) != nullptr) {
      wanted[want->client] |= want->gpus & core_.client(want->client)->touched;
    }
    for (const Decision& decision : core_.step(event, now_)) {
      if (decision.change == Change::kRevoked) ++revoked_;
      if (decision.change != Change::kGranted) continue;
      const ClientState& state = *core_.client(decision.client);
      if (decision.grant == 0 || decision.grant == last_grant_[decision.client])
        FAIL("a grant number came twice in a row");
      last_grant_[decision.client] = decision.grant;
      waiting_.erase(decision.client);
      // All of them at once, or none: so nobody holds a part of what others need, and waits for the rest.
      if ((wanted[decision.client] & ~state.held) != 0 || state.wanted != 0)
        FAIL("half of what a client wants was granted");
      if ((state.held & (state.held - 1)) != 0) gangs_.insert(decision.client);
    }
    check();
  }

  void step(const LimitEvent& event) {
    apply(quota_, event, limits_now_);
    std::string key;
    while (const Quota::Entry* const entry = quota_.account_after(key)) {
      key = entry->first;
      const Quota::Account& account = entry->second;
      for (GpuIndex gpu = 0; gpu < kGpus; ++gpu) {
        Bytes sum = 0;
        bool claims = false;
        for (const ClientId id : account.clients) {
          sum += quota_.reserved(id, gpu).device;
          claims = claims || quota_.claims(id, gpu);
        }
        if (sum != account.sums[gpu].device) FAIL("an account's sum on GPU " << gpu << " has drifted");
        if (account.limits.device == kNoLimit) continue;
        if (sum > account.limits.device && !claims) FAIL("more than its limit is granted to " << account.name);
        if (sum != 0) ++limited_;
      }
    }
  }

  void check() const {
    for (GpuIndex gpu = 0; gpu < kGpus; ++gpu) {
      unsigned holders = 0;
      unsigned waiters = 0;
      for (const ClientId id : clients_) {
        const ClientState& state = *core_.client(id);
        if ((state.held & ~state.touched) != 0 || (state.wanted & ~state.touched) != 0) FAIL("a GPU never touched");
        if ((state.grant != 0) != (state.held != 0)) FAIL("a grant of nothing, or GPUs without a grant");
        holders += has(state.held, gpu) ? 1 : 0;
        waiters += has(state.wanted, gpu) ? 1 : 0;
      }
      const GpuState actual = core_.gpu(gpu);
      if (actual.holders != holders || actual.waiters != waiters) FAIL("the sums of GPU " << gpu << " have drifted");
      if (log_.settings.mode == Mode::kExclusive && holders > 1) FAIL("two hold GPU " << gpu << " exclusively");
    }
  }

  // Holders give back once their time is up, but for one that says nothing, and want the same again; then nobody who
  // waits is left out for ever.
  void everybody_has_a_turn() {
    for (const ClientId id : clients_) {
      if (core_.client(id)->wanted != 0 && id != liar_) waiting_.insert(id);
    }
    waited_ = waiting_.size();
    for (int round = 0; round < 2000 && !waiting_.empty(); ++round) {
      advance(now_ + 100ms);
      for (const ClientId id : clients_) {
        const ClientState state = *core_.client(id);
        if (state.waiters == 0 || state.drain_at > now_ || (id == liar_ && lie_ == Lie::kStop)) continue;
        step(event::GiveBack{id, state.grant});
        step(event::Want{id, state.held});
      }
    }
    // Who claims more than there is keeps others out, or itself.
    if (lie_ != Lie::kClaims) CHECK(waiting_.empty());
  }

  static constexpr GpuIndex kGpus = 8;
  const Log& log_;
  const Lie lie_;
  std::mt19937 random_;
  Core core_;
  Quota quota_;
  Time now_{};
  Time limits_now_{};
  std::size_t lies_at_ = 0;
  std::size_t ends_at_ = 0;
  ClientId liar_ = 0;
  std::set<ClientId> clients_;
  std::set<ClientId> waiting_;
  std::map<ClientId, std::uint32_t> last_grant_;
  std::set<ClientId> gangs_;
  std::uint64_t limited_ = 0;
  std::uint64_t revoked_ = 0;
  std::uint64_t waited_ = 0;
};

TEST_CASE(
    "logs of real runs, and the same with deaths, stops and lies, grant no two and no half, and let nobody starve") {
  std::size_t gangs = 0;
  std::uint64_t limited = 0;
  std::uint64_t revoked = 0;
  std::uint64_t waited = 0;
  for (const Log& log : logs()) {
    for (const Lie lie : {Lie::kNone, Lie::kDeath, Lie::kStop, Lie::kWantsAll, Lie::kClaims, Lie::kReserves}) {
      for (unsigned seed = 1; seed <= 100 / ROTA_TEST_EVERY; ++seed) {
        INFO(log.name << ", lie " << static_cast<int>(lie) << ", seed " << seed);
        Played played(log, lie, seed);
        played.play();
        gangs += played.gangs().size();
        limited += played.limited();
        revoked += played.revoked();
        waited += played.waited();
      }
    }
  }
  CHECK(gangs > 0);
  CHECK(limited > 0);
  CHECK(revoked > 0);
  CHECK(waited > 0);
}

}  // namespace
}  // namespace rota::scheduler
