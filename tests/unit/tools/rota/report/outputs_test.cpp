// What reports look like: names of any bytes, numbers under stable names, tests and processes each once.
#include "tools/rota/report/outputs.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "account_builder.h"
#include "tools/rota/report/files.h"
#include "tools/rota/report/test_gpus.h"
#include "tools/rota/report/track.h"

namespace rota::report {
namespace {

using nlohmann::json;

Report example() {
  Report report;
  Model& model = report.model;
  model.job = {.name = "",
               .host = "rig",
               .rota = "1",
               .folder = "/src",
               .command = {"/usr/bin/ctest", "-j 8"},
               .begin_ns = kBegan,
               .end_ns = kBegan + 2 * kSecond,
               .exit_code = 8};
  ProcessReport process;
  process.account.id = "12-7";
  process.account.self.pid = 12;
  process.account.self.command = {"./app", "a\"<&>\x01\xff"};
  process.account.began_ns = kBegan;
  process.account.ended_ns = kBegan + kSecond;
  process.account.timeline = {.step_ns = static_cast<std::uint64_t>(kSecond) / 2,
                              .steps = {{.waited_us = 250'000, .busy_us = 500'000}, {.waited_us = 0, .busy_us = 0}}};
  process.account.levels = {{kBegan, kMiB, kMiB}, {kBegan + kSecond / 2, 3 * kMiB, 3 * kMiB}};
  process.account.modules = {{"/lib/libapp.so", 2, 1, 4096}};
  process.account.out_of_memory = account::OutOfMemory::kTooLarge;
  process.use.peak_bytes = 3 * kMiB;
  process.use.failures[{"cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY"}] = 1;
  process.objects["stream"] = {.created = 3, .ended = 1};
  process.objects["library"] = {.created = 1, .ended = 0};
  process.ending = "ended with 1";
  process.ended_by_itself = true;
  model.total = process.use;
  model.processes.push_back(std::move(process));
  return report;
}

void add_test(Report& report, const std::string& name, const std::string& outcome) {
  TestReport test;
  test.record.name = name;
  test.record.outcome = outcome;
  test.record.runner = "pytest";
  test.record.message = "assert 1 == 2";
  report.model.tests.push_back(std::move(test));
}

TEST_CASE("tests are shown with their GPUs where there are several") {
  Report report = example();
  add_test(report, "one", "passed");
  add_test(report, "within", "passed");
  report.model.tests[0].processes = {0};
  report.model.tests[1].host = 0;
  const auto gpu = [](const char* uuid) { return GpuRecord{.uuid = uuid, .name = "NVIDIA H200"}; };
  const std::string first = "GPU-0000000a-1111-2222-3333-444444444444";
  const std::string second = "GPU-0000000b-1111-2222-3333-444444444444";
  report.model.processes[0].account.gpus = {gpu(second.c_str())};
  CHECK_FALSE(contains(text_report(report), "GPU-"));
  CHECK(json_report(report)["tests"][0]["gpus"] == json{second});
  report.model.processes[0].account.gpus.push_back(gpu(first.c_str()));
  const std::string text = text_report(report);
  CHECK(contains(text, "one GPU-0000000a GPU-0000000b\n"));
  CHECK(contains(text, "within GPU-0000000a GPU-0000000b\n"));
  CHECK(contains(text, "NVIDIA H200 GPU-0000000a: a process at most"));
  CHECK(json_report(report)["tests"][1]["gpus"] == json{first, second});
}

TEST_CASE("what a test had on each of several GPUs is by the processes' numbers of them") {
  using Peaks = std::vector<std::uint64_t>;
  struct Used {
    std::size_t device;
    const char* uuid;
    std::uint64_t peak, reserved;
  };
  const auto peaks = [](const std::vector<std::vector<Used>>& processes) {
    Model model;
    TestReport test;
    for (const auto& used : processes) {
      ProcessReport process;
      for (const Used& gpu : used) {
        process.account.gpus.push_back({.device = gpu.device,
                                        .uuid = gpu.uuid,
                                        .name = "",
                                        .peak_bytes = gpu.peak,
                                        .reserved_peak_bytes = gpu.reserved});
      }
      test.processes.push_back(model.processes.size());
      model.processes.push_back(std::move(process));
    }
    return peaks_by_gpu(model, test);
  };
  CHECK(peaks({{{0, "a", 5, 7}}}).empty());
  CHECK(peaks({{{0, "a", 5, 7}, {1, "b", 3, 0}}}) == Peaks{7, 3});
  CHECK(peaks({{{1, "b", 3, 3}, {3, "d", 4, 4}}}) == Peaks{0, 3, 0, 4});
  CHECK(peaks({{{0, "a", 5, 5}}, {{1, "b", 3, 3}}, {{1, "b", 4, 4}}}) == Peaks{5, 7});
  CHECK(peaks({{{0, "a", 5, 5}}, {{0, "b", 3, 3}}}) == Peaks{3, 5});  // each sees one
}

TEST_CASE("the text shows the job, its processes, errors with their reason, and what is live") {
  const std::string text = text_report(example());
  CHECK(contains(text, "ctest '-j 8', ended with 8 after 2.00 s\n1 process called CUDA\n"));
  CHECK(contains(text, "12 app 'a\"<&>\\x01\\xff' (ended with 1)\n"));
  CHECK(contains(
      text, "1  cuMemAlloc CUDA_ERROR_OUT_OF_MEMORY\n  out of memory in 12: it asked for more than the GPU has\n"));
  CHECK(contains(text, "4.0 KiB  1 allocation of libapp.so\n"));
  CHECK(contains(text, "2  of 3 streams not destroyed\n"));
  CHECK(contains(text, "1  of 1 libraries not destroyed\n"));
}

TEST_CASE("the text says in which calls processes were ended") {
  Report report = example();
  ProcessReport& process = report.model.processes[0];
  process.account.inside = {{13, "cuCtxSynchronize", false}, {14, "cuLaunchKernel", true}};
  CHECK_FALSE(contains(text_report(report), "cuCtxSynchronize"));
  process.ended_by_itself = false;
  CHECK(contains(text_report(report), "process 12, thread 13: was in cuCtxSynchronize\n"));
  CHECK(contains(text_report(report), "process 12, thread 14: was in cuLaunchKernel, waiting for its turn\n"));
}

TEST_CASE("JSON holds the model under names that stay") {
  Report report = example();
  add_test(report, "t", "passed");
  report.judgement.findings.push_back({"errors", 0, std::nullopt, "text"});
  const json object = json::parse(render(report, Format::kJson));
  CHECK(object["version"] == 1);
  CHECK(object["job"]["exit_code"] == 8);
  CHECK(object["total"]["peak_bytes"] == 3 * kMiB);
  CHECK(object["tests"][0]["name"] == "t");
  CHECK(object["processes"][0]["out_of_memory"] == "too-large");
  CHECK(object["processes"][0]["modules"][0]["live_bytes"] == 4096);
  CHECK(object["processes"][0]["objects"][1] == json{{"kind", "stream"}, {"created", 3}, {"destroyed", 1}});
  CHECK(object["processes"][0]["use"]["failures"][0]["error"] == "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(object["findings"][0] == json{{"kind", "errors"}, {"text", "text"}, {"test", 0}, {"process", nullptr}});
  CHECK(object["timeline"]["bytes"].size() == 600);
}

TEST_CASE("JUnit has a case for each test with what is wrong in it, and stays XML with any bytes in names") {
  Report report = example();
  add_test(report, "bad <&\">\n", "failed");
  add_test(report, "skipped", "skipped");
  add_test(report, "died", "died");
  add_test(report, "found", "passed");
  report.judgement.findings.push_back({"freed-twice", 3, std::nullopt, "x < y"});
  const std::string text = junit_report(report);
  CHECK(contains(text,
                 "<testsuites name=\"ctest\" tests=\"5\" failures=\"2\" errors=\"1\" skipped=\"1\" time=\"2.000\">"));
  CHECK(contains(text, "name=\"bad &lt;&amp;&quot;&gt;\\x0a\""));
  CHECK(contains(text, "<failure type=\"failed\" message=\"assert 1 == 2\">assert 1 == 2</failure>"));
  CHECK(contains(text, "<failure type=\"rota.freed-twice\" message=\"freed-twice: x &lt; y\">"));
  CHECK(contains(text, "<error type=\"died\""));
  CHECK(contains(text, "<skipped message=\"assert 1 == 2\"/>"));
  CHECK(contains(text, "name=\"12-7 app 'a&quot;&lt;&amp;&gt;\\x01\\xff'\""));
  CHECK(contains(text,
                 "<system-out>cuMemAlloc CUDA_ERROR_OUT_OF_MEMORY\nout of memory in 12: it asked for more than the GPU "
                 "has\n</system-out>"));
  CHECK(contains(text, "<property name=\"rota.peak_bytes\" value=\"3145728\"/>"));
}

TEST_CASE("annotations escape what ends a command or a property") {
  Report report = example();
  add_test(report, "tests/a,b.py::test_x[100%:y]", "passed");
  report.judgement.findings.push_back({"peak", 0, std::nullopt, "50% more: a,b"});
  report.model.problems.push_back("a\nb");
  const std::string text = github_report(report);
  CHECK(contains(
      text,
      "::error file=tests/a%2Cb.py,title=rota peak%3A tests/a%2Cb.py%3A%3Atest_x[100%25%3Ay]::50%25 more: a,b\n"));
  CHECK(contains(text, "::warning title=rota::a\\x0ab\n"));
}

TEST_CASE("the page holds its data where no name can end it") {
  Report report = example();
  add_test(report, "</script><script>alert(1)</script>", "passed");
  const std::string page = html_report(report);
  CHECK_FALSE(contains(page, "alert(1)</script>"));
  CHECK(contains(page, "\\u003c/script>\\u003cscript>alert(1)"));
  CHECK_FALSE(contains(page, "ROTA_DATA"));
  CHECK_FALSE(contains(page, "https://"));
}

TEST_CASE("a track shows the most of each part, and shares of its time") {
  const Report report = example();
  const ProcessReport& process = report.model.processes[0];
  const Track track = track_of({&process}, kBegan, kBegan + 2 * kSecond - 4, 4);
  REQUIRE(track.bytes.size() == 4);
  CHECK(track.bytes == std::vector<std::uint64_t>{kMiB, 3 * kMiB, 0, 0});
  CHECK(track.waiting[0] == Approx(0.5));
  CHECK(track.busy[0] == Approx(1.0));
  CHECK(track.busy[1] == Approx(0.0).margin(0.001));
  CHECK(track_of({&process}, 5, 5, 4).bytes.empty());
}

TEST_CASE("two options that mean one file are named, whatever the file is called") {
  char name[] = "/tmp/rota-files-XXXXXX";
  REQUIRE(mkdtemp(name) != nullptr);
  const std::filesystem::path folder = name;
  const auto refusal = [&](const std::string& one, const std::string& other, bool written = true) {
    const auto checked = check_distinct({{"--json", (folder / one).string(), written},
                                         {"--html", ""},
                                         {"--junit", (folder / other).string(), written}});
    return checked ? "" : checked.error().text;
  };
  std::filesystem::create_directory(folder / "sub");
  std::filesystem::create_directory_symlink(folder / "sub", folder / "linked");
  std::filesystem::create_symlink("sub/there", folder / "to-there");  // which does not exist yet
  CHECK(refusal("a", "b").empty());
  CHECK(contains(refusal("a", "a"), "--json and --junit are the same file, " + (folder / "a").string()));
  CHECK(contains(refusal("a", "sub/../a"), "--json and --junit"));
  CHECK(contains(refusal("sub/a", "linked/a"), "--json and --junit"));
  CHECK(contains(refusal("linked/there", "to-there"), "--json and --junit"));
  CHECK(refusal("sub/a", "a").empty());
  std::ofstream(folder / "first") << "x";
  std::ofstream(folder / "second") << "x";
  std::filesystem::create_hard_link(folder / "first", folder / "hard");
  CHECK(refusal("first", "second").empty());
  CHECK(contains(refusal("first", "hard"), "--json and --junit"));
  CHECK(refusal("first", "first", false).empty());
  CHECK(check_distinct({{"--json", "/dev/null"}, {"--junit", "/dev/null"}}));
  const auto previous = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  CHECK_FALSE(check_distinct({{"--json", "new"}, {"--junit", (folder / "new").string()}}));
  std::filesystem::current_path(previous);
  std::filesystem::remove_all(folder);
}

TEST_CASE("formats go by name and by the file's ending") {
  CHECK(format_by_name("junit") == Format::kJunit);
  CHECK_FALSE(format_by_name("yaml"));
  CHECK(format_by_file("a/b.html") == Format::kHtml);
  CHECK_FALSE(format_by_file("html"));
}

}  // namespace
}  // namespace rota::report
