// Which tests may begin their GPU work: those whose known needs fit together with the others'. And which GPUs a test
// sees, where tests are spread over several. Pure: its input is events and the time, its output is who may continue
// (broker.h has the sockets).
//
// A test is a tree of processes. If they need more memory than was reserved for the test, they take turns, as any
// program does. A test whose needs are not known begins at once. So does one that needs more memory than exists, and
// one that has waited for a minute: turns serve it as well as longer waiting would.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rota::ci {

using Time = std::chrono::nanoseconds;  // of a monotonic clock

inline constexpr Time kLongestWait = std::chrono::seconds(60);

// Bytes of memory by GPU. A GPU's name may be any text.
using Load = std::map<std::string, std::uint64_t>;

// The same by the GPU's index among those that a process sees.
using Needs = std::vector<std::uint64_t>;
// The needs on these GPUs, of which there is at least one. A need for a single GPU is for number `first`. Needs beyond
// the number of GPUs are added to the first ones again.
Load on_gpus(const Needs& needs, const std::vector<std::string>& gpus, std::size_t first);

class Admissions {
 public:
  // Tests are spread: each sees `each` of these GPUs, of which there are at least as many.
  void spread(std::vector<std::string> gpus, std::size_t each);
  // Chooses the GPUs of `tree`, one of whose processes asks on connection `who`: those with the most memory that no
  // test uses or is known to need, the one with the most first. A test whose needs are not known counts as the mean of
  // such tests. Among equal GPUs those with the fewest tests are chosen. Later processes of the tree get the same GPUs.
  // `needs`: bytes that the test needs on the first GPU, the second, …, as far as that is known.
  std::vector<std::string> give(int who, const std::string& tree, const Needs& needs, const Load& room);
  // `tree` has the GPUs of the process that started it.
  void take_over(int who, const std::string& tree, std::vector<std::string> gpus);

  // A process of `tree` asks, on connection `who`. `needs`: bytes of GPU memory of the test that runs there now;
  // nothing if they are not known. `added`: they are what the test adds to what its process has.
  void ask(int who, const std::string& tree, std::optional<Load> needs, Time now, bool added = false);
  // The test that ran in the process has ended: the memory reserved for it is no longer needed, unless the tree has
  // other processes.
  void done(int who);
  // The connection has ended.
  void ended(int who);

  // What the tree's processes have on the GPUs at the moment, contexts included. `staying`: the part of it that cannot
  // be evicted; nothing: all of it. The rest obstructs nobody while no test of the tree runs.
  void uses(const std::string& tree, Load bytes, std::optional<Load> staying = std::nullopt);

  // The tests that may continue. `room`: what this rig's tests can have together on each GPU; a GPU that is not in it
  // has enough.
  std::vector<int> step(const Load& room, Time now);

  // Of a tree: how long it has waited in all, and whether it ever stopped waiting although it did not fit.
  struct Waited {
    Time time{0};
    bool gave_up = false;
  };
  const std::map<std::string, Waited>& waited() const { return waited_; }
  std::size_t waiting() const { return queue_.size(); }

 private:
  struct Tree {
    Load kept;  // for the test that runs there now
    Load used;
    Load stays;                    // of that
    std::vector<int> connections;  // those that may continue
    bool runs = true;              // a test, as far as that is known
    bool added = false;            // `kept` is in addition to what its processes have
    std::uint64_t has(const std::string& gpu) const;
  };
  // What a tree was given, for as long as the rig runs.
  struct Given {
    std::vector<std::string> gpus;
    Load promised;          // to a test that has not begun yet
    std::set<int> holders;  // connections
  };
  struct Asked {
    int who;
    std::string tree;
    Load needs;
    Time since;
    bool added;
  };
  using Claims = std::map<std::string, Load>;  // by tree
  Load taken() const;
  // What each existing tree has, is known to need, or can be expected to need.
  Claims claims_now() const;
  bool none_runs_on(const Load& needs) const;
  void let_in(int who, const std::string& tree, const Load& keep, bool added);

  std::vector<std::string> gpus_;
  std::size_t each_ = 0;
  std::map<std::string, Given> given_;
  std::map<std::string, Tree> trees_;
  std::vector<Asked> queue_;  // in order of their asking
  std::vector<int> at_once_;
  std::map<std::string, Waited> waited_;
};

}  // namespace rota::ci
