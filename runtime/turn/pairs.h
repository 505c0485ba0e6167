// Protects what the program times: work between two events of one stream, a *pair*, as autotuners and benchmarks record
// them. Other programs on the GPU or a turn in between would make the measured time noise, so a pair that counts is not
// disturbed: rota submits nothing of its own in between, and where programs may run at the same time it asks for
// exclusive use of the GPU.
//
// A timing event that is recorded in a stream opens a pair, and the next one there closes it; the pair is over once the
// GPU has passed that event. Pairs that overlap or follow each other within kLinger form one *series*, for which rotad
// is asked once.
//
// Many programs record such events and never read the time between them. So the first kOnCredit pairs count, and after
// each reading (cuEventElapsedTime) kAfterReading more, within kReadLately. A series lasts kLongest at most, and all of
// them together no longer than protocol::kMostAlone in any ten seconds; rotad enforces that, too. Pairs that are queued
// far ahead would run after that time. So no more than kAhead is in flight, as far as earlier pairs tell how long one
// takes, and pairs may begin in the first half of the time; the rest is for what is queued. A pair that would not be
// over by then begins the next series.
//
// It would be futile to keep others away for a pair that takes longer than kLongest by itself: it is disturbed all the
// same. After such a pair none counts until a shorter one is read, or for kReadLately.
//
// A pure machine: the program's records, the monitor's polls and the time in, what to do out. Events and streams are
// handles that it only compares.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_set>

#include "runtime/turn/machine.h"
#include "scheduler/rules/measuring.h"

namespace rota::turn {

class Pairs {
 public:
  static constexpr Time kLongest = protocol::kLongestAlone;
  // After this time no more pairs begin in a series: it ends, and another one follows.
  static constexpr Time kRenewed = kLongest / 2;
  // How much may be in flight: this many pairs at first, and this much time once their duration is known.
  static constexpr std::size_t kFirstAhead = 8;
  static constexpr Time kAhead = std::chrono::milliseconds(50);
  // A program that reads each pair before it opens the next opens it within this time. A judgment.
  static constexpr Time kLinger = std::chrono::milliseconds(5);
  // The longest wait for exclusive use, since others may run long kernels; after a futile wait the process does not ask
  // again for a while, doubled up to the second value by each futile wait that follows.
  static constexpr Time kLongestWait = protocol::kLongestAlone;
  static constexpr Time kAfterFutile = std::chrono::seconds(1);
  static constexpr Time kLongestAfterFutile = std::chrono::seconds(32);
  static constexpr unsigned kOnCredit = 16;
  // Triton's do_bench records up to some thousand pairs and reads them all at the end. A judgment.
  static constexpr unsigned kAfterReading = 4096;
  static constexpr Time kReadLately = std::chrono::seconds(60);

  using EventId = const void*;
  // A stream: with its context, if the handle does not determine it, and with the thread of a per-thread stream.
  struct Key {
    const void* stream = nullptr;
    const void* context = nullptr;
    int thread = 0;
    auto operator<=>(const Key&) const = default;
  };

  // The driver has created an event; the driver is about to destroy it.
  void made(EventId event, bool timing);
  void ended(EventId event);
  // Whether there has been a timing event, and whether others use the GPU as well, so that it matters where events are
  // recorded.
  bool has_events() const { return has_events_; }
  bool matter() const { return has_events_ && situation_.shared; }
  // The program has read the time between these events: `took`.
  void read(EventId first, EventId second, Time took, Time now);

  bool has_time(EventId event) const { return events_.count(event) != 0; }
  // Before an event is recorded, outside of any capture and of the gate.
  enum class Place {
    kNone,    // the event times nothing that counts
    kOpens,   // call open()
    kCloses,  // call recorded()
  };
  Place place(EventId event, const Key& stream, Time now) const;
  enum class Opens {
    kNow,      // the event may be recorded; then call recorded()
    kFirst,    // the same; the monitor does not know yet that a series has begun
    kNotYet,   // wait with the gate open until a poll says `changed`, then ask again
    kNoMatter  // the pair no longer counts
  };
  Opens open(EventId event, const Key& stream, Time now);
  // The driver has recorded it, or refused to.
  void recorded(EventId event, const Key& stream, Place place, bool done, Time now);
  // The event will be recorded where it times nothing.
  void forget(EventId event);
  // A context ends: its events are not queried any more.
  void context_ended();
  // Pairs that count and of which the first event is recorded and the second is not.
  std::uint32_t open_pairs() const { return open_pairs_; }

  struct Situation {
    bool shared = false;      // others use the GPU, and what this process times must not be disturbed
    bool beside = false;      // others may run at the same time, so rotad has to be asked to make them leave,
    bool runs = false;        // and can be asked, since this process holds its GPUs
    bool hold = false;        // it must give the GPU back as soon as it measures nothing any more
    Time alone_until{0};      // until when rotad grants it exclusive use
    bool waited_for = false;  // threads wait for another answer of open()
  };
  struct Wish {
    bool measures = false;  // a pair is open or under way: the gate must stay open
    bool alone = false;     // rotad must be asked to make others leave
    bool changed = false;   // the answers of open() may have changed: threads that wait ask again
  };
  // `passed`: whether the GPU has passed an event.
  template <typename Passed>
  Wish look(const Situation& situation, Time now, const Passed& passed) {
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
  bool in_flight() const { return !streams_.empty(); }
  // When the next poll is due.
  Time look_at() const { return look_at_; }

 private:
  // A stream with pairs that are not over.
  struct Stream {
    bool open = false;             // a pair is open,
    EventId opening = nullptr;     // since this event
    bool recorded = false;         // which the driver has recorded
    std::deque<EventId> closings;  // of the pairs before it, in order
    Time passed_at{0};             // when the GPU passed the last of them, or when the first was opened
  };

  bool counts(Time now) const;
  bool is_alone(Time now) const { return alone_until_ > now && alone_until_ != given_up_; }
  void drop_closing(EventId event);
  bool has_enough(const Key& stream) const;
  bool ends_in_time(const Key& stream, Time now) const;
  void end_by_time(Time now);
  void count_over(Stream& stream, unsigned pairs, Time now);
  // Null: there is nothing to wait for.
  void close(std::map<Key, Stream>::iterator stream, EventId closing);
  Wish settle(const Situation& situation, Time now);
  void end_series(Time now);

  bool has_events_ = false;
  std::uint32_t open_pairs_ = 0;
  std::unordered_set<EventId> events_;
  std::map<Key, Stream> streams_;
  Time per_pair_{0};            // how long a pair takes, with the time until the next; 0: not known
  unsigned since_reading_ = 0;  // pairs that counted
  Time read_at_{0};             // 0: never
  Situation situation_;
  Time alone_until_{0};
  Time given_up_{0};     // the value of alone_until when it was no longer wanted
  Time since_{0};        // when the series began; 0: there is none
  Time over_since_{0};   // since when nothing of it is in flight; 0: something is
  bool alone_ = false;   // it began with exclusive use of the GPU
  bool begins_ = false;  // its first event is about to be recorded
  bool renews_ = false;
  Time asks_since_{0};  // since when a waiting pair asks for exclusive use; 0: none does
  Time futile_until_{0};
  Time futile_wait_{0};     // how long that was; 0: the last wait was not futile
  Time too_long_until_{0};  // a pair has taken all of its series: until then none counts
  mutable protocol::TimeTaken taken_;
  Time look_at_ = Time::max();
};

}  // namespace rota::turn
