// Which GPUs rotad chooses for programs that are about to start, and for how long it reserves them.
#include "scheduler/server/gpu_choice.h"

#include <catch2/catch.hpp>
#include <set>

namespace rota::server {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

Uuid gpu_number(int number) {
  Uuid uuid{};
  uuid.bytes[0] = static_cast<std::uint8_t>(number);
  return uuid;
}

GpuChoice::Gpu gpu(int number, std::uint64_t taken = 0, std::uint32_t programs = 0) {
  return {.uuid = gpu_number(number), .total_bytes = 100 * kGiB, .taken_bytes = taken * kGiB, .programs = programs};
}

std::vector<GpuChoice::Gpu> idle(int count) {
  std::vector<GpuChoice::Gpu> gpus;
  for (int number = 0; number < count; ++number) gpus.push_back(gpu(number));
  return gpus;
}

using Numbers = std::vector<int>;
Numbers numbers(const std::vector<Uuid>& uuids) {
  Numbers all;
  for (const Uuid& uuid : uuids) all.push_back(uuid.bytes[0]);
  return all;
}

std::vector<Uuid> given(GpuChoice& choice, const Chooser& who, std::vector<GpuChoice::Gpu> gpus, std::size_t count,
                        std::chrono::nanoseconds now) {
  const auto all = choice.choose(who, std::move(gpus), count, now);
  REQUIRE(all);
  return *all;
}

TEST_CASE("the GPUs with most free memory are chosen, in their order") {
  GpuChoice choice;
  CHECK(numbers(given(choice, {1, "s"}, {gpu(0, 50), gpu(1, 10), gpu(2, 20), gpu(3, 60)}, 2, 0s)) == Numbers{1, 2});
}

TEST_CASE("of GPUs with equally much free memory the one with fewer programs is chosen, then the first") {
  GpuChoice choice;
  CHECK(numbers(given(choice, {1, "s"}, {gpu(0, 0, 2), gpu(1, 0, 1), gpu(2, 0, 1)}, 1, 0s)) == Numbers{1});
}

TEST_CASE("programs that start one after the other, and have not come, all get another GPU") {
  GpuChoice choice;
  std::set<int> chosen;
  for (int pid = 1; pid <= 8; ++pid) {
    chosen.insert(numbers(given(choice, {pid, "session " + std::to_string(pid)}, idle(8), 1, 0s)).front());
  }
  CHECK(chosen.size() == 8);
  // The next eight use all GPUs once more.
  for (int pid = 9; pid <= 16; ++pid) given(choice, {pid, "session " + std::to_string(pid)}, idle(8), 1, 0s);
  for (int number = 0; number < 8; ++number) CHECK(choice.reserved(gpu_number(number), 0s) == 2);
}

TEST_CASE("a reservation counts as half of the GPU, so a full GPU is not chosen for being unreserved") {
  GpuChoice choice;
  const std::vector gpus{gpu(0, 0), gpu(1, 95)};
  CHECK(numbers(given(choice, {1, "a"}, gpus, 1, 0s)) == Numbers{0});
  CHECK(numbers(given(choice, {2, "b"}, gpus, 1, 0s)) == Numbers{0});
  CHECK(numbers(given(choice, {3, "c"}, gpus, 1, 0s)) == Numbers{1});
}

TEST_CASE("a reservation ends when a program of its session comes, its process ends, or a minute has passed") {
  GpuChoice choice;
  const Uuid first = gpu_number(0);
  given(choice, {1, "a"}, {gpu(0)}, 1, 0s);
  choice.came(77, {"other"}, first);
  CHECK(choice.reserved(first, 0s) == 1);
  choice.came(77, {"outer", "a"}, gpu_number(1));
  CHECK(choice.reserved(first, 0s) == 1);
  choice.came(77, {"outer", "a"}, first);
  CHECK(choice.reserved(first, 0s) == 0);
  given(choice, {2, "b"}, {gpu(0)}, 1, 0s);
  choice.left(3);
  CHECK(choice.reserved(first, 0s) == 1);
  choice.left(2);
  CHECK(choice.reserved(first, 0s) == 0);
  given(choice, {3, "c"}, {gpu(0)}, 1, 5s);
  CHECK(choice.reserved(first, 64s) == 1);
  CHECK(choice.reserved(first, 65s) == 0);
}

TEST_CASE("of two that start in one session, each program that comes ends its own reservation") {
  GpuChoice choice;
  given(choice, {1, "a"}, {gpu(0)}, 1, 0s);
  given(choice, {2, "a"}, {gpu(0)}, 1, 0s);
  CHECK(choice.reserved(gpu_number(0), 0s) == 2);
  choice.came(2, {"a"}, gpu_number(0));
  choice.left(2);
  CHECK(choice.reserved(gpu_number(0), 0s) == 1);
  choice.left(1);
  CHECK(choice.reserved(gpu_number(0), 0s) == 0);
}

TEST_CASE("a process that asks again has what it was given last") {
  GpuChoice choice;
  given(choice, {1, "a"}, idle(2), 2, 0s);
  CHECK(numbers(given(choice, {1, "a"}, idle(2), 1, 0s)) == Numbers{0});
  CHECK(choice.reserved(gpu_number(1), 0s) == 0);
}

TEST_CASE("processes that rotad does not see are not one process") {
  GpuChoice choice;
  given(choice, {0, "a"}, {gpu(0)}, 1, 0s);
  given(choice, {0, "b"}, {gpu(0)}, 1, 0s);
  choice.left(0);
  CHECK(choice.reserved(gpu_number(0), 0s) == 2);
}

TEST_CASE("a user has at most so many GPUs reserved, in however many sessions, and the refusal says how many") {
  GpuChoice choice;
  const Chooser own{1, "last", "1000"};
  for (std::size_t i = 0; i < GpuChoice::kMostOfUser; ++i) {
    REQUIRE(choice.choose({1, "session " + std::to_string(i), "1000"}, {gpu(0)}, 1, 0s));
  }
  const auto refused = choice.choose(own, {gpu(0)}, 1, 0s);
  REQUIRE(!refused);
  CHECK(refused.error().text.find("256 GPUs are reserved for programs of this user") != std::string::npos);
  CHECK(refused.error().text.find("256 is the most") != std::string::npos);
  CHECK(choice.all(0s).size() == GpuChoice::kMostOfUser);
  // Another user is not affected, and a session that asks again needs no more than before.
  CHECK(choice.choose({2, "other", "1001"}, {gpu(0)}, 1, 0s));
  CHECK(choice.choose({1, "session 7", "1000"}, {gpu(0)}, 1, 0s));
  // One has come, or a minute has passed.
  choice.came(1, {"session 3"}, gpu_number(0));
  CHECK(choice.choose(own, {gpu(0)}, 1, 0s));
  CHECK(!choice.choose({1, "one more", "1000"}, {gpu(0)}, 1, 59s));
  CHECK(choice.choose({1, "one more", "1000"}, {gpu(0)}, 1, 60s));
}

TEST_CASE("what an earlier rotad has reserved counts, and ends as any other") {
  GpuChoice choice;
  choice.keep({.who = {1, "a", "1000", 1000}, .uuid = gpu_number(0), .until = 30s});
  CHECK(numbers(given(choice, {2, "b"}, idle(2), 1, 0s)) == Numbers{1});
  REQUIRE(choice.all(0s).size() == 2);
  CHECK(choice.all(0s).front().who.uid == 1000);
  choice.came(1, {"a"}, gpu_number(0));
  CHECK(choice.reserved(gpu_number(0), 0s) == 0);
  choice.keep({.who = {1, "a", "1000", 1000}, .uuid = gpu_number(0), .until = 30s});
  CHECK(choice.reserved(gpu_number(0), 30s) == 0);
}

}  // namespace
}  // namespace rota::server
