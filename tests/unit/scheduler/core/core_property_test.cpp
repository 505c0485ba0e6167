// Random histories against the core: whatever clients do, these properties hold after every step. Seeds are fixed, so
// failures are reproducible.
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "scheduler/core/core.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr Bytes kTotal = 1000;
constexpr Bytes kContext = 10;
constexpr GpuIndex kGpus = 4;

// What kind of clients there are.
enum class Clients {
  kHonest,  // all ask for room before they take it
  kMixed,   // some do not, and some misreport what they have
};

class History {
 public:
  History(Mode mode, Clients who, unsigned seed) : mode_(mode), who_(who), core_(settings(mode, seed)), random_(seed) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      now_ += std::chrono::nanoseconds(pick(40'000'000));
      random_step();
      check();
    }
  }

  // From here on every client gives back when asked and wants its GPUs again at once: no waiter may be overtaken
  // forever.
  void everybody_gives_back() {
    waiting_.clear();
    for (const auto& [id, unused] : clients_) {
      if (core_.client(id)->wanted != 0) waiting_.insert(id);
    }
    for (int round = 0; round < 50 && !waiting_.empty(); ++round) {
      now_ += 1s;
      for (const auto& [id, unused] : clients_) {
        const ClientState& state = *core_.client(id);
        if (state.waiters != 0) {
          const GpuMask again = state.touched;
          step(event::GiveBack{id, state.grant});
          step(event::Want{id, again});
        }
        check();
      }
    }
    CHECK(waiting_.empty());
  }

 private:
  struct Model {
    std::map<GpuIndex, Bytes> used;
    std::map<GpuIndex, Bytes> fixed;
    std::uint32_t last_grant = 0;
  };

  static Settings settings(Mode mode, unsigned seed) {
    Settings settings;
    settings.measured_turns = seed % 2 == 0;
    settings.mode = mode;
    settings.quantum = 100ms;
    settings.grace = 500ms;
    return settings;
  }

  unsigned pick(unsigned below) { return std::uniform_int_distribution<unsigned>(0, below - 1)(random_); }

  ClientId some_client() {
    auto client = clients_.begin();
    std::advance(client, pick(static_cast<unsigned>(clients_.size())));
    return client->first;
  }

  void step(const Event& event) {
    std::map<GpuIndex, Bytes> before;
    for (GpuIndex gpu = 0; gpu < kGpus; ++gpu) before[gpu] = overcommitted(gpu);
    const std::vector<Decision> decisions = core_.step(event, now_);
    // No client can ask for a new context, for memory that cannot leave the GPU of clients that do not hold it, or for
    // memory of programs that rotad does not know (these three events). In every other case the holders fit the GPU at
    // every moment.
    const bool could_ask = !std::holds_alternative<event::AddGpu>(event) &&
                           !std::holds_alternative<event::Usage>(event) &&
                           !std::holds_alternative<event::Measured>(event);
    for (GpuIndex gpu = 0; gpu < kGpus && could_ask && who_ == Clients::kHonest; ++gpu) {
      if (overcommitted(gpu) > before[gpu])
        FAIL("holders of GPU " << gpu << " do not fit, after an event of kind " << event.index());
    }
    for (const Decision& decision : decisions) {
      if (decision.change == Change::kPromised) ++promises_;
      if (decision.change == Change::kAlone && decision.bytes != 0) ++alone_;
      if (decision.change != Change::kGranted) continue;
      Model& client = clients_.at(decision.client);
      if (decision.grant == 0 || decision.grant == client.last_grant) FAIL("a grant number came twice in a row");
      client.last_grant = decision.grant;
      waiting_.erase(decision.client);
    }
  }

  void random_step() {
    if (clients_.empty() || (clients_.size() < 12 && pick(10) == 0)) {
      const ClientId id = ++last_client_;
      clients_[id] = {};
      step(event::Join{id});
      return;
    }
    const ClientId id = some_client();
    const ClientState& state = *core_.client(id);
    switch (pick(21)) {
      case 20:
        step(event::Session{id, pick(4)});
        break;
      case 15: {
        const GpuIndex gpu = pick(kGpus);
        const Bytes in_use = pick(static_cast<unsigned>(kTotal) + 1);
        event::Measured measured{gpu, kTotal - in_use, std::nullopt};
        if (pick(3) != 0) measured.others = pick(static_cast<unsigned>(in_use) / 2 + 1);
        if (core_.gpu(gpu).clients != 0) {
          in_use_[gpu] = in_use;
          if (measured.others) others_[gpu] = *measured.others;
          if (measured.others) listed_at_[gpu] = now_;
        }
        step(measured);
        break;
      }
      case 16: {
        const GpuIndex gpu = pick(kGpus);
        in_use_[gpu] = others_[gpu] = 0;
        step(event::Unmeasured{gpu});
        break;
      }
      case 17: {
        event::Activity& activity = activity_[id];
        activity.client = id;
        activity.calls += pick(3) * pick(1000);
        activity.open += pick(100) * 1ms;
        activity.counted = now_;
        const unsigned samples = pick(200);
        activity.samples += samples;
        activity.busy += pick(samples + 1);
        activity.switches += pick(3);
        activity.switching += pick(300) * 100us;
        step(activity);
        break;
      }
      case 0:
        clients_.erase(id);
        step(event::Leave{id});
        break;
      case 1:
      case 2: {
        const GpuIndex gpu = pick(kGpus);
        clients_.at(id).used[gpu];
        // Measured again now and then.
        step(event::AddGpu{id, gpu, kTotal, pick(2) == 0 ? kContext : 1 + pick(3 * static_cast<unsigned>(kContext))});
        break;
      }
      case 3:
      case 4:
      case 5:
        step(event::Want{id, pick(1U << kGpus), false, pick(4) == 0});
        break;
      case 18:
      case 19: {
        // For GPUs that it holds, as honest clients ask, or for any.
        const GpuMask gpus = pick(4) != 0 ? state.held : pick(1U << kGpus);
        step(event::Want{id, gpus, false, pick(8) == 0, pick(3) != 0});
        break;
      }
      case 6:
      case 7:
        step(event::GiveBack{id, state.grant});
        break;
      case 8:
      case 9:
        if (!clients_.at(id).used.empty()) {
          auto share = clients_.at(id).used.begin();
          std::advance(share, pick(static_cast<unsigned>(clients_.at(id).used.size())));
          // An honest holder has at most what it is promised.
          const bool bound = who_ == Clients::kHonest && (state.held >> share->first & 1) != 0;
          const Bytes most = bound ? std::min(core_.promised_bytes(id, share->first), kTotal) : 700;
          share->second = pick(static_cast<unsigned>(most) + 1);
          clients_.at(id).fixed[share->first] = share->second / (1 + pick(4));
          step(event::Usage{id, share->first, share->second, clients_.at(id).fixed[share->first]});
        }
        break;
      case 10:
      case 11:
      case 12:
        step(event::Ask{id, pick(kGpus), pick(1200)});
        break;
      default:
        step(event::Tick{});
    }
  }

  // By how much the holders of a GPU exceed their room: the GPU less all contexts and less the memory that cannot leave
  // it of clients that do not hold it. A single holder may be as large as it likes.
  Bytes overcommitted(GpuIndex gpu) const {
    Bytes held = 0;
    Bytes taken = 0;
    unsigned holders = 0;
    for (const auto& [id, model] : clients_) {
      const ClientState* state = core_.client(id);
      if (state == nullptr || (state->touched >> gpu & 1) == 0) continue;
      const bool holds = (state->held >> gpu & 1) != 0;
      holders += holds;
      const auto fixed = model.fixed.find(gpu);
      taken += core_.context_bytes(id, gpu);
      if (holds) {
        held += core_.counted_bytes(id, gpu);
      } else if (fixed != model.fixed.end()) {
        taken += fixed->second;
      }
    }
    const Bytes room = kTotal - std::min(taken + core_.gpu(gpu).outside, kTotal);
    return mode_ == Mode::kConcurrent || holders < 2 || held <= room ? 0 : held - room;
  }

  // A client that has a GPU alone has it for no longer than it was told, with no other client beside it: the core is
  // called at once when the time is over.
  void check_alone() const {
    for (const auto& [id, unused] : clients_) {
      const ClientState& state = *core_.client(id);
      if (state.alone_until == 0s) continue;
      if (mode_ != Mode::kAutomatic || state.held == 0) FAIL("alone where nobody is, or on nothing");
      if (state.alone_until > now_ + Alone::kLongest) FAIL("alone for too long");
      if (state.waiters != 0 && state.drain_at < state.alone_until) FAIL("sent away while it is alone");
      for (const auto& [other, unused_too] : clients_) {
        const ClientState& its = *core_.client(other);
        if (other != id && (its.held & state.held) != 0) FAIL("somebody is beside one that is alone");
      }
    }
  }

  void check() {
    for (GpuIndex gpu = 0; gpu < kGpus; ++gpu) {
      GpuState expected;
      Bytes staying = 0;  // of holders that are not asked to leave
      std::uint32_t staying_holders = 0;
      Bytes contexts = 0;
      for (const auto& [id, model] : clients_) {
        const ClientState& state = *core_.client(id);
        if ((state.held & ~state.touched) != 0 || (state.wanted & ~state.touched) != 0) FAIL("a GPU never touched");
        if ((state.grant != 0) != (state.held != 0)) FAIL("a grant of nothing, or GPUs without a grant");
        if ((state.waiters != 0) != (state.drain_at != 0s)) FAIL("a time to drain with nobody waiting, or none");
        if (model.used.count(gpu) == 0) continue;
        ++expected.clients;
        contexts += core_.context_bytes(id, gpu);
        expected.used += model.used.at(gpu);
        if ((state.wanted >> gpu & 1) != 0) ++expected.waiters;
        if ((state.held >> gpu & 1) == 0) continue;
        ++expected.holders;
        if (state.waiters != 0) continue;
        staying += core_.counted_bytes(id, gpu);
        ++staying_holders;
      }
      const GpuState actual = core_.gpu(gpu);
      if (actual.clients == 0) in_use_[gpu] = others_[gpu] = 0;
      // Nobody swaps, so nothing is refused: memory outside is what was measured. A list may be some readings old.
      if (actual.outside > std::max(in_use_[gpu], others_[gpu]))
        FAIL("more is outside GPU " << gpu << " than is in use");
      if (actual.outside < others_[gpu] && now_ - listed_at_[gpu] < Outside::kListKept) {
        FAIL("less is outside GPU " << gpu << " than others have there");
      }
      if (actual.outside != 0) ++outside_;
      if (actual.clients != expected.clients || actual.used != expected.used || actual.holders != expected.holders ||
          actual.waiters != expected.waiters) {
        FAIL("the sums of GPU " << gpu << " have drifted");
      }
      if (mode_ == Mode::kExclusive && actual.holders > 1) FAIL("two hold GPU " << gpu << " exclusively");
      if (mode_ == Mode::kAutomatic && staying_holders > 1 && staying + contexts + actual.outside > kTotal) {
        FAIL("clients run together on GPU " << gpu << " that do not fit");
      }
      if (mode_ == Mode::kConcurrent && actual.waiters != 0) FAIL("somebody waits in concurrent mode");
    }
    check_alone();
    if (core_.next_deadline() && *core_.next_deadline() + 1h < now_) FAIL("a deadline was forgotten");
    // A client that waits for GPUs that nobody holds is behind a client that waits for GPUs that are held.
    bool waits = false;
    bool pressed = false;
    for (const auto& [id, unused] : clients_) {
      waits = waits || core_.client(id)->wanted != 0;
      for (GpuIndex gpu = 0; gpu < kGpus; ++gpu) {
        const Bytes asked = core_.asked_bytes(id, gpu);
        waits = waits || asked != 0;
        if (asked == 0) continue;
        ++asked_;
        if (asked <= core_.promised_bytes(id, gpu)) FAIL("somebody asks for what it is promised");
      }
      pressed = pressed || core_.client(id)->waiters != 0;
    }
    if (waits && !pressed) FAIL("somebody waits and nobody is asked to give back");
  }

  const Mode mode_;
  const Clients who_;
  Core core_;
  std::mt19937 random_;
  Time now_ = 1s;
  ClientId last_client_ = 0;
  std::map<ClientId, Model> clients_;
  std::set<ClientId> waiting_;  // clients that have had no turn since all of them give back
  std::map<ClientId, event::Activity> activity_;
  std::map<GpuIndex, Bytes> in_use_;  // according to the last reading
  std::map<GpuIndex, Bytes> others_;  // according to the last list
  std::map<GpuIndex, Time> listed_at_;
  long promises_ = 0;
  long asked_ = 0;
  long outside_ = 0;
  long alone_ = 0;

 public:
  // A case that is never reached is not tested.
  long promises() const { return promises_; }
  long steps_with_somebody_waiting_for_room() const { return asked_; }
  long steps_with_memory_outside() const { return outside_; }
  long times_alone() const { return alone_; }
};

TEST_CASE("in every random history GPUs are never overcommitted, sums hold and every waiter gets its turn") {
  const Mode mode = GENERATE(Mode::kExclusive, Mode::kAutomatic, Mode::kConcurrent);
  const Clients who = GENERATE(Clients::kHonest, Clients::kMixed);
  long promises = 0;
  long waits = 0;
  long outside = 0;
  long alone = 0;
  for (unsigned seed = 1; seed <= 60 / ROTA_TEST_EVERY; ++seed) {
    INFO("seed " << seed << ", mode " << mode_name(mode) << (who == Clients::kHonest ? ", honest" : ", mixed"));
    History history(mode, who, seed);
    for (int round = 0; round < 5; ++round) {
      history.run(200);
      history.everybody_gives_back();
    }
    promises += history.promises();
    waits += history.steps_with_somebody_waiting_for_room();
    outside += history.steps_with_memory_outside();
    alone += history.times_alone();
  }
  CHECK(promises > 100);
  CHECK(outside > 100);
  if (mode == Mode::kAutomatic) CHECK(waits > 100);
  CHECK((alone > 100 / ROTA_TEST_EVERY) == (mode == Mode::kAutomatic));
}

}  // namespace
}  // namespace rota::scheduler
