// What `--fail-on` takes, suppressions, and the file of the baseline.
#include "tools/rota/report/rules.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "account_builder.h"
#include "tools/rota/report/baseline.h"
#include "tools/rota/report/format.h"
#include "tools/rota/report/suppressions.h"

namespace rota::report {
namespace {

std::string mistake(const std::string& text) {
  const auto rules = parse_rules(text);
  REQUIRE_FALSE(rules);
  return rules.error().text;
}

TEST_CASE("rules compare with limits, with a baseline by amount or by part") {
  const auto rules =
      parse_rules("peak>2G, time>+1.5s,calls:cuMemAlloc>+20%,errors,errors:CUDA_ERROR_OUT_OF_MEMORY>0,live");
  REQUIRE(rules);
  REQUIRE(rules->size() == 6);
  CHECK((*rules)[0].limit == Rule::Limit::kAbsolute);
  CHECK((*rules)[0].value == std::uint64_t{2} << 30);
  CHECK((*rules)[1].limit == Rule::Limit::kMore);
  CHECK((*rules)[1].value == 1'500'000'000);
  CHECK((*rules)[2].limit == Rule::Limit::kPercent);
  CHECK((*rules)[2].percent == 20);
  CHECK((*rules)[2].detail == "cuMemAlloc");
  CHECK((*rules)[3].limit == Rule::Limit::kKnown);
  CHECK((*rules)[4].detail == "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK((*rules)[5].metric == Metric::kLive);
}

TEST_CASE("a wrong rule is named with what is allowed") {
  CHECK(mistake("peek>1G") ==
        "'peek>1G': 'peek' is not measured: use peak, reserved, time, gpu, waited, launches, copies, copied, "
        "synchronizations, calls, errors, live");
  CHECK(mistake("peak") == "'peak': a limit is missing: peak>2G, +64M or +10%");
  CHECK(mistake("peak>ten") == "'peak>ten': 'ten' is not a limit of peak: use 2G, +64M or +10%");
  CHECK(contains(mistake("peak>10%"), "'10%' is not a limit"));
  CHECK(contains(mistake("peak>-1"), "is not a limit"));
  CHECK(contains(mistake("time>5"), "use 30s, +500ms or +10%"));
  CHECK(contains(mistake("calls:>1"), "a name is missing"));
  CHECK(contains(mistake("calls:cuMemAloc>0"), "no function cuMemAloc"));
  CHECK(contains(mistake("errors:CUDA_ERROR_OUT_OF_MEMROY"), "no error CUDA_ERROR_OUT_OF_MEMROY"));
  CHECK(contains(mistake("peak:x>1"), "only calls and errors take a name"));
  CHECK(contains(mistake("errors,,live"), "an empty rule"));
  CHECK(contains(mistake(""), "an empty rule"));
  CHECK(contains(mistake("peak>+nan%"), "is not a limit"));
}

TEST_CASE("allocators that keep what is freed are suppressed, others when a file says so") {
  Suppressions suppressions;
  CHECK(suppressions.find("/usr/lib/python3/site-packages/torch/lib/libc10_cuda.so") != nullptr);
  CHECK(suppressions.find("/home/u/.triton/cache/ABC/launcher.so") != nullptr);
  CHECK(suppressions.find("/opt/app/libapp.so") == nullptr);
  suppressions.add_text("# comment\n\n  */libapp.so  # its pool\n");
  REQUIRE(suppressions.find("/opt/app/libapp.so") != nullptr);
  CHECK(suppressions.find("/opt/app/libapp.so")->reason == "its pool");
  CHECK_FALSE(suppressions.add_file("/nonexistent/file"));
}

TEST_CASE("a baseline reads as it was written and is written the same again") {
  Baseline baseline;
  BaselineEntry& entry = baseline["b::test \"x\""];
  entry.use.peak_bytes = 5 * kMiB;
  entry.use.functions["cuMemAlloc"] = 3;
  entry.use.failures[{"cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY"}] = 1;
  entry.time_ns = 1000;
  entry.gpu_peak_bytes = {0, 4 * kMiB};
  baseline["a"].use.has_functions = false;
  baseline["a"].use.errors = 2;
  const std::string text = baseline_text(baseline);
  CHECK(text.find("\"a\"") < text.find("\"b::test"));
  const auto read = parse_baseline(text, "rota-ci.json");
  REQUIRE(read);
  CHECK(baseline_text(*read) == text);
  CHECK(read->at("a").use.errors == 2);
  CHECK(read->at("b::test \"x\"").gpu_peak_bytes == entry.gpu_peak_bytes);
  CHECK(read->at("a").gpu_peak_bytes.empty());
  CHECK(contains(parse_baseline("{}", "f.json").error().text, "f.json is not a baseline of rota"));
  CHECK(
      contains(parse_baseline("{\"version\": 9, \"tests\": {}}", "f.json").error().text, "version: this rota reads 1"));
}

TEST_CASE("a baseline with anything but whole numbers is refused, naming the test and the member") {
  const auto refused = [](const std::string& text) {
    const auto read = parse_baseline(text, "rota-ci.json");
    REQUIRE(!read);
    CHECK(contains(read.error().text, "rota-ci.json: "));
    CHECK(read.error().text.find('\n') == std::string::npos);
    return read.error().text;
  };
  const auto entry = [](const std::string& members) {
    return "{\"version\": 1, \"tests\": {\"a::b\": {" + members + "}}}";
  };
  CHECK(contains(refused(entry("\"peak_bytes\": \"12\"")),
                 "a::b, peak_bytes: expected a whole number from 0 to 1152921504606846976, found \"12\"; correct it"));
  for (const char* value :
       {"-1", "1.5", "1e30", "null", "true", "[]", "{}", "99999999999999999999", "1152921504606846977"}) {
    for (const char* member : {"peak_bytes", "time_ns", "calls", "live_bytes"}) {
      CHECK(contains(refused(entry(fmt::format("\"{}\": {}", member, value))),
                     fmt::format("a::b, {}: expected", member)));
    }
    CHECK(contains(refused(entry(fmt::format("\"functions\": {{\"cuMemAlloc\": {}}}", value))),
                   "a::b, functions, cuMemAlloc: expected"));
    CHECK(contains(refused(entry(fmt::format("\"errors\": {{\"cuMemAlloc CUDA_X\": {}}}", value))),
                   "a::b, errors, cuMemAlloc CUDA_X: expected"));
  }
  for (const char* list : {"3", "null", "\"4096\"", "{\"0\": 4096}"}) {
    CHECK(contains(refused(entry(fmt::format("\"gpu_peak_bytes\": {}", list))),
                   "a::b, gpu_peak_bytes: expected a list of bytes by GPU, found"));
  }
  CHECK(contains(refused(entry("\"gpu_peak_bytes\": [1, \"x\", 3]")),
                 "a::b, gpu_peak_bytes, number 2: expected a whole number from 0 to 1152921504606846976, found \"x\""));
  CHECK(contains(refused(entry("\"functions\": 3")), "a::b, functions: expected an object"));
  CHECK(contains(refused(entry("\"errors\": \"3\"")), "a::b, errors: expected"));
  CHECK(contains(refused(entry("\"errors\": {\"cuMemAlloc\": 3}")), "a::b, errors: expected names"));
  CHECK(
      contains(refused("{\"version\": 1, \"tests\": []}"), "tests: expected an object of tests by name, found a list"));
  CHECK(contains(refused("{\"version\": 1, \"tests\": {\"a\\nb\": 3}}"), "expected an object of what the test took"));
  CHECK(contains(refused("{\"version\": \"1\", \"tests\": {}}"), "version: this rota reads 1, the file says \"1\""));
  CHECK(contains(refused("{\"version\": 1,\n \"tests\": {\"a\": {\"peak_bytes\":\n NaN}}}"), "no JSON from line 3 on"));
  CHECK(contains(refused(entry("\"peak_bytes\": 1e999")), "rota-ci.json: "));
  CHECK(parse_baseline(entry("\"peak_bytes\": 1152921504606846976, \"errors\": 2"), "rota-ci.json"));
}

TEST_CASE("an updated baseline keeps other tests and times that are nearly the same") {
  Baseline kept, fresh;
  kept["other"].use.peak_bytes = 1;
  kept["test"].time_ns = 1000;
  kept["test"].use.peak_bytes = 1;
  fresh["test"].time_ns = 1200;
  fresh["test"].use.peak_bytes = 2;
  update_baseline(kept, fresh);
  CHECK(kept.contains("other"));
  CHECK(kept["test"].time_ns == 1000);
  CHECK(kept["test"].use.peak_bytes == 2);
  fresh["test"].time_ns = 1300;
  update_baseline(kept, fresh);
  CHECK(kept["test"].time_ns == 1300);
}

TEST_CASE("numbers are short, and any bytes become one line of text") {
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(3 * kMiB / 2) == "1.5 MiB");
  CHECK(duration_text(0) == "0");
  CHECK(duration_text(1'234'000) == "1.23 ms");
  CHECK(duration_text(150'000'000'000) == "2 min 30 s");
  CHECK(printable("a\nb") == "a\\x0ab");
  CHECK(printable("\xc3\xa4 \xf0\x9f\x98\x80") == "\xc3\xa4 \xf0\x9f\x98\x80");
  CHECK(printable("\xc0\xaf\xed\xa0\x80\xff") == "\\xc0\\xaf\\xed\\xa0\\x80\\xff");
  CHECK(printable("\xef\xbf\xbe") == "\\xef\\xbf\\xbe");
}

}  // namespace
}  // namespace rota::report
