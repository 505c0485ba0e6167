// What the program times (runtime/turn/pairs.h), as its threads and the monitor report it: the lock around the machine,
// the flags that records check first, and the threads that wait until a pair may begin.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "generated/driver_types.h"
#include "runtime/driver/stream_key.h"
#include "runtime/turn/pairs.h"

namespace rota::monitor {

class Timing {
 public:
  using Place = turn::Pairs::Place;
  using Opens = turn::Pairs::Opens;
  using Situation = turn::Pairs::Situation;
  using Wish = turn::Pairs::Wish;
  using Key = turn::Pairs::Key;
  static Key key_of(const driver::StreamKey& stream) {
    return {std::get<0>(stream), std::get<1>(stream), std::get<2>(stream)};
  }

  // One per process; it owns the globals.
  Timing();
  ~Timing();
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;

  // --- program's threads
  // Whether there has been a timing event: otherwise none of the following need be called. And whether others use the
  // GPU as well, so that it matters where events are recorded.
  static bool has_events() { return has_events_.load(std::memory_order_relaxed); }
  static bool matters() { return matters_.load(std::memory_order_relaxed); }
  // As in Pairs.
  void made(api::CUevent event, bool timing);
  void ended(api::CUevent event);
  void read(api::CUevent first, api::CUevent second, turn::Time took, turn::Time now);
  bool has_time(api::CUevent event) const;
  Place place(api::CUevent event, const Key& stream, turn::Time now) const;
  Opens open(api::CUevent event, const Key& stream, turn::Time now);
  void recorded(api::CUevent event, const Key& stream, Place place, bool done, turn::Time now);
  void forget(api::CUevent event);
  // Under the lock that contexts end under.
  void context_ended();
  // Returns when the answer of open() may have changed; `seen`: changes() before that answer.
  void wait(std::uint32_t seen);
  std::uint32_t changes() const { return changes_.load(std::memory_order_acquire); }
  // Whether calls are between the two events of a pair that counts.
  bool inside() const { return open_pairs_.load(std::memory_order_acquire) != 0; }

  // --- the monitor
  // `passed`: whether the GPU has passed an event.
  template <typename Passed>
  Wish look(Situation situation, turn::Time now, const Passed& passed) {
    const std::lock_guard lock(mutex_);
    situation.waited_for = waiting_.load() != 0;
    const auto asked = [&](const void* event) { return passed(static_cast<api::CUevent>(const_cast<void*>(event))); };
    const Wish wish = pairs_.look(situation, now, asked);
    publish();
    if (wish.changed) wake();
    return wish;
  }
  // Whether there is any event to ask about.
  bool in_flight() const;
  // Runs `work` unless a pair is under way; no pair begins during that. False: one is under way.
  template <typename Work>
  bool unless_measuring(const Work& work) {
    const std::lock_guard lock(mutex_);
    if (pairs_.in_flight()) return false;
    work();
    return true;
  }
  // When the next poll is due.
  turn::Time look_at() const { return pairs_.look_at(); }

 private:
  template <typename Change>
  auto change(const Change& change);
  void publish();
  void wake();

  [[gnu::visibility("hidden")]] static std::atomic<bool> has_events_;
  [[gnu::visibility("hidden")]] static std::atomic<bool> matters_;

  mutable std::mutex mutex_;
  turn::Pairs pairs_;
  std::atomic<std::uint32_t> open_pairs_{0};  // of pairs_, for calls that submit
  std::atomic<std::uint32_t> changes_{0};
  std::atomic<std::uint32_t> waiting_{0};
};

}  // namespace rota::monitor
