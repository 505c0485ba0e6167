// Gives a client exclusive use of a GPU for a while, so that it can measure there (event::Want::alone): programs time
// their kernels by pairs of events, and the result is noise if others use the GPU at the same time.
//
// A client that holds its GPUs and asks *presses* all others that hold one of them: they yield at once, and nobody
// joins. Once the last has yielded, the client has exclusive use (it is *alone*) until it says that it is done, at most
// for kLongestAlone; the others wait meanwhile. A client that asks while another one presses or is alone is served
// after it. A client that is still waiting for its GPUs does not move forward in the queue for this: it asks once it
// holds them.
//
// Clients are not trusted. If the others have not yielded within kLongestAlone, the request has failed: they run
// kernels longer than that, for which every drain would be futile. So nobody is pressed on these GPUs for a while,
// doubled with each failure that follows. A client gets at most two of any ten seconds, and all clients of a GPU
// together five, counted from when the others are pressed. Nobody is pressed if less is left than the drain and the
// exclusive use may take.
//
// Programs that share memory or events with other processes may have to run concurrently with them, so they are not
// pressed, and never have a GPU to themselves. The other two modes have no such requests: in exclusive mode there is
// only one holder anyway, and in concurrent mode the user wants everybody to run.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "scheduler/core/bookkeeping.h"
#include "scheduler/rules/measuring.h"

namespace rota::scheduler {

class Alone {
 public:
  // The arguments must outlive this object; the settings may change.
  Alone(const Settings& settings, Bookkeeping& books)
      : settings_(settings), books_(books), taken_(protocol::kMaxGpus), futile_(protocol::kMaxGpus) {}

  // The client wants exclusive use of its GPUs from now on, or no longer. Returns whether it has had it until now.
  bool wants(Client& client, bool alone, Time now);
  // The settings have changed. Calls `ended` for each client that no longer has exclusive use.
  template <typename Ended>
  void configured(Time now, Ended ended) {
    while (settings_.mode != Mode::kAutomatic && !asking_.empty()) {
      Client& client = *asking_.back();
      if (wants(client, false, now)) ended(client);
    }
  }
  // Ends the requests whose time is over, and calls `ended` for each client that had exclusive use.
  template <typename Ended>
  void end_those_over(Time now, Ended ended) {
    while (Client* over = first_over(now)) {
      if (over->measuring.until == Time{}) pressing_failed(*over, now);
      if (wants(*over, false, now)) ended(*over);
    }
  }
  // Updates which clients press and which are alone, and calls `begun` for each that has exclusive use from now on.
  template <typename Begun>
  void judge(Time now, Begun begun) {
    if (asking_.empty()) return;
    find_first();
    while (Client* client = first_without_time(now)) wants(*client, false, now);
    for (Client* client : asking_) {
      if (begins(*client, now)) begun(*client);
    }
  }

  // The client for which all others yield this GPU, or that has exclusive use of it; null if there is none.
  const Client* on(GpuIndex gpu) const { return first_[gpu]; }
  // Whether this client is that one on a GPU that it holds.
  bool is_first(const Client& client) const;
  // GPUs that have such a client.
  GpuMask gpus() const { return gpus_; }
  // Whether the client may run although another one has exclusive use of the GPU.
  static bool may_stay(const Client& client) { return client.evidence.last.shares; }
  // Until when the client is not pressed itself; 0 if it does not measure.
  static Time undisturbed_until(const Client& client) {
    const Measuring& measuring = client.measuring;
    return measuring.until != Time{}
               ? measuring.until
               : measuring.presses_since + (measuring.presses_since != Time{} ? kLongest : Time{});
  }
  std::optional<Time> next_deadline() const;

  static constexpr Time kLongest = protocol::kLongestAlone;
  // How long nobody is pressed after a request that has failed, and at most.
  static constexpr Time kAfterFutile = std::chrono::seconds(1);
  static constexpr Time kLongestAfterFutile = std::chrono::seconds(32);

 private:
  // Of a GPU.
  struct Futile {
    Time until{};
    Time pause{};  // the last one; 0: the last request has not failed
  };
  Client* first_over(Time now) const;
  Client* first_without_time(Time now);
  void find_first();
  bool begins(Client& client, Time now);
  bool others_hold(const Client& client) const;
  Time left(Client& client, Time now);
  bool futile(const Client& client, Time now) const;
  void pressing_failed(const Client& client, Time now);

  const Settings& settings_;
  Bookkeeping& books_;
  std::vector<Client*> asking_;  // in the order in which they asked
  std::array<const Client*, protocol::kMaxGpus> first_{};
  GpuMask gpus_ = 0;
  std::vector<protocol::TimeTaken> taken_;  // by GPU
  std::vector<Futile> futile_;              // by GPU
};

}  // namespace rota::scheduler
