#include "tools/rota/ci/ctest.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace rota::ci {
namespace {

using Arguments = std::vector<std::string>;

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

// Whether it is a ctest that runs tests, rather than one that lists them or builds a project.
bool is_ctest(const report::PersonRecord& person) {
  if (person.command.empty() || base_name(person.command.front()) != "ctest") return false;
  return std::ranges::none_of(person.command, [](const std::string& argument) {
    return argument == "-N" || argument == "--build-and-test" || argument.starts_with("--show-only");
  });
}

// How well a child's command is a test's: 0, not at all.
enum Likeness { kNot, kWrapped, kSame, kSameFolder };

// Whether the child's command, which may be cut off, is these arguments of the test.
bool begins_alike(std::span<const std::string> child, std::span<const std::string> test, bool cut_off) {
  if (!cut_off) return std::ranges::equal(child, test);
  return !child.empty() && child.size() <= test.size() && std::equal(child.begin(), child.end() - 1, test.begin()) &&
         test[child.size() - 1].starts_with(child.back());
}

// Whether one of the two is the end of the other: what a launcher started, or what a launcher became.
bool one_ends_with_other(const SeenCommand& child, const Arguments& test) {
  if (!child.cut_off) {
    const auto ends_with = [](const Arguments& whole, const Arguments& end) {
      return !end.empty() && whole.size() > end.size() && std::equal(end.rbegin(), end.rend(), whole.rbegin());
    };
    return ends_with(child.words, test) || ends_with(test, child.words);
  }
  // If the rest is not known, a program's name alone is not enough.
  const std::span<const std::string> known(child.words);
  const std::span<const std::string> wanted(test);
  for (std::size_t from = 1; from + 1 < known.size(); ++from) {
    if (begins_alike(known.subspan(from), wanted, true)) return true;
  }
  for (std::size_t from = 1; known.size() > 1 && from < wanted.size(); ++from) {
    if (begins_alike(known, wanted.subspan(from), true)) return true;
  }
  return false;
}

// A launcher such as pyenv's python3 becomes a program of about the same name with the same arguments.
bool same_but_for_the_path(const SeenCommand& child, const Arguments& test) {
  if (test.size() < 2 || child.words.size() < 2) return false;
  const std::string_view one = base_name(child.words.front());
  const std::string_view other = base_name(test.front());
  return !one.empty() && !other.empty() && (one.starts_with(other) || other.starts_with(one)) &&
         begins_alike(std::span(child.words).subspan(1), std::span(test).subspan(1), child.cut_off);
}

// Arguments with different bytes may be the same in the list. The log, if it has the test, distinguishes them.
bool logged_otherwise(const SeenCommand& child, const ListedTest& test) {
  return !test.shown.empty() && !(child.cut_off ? test.shown.starts_with(child.shown) : test.shown == child.shown);
}

// Which programs tests mention that they may become by exec: in their arguments, and in scripts that these name. Each
// script is read once, when it is first needed.
class Mentions {
 public:
  explicit Mentions(const std::vector<ListedTest>& tests) : tests_(tests), scripts_(tests.size()) {}

  bool has(std::size_t test, const SeenCommand& program) {
    const std::string_view name = base_name(program.raw.front());
    const std::string_view listed_name = base_name(program.words.front());
    if (name.empty()) return false;
    const Arguments& command = tests_[test].command;
    for (std::size_t i = 1; i < command.size(); ++i) {
      if (command[i].find(listed_name) != std::string::npos) return true;
    }
    if (!scripts_[test]) scripts_[test] = scripts_in(command);
    return scripts_[test]->find(name) != std::string::npos;
  }

 private:
  static std::string scripts_in(const Arguments& command) {
    constexpr std::uintmax_t kLargest = 1 << 20;
    std::string text;
    for (const std::string& word : command) {
      std::error_code error;
      if (!std::filesystem::is_regular_file(word, error) || std::filesystem::file_size(word, error) > kLargest)
        continue;
      std::ifstream file(word, std::ios::binary);
      char begin[2] = {};
      if (!file.read(begin, sizeof begin) || begin[0] != '#' || begin[1] != '!') continue;
      text.append(std::istreambuf_iterator<char>(file), {});
      text += '\n';
    }
    return text;
  }

  const std::vector<ListedTest>& tests_;
  std::vector<std::optional<std::string>> scripts_;  // by test
};

Likeness likeness(const Group& group, const ListedTest& test) {
  Likeness best = kNot;
  for (const SeenCommand& command : group.commands) {
    if (command.words.empty() || test.command.empty()) continue;
    if (begins_alike(command.words, test.command, command.cut_off)) {
      if (logged_otherwise(command, test)) continue;
      best = std::max(best, command.folder == test.folder ? kSameFolder : kSame);
    } else if (one_ends_with_other(command, test.command) || same_but_for_the_path(command, test.command)) {
      best = std::max(best, kWrapped);  // a script's interpreter, or what env, timeout or taskset became
    }
  }
  return best;
}

// The tests that mention a program that it was.
std::vector<std::size_t> naming(const Group& group, const std::vector<ListedTest>& tests, Mentions& mentions) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < tests.size(); ++i) {
    const bool named = std::ranges::any_of(
        group.commands, [&](const SeenCommand& command) { return !command.raw.empty() && mentions.has(i, command); });
    if (named && !tests[i].disabled) found.push_back(i);
  }
  return found;
}

// The tests whose commands are most similar to it; if there is none, those that mention it; if there is none either,
// all.
std::vector<std::size_t> candidates(const Group& group, const std::vector<ListedTest>& tests, Mentions& mentions) {
  std::vector<std::size_t> alike;
  std::vector<std::size_t> all;
  Likeness most = kNot;
  for (std::size_t i = 0; i < tests.size(); ++i) {
    if (tests[i].disabled) continue;
    all.push_back(i);
    const Likeness one = likeness(group, tests[i]);
    if (one > most) alike.clear();
    most = std::max(most, one);
    if (one == most && one != kNot) alike.push_back(i);
  }
  if (!alike.empty()) return alike;
  std::vector<std::size_t> mentioning = naming(group, tests, mentions);
  return mentioning.empty() ? all : mentioning;
}

// As ctest's log shows a command.
std::string shown(const Arguments& command) {
  std::string text;
  for (const std::string& argument : command) text += (text.empty() ? "\"" : " \"") + argument + '"';
  return text;
}

// An account holds at most one kilobyte of a command.
SeenCommand seen(const report::PersonRecord& child) {
  constexpr std::size_t kWhole = 1023;
  SeenCommand command{.raw = child.command, .words = {}, .folder = as_ctest_lists(child.folder), .shown = {}};
  std::size_t bytes = 0;
  for (const std::string& argument : child.command) bytes += argument.size() + 1;
  command.cut_off = bytes >= kWhole;
  for (const std::string& argument : child.command) {
    command.words.push_back(as_ctest_lists(argument, command.cut_off && &argument == &child.command.back()));
  }
  command.shown = shown(child.command);
  if (command.cut_off) command.shown.pop_back();
  return command;
}

void add(const report::ProcessAccount& process, const report::PersonRecord& child, report::Realtime boot_ns,
         Group& group) {
  group.child = child;
  group.begin_ns = start_of(child, boot_ns);
  group.last_ns = std::max(group.last_ns, last_sign_of(process));
  if (std::ranges::find(group.commands, child.command, &SeenCommand::raw) == group.commands.end()) {
    group.commands.push_back(seen(child));
  }
  if (const std::string id = process.self.id(); std::ranges::find(group.processes, id) == group.processes.end()) {
    group.processes.push_back(id);
  }
}

// By the child of this ctest, in the order of their starts.
std::vector<Group> groups_of(const report::PersonRecord& runner, const std::vector<report::ProcessAccount>& processes,
                             report::Realtime boot_ns) {
  std::map<std::string, Group> by_child;
  for (const report::ProcessAccount& process : processes) {
    for (std::size_t i = 0; i < process.ancestors.size(); ++i) {
      if (process.ancestors[i].id() != runner.id()) continue;
      const report::PersonRecord& child = i == 0 ? process.self : process.ancestors[i - 1];
      add(process, child, boot_ns, by_child[child.id()]);
      break;
    }
  }
  std::vector<Group> groups;
  for (auto& [id, group] : by_child) groups.push_back(std::move(group));
  std::ranges::stable_sort(groups, {}, &Group::begin_ns);
  return groups;
}

const std::string& raw_name(const LoggedTest& logged) {
  return logged.raw.empty() ? logged.name : logged.raw;
}

double timeout_of(const ListedTest* listed, const AskedCtest& ctest) {
  return listed != nullptr && listed->timeout_s > 0 ? listed->timeout_s : ctest.timeout_s;
}

std::string outcome_of(const LoggedTest& logged, const ListedTest* listed, const AskedCtest& ctest) {
  using Verdict = LoggedTest::Verdict;
  const bool left_out = ctest.disabled.contains(raw_name(logged)) || (listed != nullptr && listed->disabled);
  if (logged.verdict == Verdict::kSkipped || (left_out && logged.verdict != Verdict::kFailed)) return "skipped";
  if (logged.verdict == Verdict::kPassed) return "passed";
  if (logged.verdict == Verdict::kNotRun) return "error";
  return logged.seconds >= timeout_of(listed, ctest) - 0.05 ? "timeout" : "failed";  // rounded, and by another clock
}

// Of a test that failed. ctest counts its time-out from before it started the tests that it starts at the same moment,
// so one of many is killed early, by what starting the others took.
bool killed_early(double seconds, double timeout, const report::TestRecord& test,
                  const std::map<std::string_view, report::Ending>& endings) {
  constexpr double kStartingOthers = 1;
  if (seconds < std::max(timeout - kStartingOthers, timeout / 2)) return false;
  return std::ranges::any_of(test.processes, [&](const std::string& process) {
    const auto found = endings.find(process);
    return found != endings.end() && found->second == report::Ending::kKilled;
  });
}

// Several tests may have the same name in the list. Each of their entries in the log gets the name of the one with that
// command.
void tell_names_apart(AskedCtest& ctest) {
  std::map<std::string_view, std::vector<const ListedTest*>> alike;
  for (const ListedTest& test : ctest.listed) {
    if (!test.listed_as.empty()) alike[test.listed_as];
  }
  if (alike.empty()) return;
  for (const ListedTest& test : ctest.listed) {
    const auto found = alike.find(test.listed_as.empty() ? test.name : test.listed_as);
    if (found != alike.end()) found->second.push_back(&test);
  }
  // In an order that does not depend on which test ended first.
  std::map<std::string, LoggedTest*> by_bytes;
  for (LoggedTest& logged : ctest.logged) by_bytes.emplace(raw_name(logged), &logged);
  std::map<std::string, const ListedTest*> meant;
  for (const bool by_command : {true, false}) {
    for (const auto& [raw, logged] : by_bytes) {
      const auto found = alike.find(logged->name);
      if (found == alike.end() || meant.contains(raw)) continue;
      std::vector<const ListedTest*>& open = found->second;
      const auto one = std::ranges::find_if(open, [&, logged = logged](const ListedTest* test) {
        return !by_command || shown(test->command) == as_ctest_lists(logged->command);
      });
      if (one == open.end()) continue;
      meant[raw] = *one;
      open.erase(one);
    }
  }
  for (LoggedTest& logged : ctest.logged) {
    const std::string raw = raw_name(logged);
    if (const auto found = meant.find(raw); found != meant.end()) {
      logged.raw = raw;
      logged.name = found->second->name;
    }
  }
}

// Notes the original bytes of the commands of listed tests that are in the log.
void note_what_is_logged(AskedCtest& ctest) {
  std::map<std::string_view, std::string_view> commands;
  for (const LoggedTest& logged : ctest.logged) commands.emplace(logged.name, logged.command);
  for (ListedTest& test : ctest.listed) {
    const auto logged = commands.find(test.name);
    if (logged != commands.end() && as_ctest_lists(logged->second) == shown(test.command)) {
      test.shown = logged->second;
    }
  }
}

}  // namespace

std::vector<CtestRun> ctest_runs(const std::vector<report::ProcessAccount>& processes) {
  std::map<std::string, CtestRun> found;
  for (const report::ProcessAccount& process : processes) {
    for (std::size_t i = 0; i < process.ancestors.size(); ++i) {
      if (!is_ctest(process.ancestors[i])) continue;
      const report::PersonRecord& child = i == 0 ? process.self : process.ancestors[i - 1];
      found.try_emplace(process.ancestors[i].id(), CtestRun{process.ancestors[i], child.folder, true});
    }
  }
  std::vector<CtestRun> runs;
  for (auto& [id, run] : found) runs.push_back(std::move(run));
  std::ranges::stable_sort(runs, {}, [](const CtestRun& run) { return run.runner.start_ticks; });
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::size_t later = i + 1; later < runs.size(); ++later) {
      if (runs[later].runner.folder == runs[i].runner.folder) runs[i].last = false;
    }
  }
  return runs;
}

std::vector<report::TestRecord> match_ctest(AskedCtest ctest, const std::vector<report::ProcessAccount>& processes,
                                            report::Realtime boot_ns) {
  tell_names_apart(ctest);
  note_what_is_logged(ctest);
  std::map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < ctest.listed.size(); ++i) by_name.emplace(ctest.listed[i].name, i);
  std::vector<Slot> slots;
  for (const LoggedTest& logged : ctest.logged) {
    const auto listed = by_name.find(logged.name);
    const bool ran = logged.verdict != LoggedTest::Verdict::kNotRun && listed != by_name.end();
    slots.push_back({ran ? listed->second : ctest.listed.size(), logged.seconds});
  }
  // Tests that ended first, then those that had not when ctest was killed.
  std::vector<report::TestRecord> tests;
  std::map<std::string, std::uint64_t> attempts;
  const auto append = [&](const std::string& name, const ListedTest* listed, std::string outcome) {
    report::TestRecord& test = tests.emplace_back();
    test.name = name;
    test.runner = "ctest";
    test.attempt = ++attempts[name];
    test.outcome = std::move(outcome);
    if (listed != nullptr) {
      test.command = listed->command;
      test.folder = listed->folder;
    }
  };
  for (std::size_t i = 0; i < ctest.logged.size(); ++i) {
    const auto listed = by_name.find(ctest.logged[i].name);
    const ListedTest* const test = listed == by_name.end() ? nullptr : &ctest.listed[listed->second];
    append(ctest.logged[i].name, test, outcome_of(ctest.logged[i], test, ctest));
    tests.back().message =
        ctest.logged[i].verdict == LoggedTest::Verdict::kNotRun ? "it was not run" : ctest.logged[i].message;
  }

  const auto give = [&](report::TestRecord& test, const Group& group, double seconds, bool ambiguous) {
    test.ambiguous = ambiguous;
    test.processes = group.processes;
    test.begin_ns = group.begin_ns;
    test.end_ns = seconds > 0 ? group.begin_ns + static_cast<report::Realtime>(seconds * 1e9) : 0;
  };
  // The slots for groups that may all belong to these tests (ascending). `at`: each open slot's position in the log.
  struct Places {
    std::vector<Slot> open;
    std::vector<std::size_t> at;
    Assignment assignment;
  };
  const auto places_of = [&](const std::vector<Group>& members, const std::vector<std::size_t>& allowed) {
    Places places;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!tests[i].processes.empty() || !std::ranges::binary_search(allowed, slots[i].test)) continue;
      places.open.push_back(slots[i]);
      places.at.push_back(i);
    }
    places.assignment = assign_slots(members, {members.size(), allowed}, places.open);
    return places;
  };

  const std::vector<Group> groups = groups_of(ctest.runner, processes, boot_ns);
  Mentions mentions(ctest.listed);
  // Groups that compete for the same tests are assigned together; those with few candidate tests come before those with
  // many.
  std::map<std::pair<std::size_t, std::vector<std::size_t>>, std::vector<Group>> competing;
  for (const Group& group : groups) {
    auto allowed = candidates(group, ctest.listed, mentions);
    const std::size_t count = allowed.size();
    if (count > 0) competing[{count, std::move(allowed)}].push_back(group);
  }
  struct LeftOver {
    const Group* group;
    std::size_t test;  // a candidate
    bool ambiguous;
  };
  std::vector<LeftOver> left_over;
  for (const auto& [key, members] : competing) {
    const std::vector<std::size_t>& allowed = key.second;
    const Places places = places_of(members, allowed);
    const Assignment& assignment = places.assignment;
    std::set<std::size_t> ended;
    for (const std::optional<std::size_t>& slot : assignment.slots) {
      if (slot) ended.insert(places.open[*slot].test);
    }
    std::vector<std::size_t> others;  // of which no attempt ended
    std::ranges::copy_if(allowed, std::back_inserter(others), [&](std::size_t test) { return !ended.contains(test); });
    if (others.empty()) others = allowed;
    // If all attempts of one test called CUDA, they are in order, even if another assignment would fit.
    const bool in_order = allowed.size() == 1 && members.size() >= places.open.size();
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (const std::optional<std::size_t> slot = assignment.slots[i]) {
        give(tests[places.at[*slot]], members[i], places.open[*slot].seconds, !in_order && !assignment.unique);
        continue;
      }
      left_over.push_back({&members[i], others.front(), !in_order && !(assignment.unique && others.size() == 1)});
      if (others.size() > 1) others.erase(others.begin());
    }
  }
  for (const LeftOver& one : left_over) {
    // Perhaps a script's that became, by exec, what another test is.
    const Places places = places_of({*one.group}, naming(*one.group, ctest.listed, mentions));
    if (const std::optional<std::size_t> slot = places.assignment.slots.front()) {
      for (report::TestRecord& test : tests) test.ambiguous |= test.name == ctest.listed[one.test].name;
      give(tests[places.at[*slot]], *one.group, places.open[*slot].seconds, true);
      continue;
    }
    append(ctest.listed[one.test].name, &ctest.listed[one.test], "unknown");
    give(tests.back(), *one.group, 0, one.ambiguous);
  }
  std::map<std::string_view, report::Ending> endings;
  for (const report::ProcessAccount& process : processes) endings.emplace(process.id, process.ending);
  for (std::size_t i = 0; i < ctest.logged.size(); ++i) {
    if (tests[i].outcome != "failed") continue;
    const auto listed = by_name.find(ctest.logged[i].name);
    const double timeout = timeout_of(listed == by_name.end() ? nullptr : &ctest.listed[listed->second], ctest);
    if (killed_early(ctest.logged[i].seconds, timeout, tests[i], endings)) tests[i].outcome = "timeout";
  }
  return tests;
}

}  // namespace rota::ci
