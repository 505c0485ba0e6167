// Managed memory on several GPUs, and the engines' bookings, on the shared state by itself.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>

#include "tests/unit/tools/simgpu/process.h"
#include "tools/simgpu/profile.h"
#include "tools/simgpu/state/shared_state.h"

using namespace rota::sim;
using simgpu_test::TemporaryFolder;

namespace {

constexpr uint64_t kMega = uint64_t{1} << 20;

std::unique_ptr<SharedState> machine(const TemporaryFolder& folder, int gpus) {
  Options options;
  options.state_path = folder.file("state");
  options.memory = 64 * kMega;
  options.gpus = gpus;
  auto state = SharedState::attach(options);
  return std::unique_ptr<SharedState>(state ? *state : nullptr);
}

}  // namespace

TEST_CASE("a managed allocation lies where it was used or prefetched last, and counts there only") {
  TemporaryFolder folder;
  auto state = machine(folder, 2);
  REQUIRE(state);
  uint32_t id = state->add_managed(0, 8 * kMega);
  CHECK(state->location(id, 0) == kNowhere);
  state->touch(id, 0, 8 * kMega, Access::kKernel, 0);
  CHECK(state->location(id, 5 * kMega) == 0);
  Migration moved = state->touch(id, 0, 4 * kMega, Access::kPrefetchToDevice, 1);
  CHECK(moved.prefetched_in == 4 * kMega);
  CHECK(moved.nanoseconds == 2 * nanoseconds_at(2 * kMega, state->profile().cost.peer));
  CHECK(state->location(id, 0) == 1);
  CHECK(state->location(id, 4 * kMega) == 0);
  CHECK(state->use(0).managed_resident == 4 * kMega);
  CHECK(state->use(1).managed_resident == 4 * kMega);
  CHECK(state->resident_bytes(id) == 8 * kMega);
  CHECK(state->touch(id, 0, 8 * kMega, Access::kKernel, 0).faulted_in == 4 * kMega);
  CHECK(state->use(1).managed_resident == 0);
  state->touch(id, 2 * kMega, 2 * kMega, Access::kPrefetchToHost, 0);
  CHECK(state->location(id, 2 * kMega) == kOnHost);
  state->remove_managed(id);
  CHECK(state->use(0).managed_resident == 0);
}

TEST_CASE("memory that prefers another place, or is mapped from here, is used over the bus and stays there") {
  TemporaryFolder folder;
  auto state = machine(folder, 2);
  REQUIRE(state);
  uint32_t id = state->add_managed(0, 8 * kMega);
  state->touch(id, 0, 8 * kMega, Access::kPrefetchToHost, 0);
  state->set_preferred(id, 0, 4 * kMega, kOnHost);
  Migration used = state->touch(id, 0, 8 * kMega, Access::kKernel, 0);
  CHECK(used.faulted_in == 4 * kMega);
  CHECK(state->location(id, 0) == kOnHost);
  CHECK(state->location(id, 4 * kMega) == 0);
  state->set_accessed_by(id, 0, 8 * kMega, 1, true);
  used = state->touch(id, 0, 8 * kMega, Access::kKernel, 1);
  CHECK(used.faulted_in == 0);
  CHECK(used.nanoseconds > 0);
  CHECK(state->location(id, 4 * kMega) == 0);
  state->set_accessed_by(id, 0, 8 * kMega, 1, false);
  CHECK(state->touch(id, 4 * kMega, 4 * kMega, Access::kKernel, 1).faulted_in == 4 * kMega);
  // A prefetch moves it all the same.
  CHECK(state->touch(id, 0, 4 * kMega, Access::kPrefetchToDevice, 0).prefetched_in == 4 * kMega);
}

TEST_CASE("what is discarded is fresh again, and a block of which only a part is discarded is not") {
  TemporaryFolder folder;
  auto state = machine(folder, 1);
  REQUIRE(state);
  uint32_t id = state->add_managed(0, 8 * kMega);
  state->touch(id, 0, 8 * kMega, Access::kKernel, 0);
  state->discard(id, kMega, 4 * kMega);
  CHECK(state->location(id, 0) == 0);
  CHECK(state->location(id, 2 * kMega) == kNowhere);
  CHECK(state->location(id, 4 * kMega) == 0);
  CHECK(state->use(0).managed_resident == 6 * kMega);
  CHECK(state->counters(0).evicted == 0);
  CHECK(state->touch(id, 0, 8 * kMega, Access::kKernel, 0).first_touched == 2 * kMega);
  state->discard(id, 0, UINT64_MAX);
  CHECK(state->use(0).managed_resident == 0);
}

TEST_CASE("a process that is shown some GPUs sees them under its own numbers") {
  TemporaryFolder folder;
  auto state = machine(folder, 4);
  REQUIRE(state);
  Migration migration;
  unsigned char whole[16];
  unsigned char shown[16];
  state->uuid(3, whole);
  CHECK(state->take(3, 5 * kMega, &migration));
  state->show({3, 1});
  CHECK(state->gpus() == 2);
  CHECK(state->machine_gpus() == 4);
  state->uuid(0, shown);
  CHECK(std::equal(whole, whole + 16, shown));
  CHECK(state->use(0).plain == 5 * kMega);
  CHECK(state->use(1).plain == 0);
  uint32_t id = state->add_managed(1, 2 * kMega);
  state->touch(id, 0, 2 * kMega, Access::kKernel, 1);
  CHECK(state->location(id, 0) == 1);
}

TEST_CASE("contexts that compute at once take turns in slices, and get the same time") {
  TemporaryFolder folder;
  auto state = machine(folder, 1);
  REQUIRE(state);
  const CostFigures& cost = state->profile().cost;
  set_process_clock(make_virtual_clock());  // no thread of it: only its jitter counts here
  struct Job {
    uint64_t context;
    int64_t kernel;
    int64_t done = 0;
    int64_t at = 1;
  } jobs[] = {{1, 50'000}, {2, 7'000'000}, {3, 900'000}};
  int changes = 0;
  uint64_t last = 0;
  for (int step = 0; step < 4000; ++step) {
    Job& job = *std::min_element(std::begin(jobs), std::end(jobs),
                                 [](const Job& left, const Job& right) { return left.at < right.at; });
    BookingRequest request{0, EngineKind::kCompute, job.context, job.at, job.kernel, Link::kFull};
    Booking booking = state->reserve(request);
    CHECK(booking.until > job.at);
    job.at = booking.until;
    job.done += booking.nanoseconds;
    if (booking.nanoseconds == 0) continue;
    changes += last != job.context ? 1 : 0;
    last = job.context;
  }
  int64_t total = jobs[0].done + jobs[1].done + jobs[2].done;
  int64_t end = std::max({jobs[0].at, jobs[1].at, jobs[2].at});
  for (const Job& job : jobs)
    CHECK(static_cast<double>(job.done) == Approx(static_cast<double>(total) / 3).epsilon(0.1));
  CHECK(changes >= end / (cost.slice + cost.context_switch) - 2);
  CHECK(static_cast<double>(total) / static_cast<double>(end) ==
        Approx(static_cast<double>(cost.slice) / static_cast<double>(cost.slice + cost.context_switch)).epsilon(0.03));
  forget_process_clock();
}

TEST_CASE("a context that is alone keeps the engine, and one that was idle has lost it") {
  TemporaryFolder folder;
  auto state = machine(folder, 1);
  REQUIRE(state);
  int64_t at = 1;
  for (int kernel = 0; kernel < 100; ++kernel) {
    Booking booking = state->reserve({0, EngineKind::kCompute, 1, at, 100'000, Link::kFull});
    CHECK(booking.nanoseconds + booking.until >= 100'000);
    if (booking.nanoseconds == 100'000) CHECK(booking.until == at + 100'000);
    at = booking.until;
  }
  int64_t later = at + 1'000'000'000;
  Booking other = state->reserve({0, EngineKind::kCompute, 2, later, 100'000, Link::kFull});
  CHECK(other.until == later + 100'000);  // no switch: nothing was interrupted
}

TEST_CASE("both directions at once slow each other down, staged copies do not") {
  TemporaryFolder folder;
  auto state = machine(folder, 1);
  REQUIRE(state);
  const CostFigures& cost = state->profile().cost;
  auto copy_both = [&](Link link, int64_t from) {
    constexpr int64_t kAlone = 10'000'000;
    int64_t at[2] = {from, from};
    int64_t left[2] = {kAlone, kAlone};
    while (left[0] > 0 || left[1] > 0) {
      int side = left[1] <= 0 || (left[0] > 0 && at[0] <= at[1]) ? 0 : 1;
      EngineKind engine = side == 0 ? EngineKind::kHostToDevice : EngineKind::kDeviceToHost;
      Booking booking = state->reserve({0, engine, 1, at[side], left[side], link});
      at[side] = booking.until;
      left[side] -= booking.nanoseconds;
    }
    return std::pair(static_cast<double>(at[0] - from) / kAlone, static_cast<double>(at[1] - from) / kAlone);
  };
  auto [down, up] = copy_both(Link::kFull, 1);
  CHECK(down == Approx(cost.pinned_host_to_device / cost.duplex_host_to_device()).epsilon(0.02));
  CHECK(up == Approx(cost.pinned_device_to_host / cost.duplex_device_to_host()).epsilon(0.02));
  auto [staged_down, staged_up] = copy_both(Link::kStaged, 1'000'000'000);
  CHECK(staged_down == 1);
  CHECK(staged_up == 1);
}
