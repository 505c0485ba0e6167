// Several rotads of one machine, each with its claims, and the programs of their users, as a model: every order of
// rotads that start, crash and are asked, and of programs that come and go, is explored up to a number of such events,
// together with every order in which the rotads hear of each other.
#include "scheduler/core/claims.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <compare>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace rota::scheduler {
namespace {

using Time = Claims::Time;
using Act = Claims::Act;

constexpr int kUsers = 3;
constexpr int kRotads = kUsers + 1;
constexpr int kMachine = kUsers;  // the machine's rotad
constexpr int kGpus = 2;
constexpr int kNobody = -1;

struct Shape {
  int user;
  std::vector<int> gpus;
};
// Two users share the first GPU, one program has both, and one is alone on the second.
const std::vector<Shape> kPrograms = {{0, {0, 1}}, {1, {0}}, {2, {1}}};

std::string name_of(int gpu) {
  return gpu == 0 ? "GPU-0" : "GPU-1";
}

int gpu_of(const Claims::Gpu& name) {
  return name == "GPU-0" ? 0 : 1;
}

struct Program {
  bool alive = false;
  int rotad = kNobody;  // that it is connected to
  bool holds = false;
  std::array<bool, kGpus> served{};
  std::array<bool, kGpus> refused{};
  friend auto operator<=>(const Program&, const Program&) = default;
};

// What one rotad will hear from another, in order for each of its GPUs.
struct News {
  enum class Kind { kHolder, kAsked, kGiven, kGone };
  int to = kNobody;
  int gpu = 0;
  Kind kind{};
  int from = kNobody;
  std::vector<std::string> gpus{};
  std::vector<Claims::Pid> movers{};
  friend auto operator<=>(const News&, const News&) = default;
};

struct World {
  std::array<bool, kRotads> up{};
  std::vector<Claims> claims;
  std::array<int, kGpus> lock{kNobody, kNobody};
  std::set<std::pair<int, int>> watches;  // rotad, GPU: it is connected to the holder
  std::set<std::pair<int, int>> asks;     // and has asked it
  std::vector<Program> programs = std::vector<Program>(kPrograms.size());
  std::vector<News> news;
  friend auto operator<=>(const World&, const World&) = default;

  World() {
    for (int rotad = 0; rotad < kRotads; ++rotad) claims.emplace_back(rotad == kMachine);
  }

  // ---- what rotads do

  void carry_out(int rotad, const Claims::Actions& actions) {
    for (const Claims::Action& action : actions) {
      const int gpu = action.gpu.empty() ? 0 : gpu_of(action.gpu);
      const int program = static_cast<int>(action.client) - 1;
      switch (action.act) {
        case Act::kTry:
          if (lock[gpu] == kNobody) {
            lock[gpu] = rotad;
            watches.erase({rotad, gpu});
            carry_out(rotad, claims[rotad].taken(name_of(gpu), Time{0}));
          } else {
            REQUIRE(lock[gpu] != rotad);
            watches.insert({rotad, gpu});
            news.push_back({.to = rotad, .gpu = gpu, .kind = News::Kind::kHolder, .from = lock[gpu]});
          }
          break;
        case Act::kAsk:
          CHECK(rotad == kMachine);
          if (lock[gpu] != kNobody && watches.contains({rotad, gpu})) {
            asks.insert({rotad, gpu});
            news.push_back({.to = lock[gpu], .gpu = gpu, .kind = News::Kind::kAsked, .from = rotad});
          }
          break;
        case Act::kServe:
          REQUIRE(lock[gpu] == rotad);
          REQUIRE(programs[program].rotad == rotad);
          programs[program].served[gpu] = true;
          programs[program].refused[gpu] = false;
          break;
        case Act::kRefuse:
          REQUIRE(programs[program].rotad == rotad);
          programs[program].refused[gpu] = true;
          break;
        case Act::kSendAway:
          disconnect(program);
          break;
        case Act::kDrop:
          if (lock[gpu] == rotad && !serves(rotad, gpu)) release(rotad, gpu);
          break;
        case Act::kWithdraw:
          break;
        case Act::kOverdue:
          for (Program& each : programs) {
            if (each.rotad == rotad) each.holds = false;
          }
          break;
        case Act::kLetGo: {
          std::vector<std::string> gpus;
          std::vector<Claims::Pid> movers;
          for (int each = 0; each < kGpus; ++each) {
            if (lock[each] == rotad) gpus.push_back(name_of(each));
          }
          for (std::size_t each = 0; each < programs.size(); ++each) {
            if (programs[each].rotad != rotad) continue;
            REQUIRE_FALSE(programs[each].holds);  // it has given back, or has been told that it lost its turn
            movers.push_back(static_cast<Claims::Pid>(each) + 1);
          }
          for (const auto& [who, each] : asks) {
            if (lock[each] != rotad) continue;
            news.push_back({.to = who, .gpu = each, .kind = News::Kind::kGiven, .gpus = gpus, .movers = movers});
          }
          for (std::size_t each = 0; each < programs.size(); ++each) {
            if (programs[each].rotad == rotad) programs[each] = {.alive = true};
          }
          for (int each = 0; each < kGpus; ++each) {
            if (lock[each] == rotad) let_go(each);
          }
          claims[rotad].let_go();
          stop_watching(rotad);
          break;
        }
      }
    }
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      if (claims[rotad].waits_for(name_of(gpu))) continue;
      watches.erase({rotad, gpu});
      asks.erase({rotad, gpu});
      forget_news(
          [&](const News& each) { return each.to == rotad && each.gpu == gpu && each.kind != News::Kind::kAsked; });
    }
  }

  template <typename Condition>
  void forget_news(Condition condition) {
    news.erase(std::remove_if(news.begin(), news.end(), condition), news.end());
  }

  void stop_watching(int rotad) {
    std::erase_if(watches, [&](const auto& each) { return each.first == rotad; });
    std::erase_if(asks, [&](const auto& each) { return each.first == rotad; });
    forget_news([&](const News& each) { return each.to == rotad && each.kind != News::Kind::kAsked; });
  }

  // The lock is free, and all that are connected to its holder hear so.
  void let_go(int gpu) {
    lock[gpu] = kNobody;
    for (int rotad = 0; rotad < kRotads; ++rotad) {
      if (watches.erase({rotad, gpu}) != 0) news.push_back({.to = rotad, .gpu = gpu, .kind = News::Kind::kGone});
      asks.erase({rotad, gpu});
    }
    forget_news([&](const News& each) { return each.kind == News::Kind::kAsked && each.gpu == gpu; });
  }

  void release(int rotad, int gpu) {
    let_go(gpu);
    carry_out(rotad, claims[rotad].released(name_of(gpu)));
  }

  bool serves(int rotad, int gpu) const {
    return std::ranges::any_of(programs, [&](const Program& each) { return each.rotad == rotad && each.served[gpu]; });
  }

  void disconnect(int program) {
    Program& gone = programs[program];
    const int rotad = gone.rotad;
    const Program before = gone;
    gone = {.alive = before.alive};
    if (rotad == kNobody) return;
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      if (before.served[gpu] && lock[gpu] == rotad && !serves(rotad, gpu)) release(rotad, gpu);
    }
    carry_out(rotad, claims[rotad].left(static_cast<Claims::Client>(program) + 1));
  }

  // ---- what may happen next by itself

  int place_for(int program) const {
    if (up[kMachine]) return kMachine;
    const int own = kPrograms[program].user;
    return up[own] ? own : kNobody;
  }
  bool may_connect(int program) const {
    return programs[program].alive && programs[program].rotad == kNobody && place_for(program) != kNobody;
  }
  void connect(int program) {
    const int rotad = place_for(program);
    programs[program].rotad = rotad;
    for (const int gpu : kPrograms[program].gpus) {
      if (programs[program].rotad != rotad) return;  // sent away
      carry_out(rotad,
                claims[rotad].named(static_cast<Claims::Client>(program) + 1, program + 1, name_of(gpu), Time{0}));
    }
  }

  bool in_order(std::size_t index) const {
    return std::none_of(news.begin(), news.begin() + static_cast<std::ptrdiff_t>(index), [&](const News& earlier) {
      return earlier.to == news[index].to && earlier.gpu == news[index].gpu;
    });
  }
  void hear(std::size_t index) {
    const News heard = news[index];
    news.erase(news.begin() + static_cast<std::ptrdiff_t>(index));
    Claims& own = claims[heard.to];
    switch (heard.kind) {
      case News::Kind::kHolder:
        return carry_out(
            heard.to, own.held_by(name_of(heard.gpu), {.machine = heard.from == kMachine, .answers = true}, Time{0}));
      case News::Kind::kAsked:
        return carry_out(heard.to, own.asked(Time{0}));
      case News::Kind::kGiven:
        return carry_out(heard.to, own.given(name_of(heard.gpu), heard.gpus, heard.movers, Time{0}));
      case News::Kind::kGone:
        return carry_out(heard.to, own.gone(name_of(heard.gpu)));
    }
  }

  bool may_be_granted(int program) const {
    const Program& own = programs[program];
    if (own.rotad == kNobody || own.holds || claims[own.rotad].withdrawing()) return false;
    const auto uses = [&](std::size_t other, int gpu) { return programs[other].served[gpu]; };
    for (const int gpu : kPrograms[program].gpus) {
      if (!own.served[gpu]) continue;
      for (std::size_t other = 0; other < programs.size(); ++other) {
        if (programs[other].holds && programs[other].rotad == own.rotad && uses(other, gpu)) return false;
      }
    }
    return std::ranges::any_of(own.served, [](bool each) { return each; });
  }
  bool may_see_machine(int rotad) const {
    return up[rotad] && rotad != kMachine && up[kMachine] && !sees_machine_done(rotad);
  }
  bool sees_machine_done(int rotad) const {
    Claims copy = claims[rotad];
    return copy.machine_is_there(true).empty();
  }
  bool may_be_quiet(int rotad) const {
    return up[rotad] && claims[rotad].withdrawing() &&
           std::ranges::none_of(programs, [&](const Program& each) { return each.rotad == rotad && each.holds; });
  }

  // ---- what happens to them

  void start(int rotad) {
    up[rotad] = true;
    claims[rotad] = Claims(rotad == kMachine);
  }
  void crash(int rotad) {
    up[rotad] = false;
    claims[rotad] = Claims(rotad == kMachine);
    stop_watching(rotad);
    if (rotad == kMachine) {
      for (Claims& each : claims) CHECK(each.machine_is_there(false).empty());
    }
    forget_news([&](const News& each) { return each.to == rotad; });
    for (Program& each : programs) {
      if (each.rotad == rotad) each = {.alive = true};  // the program goes on, without a lease
    }
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      if (lock[gpu] == rotad) let_go(gpu);
    }
  }

  // ---- what must be true

  void check() const {
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      for (const Program& each : programs) {
        if (each.holds && each.served[gpu]) REQUIRE(each.rotad == lock[gpu]);
      }
    }
  }
  // Once nothing happens by itself any more.
  void check_settled() const {
    for (std::size_t program = 0; program < programs.size(); ++program) {
      const Program& each = programs[program];
      if (!each.alive) continue;
      const int place = place_for(static_cast<int>(program));
      if (place == kNobody) continue;
      REQUIRE(each.rotad != kNobody);
      for (const int gpu : kPrograms[program].gpus) {
        INFO("program " << program << ", GPU " << gpu << ", its rotad " << each.rotad << ", the lock's " << lock[gpu]);
        REQUIRE(lock[gpu] != kNobody);
        REQUIRE(each.served[gpu] == (lock[gpu] == each.rotad));
        REQUIRE(each.refused[gpu] == !each.served[gpu]);
        if (up[kMachine]) REQUIRE(each.served[gpu]);
      }
    }
    // All GPUs of a user's rotad together, or none.
    const bool machine_has = lock[0] == kMachine || lock[1] == kMachine;
    const bool both = programs[0].alive;
    if (machine_has && both) REQUIRE(lock[0] == lock[1]);
  }

  void settle() {
    for (int steps = 0; steps < 400; ++steps) {
      if (!settle_once()) return check_settled();
      check();
    }
    FAIL("the world does not settle");
  }
  bool settle_once() {
    if (!news.empty()) {
      hear(0);
      return true;
    }
    for (std::size_t program = 0; program < programs.size(); ++program) {
      if (may_connect(static_cast<int>(program))) {
        connect(static_cast<int>(program));
        return true;
      }
      if (programs[program].holds) {
        programs[program].holds = false;
        return true;
      }
    }
    for (int rotad = 0; rotad < kRotads; ++rotad) {
      if (may_be_quiet(rotad)) {
        carry_out(rotad, claims[rotad].quiet());
        return true;
      }
      if (may_see_machine(rotad)) {
        carry_out(rotad, claims[rotad].machine_is_there(true));
        return true;
      }
      if (const auto due = claims[rotad].next_deadline(); up[rotad] && due) {
        carry_out(rotad, claims[rotad].tick(*due));
        return true;
      }
    }
    return false;
  }
};

// Everything that may happen next, as worlds.
std::vector<World> next_by_itself(const World& world) {
  std::vector<World> all;
  const auto also = [&](auto change) {
    World next = world;
    change(next);
    next.check();
    all.push_back(std::move(next));
  };
  for (std::size_t index = 0; index < world.news.size(); ++index) {
    if (world.in_order(index)) also([&](World& next) { next.hear(index); });
  }
  for (std::size_t each = 0; each < world.programs.size(); ++each) {
    const int program = static_cast<int>(each);
    if (world.may_connect(program)) also([&](World& next) { next.connect(program); });
    if (world.may_be_granted(program)) also([&](World& next) { next.programs[each].holds = true; });
    if (world.programs[each].holds) also([&](World& next) { next.programs[each].holds = false; });
  }
  for (int rotad = 0; rotad < kRotads; ++rotad) {
    if (world.may_be_quiet(rotad)) also([&](World& next) { next.carry_out(rotad, next.claims[rotad].quiet()); });
    if (world.may_see_machine(rotad)) {
      also([&](World& next) { next.carry_out(rotad, next.claims[rotad].machine_is_there(true)); });
    }
    if (const auto due = world.claims[rotad].next_deadline(); world.up[rotad] && due) {
      also([&](World& next) { next.carry_out(rotad, next.claims[rotad].tick(*due)); });
    }
  }
  return all;
}

std::vector<World> next_from_outside(const World& world) {
  std::vector<World> all;
  for (int rotad = 0; rotad < kRotads; ++rotad) {
    World next = world;
    world.up[rotad] ? next.crash(rotad) : next.start(rotad);
    all.push_back(std::move(next));
  }
  for (std::size_t each = 0; each < world.programs.size(); ++each) {
    World next = world;
    if (world.programs[each].alive) {
      next.programs[each].holds = false;
      next.disconnect(static_cast<int>(each));
      next.programs[each].alive = false;
    } else {
      next.programs[each].alive = true;
    }
    all.push_back(std::move(next));
  }
  for (const World& next : all) next.check();
  return all;
}

TEST_CASE("a rotad that dies while it is asked who it is leaves its lock to the one that asked") {
  Claims claims(false);
  const auto tries = [](const Claims::Actions& actions) {
    return actions.size() == 1 && actions[0].act == Claims::Act::kTry;
  };
  CHECK(tries(claims.named(1, 100, "GPU-0", Time{0})));
  CHECK(tries(claims.gone("GPU-0")));
  CHECK(claims.held_by("GPU-0", {}, Time{1}).size() == 1);  // client 1 is told
  CHECK(tries(claims.gone("GPU-0")));
  CHECK(tries(claims.gone("GPU-0")));
}

TEST_CASE("in every order of four rotads and three programs, one rotad grants a GPU and no program is left out") {
  // All orders of this many events from outside, with all that happens by itself in between.
  constexpr int kEvents = 7;
  constexpr std::size_t kMostWorlds = 60000 / ROTA_TEST_EVERY;  // for each number of events
  std::set<World> frontier{World()};
  for (int events = 0; events <= kEvents; ++events) {
    std::set<World> seen = frontier;
    std::deque<World> open(frontier.begin(), frontier.end());
    std::size_t settled = 0;
    while (!open.empty() && seen.size() < kMostWorlds) {
      const World world = std::move(open.front());
      open.pop_front();
      for (World& next : next_by_itself(world)) {
        if (seen.insert(next).second) open.push_back(std::move(next));
      }
    }
    for (const World& world : seen) {
      World end = world;
      end.settle();
      ++settled;
    }
    CHECK(settled == seen.size());
    if (events == kEvents) break;
    frontier.clear();
    for (const World& world : seen) {
      for (World& next : next_from_outside(world)) {
        if (frontier.size() < kMostWorlds) frontier.insert(std::move(next));
      }
    }
  }
}

TEST_CASE("after long random histories of rotads and programs everybody is served or told") {
  for (std::uint32_t seed = 0; seed < 3000 / ROTA_TEST_EVERY; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    World world;
    for (int step = 0; step < 120; ++step) {
      std::vector<World> all = next_by_itself(world);
      if (all.empty() || random() % 4 == 0) all = next_from_outside(world);
      world = all[random() % all.size()];
    }
    world.settle();
  }
}

}  // namespace
}  // namespace rota::scheduler
