// Random histories against the core: whatever clients do, these hold after every step. Seeds are fixed, so a failure
// comes back.
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

class History {
 public:
  History(Mode mode, unsigned seed) : mode_(mode), core_(settings(mode)), random_(seed) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      now_ += std::chrono::nanoseconds(pick(40'000'000));
      random_step();
      check();
    }
  }

  // From here on everybody gives back when asked and wants again at once: a waiter must not be overtaken for ever.
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
    std::uint32_t last_grant = 0;
  };

  static Settings settings(Mode mode) {
    Settings settings;
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
    for (const Decision& decision : core_.step(event, now_)) {
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
      clients_[id];
      step(event::Join{id});
      return;
    }
    const ClientId id = some_client();
    const ClientState& state = *core_.client(id);
    switch (pick(12)) {
      case 0:
        clients_.erase(id);
        step(event::Leave{id});
        break;
      case 1:
      case 2: {
        const GpuIndex gpu = pick(kGpus);
        clients_.at(id).used[gpu];
        step(event::AddGpu{id, gpu, kTotal, kContext});
        break;
      }
      case 3:
      case 4:
      case 5:
        step(event::Want{id, pick(1U << kGpus)});
        break;
      case 6:
      case 7:
        step(event::GiveBack{id, state.grant});
        break;
      case 8:
      case 9:
        if (!clients_.at(id).used.empty()) {
          auto share = clients_.at(id).used.begin();
          std::advance(share, pick(static_cast<unsigned>(clients_.at(id).used.size())));
          share->second = pick(700);
          step(event::Usage{id, share->first, share->second, share->second / (1 + pick(4))});
        }
        break;
      default:
        step(event::Tick{});
    }
  }

  void check() {
    for (GpuIndex gpu = 0; gpu < kGpus; ++gpu) {
      GpuState expected;
      Bytes counted = 0;
      Bytes staying = 0;  // of holders that are not asked to leave
      std::uint32_t staying_holders = 0;
      for (const auto& [id, model] : clients_) {
        const ClientState& state = *core_.client(id);
        if ((state.held & ~state.touched) != 0 || (state.wanted & ~state.touched) != 0) FAIL("a GPU never touched");
        if ((state.grant != 0) != (state.held != 0)) FAIL("a grant of nothing, or GPUs without a grant");
        if ((state.waiters != 0) != (state.drain_at != 0s)) FAIL("a time to drain with nobody waiting, or none");
        if (model.used.count(gpu) == 0) continue;
        ++expected.clients;
        expected.used += model.used.at(gpu);
        if ((state.wanted >> gpu & 1) != 0) ++expected.waiters;
        if ((state.held >> gpu & 1) == 0) continue;
        ++expected.holders;
        counted += core_.counted_bytes(id, gpu);
        if (state.waiters != 0) continue;
        staying += core_.counted_bytes(id, gpu);
        ++staying_holders;
      }
      const GpuState actual = core_.gpu(gpu);
      if (actual.clients != expected.clients || actual.used != expected.used || actual.holders != expected.holders ||
          actual.waiters != expected.waiters) {
        FAIL("the sums of GPU " << gpu << " have drifted");
      }
      if (mode_ == Mode::kExclusive && actual.holders > 1) FAIL("two hold GPU " << gpu << " exclusively");
      if (mode_ == Mode::kAutomatic && staying_holders > 1 && staying + kContext * actual.clients > kTotal) {
        FAIL("clients run together on GPU " << gpu << " that do not fit");
      }
      if (mode_ == Mode::kConcurrent && actual.waiters != 0) FAIL("somebody waits in concurrent mode");
    }
    if (core_.next_deadline() && *core_.next_deadline() + 1h < now_) FAIL("a deadline was forgotten");
    // Somebody who waits for GPUs that nobody holds has somebody in front who waits for GPUs that are held.
    bool waits = false;
    bool pressed = false;
    for (const auto& [id, unused] : clients_) {
      waits = waits || core_.client(id)->wanted != 0;
      pressed = pressed || core_.client(id)->waiters != 0;
    }
    if (waits && !pressed) FAIL("somebody waits and nobody is asked to give back");
  }

  const Mode mode_;
  Core core_;
  std::mt19937 random_;
  Time now_ = 1s;
  ClientId last_client_ = 0;
  std::map<ClientId, Model> clients_;
  std::set<ClientId> waiting_;  // who has not had a turn since everybody gives back
};

TEST_CASE("in every random history GPUs are never overcommitted, sums hold and every waiter gets its turn") {
  const Mode mode = GENERATE(Mode::kExclusive, Mode::kAutomatic, Mode::kConcurrent);
  for (unsigned seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed << ", mode " << mode_name(mode));
    History history(mode, seed);
    for (int round = 0; round < 5; ++round) {
      history.run(200);
      history.everybody_gives_back();
    }
  }
}

}  // namespace
}  // namespace rota::scheduler
