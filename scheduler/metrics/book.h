// The totals of all programs that there are or were: by GPU, and by GPU and whose they are. What identifies a program
// comes from outside, so there may be any number of users, sessions, cgroups and containers: of each at most kMostNames
// have their names in rows at a time, and all others are "other" there. Of the rows that result there are at most
// kMostSeries; the programs beyond that are counted in one row for each GPU, whose names are all "other". Which of the
// two a name or a row is never changes as long as anything is remembered of it (remembered.h): so no sum that a row
// shows ever falls, and nothing is counted in two rows. A row is forgotten some time after its last program has ended,
// when readers of the rows have seen its last figures. What was in a row with an "other" is then counted in the GPU's
// row that is "other" throughout, which is never forgotten before its GPU is: so the sum of "other" never falls either.
//
// No clock, no I/O, no threads.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/metrics/remembered.h"
#include "scheduler/protocol/totals.h"

namespace rota::metrics {

using protocol::Gauges;
using protocol::GpuTotals;
using protocol::SeriesKey;
using protocol::SeriesRow;
using protocol::Totals;

class Book {
 public:
  // Users, sessions, cgroups, containers.
  static constexpr std::size_t kMostNames = 200;
  // A judgment: some 5 MB of text for each reading. With as many names of each kind there could be millions.
  static constexpr std::size_t kMostSeries = 1000;
  static constexpr Time kKept = Remembered<SeriesKey>::kKept;
  // Of which something is remembered. A program can name GPUs that do not exist.
  static constexpr std::size_t kMostGpus = 128;
  static constexpr const char* kOther = "other";

  // One program on one GPU: leave() ends it.
  class Place {
   private:
    friend class Book;
    Uuid gpu_{};
    SeriesKey said_;  // whose it is,
    SeriesKey key_;   // and as its row says it
    std::array<How, 4> names_{};
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
  struct Row {
    Totals totals;
    Gauges now;
  };
  struct Gpu {
    GpuTotals totals;
    std::optional<Row> other;
    std::size_t series = 0;  // that are remembered, or are there
    Time left{};
  };
  void expire(Time now);
  Row& other_of(const Uuid& gpu);
  void make_place_for_gpu();

  // By kNames of book.cpp.
  std::array<Remembered<std::string>, 4> names_{
      Remembered<std::string>(kMostNames), Remembered<std::string>(kMostNames), Remembered<std::string>(kMostNames),
      Remembered<std::string>(kMostNames)};
  Remembered<Id> remembered_{kMostSeries};
  std::map<Id, Row> rows_;
  std::map<Uuid, Gpu> gpus_;
  Time read_at_{};
};

}  // namespace rota::metrics
