#include "tools/rota/ci/admissions.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace rota::ci {

namespace {

std::uint64_t at(const Load& load, const std::string& gpu) {
  const auto found = load.find(gpu);
  return found != load.end() ? found->second : 0;
}

}  // namespace

Load on_gpus(const Needs& needs, const std::vector<std::string>& gpus, std::size_t first) {
  Load load;
  if (needs.size() == 1) return {{gpus[std::min(first, gpus.size() - 1)], needs[0]}};
  for (std::size_t i = 0; i < needs.size(); ++i) {
    if (needs[i] != 0) load[gpus[i % gpus.size()]] += needs[i];
  }
  return load;
}

std::uint64_t Admissions::Tree::has(const std::string& gpu) const {
  if (!runs) return at(stays, gpu);
  return added ? at(stays, gpu) + at(kept, gpu) : std::max(at(kept, gpu), at(used, gpu));
}

Load Admissions::taken() const {
  Load sum;
  for (const auto& [name, tree] : trees_) {
    for (const auto& [gpu, bytes] : tree.used) sum[gpu] += tree.has(gpu);
    for (const auto& [gpu, bytes] : tree.kept) sum[gpu] += tree.used.contains(gpu) ? 0 : bytes;
  }
  return sum;
}

Admissions::Claims Admissions::claims_now() const {
  Claims claims;
  std::set<std::string> unknown;  // trees whose needs are not
  for (const auto& [name, given] : given_) {
    if (given.holders.empty()) continue;
    for (const std::string& gpu : given.gpus) claims[name][gpu] = at(given.promised, gpu);
    if (given.promised.empty()) unknown.insert(name);
  }
  for (const auto& [name, tree] : trees_) {
    for (const Load* load : {&tree.kept, &tree.used}) {
      for (const auto& [gpu, bytes] : *load) claims[name][gpu] = std::max(claims[name][gpu], tree.has(gpu));
    }
    const bool known = std::ranges::any_of(tree.kept, [](const auto& kept) { return kept.second != 0; });
    if (known) {
      unknown.erase(name);
    } else {
      unknown.insert(name);
    }
  }
  std::uint64_t sum = 0;
  std::uint64_t count = 0;
  for (const std::string& name : unknown) {
    for (const auto& [gpu, bytes] : claims[name]) {
      sum += bytes;
      count += bytes != 0 ? 1 : 0;
    }
  }
  // A test that has just begun, or has used little so far, is expected to need as much as the others.
  for (const std::string& name : unknown) {
    for (auto& [gpu, bytes] : claims[name]) bytes = std::max(bytes, count != 0 ? sum / count : 0);
  }
  return claims;
}

void Admissions::spread(std::vector<std::string> gpus, std::size_t each) {
  gpus_ = std::move(gpus);
  each_ = each;
}

std::vector<std::string> Admissions::give(int who, const std::string& tree, const Needs& needs, const Load& room) {
  Given& own = given_[tree];
  own.holders.insert(who);
  if (!own.gpus.empty()) return own.gpus;
  struct Candidate {
    std::string gpu;
    std::int64_t left;      // negative where tests take turns
    std::size_t tests = 0;  // that are there now
    std::size_t ever = 0;
  };
  std::vector<Candidate> all;
  const Claims claims = claims_now();
  for (const std::string& gpu : gpus_) {
    Candidate made{gpu, static_cast<std::int64_t>(at(room, gpu))};
    for (const auto& [name, claim] : claims) {
      made.left -= static_cast<std::int64_t>(at(claim, gpu));
      made.tests += claim.contains(gpu) ? 1 : 0;
    }
    for (const auto& [name, given] : given_) {
      made.ever += static_cast<std::size_t>(std::ranges::count(given.gpus, gpu));
    }
    all.push_back(std::move(made));
  }
  std::ranges::stable_sort(all, [](const Candidate& a, const Candidate& b) {
    return std::tuple(-a.left, a.tests, a.ever) < std::tuple(-b.left, b.tests, b.ever);
  });
  for (std::size_t i = 0; i < std::min(each_, all.size()); ++i) own.gpus.push_back(all[i].gpu);
  if (!own.gpus.empty()) own.promised = on_gpus(needs, own.gpus, 0);
  return own.gpus;
}

void Admissions::take_over(int who, const std::string& tree, std::vector<std::string> gpus) {
  Given& own = given_[tree];
  own.holders.insert(who);
  if (own.gpus.empty()) own.gpus = std::move(gpus);
}

void Admissions::let_in(int who, const std::string& tree, const Load& keep, bool added) {
  Tree& in = trees_[tree];
  for (const auto& [gpu, bytes] : keep) in.kept[gpu] = std::max(in.kept[gpu], bytes);
  in.runs = true;
  in.added = added;
  if (std::ranges::find(in.connections, who) == in.connections.end()) in.connections.push_back(who);
  if (const auto given = given_.find(tree); given != given_.end()) given->second.promised.clear();
}

void Admissions::ask(int who, const std::string& tree, std::optional<Load> needs, Time now, bool added) {
  const auto found = trees_.find(tree);
  if (found != trees_.end()) {
    Tree& in = found->second;
    const bool again = std::ranges::find(in.connections, who) != in.connections.end();
    // The next test of a process that runs tests one after the other: the memory reserved for the previous one is no
    // longer needed, unless the tree has other processes.
    if (again && in.connections.size() == 1) {
      for (auto& [gpu, bytes] : in.kept) bytes = 0;
      in.runs = false;
    }
    const auto covered = [&](const auto& need) { return need.second <= (added ? 0 : in.has(need.first)); };
    // Further processes of a test that has begun never wait: the test's first processes might be waiting for them.
    if (!again || !needs || std::ranges::all_of(*needs, covered)) {
      let_in(who, tree, again ? needs.value_or(Load{}) : Load{}, again ? added : in.added);
      at_once_.push_back(who);
      return;
    }
  }
  if (!needs || std::ranges::all_of(*needs, [](const auto& need) { return need.second == 0; })) {
    let_in(who, tree, needs.value_or(Load{}), added);
    at_once_.push_back(who);
    return;
  }
  queue_.push_back({who, tree, std::move(*needs), now, added});
}

void Admissions::done(int who) {
  for (auto& [name, tree] : trees_) {
    if (tree.connections != std::vector<int>{who}) continue;
    for (auto& [gpu, bytes] : tree.kept) bytes = 0;
    tree.runs = false;
  }
}

// Whether no running test of this rig uses these GPUs. Then waiting would not free memory there.
bool Admissions::none_runs_on(const Load& needs) const {
  return std::ranges::none_of(trees_, [&](const auto& entry) {
    const auto& [name, tree] = entry;
    return tree.runs && std::ranges::any_of(needs, [&tree](const auto& need) { return tree.has(need.first) != 0; });
  });
}

void Admissions::ended(int who) {
  std::erase_if(queue_, [who](const Asked& asked) { return asked.who == who; });
  std::erase(at_once_, who);
  for (auto tree = trees_.begin(); tree != trees_.end();) {
    std::erase(tree->second.connections, who);
    tree = tree->second.connections.empty() ? trees_.erase(tree) : std::next(tree);
  }
  for (auto& [name, given] : given_) {
    if (given.holders.erase(who) != 0 && given.holders.empty()) given.promised.clear();
  }
}

void Admissions::uses(const std::string& tree, Load bytes, std::optional<Load> staying) {
  const auto found = trees_.find(tree);
  if (found == trees_.end()) return;
  found->second.stays = staying ? std::move(*staying) : bytes;
  found->second.used = std::move(bytes);
}

std::vector<int> Admissions::step(const Load& room, Time now) {
  std::vector<int> go = std::move(at_once_);
  at_once_.clear();
  Load taken = this->taken();
  for (auto asked = queue_.begin(); asked != queue_.end();) {
    const auto tree = trees_.find(asked->tree);
    bool fits = true;
    bool hopeless = false;
    Load more;
    for (const auto& [gpu, needs] : asked->needs) {
      // If the test follows another one in its process, only what it needs in addition is new.
      const std::uint64_t has = tree != trees_.end() ? tree->second.has(gpu) : 0;
      const std::uint64_t then = asked->added ? has + needs : needs;
      if (then <= has) continue;
      more[gpu] = then - has;
      const auto known = room.find(gpu);
      if (known == room.end()) continue;
      fits &= taken[gpu] <= known->second && more[gpu] <= known->second - taken[gpu];
      hopeless |= then > known->second;
    }
    const bool gave_up = now - asked->since >= kLongestWait;
    const bool futile = none_runs_on(asked->needs);
    if (!fits && !hopeless && !gave_up && !futile) {
      ++asked;
      continue;
    }
    Waited& waited = waited_[asked->tree];
    waited.time += now - asked->since;
    waited.gave_up |= (gave_up || futile) && !fits && !hopeless;
    let_in(asked->who, asked->tree, asked->needs, asked->added);
    for (const auto& [gpu, bytes] : more) taken[gpu] += bytes;
    go.push_back(asked->who);
    asked = queue_.erase(asked);
  }
  return go;
}

}  // namespace rota::ci
