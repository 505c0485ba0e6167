#include <catch2/catch.hpp>

#include "tools/rota/ci/hang.h"

namespace {

using namespace rota::ci;
using namespace std::chrono_literals;

std::string id_of(const std::optional<HangWatch::Stopped>& stopped) {
  return stopped ? stopped->id : "";
}

}  // namespace

TEST_CASE("a process that begins no call for long enough hangs, and is told once, until it goes on") {
  HangWatch watch(10s);
  CHECK_FALSE(watch.look({{.id = "a", .progress = 1}}, 0s));
  CHECK_FALSE(watch.look({{.id = "a", .progress = 1}}, 9s));
  const auto stopped = watch.look({{.id = "a", .progress = 1}}, 10s);
  REQUIRE(id_of(stopped) == "a");
  CHECK(stopped->since == Time(0s));
  CHECK_FALSE(watch.look({{.id = "a", .progress = 1}}, 30s));
  watch.again("a");
  CHECK(id_of(watch.look({{.id = "a", .progress = 1}}, 30s)) == "a");
  CHECK_FALSE(watch.look({{.id = "a", .progress = 2}}, 31s));
  CHECK(id_of(watch.look({{.id = "a", .progress = 2}}, 41s)) == "a");
}

TEST_CASE("a process that waits for its workers, or for its turn, does not hang") {
  HangWatch watch(10s);
  for (int second = 0; second < 30; ++second) {
    const auto now = std::chrono::seconds(second);
    const auto stopped = watch.look({{.id = "parent", .progress = 1},
                                     {.id = "worker", .ancestors = {"shell", "parent"}, .progress = 1U + second},
                                     {.id = "waits", .progress = 5, .waits = true}},
                                    now);
    CHECK_FALSE(stopped);
  }
  CHECK(id_of(watch.look({{.id = "parent", .progress = 1}, {.id = "waits", .progress = 5}}, 45s)) == "parent");
}

TEST_CASE("of several that have stopped the first is named, and the others once it had time to let them go on") {
  HangWatch watch(10s);
  watch.look({{.id = "b", .progress = 1}}, 0s);
  watch.look({{.id = "a", .progress = 1}, {.id = "b", .progress = 1}, {.id = "c", .progress = 1}}, 1s);
  CHECK(id_of(watch.look({{.id = "a", .progress = 1}, {.id = "b", .progress = 1}, {.id = "c", .progress = 1}}, 20s)) ==
        "b");
  CHECK(id_of(watch.look({{.id = "a", .progress = 2}, {.id = "c", .progress = 1}}, 21s)) == "c");
  CHECK_FALSE(watch.look({{.id = "a", .progress = 2}, {.id = "c", .progress = 1}}, 22s));
}

TEST_CASE("a process that has ended is forgotten, and a later one is another") {
  HangWatch watch(10s);
  watch.look({{.id = "a", .progress = 1}}, 0s);
  watch.look({}, 5s);
  CHECK_FALSE(watch.look({{.id = "a", .progress = 1}}, 12s));
}

TEST_CASE("queries are no progress") {
  rota::report::ProcessAccount process;
  process.calls.assign(rota::kSymbolCount, 0);
  process.calls[static_cast<std::size_t>(rota::Symbol::k_cuStreamQuery)] = 1000;
  process.calls[static_cast<std::size_t>(rota::Symbol::k_cuEventQuery)] = 1000;
  process.calls[static_cast<std::size_t>(rota::Symbol::k_cuMemGetInfo_v2)] = 1000;
  process.calls[static_cast<std::size_t>(rota::Symbol::k_cuStreamIsCapturing)] = 1000;
  CHECK(progress_of(process) == 0);
  process.calls[static_cast<std::size_t>(rota::Symbol::k_cuLaunchKernel)] = 2;
  CHECK(progress_of(process) == 2);
}
