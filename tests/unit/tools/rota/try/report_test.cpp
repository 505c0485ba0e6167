// The report of what was measured.
#include "tools/rota/try/report.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace rota::attempt {
namespace {

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

Way::Round round(double seconds, std::vector<int> codes, const Seen& seen = {}) {
  Way::Round made;
  made.run.seconds = seconds;
  for (const int code : codes) made.run.copies.push_back({.code = code, .signal = 0, .seconds = seconds, .output = ""});
  made.seen = seen;
  return made;
}

Seen seen(double waited, std::uint64_t in_use, std::uint64_t allocated) {
  return {.waited = waited,
          .allocated = allocated,
          .in_use = in_use,
          .gpus = {{.uuid = {}, .name = "Test GPU"}},
          .others = {},
          .uses = {},
          .grants = 0,
          .sharing = {}};
}

Report example() {
  Report report;
  report.command = {"train", "--fast"};
  report.ways = {{.name = "alone", .copies = 1, .under_rota = false, .rounds = {round(10, {0})}},
                 {.name = "2 natively", .copies = 2, .under_rota = false, .rounds = {round(10, {0, 2})}},
                 {.name = "2 under rota",
                  .copies = 2,
                  .under_rota = true,
                  .rounds = {round(16, {0, 0}, seen(12, kGib, 3 * kGib))}}};
  report.ways[0].rounds[0].seen.in_use = 512U << 20;
  return report;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("only copies that end well count as jobs done") {
  const Report report = example();
  CHECK(figures(report.ways[0]).jobs_per_hour == Approx(360));
  CHECK(figures(report.ways[1]).jobs_per_hour == Approx(360));
  CHECK(figures(report.ways[1]).finished == 1);
  CHECK(figures(report.ways[2]).jobs_per_hour == Approx(450));
  CHECK(figures(report.ways[2]).waited == Approx(6));
}

TEST_CASE("rounds are averaged, with the least and the most, and memory is the most of them") {
  Way way{.name = "",
          .copies = 1,
          .under_rota = true,
          .rounds = {round(10, {0}, seen(1, 5, 9)), round(14, {0}, seen(3, 7, 8))}};
  Figures all = figures(way);
  CHECK(all.seconds == Approx(12));
  CHECK(all.least == Approx(10));
  CHECK(all.most == Approx(14));
  CHECK(all.waited == Approx(2));
  CHECK(all.in_use == 7);
  CHECK(all.allocated == 9);
  // What one round does not tell is not known of their mean.
  way.rounds[1].seen.waited.reset();
  CHECK_FALSE(figures(way).waited);
  CHECK(figures({}).started == 0);
}

TEST_CASE("the table has a column for each way, and unknown is not zero") {
  const std::string text = as_table(example());
  INFO(text);
  CHECK(says(text, "train --fast\nTest GPU, 1 round after a warm-up\n"));
  CHECK(says(text, "                         alone   2 natively   2 under rota\n"));
  CHECK(says(text, "finished                1 of 1       1 of 2         2 of 2\n"));
  CHECK(says(text, "time                    10.0 s       10.0 s         16.0 s\n"));
  CHECK(says(text, "jobs an hour               360          360            450\n"));
  CHECK(says(text, "  relative to alone       1.00         1.00           1.25\n"));
  CHECK(says(text, "waited, each copy            -            -         6.00 s\n"));
  CHECK(says(text, "GPU memory in use      512 MiB      unknown        1.0 GiB\n"));
  CHECK(says(text, "GPU memory allocated         -            -        3.0 GiB\n"));
  CHECK(says(text, "\n2 natively: copy 2 failed with exit code 2\n"));
  CHECK_FALSE(says(text, "rotad saw none"));
}

TEST_CASE("who else used the GPU, what could not be measured and where the output is, is reported") {
  Report report = example();
  report.ways[1].rounds[0].seen.others = {"python (pid 12)"};
  report.ways[2].rounds[0].seen.others = {"python (pid 12)"};
  report.nvml_problem = "no NVML";
  report.folder = "/tmp/there";
  std::string text = as_table(report);
  CHECK(says(text, "other programs used the GPU at the same time, so these figures mean little: python (pid 12)\n"));
  CHECK(says(text, "GPU memory in use is unknown: no NVML\n"));
  CHECK(says(text, "what they printed is in /tmp/there\n"));
  report.ways[2].rounds[0].seen = {};
  text = as_table(report);
  CHECK(says(text, "rotad saw none of these programs on a GPU"));
  CHECK(says(text, "waited, each copy            -            -        unknown\n"));
}

TEST_CASE("the command is shown as one would type it") {
  Report report = example();
  report.command = {"sh", "-c", "it's $HOME", "", "a=b"};
  CHECK(says(as_table(report), "sh -c 'it'\\''s $HOME' '' a=b\n"));
}

TEST_CASE("JSON has every round, and null for what is unknown") {
  const auto json = nlohmann::json::parse(as_json(example()));
  CHECK(json["command"] == nlohmann::json({"train", "--fast"}));
  REQUIRE(json["ways"].size() == 3);
  CHECK(json["ways"][1]["finished"] == 1);
  CHECK(json["ways"][1]["rounds"][0]["copies"][1]["exit_code"] == 2);
  CHECK(json["ways"][1]["rounds"][0]["in_use_bytes"].is_null());
  CHECK(json["ways"][2]["relative_to_alone"] == Approx(1.25));
  CHECK(json["ways"][2]["rounds"][0]["waited_seconds"] == Approx(12));
  CHECK(json["ways"][2]["rounds"][0]["allocated_bytes"] == 3 * kGib);
  CHECK(json["gpus"][0]["name"] == "Test GPU");
  CHECK(json["output"].is_null());
}

TEST_CASE("a failure is reported with the last line that the copy printed") {
  std::string path = "/tmp/rota-report-test-XXXXXX";
  close(mkstemp(path.data()));
  std::ofstream(path) << "begin\nout of\tmemory\x1b[0m\n \n";
  CHECK(last_line_of(path) == "out of memory [0m");
  CHECK(how_it_failed({.code = 3, .signal = 0, .seconds = 0, .output = path}) ==
        "failed with exit code 3: out of memory [0m");
  CHECK(how_it_failed({.code = 137, .signal = 9, .seconds = 0, .output = ""}) == "was ended by signal 9 (Killed)");
  std::ofstream(path) << std::string(10000, 'x') << "\n";
  CHECK(last_line_of(path).size() == 200);
  std::filesystem::remove(path);
  CHECK(last_line_of(path).empty());
}

TEST_CASE("many failures are counted, not listed") {
  Report report = example();
  report.ways[2].rounds[0].run.copies.assign(20, {.code = 1, .signal = 0, .seconds = 1, .output = ""});
  CHECK(says(as_table(report), "and 13 more\n"));
}

}  // namespace
}  // namespace rota::attempt
