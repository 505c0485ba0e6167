// What the program times: work between two events of one stream, a *pair*, as autotuners and benchmarks do. What they
// find beside other programs, or with another's turn in between, is noise, so a pair that counts is left alone: nothing
// of ours is put in between, and where programs may run at the same time this one asks for the GPU alone.
//
// A timing event that is recorded in a stream opens a pair, and the next one there closes it; it is over once the GPU
// has passed that. Pairs that follow each other within kLinger, or overlap, are one *series*, and asked for as one.
//
// Many programs record such events and never ask how far apart they were. So the first kOnCredit pairs count, and after
// each time that the program has asked (cuEventElapsedTime) kAfterReading more, within kReadLately. A series lasts
// kLongest at most, and all of them together no longer than protocol::kMostAlone in any ten seconds; rotad sees to
// that, too. Pairs that are queued far ahead would be done when its time is over. So no more is in flight than kAhead,
// as far as that is known by the pairs before, and half of the time is for pairs to begin in, the rest for what is
// queued.
//
// It knows neither the driver nor rotad: the monitor tells it what is so, and asks what is wanted (monitor_timing.cpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_set>

#include "generated/driver_types.h"
#include "runtime/turn/machine.h"
#include "runtime/turn/stream_key.h"
#include "scheduler/protocol/measuring.h"

namespace rota::turn {

class Timing {
 public:
  static constexpr Time kLongest = protocol::kLongestAlone;
  // From then on no pair begins in a series: it comes to its end, and is followed by another.
  static constexpr Time kRenewed = kLongest / 2;
  // How much may be in flight: so many pairs at first, and so much time once it is known how long they take.
  static constexpr std::size_t kFirstAhead = 8;
  static constexpr Time kAhead = std::chrono::milliseconds(50);
  // A program that reads each pair before it opens the next is back within so long. Judgement.
  static constexpr Time kLinger = std::chrono::milliseconds(5);
  // Who asks to be alone waits so long at most, since others may run long kernels; and has asked in vain then, and does
  // not ask again for a while.
  static constexpr Time kLongestWait = protocol::kLongestAlone;
  static constexpr Time kInVain = std::chrono::seconds(1);
  static constexpr unsigned kOnCredit = 16;
  // Triton's do_bench records up to some thousand pairs and reads them all in the end. Judgement.
  static constexpr unsigned kAfterReading = 4096;
  static constexpr Time kReadLately = std::chrono::seconds(60);

  using Key = StreamKey;

  // One per process, whose globals it owns.
  Timing();
  ~Timing();
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;

  // --- program's threads
  // Whether there has been a timing event: else nothing needs to be told. And whether others use the GPU as well, so
  // that it matters where they are recorded.
  static bool has_events() { return has_events_.load(std::memory_order_relaxed); }
  static bool matters() { return matters_.load(std::memory_order_relaxed); }
  // The driver has made an event; and it is about to end it.
  void made(api::CUevent event, bool timing);
  void ended(api::CUevent event);
  // The program has been told how far these are apart.
  void read(api::CUevent first, api::CUevent second, Time now);

  bool has_time(api::CUevent event) const;
  // Before an event is recorded, outside of any capture and of the gate.
  enum class Place {
    kNone,    // it times nothing that counts
    kOpens,   // open() is to be asked
    kCloses,  // recorded() is to be told
  };
  Place place(api::CUevent event, const Key& stream, Time now) const;
  enum class Opens {
    kNow,      // the event may be recorded; recorded() is to be told
    kFirst,    // the same; the monitor does not know yet that a series has begun
    kNotYet,   // wait(), with the gate open, and ask again
    kNoMatter  // it does not count any more
  };
  Opens open(api::CUevent event, const Key& stream, Time now);
  // Returns when what open() has answered may be another by now; `seen`: changes() before that.
  void wait(std::uint32_t seen);
  std::uint32_t changes() const { return changes_.load(std::memory_order_acquire); }
  // The driver has recorded it, or refused to.
  void recorded(api::CUevent event, const Key& stream, Place place, bool done, Time now);
  // It is going to be recorded where it times nothing.
  void forget(api::CUevent event);
  // A context ends, under the lock that contexts end under: nothing is asked of its events any more.
  void context_ended();
  // Whether calls are between the two events of a pair that counts.
  bool inside() const { return open_pairs_.load(std::memory_order_acquire) != 0; }

  // --- the monitor
  struct Situation {
    bool shared = false;  // others use the GPU, and what this process times is to be left alone
    bool beside = false;  // others may run while it does, so rotad is to be asked to have them leave,
    bool runs = false;    // and can be, since it holds its GPUs
    bool hold = false;    // it is to give the GPU back, as soon as it does not measure any more
    Time alone_until{0};  // rotad has it run alone until then
  };
  struct Wish {
    bool measures = false;  // a pair is open or under way: the gate is not to be closed
    bool alone = false;     // rotad is to be asked to have others leave
  };
  // `passed`: whether the GPU has passed an event.
  template <typename Passed>
  Wish look(const Situation& situation, Time now, const Passed& passed) {
    const std::lock_guard lock(mutex_);
    for (auto next = streams_.begin(); next != streams_.end();) {
      const auto each = next++;
      Stream& stream = each->second;
      unsigned over = 0;
      for (; !stream.closings.empty() && passed(stream.closings.front()); ++over) stream.closings.pop_front();
      if (over != 0) count_over(stream, over, now);
      if (!stream.open && stream.closings.empty()) streams_.erase(each);
    }
    return settle(situation, now);
  }
  // Whether there is any event to ask about.
  bool in_flight() const;
  // Runs `work` unless a pair is under way, while none begins; false if one is.
  template <typename Work>
  bool unless_measuring(const Work& work) {
    const std::lock_guard lock(mutex_);
    if (!streams_.empty()) return false;
    work();
    return true;
  }
  // When the next look is wanted.
  Time look_at() const { return look_at_; }

 private:
  // One with pairs that are not over.
  struct Stream {
    bool open = false;                  // a pair is,
    api::CUevent opening = nullptr;     // since this event
    bool recorded = false;              // which the driver has by now
    std::deque<api::CUevent> closings;  // of the pairs before it, in order
    Time passed_at{0};                  // when the last of them was, or the first was opened
  };

  bool counts(Time now) const;
  bool is_alone(Time now) const { return alone_until_ > now && alone_until_ != given_up_; }
  void drop_closing(api::CUevent event);
  bool has_enough(const Key& stream) const;
  void count_over(Stream& stream, unsigned pairs, Time now);
  // Null: nothing is to be waited for.
  void close(std::map<Key, Stream>::iterator stream, api::CUevent closing);
  Wish settle(const Situation& situation, Time now);
  void end_series(Time now);
  void changed();

  [[gnu::visibility("hidden")]] static std::atomic<bool> has_events_;
  [[gnu::visibility("hidden")]] static std::atomic<bool> matters_;

  mutable std::mutex mutex_;
  std::atomic<std::uint32_t> changes_{0};
  std::atomic<std::uint32_t> waiting_{0};
  std::atomic<std::uint32_t> open_pairs_{0};
  std::unordered_set<api::CUevent> events_;
  std::map<Key, Stream> streams_;
  Time per_pair_{0};            // how long one takes with what lies between; 0: not known
  unsigned since_reading_ = 0;  // pairs that counted
  Time read_at_{0};             // 0: never
  Situation situation_;
  Time alone_until_{0};
  Time given_up_{0};     // what alone_until was when it was no longer wanted
  Time since_{0};        // of the series; 0: there is none
  Time over_since_{0};   // nothing of it is in flight since then; 0: something is
  bool alone_ = false;   // it has begun alone
  bool begins_ = false;  // its first event is about to be recorded
  bool renews_ = false;
  Time asks_since_{0};  // to be alone, for a pair that waits; 0: nobody does
  Time in_vain_until_{0};
  mutable protocol::TimeTaken taken_;
  Time look_at_ = Time::max();
};

}  // namespace rota::turn
