// report_sample FOLDER: writes the session of a made-up job, with everything in it that a report can show, as processes
// and test plugins would have left it. For the tests of what `rota report` writes.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/unit/tools/rota/report/account_builder.h"

namespace {

using namespace rota;
using namespace rota::report;
using nlohmann::json;

// Beyond what processes of this machine have.
constexpr std::uint32_t kFirstPid = 4'190'000;

struct Sample {
  std::filesystem::path folder;
  json tests = json::array();
  json ended = json::array();
  std::string worker_lines;

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << text;
  }

  // A test of one process.
  AccountBuilder process(std::uint32_t pid, std::int64_t begin, std::int64_t lasts, std::uint64_t peak_mib) {
    AccountBuilder builder(kFirstPid + pid, 7);
    std::vector<std::uint64_t> seconds;
    for (std::int64_t i = 0; i < lasts; ++i) {
      const double part = static_cast<double>(i + 1) / static_cast<double>(lasts);
      seconds.push_back(static_cast<std::uint64_t>(static_cast<double>(peak_mib) * std::sin(part * 2.2) + 16) * kMiB);
    }
    builder.began(begin).memory(seconds);
    for (std::int64_t i = 0; i < lasts; ++i) {
      builder.header().timeline[i].busy_us = static_cast<std::uint32_t>(200'000 + 500'000 * ((pid + i) % 2));
      builder.header().timeline[i].waited_us = static_cast<std::uint32_t>(i % 3 == 0 ? 700'000 : 50'000);
    }
    builder.header().busy_ns = static_cast<std::uint64_t>(lasts) * 450'000'000;
    builder.thread().waited_ns = static_cast<std::uint64_t>(lasts) * 260'000'000;
    builder.header().gpus[0].reserved_peak_bytes = (peak_mib + 480) * kMiB;
    builder.header().gpus[0].total_bytes = 141'000 * kMiB;
    std::strcpy(builder.header().gpus[0].name, "NVIDIA H200");
    builder.calls(Symbol::k_cuMemAlloc_v2, 40 + pid % 7).calls(Symbol::k_cuMemFree_v2, 39);
    builder.calls(Symbol::k_cuLaunchKernel, 5'000 * static_cast<std::uint64_t>(lasts));
    builder.calls(Symbol::k_cuMemcpyHtoDAsync_v2, 120).calls(Symbol::k_cuStreamSynchronize, 260);
    builder.thread().to_device.calls = 120;
    builder.thread().to_device.bytes = 60 * kMiB;
    return builder;
  }

  void test(const std::string& name, const char* outcome, std::int64_t begin, std::int64_t end,
            AccountBuilder& builder) {
    tests.push_back({{"name", name},
                     {"runner", "ctest"},
                     {"attempt", 1},
                     {"outcome", outcome},
                     {"begin_ns", kBegan + begin * kSecond},
                     {"end_ns", kBegan + end * kSecond},
                     {"command", {"./bin/" + name, "--seed", "7"}},
                     {"folder", "/src/build"},
                     {"processes", {builder.name()}}});
    builder.command("/src/build/bin/" + name.substr(0, 40), "--seed=7").write(folder / "processes");
  }

  void attempt(const char* name, int number, std::int64_t begin, std::uint64_t used_mib, const char* outcome) {
    const json base = {{"event", "begin"},
                       {"test", name},
                       {"runner", "pytest"},
                       {"attempt", number},
                       {"time_ns", kBegan + begin * kSecond},
                       {"pid", 900}};
    json end = base;
    end["event"] = "end";
    end["time_ns"] = kBegan + (begin + 3) * kSecond;
    end["outcome"] = outcome;
    end["begin"] = {{"used_bytes", (used_mib - 64) * kMiB}, {"launches", 10}, {"calls", 100}};
    end["end"] = {{"used_bytes", used_mib * kMiB},
                  {"peak_bytes", (used_mib + 200) * kMiB},
                  {"launches", 950},
                  {"calls", 2400},
                  {"busy_ns", 900'000'000}};
    worker_lines += base.dump() + "\n" + end.dump() + "\n";
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  Sample sample{.folder = argv[1], .worker_lines = {}};
  const char* const names[] = {"matmul_large", "conv2d_backward", "allreduce",   "sort_keys",
                               "fft_c2c",      "scan_inclusive",  "gather_rows", "histogram",
                               "spmv_csr",     "reduce_sum",      "transpose",   "softmax"};
  std::uint32_t pid = 100;
  for (std::int64_t i = 0; i < 12; ++i) {
    const std::int64_t begin = 4 * i;
    const std::int64_t lasts = 9 + i * 5 % 11;
    AccountBuilder builder = sample.process(++pid, begin, lasts, static_cast<std::uint64_t>(900 + 650 * (i % 5)));
    const char* outcome = "passed";
    if (i == 3) {
      outcome = "failed";
      builder.error(Symbol::k_cuMemAlloc_v2, 2, 3);
      builder.header().oom_reason = static_cast<std::uint32_t>(account::OutOfMemory::kFull);
    }
    if (i == 6) builder.finding(account::FindingKind::kFreedTwice, Symbol::k_cuMemFree_v2, Symbol::k_cuMemFree_v2);
    if (i == 7) outcome = "timeout";
    if (i == 8) builder.module("/src/build/lib/libspmv.so", 96 * kMiB).calls(Symbol::k_cuStreamCreate, 4);
    if (i == 9) builder.module("/opt/python/torch/lib/libc10_cuda.so", 512 * kMiB);
    if (i != 7) builder.exited(lasts);
    sample.test(names[i], outcome, begin, begin + lasts, builder);
  }
  // Names that would break a page or a file that took them as they are.
  AccountBuilder odd = sample.process(200, 50, 6, 300);
  odd.error(Symbol::k_cuLaunchKernel, 719).exited(6);
  sample.test("odd </script><b>&\"'\x01]]> \xe2\x82\xac name", "passed", 50, 56, odd);
  // One process with tests in it, one of which grows.
  AccountBuilder worker = sample.process(900, 20, 36, 1200);
  worker.module("/src/python/_leak.cpython-311.so", 260 * kMiB).exited(36);
  worker.command("/usr/bin/python3", "-m pytest").write(sample.folder / "processes");
  for (int i = 1; i <= 3; ++i)
    sample.attempt("tests/test_cache.py::test_grows", i, 18 + 4 * i, static_cast<std::uint64_t>(i) * 128, "passed");
  sample.attempt("tests/test_cache.py::test_stays", 1, 36, 448, "passed");
  sample.attempt("tests/test_cache.py::test_skips", 1, 41, 448, "skipped");
  sample.write("tests/4190900-7.jsonl", sample.worker_lines);
  AccountBuilder helper = sample.process(300, 2, 5, 64);
  helper.command("/usr/bin/compile-server", "--daemon").write(sample.folder / "processes");
  sample.write("tests.json", json{{"tests", sample.tests}}.dump(-1, ' ', false, json::error_handler_t::replace));
  sample.write("session.json", json{{"version", 1},
                                    {"name", "nightly"},
                                    {"host", "rig-7"},
                                    {"rota", "0.1.0"},
                                    {"folder", "/src/build"},
                                    {"command", {"ctest", "-j8"}},
                                    {"begin_ns", kBegan - kSecond},
                                    {"end_ns", kBegan + 62 * kSecond},
                                    {"exit_code", 8},
                                    {"left_running", {{{"process", "4190300-7"}, {"name", "compile-server"}}}}}
                                   .dump());
}
