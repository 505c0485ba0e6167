// What `rota demo` says of what it has seen, and what is not as expected.
#include "tools/rota/demo/story.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tools/rota/demo/kernel.h"

namespace rota::demo {
namespace {

constexpr std::uint64_t kStoryGib = std::uint64_t{1} << 30;

Copy right(int number, std::optional<attempt::Use> use) {
  return {.end = {.code = 0, .signal = 0, .seconds = 1.5, .output = ""},
          .said = "{}",
          .pid = number,
          .checked = 1'000'000,
          .launched = 100,
          .use = use};
}

Copy failed(int code, const std::string& said, int signal = 0) {
  return {.end = {.code = code, .signal = signal, .seconds = 0.1, .output = ""},
          .said = said,
          .pid = 0,
          .checked = 0,
          .launched = 0,
          .use = std::nullopt};
}

// One is refused natively, both end under rota.
Story story() {
  Story story;
  story.gpu = {.name = "Test GPU", .free = kStoryGib, .total = kStoryGib, .steps = 1, .seconds = 0.005};
  story.simulated = true;
  story.bytes = std::uint64_t{600} << 20;
  story.launches = 100;
  story.natively.seconds = 1.5;
  story.natively.copies = {right(1, std::nullopt), failed(2, "cuMemAlloc of 600 MiB: CUDA_ERROR_OUT_OF_MEMORY")};
  story.under_rota.seconds = 3;
  story.under_rota.copies = {right(3, attempt::Use{.waited = 1, .held = 1.25}),
                             right(4, attempt::Use{.waited = 2, .held = 1.5})};
  story.under_rota.seen.grants = 7;
  return story;
}

bool mentions(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

TEST_CASE("one refused natively and both finished under rota is the expected result") {
  Story seen = story();
  judge(seen);
  CHECK(seen.problems.empty());
  CHECK(mentions(seen.seen,
                 "Natively 1 of 2 finished. What the GPU had left was not enough for the other one: "
                 "cuMemAlloc of 600 MiB: CUDA_ERROR_OUT_OF_MEMORY."));
  CHECK(mentions(seen.seen, "Under rota both finished within 3.00 s, with 1.2 GiB on a GPU of 1 GiB."));
  CHECK(mentions(seen.seen, "2 million words compared, none wrong."));
  CHECK(mentions(seen.seen, "rotad gave out 7 turns, and each copy waited 1.50 s on average."));
  CHECK(as_text(seen).find("under rota  copy 1  right          1.50 s  1.00 s       1.25 s  600 MiB\n") !=
        std::string::npos);
  CHECK(nlohmann::json::parse(as_json(seen))["as_expected"] == true);
}

TEST_CASE("what was not seen is not said, and is a problem that names the copy") {
  Story seen = story();
  SECTION("natively all got memory") {
    seen.natively.copies[1] = right(2, std::nullopt);
    judge(seen);
    CHECK(mentions(seen.problems, "natively 2 of 2 copies finished, and none was refused memory"));
    CHECK_FALSE(mentions(seen.seen, "Natively"));
  }
  SECTION("natively one failed for another reason") {
    seen.natively.copies[0] = failed(139, "", 11);
    judge(seen);
    CHECK(mentions(seen.problems, "natively copy 1 was ended by signal 11"));
  }
  SECTION("under rota one failed") {
    seen.under_rota.copies[1] = failed(1, "3 of 9 words are wrong");
    judge(seen);
    CHECK(mentions(seen.problems, "under rota copy 2 failed with exit code 1"));
    CHECK_FALSE(mentions(seen.seen, "finished within"));
    CHECK_FALSE(mentions(seen.seen, "none wrong"));
  }
  SECTION("under rota one was refused memory, which may happen only natively") {
    seen.under_rota.copies[1] = failed(2, "CUDA_ERROR_OUT_OF_MEMORY");
    judge(seen);
    CHECK(mentions(seen.problems, "under rota copy 2 failed with exit code 2"));
  }
  SECTION("rotad has seen one of them only") {
    seen.under_rota.copies[0].use.reset();
    judge(seen);
    CHECK(mentions(seen.problems, "rotad saw 1 of 2 copies on the GPU"));
  }
  SECTION("a copy that ended well compared nothing") {
    seen.under_rota.copies[0].checked = 0;
    judge(seen);
    CHECK(mentions(seen.problems, "under rota copy 1"));
  }
  CHECK(as_text(seen).find("next:") == std::string::npos);
  CHECK(nlohmann::json::parse(as_json(seen))["as_expected"] == false);
}

TEST_CASE("a copy whose time was up says how much it did") {
  Story seen = story();
  judge(seen);
  CHECK_FALSE(mentions(seen.seen, "the time was up"));
  seen = story();
  seen.under_rota.copies[1].launched = 40;
  judge(seen);
  CHECK(mentions(seen.seen, "Under rota the time was up before all 100 launches of a copy: 40 were made."));
  CHECK(seen.problems.empty());
}

TEST_CASE("on a real GPU no copy may be refused memory") {
  Story seen = story();
  seen.simulated = false;
  judge(seen);
  CHECK(mentions(seen.problems, "natively copy 2 failed with exit code 2"));
  seen = story();
  seen.simulated = false;
  seen.natively.copies[1] = right(2, std::nullopt);
  seen.under_rota.seen.sharing = "2 programs active: in turns";
  judge(seen);
  CHECK(seen.problems.empty());
  CHECK(mentions(seen.seen, "Natively both finished within 1.50 s"));
  CHECK(mentions(seen.seen, "`rota status` said: 2 programs active: in turns."));
}

TEST_CASE("where rotad sees processes by other pids, waits are unknown and nothing is called missing") {
  Story seen = story();
  seen.rotad_is_here = false;
  for (Copy& copy : seen.under_rota.copies) copy.use.reset();
  judge(seen);
  CHECK(seen.problems.empty());
  CHECK(mentions(seen.seen, "What each waited is unknown"));
  CHECK(nlohmann::json::parse(as_json(seen))["under_rota"]["turns"].is_null());
}

TEST_CASE("what the program prints is read, and nothing else") {
  const auto gpu = gpu_of(R"({"gpu":"A \"GPU\"","driver":12040,"free":5,"total":9,"steps":77,"seconds":0.25})");
  REQUIRE(gpu);
  CHECK(gpu->name == "A \"GPU\"");
  CHECK(gpu->free == 5);
  CHECK(gpu->total == 9);
  CHECK(gpu->steps == 77);
  CHECK(gpu->seconds == 0.25);
  for (const char* other : {"", "cuInit: CUDA_ERROR_NO_DEVICE", "[]", "7", "{}", R"({"gpu":3})", R"({"gpu":"x")"}) {
    CHECK_FALSE(gpu_of(other));
  }
}

TEST_CASE("a copy is known to rotad by the pid that it prints") {
  char folder[] = "/tmp/rota-demo-test-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string output = std::string(folder) + "/1.log";
  std::ofstream(output) << "rota: something\n{\"pid\":42,\"bytes\":8,\"launches\":1,\"checked\":2,\"seconds\":1}\n";
  attempt::Together run;
  run.copies = {{.code = 0, .signal = 0, .seconds = 1, .output = output},
                {.code = 1, .signal = 0, .seconds = 1, .output = output}};
  attempt::Seen seen;
  seen.uses[42] = {.waited = 3, .held = 4};
  const Way way = way_of(run, seen);
  REQUIRE(way.copies.size() == 2);
  CHECK(way.copies[0].checked == 2);
  REQUIRE(way.copies[0].use);
  CHECK(way.copies[0].use->held == 4);
  CHECK(way.copies[1].checked == 0);  // what one that failed has printed does not count
  CHECK_FALSE(way.copies[1].use);
  std::filesystem::remove_all(folder);
}

TEST_CASE("steps at once are the steps one by one") {
  std::uint32_t word = 12345;
  for (std::uint64_t count = 0; count < 1000; ++count) {
    CHECK(Steps(count).from(12345) == word);
    word = word * kFactor + kAddend;
  }
  // Its period is 2^32.
  CHECK(Steps((std::uint64_t{1} << 32) + 7).from(9) == Steps(7).from(9));
}

}  // namespace
}  // namespace rota::demo
