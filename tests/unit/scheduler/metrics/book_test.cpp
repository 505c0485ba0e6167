// Which rows there are of what programs have done, and that what they show never falls.
#include "scheduler/metrics/book.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <string>

#include "scheduler/metrics/exposition.h"
#include "scheduler/metrics/turns.h"

namespace rota::metrics {
namespace {

using namespace std::chrono_literals;

constexpr Uuid kGpu{{1}};
constexpr Uuid kSecond{{2}};

SeriesKey session(const std::string& name) {
  return {.user = "alice", .session = name, .cgroup = "/user.slice", .container = ""};
}

const SeriesRow* find(const std::vector<SeriesRow>& rows, const std::string& name, const Uuid& gpu = kGpu) {
  const auto found =
      std::ranges::find_if(rows, [&](const SeriesRow& row) { return row.gpu == gpu && row.key.session == name; });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("programs of one user, session, cgroup and container are one row, which outlives them for five minutes") {
  Book book;
  const auto one = book.join(kGpu, 3, session("train"), 1s);
  const auto two = book.join(kGpu, 3, session("train"), 1s);
  book.totals(one).held_ns += 10;
  book.totals(two).held_ns += 5;
  book.leave(one, 2s);
  book.leave(two, 10s);
  for (const Time now : {10s, 11s, 309s}) {
    const auto rows = book.rows(now);
    REQUIRE(rows.size() == 1);
    CHECK(rows[0].totals.held_ns == 15);
    CHECK(rows[0].key == session("train"));
  }
  CHECK(book.rows(310s).empty());
  REQUIRE(book.gpus().size() == 1);
  CHECK(book.gpus()[0].number == 3);
}

TEST_CASE("a program that comes back within five minutes goes on in its row") {
  Book book;
  const auto first = book.join(kGpu, 0, session("train"), 1s);
  book.totals(first).waited_ns = 7;
  book.leave(first, 2s);
  const auto again = book.join(kGpu, 0, session("train"), 300s);
  book.totals(again).waited_ns += 1;
  CHECK(book.rows(310s).at(0).totals.waited_ns == 8);
  book.leave(again, 311s);
  CHECK(book.rows(610s).size() == 1);
  CHECK(book.rows(611s).empty());
}

TEST_CASE("beyond 200 sessions the others are counted in one row of their user, on each GPU its own") {
  Book book;
  for (std::size_t i = 0; i < Book::kMostNames; ++i) book.join(kGpu, 0, session(std::to_string(i)), 1s);
  CHECK(book.rows(1s).size() == Book::kMostNames);
  for (int i = 0; i < 50; ++i) {
    book.totals(book.join(kGpu, 0, session("late " + std::to_string(i)), 1s)).held_ns += 1;
  }
  book.totals(book.join(kSecond, 1, session("elsewhere"), 1s)).held_ns += 9;
  const auto rows = book.rows(2s);
  CHECK(rows.size() == Book::kMostNames + 2);
  REQUIRE(find(rows, "other") != nullptr);
  CHECK(find(rows, "other")->totals.held_ns == 50);
  CHECK(find(rows, "other")->key == session("other"));
  CHECK(find(rows, "other", kSecond)->totals.held_ns == 9);
}

TEST_CASE("users, sessions, cgroups and containers have 200 names each") {
  Book book;
  std::vector<Book::Place> places;
  const auto name = [](const char* kind, std::size_t i) { return kind + std::to_string(i); };
  for (std::size_t i = 0; i < 4 * Book::kMostNames; i += 4) {
    places.push_back(book.join(kGpu, 0, {name("u", i), "s", "/c", "k"}, 1s));
    places.push_back(book.join(kGpu, 0, {"u0", name("s", i), "/c", "k"}, 1s));
    places.push_back(book.join(kGpu, 0, {"u0", "s", name("/c", i), "k"}, 1s));
    places.push_back(book.join(kGpu, 0, {"u0", "s", "/c", name("k", i)}, 1s));
  }
  std::map<std::string, std::size_t> users;
  std::map<std::string, std::size_t> containers;
  for (const SeriesRow& row : book.rows(1s)) {
    ++users[row.key.user];
    ++containers[row.key.container];
  }
  CHECK(users.size() == Book::kMostNames);
  CHECK_FALSE(users.contains("other"));
  CHECK(containers.size() == Book::kMostNames + 1);  // "k" has taken one of the places
  CHECK(containers.contains("other"));
  book.join(kGpu, 0, {"one more", "s", "/c", "k"}, 1s);
  const auto rows = book.rows(1s);
  const auto has = [&](const SeriesKey& key) {
    return std::ranges::count_if(rows, [&](const SeriesRow& row) { return row.key == key; });
  };
  CHECK(has({"other", "s", "/c", "k"}) == 1);
}

TEST_CASE("rows are bounded however many names are combined, and none is there twice") {
  Book book;
  std::uint64_t counted = 0;
  for (int user = 0; user < 210; ++user) {
    for (int of = 0; of < 10; ++of) {
      const auto name = [&](const char* kind) { return kind + std::to_string(user) + "/" + std::to_string(of); };
      // Names that say "other" themselves are among them.
      const SeriesKey key{user == 0 ? "other" : "u" + std::to_string(user), of == 0 ? "other" : name("s"), name("/c"),
                          name("k")};
      book.totals(book.join(kGpu, 0, key, 1s)).held_ns += 1;
      ++counted;
    }
  }
  std::set<SeriesKey> keys;
  std::uint64_t sum = 0;
  const auto rows = book.rows(1s);
  for (const SeriesRow& row : rows) {
    keys.insert(row.key);
    sum += row.totals.held_ns;
  }
  CHECK(rows.size() <= Book::kMostSeries + 1);
  CHECK(keys.size() == rows.size());
  CHECK(sum == counted);
}

TEST_CASE("what was in a row with an \"other\" stays in \"other\" when the row is forgotten") {
  Book book;
  for (std::size_t i = 0; i < Book::kMostNames; ++i) book.join(kGpu, 0, session(std::to_string(i)), 1s);
  const auto late = book.join(kGpu, 0, session("late"), 1s);
  book.totals(late).refusals[2] = 3;
  book.totals(late).held_ns = 7;
  CHECK(find(book.rows(2s), "other")->key == session("other"));
  book.leave(late, 2s);
  const auto rows = book.rows(302s);
  REQUIRE(find(rows, "other") != nullptr);
  CHECK(find(rows, "other")->key == SeriesKey{"other", "other", "other", "other"});
  CHECK(find(rows, "other")->totals.held_ns == 7);
  CHECK(find(rows, "other")->totals.refusals[2] == 3);
}

TEST_CASE(
    "a series in \"other\" stays there when rows are free again, until it is forgotten, and \"other\" keeps its sums") {
  Book book;
  std::vector<Book::Place> named;
  for (std::size_t i = 0; i < Book::kMostNames; ++i)
    named.push_back(book.join(kGpu, 0, session(std::to_string(i)), 1s));
  const auto late = book.join(kGpu, 0, session("late"), 1s);
  book.totals(late).held_ns += 4;
  for (const auto& place : named) book.leave(place, 2s);
  CHECK(book.rows(302s).size() == 1);  // there is room
  const auto same = book.join(kGpu, 0, session("late"), 400s);
  book.totals(same).held_ns += 1;
  CHECK(find(book.rows(400s), "late") == nullptr);
  CHECK(find(book.rows(400s), "other")->totals.held_ns == 5);
  book.leave(late, 401s);
  book.leave(same, 402s);
  // It comes back just before it is forgotten, and just after.
  const auto before = book.join(kGpu, 0, session("late"), 701s);
  CHECK(find(book.rows(701s), "late") == nullptr);
  book.leave(before, 702s);
  const auto after = book.join(kGpu, 0, session("late"), 1002s);
  book.totals(after).held_ns += 2;
  const auto rows = book.rows(1002s);
  REQUIRE(find(rows, "late") != nullptr);
  CHECK(find(rows, "late")->totals.held_ns == 2);
  CHECK(find(rows, "other")->totals.held_ns == 5);
}

TEST_CASE("more series in \"other\" than are remembered: none of them gets a row before all may be forgotten") {
  Book book;
  std::vector<Book::Place> places;
  const std::size_t all = Book::kMostNames + Remembered<std::string>::kMostOthers + 10;
  for (std::size_t i = 0; i < all; ++i) places.push_back(book.join(kGpu, 0, session(std::to_string(i)), 1s));
  for (const auto& place : places) book.leave(place, 2s);
  CHECK(book.rows(302s - 1ns).size() == Book::kMostNames + 1);
  const std::string last = std::to_string(all - 1);
  const auto early = book.join(kGpu, 0, session(last), 302s - 1ns);
  CHECK(find(book.rows(302s), last) == nullptr);
  book.leave(early, 302s);
  book.join(kGpu, 0, session("new"), 302s + Book::kKept);
  CHECK(find(book.rows(302s + Book::kKept), "new") != nullptr);
}

TEST_CASE("what programs have is told anew each time, and does not outlive them") {
  Book book;
  const auto place = book.join(kGpu, 0, session("train"), 1s);
  book.begin_gauges();
  book.gauges(place).allocated_bytes += 100;
  CHECK(book.rows(1s).at(0).now.allocated_bytes == 100);
  book.leave(place, 2s);
  book.begin_gauges();
  CHECK(book.rows(2s).at(0).now.allocated_bytes == 0);
}

TEST_CASE("GPUs that programs invent are forgotten, those that are in use are not") {
  Book book;
  const auto used = book.join(kGpu, 0, session("train"), 1s);
  book.totals(used).held_ns = 1;
  for (unsigned i = 0; i < 1000; ++i) {
    Uuid invented{{9, static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(i >> 8)}};
    const Time now = 2s + i * Book::kKept;
    book.leave(book.join(invented, i, session("invents"), now), now);
  }
  CHECK(book.gpus().size() == Book::kMostGpus);
  CHECK(book.gpu(kGpu) != nullptr);
}

// All that may happen, at random: no row falls as long as it is there, "other" is always there once it was, there are
// never more rows than allowed, and nothing is lost or counted twice.
TEST_CASE("no row falls and nothing is lost, whichever programs come and go") {
  std::mt19937 random(20261129);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same each time
  Book book;
  Time now = 1s;
  std::vector<std::pair<Book::Place, std::string>> there;
  std::map<std::string, std::uint64_t> shown;
  std::uint64_t counted = 0;
  std::uint64_t gone = 0;  // in rows that have gone
  for (int step = 0; step < 20000 / ROTA_TEST_EVERY; ++step) {
    now += std::chrono::milliseconds(random() % 600);
    if (random() % 2 == 0 || there.empty()) {
      const std::string name = std::to_string(random() % 400);
      there.emplace_back(book.join(kGpu, 0, session(name), now), name);
    }
    const std::size_t at = random() % there.size();
    const std::uint64_t more = random() % 100;
    book.totals(there[at].first).out_bytes += more;
    counted += more;
    if (random() % 2 == 0) {
      book.leave(there[at].first, now);
      there.erase(there.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::map<std::string, std::uint64_t> rows;
    for (const SeriesRow& row : book.rows(now)) rows[row.key.session] += row.totals.out_bytes;
    REQUIRE(rows.size() <= Book::kMostNames + 1);
    for (const auto& [name, value] : shown) {
      const auto still = rows.find(name);
      if (still == rows.end()) {
        REQUIRE(name != "other");
        gone += value;
      } else {
        REQUIRE(still->second >= value);
      }
    }
    std::uint64_t sum = gone;
    for (const auto& [name, value] : rows) sum += value;
    REQUIRE(sum == counted);
    shown = rows;
  }
  CHECK(shown.contains("other"));
}

TEST_CASE("turns count what is held and waited for, and how long each grant was waited for") {
  Totals totals;
  GpuTotals gpu;
  Turns turns(0s);
  turns.follow(false, true, 1s, totals, gpu);
  turns.follow(false, true, 2s, totals, gpu);  // a scrape
  CHECK(totals.waited_ns == 1'000'000'000);
  turns.follow(true, false, 4s, totals, gpu);
  CHECK(totals.waited_ns == 3'000'000'000);
  CHECK(gpu.waits.sum_ns == 3'000'000'000);
  CHECK(gpu.waits.counts[6] == 1);  // at most 5 s
  turns.follow(true, false, 5s, totals, gpu);
  turns.follow(false, false, 6s, totals, gpu);
  CHECK(totals.held_ns == 2'000'000'000);
  turns.follow(true, false, 7s, totals, gpu);  // nobody was in the way
  CHECK(gpu.waits.counts[0] == 1);
  CHECK(totals.waited_ns == 3'000'000'000);
}

TEST_CASE("what a program says of its hand-overs counts as far as it can be true") {
  Totals totals;
  GpuTotals gpu;
  Turns turns(0s);
  turns.start_at(100, 5'000'000'000);  // by a rotad before this one
  turns.say_switches(1000, 6'000'000'000, gpu);
  CHECK(gpu.hand_overs.sum_ns == 0);  // it had no turn
  for (int i = 0; i < 3; ++i) {
    turns.follow(true, false, Time(i), totals, gpu);
    turns.follow(false, false, Time(i), totals, gpu);
  }
  turns.say_switches(1002, 6'004'000'000, gpu);
  CHECK(gpu.hand_overs.counts[4] == 2);  // 2 ms each
  CHECK(gpu.hand_overs.sum_ns == 4'000'000);
  turns.say_switches(UINT64_MAX, UINT64_MAX, gpu);  // more than it was granted since
  CHECK(gpu.hand_overs.sum_ns == 4'000'000);
}

TEST_CASE("pinned bytes are told by the reason for which they are pinned") {
  protocol::Snapshot snapshot;
  snapshot.gpus.emplace_back().uuid = kGpu;
  snapshot.series.push_back({.gpu = kGpu, .key = session("a"), .totals = {}, .now = {}});
  Gauges& now = snapshot.series.front().now;
  now.native_bytes = 1;
  now.pinned_bytes[static_cast<std::size_t>(protocol::Pin::kIpc)] = 2;
  now.pinned_bytes[static_cast<std::size_t>(protocol::Pin::kFabric)] = 3;
  now.process_bytes = 4;
  now.for_now_bytes = 5;
  const std::string text = exposition(snapshot, "host", Format::kOpenMetrics);
  for (const char* sample :
       {"\"native\"} 1\n", "\"ipc\"} 2\n", "\"fabric\"} 3\n", "\"process\"} 4\n", "\"temporary\"} 5\n"}) {
    CHECK(text.find(std::string(",reason=") + sample) != std::string::npos);
  }
  CHECK(text.find("\"dma_buf\"") == std::string::npos);
}

}  // namespace rota::metrics
