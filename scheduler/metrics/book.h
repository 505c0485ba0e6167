// The totals of all programs that there are or were: by GPU, and by GPU and whose they are. What identifies a program
// comes from outside, so there may be any number of such series. At most kMostSeries have a row of their own at a time;
// all others of a GPU are counted in one row, "other". Which of the two it is never changes as long as anything is
// remembered of a series: so no sum that a row shows ever falls, and nothing is counted in two rows. A series is
// forgotten kKept after its last program has ended, when whoever reads the rows has seen the last of it. "other" is
// never forgotten before its GPU is.
//
// No clock, no I/O, no threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/protocol/totals.h"

namespace rota::metrics {

using Time = std::chrono::nanoseconds;  // any clock that does not go back
using protocol::Gauges;
using protocol::GpuTotals;
using protocol::SeriesKey;
using protocol::SeriesRow;
using protocol::Totals;

class Book {
 public:
  static constexpr std::size_t kMostSeries = 200;
  static constexpr Time kKept = std::chrono::minutes(5);
  // Of the series in "other", how many are remembered by name. While there are more, no new series has a row of its
  // own, and for kKept after that.
  static constexpr std::size_t kMostRemembered = 2000;
  // Of which something is remembered. A program can name GPUs that do not exist.
  static constexpr std::size_t kMostGpus = 128;
  static constexpr const char* kOther = "other";

  // One program on one GPU: leave() ends it.
  class Place {
   private:
    friend class Book;
    enum class How { kNamed, kOther, kUnremembered };
    Uuid gpu_{};
    SeriesKey key_;
    How how_ = How::kNamed;
    // Of its row and its GPU, which stay where they are as long as a program is there.
    Totals* totals_ = nullptr;
    Gauges* gauges_ = nullptr;
    GpuTotals* gpu_totals_ = nullptr;
  };
  Place join(const Uuid& gpu, std::uint32_t number, const SeriesKey& key, Time now);
  void leave(const Place& place, Time now);

  // Valid until the place is left.
  static Totals& totals(const Place& place) { return *place.totals_; }
  static GpuTotals& gpu(const Place& place) { return *place.gpu_totals_; }
  GpuTotals* gpu(const Uuid& gpu);  // null: no program has been there
  // Forgets what programs have at the moment, to be told anew with gauges().
  void begin_gauges();
  static Gauges& gauges(const Place& place) { return *place.gauges_; }

  std::vector<SeriesRow> rows(Time now);
  std::vector<GpuTotals> gpus() const;

 private:
  using Id = std::pair<Uuid, SeriesKey>;
  struct Life {
    std::size_t programs = 0;
    Time left{};  // by the last of them
  };
  struct Named {
    Life life;
    Totals totals;
    Gauges now;
  };
  struct Gpu {
    GpuTotals totals;
    std::optional<std::pair<Totals, Gauges>> other;
    std::size_t series = 0;  // that are remembered, or are there
    Time left{};
  };
  void expire(Time now);
  void leave(Life& life, Time now);
  void make_place_for_gpu();

  std::map<Id, Named> named_;
  std::map<Id, Life> others_;
  std::map<Uuid, Gpu> gpus_;
  std::size_t unremembered_ = 0;
  std::optional<Time> no_names_until_;
  std::optional<Time> next_expiry_;
  Time read_at_{};
};

}  // namespace rota::metrics
