// Who has a GPU alone for a while, since it measures there (event::Want::alone): programs time their kernels by pairs
// of events, and what they find beside others is noise.
//
// A client that holds its GPUs and asks *presses* all others that hold one of them: they yield at once, and nobody
// joins. When the last has gone it is *alone*, until it says that it is done, at most for kLongestAlone; those who have
// gone wait meanwhile. Who asks while another presses or is alone comes after it. One that waits for its GPUs in turn
// is not moved forward for it: it asks once it holds them.
//
// What a client says is not believed: if others have not gone within kLongestAlone it has asked in vain, and of any ten
// seconds it takes two at most, all clients of a GPU together five; counted from when others are pressed.
//
// Programs that share memory or events with other processes may have to run beside them, so they are not pressed, and
// have no GPU alone. In the other two modes there is nothing to ask: in one each turn is one holder's, in the other the
// user wants everybody to run.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "scheduler/core/bookkeeping.h"
#include "scheduler/protocol/measuring.h"

namespace rota::scheduler {

class Alone {
 public:
  // Both outlive it; the settings may change.
  Alone(const Settings& settings, Bookkeeping& books)
      : settings_(settings), books_(books), taken_(protocol::kMaxGpus) {}

  // The client wants its GPUs alone from now on, or no more. Whether it was alone until now.
  bool wants(Client& client, bool alone, Time now);
  // The settings have changed. Who was alone and is not any more is given to `ended`.
  template <typename Ended>
  void configured(Time now, Ended ended) {
    while (settings_.mode != Mode::kAutomatic && !asking_.empty()) {
      Client& client = *asking_.back();
      if (wants(client, false, now)) ended(client);
    }
  }
  // Those whose time is over ask no more; of those who were alone `ended` is told.
  template <typename Ended>
  void end_those_over(Time now, Ended ended) {
    while (Client* over = first_over(now)) {
      if (wants(*over, false, now)) ended(*over);
    }
  }
  // Brings up to date who presses and who is alone, and tells `begun` of those who are from now on.
  template <typename Begun>
  void judge(Time now, Begun begun) {
    if (asking_.empty()) return;
    find_first();
    while (Client* client = first_without_time(now)) wants(*client, false, now);
    for (Client* client : asking_) {
      if (begins(*client, now)) begun(*client);
    }
  }

  // The client for whom all others leave this GPU, or that has it alone; null: there is none.
  const Client* on(GpuIndex gpu) const { return first_[gpu]; }
  // Whether this client is it, where it holds one.
  bool is_first(const Client& client) const;
  // GPUs that have one.
  GpuMask gpus() const { return gpus_; }
  // Whether the client may be beside one that has the GPU alone.
  static bool may_stay(const Client& client) { return client.evidence.last.shares; }
  // Until when it is not to be pressed itself; 0: it does not measure.
  static Time undisturbed_until(const Client& client) {
    const Measuring& measuring = client.measuring;
    return measuring.until != Time{}
               ? measuring.until
               : measuring.presses_since + (measuring.presses_since != Time{} ? kLongest : Time{});
  }
  std::optional<Time> next_deadline() const;

  static constexpr Time kLongest = protocol::kLongestAlone;

 private:
  Client* first_over(Time now) const;
  Client* first_without_time(Time now);
  void find_first();
  bool begins(Client& client, Time now);
  bool others_hold(const Client& client) const;
  Time left(Client& client, Time now);

  const Settings& settings_;
  Bookkeeping& books_;
  std::vector<Client*> asking_;  // in the order in which they asked
  std::array<const Client*, protocol::kMaxGpus> first_{};
  GpuMask gpus_ = 0;
  std::vector<protocol::TimeTaken> taken_;  // by GPU
};

}  // namespace rota::scheduler
