#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tools/rota/ci/ctest.h"
#include "tools/rota/ci/helper.h"
#include "tools/rota/try/output_folder.h"

namespace rota::ci {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{30};
constexpr const char* kScratch = "rota-ctest";
constexpr std::size_t kMostOutput = 256U << 20;

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The value of an option, in either form: "-C Debug", "--build-config=Debug"; "" without it.
std::string option(const std::vector<std::string>& command, std::initializer_list<std::string_view> names) {
  for (std::size_t i = 1; i < command.size(); ++i) {
    for (const std::string_view name : names) {
      if (command[i] == name && i + 1 < command.size()) return command[i + 1];
      if (name.starts_with("--") && command[i].starts_with(std::string(name) + "="))
        return command[i].substr(name.size() + 1);
    }
  }
  return "";
}

bool has_tests(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "CTestTestfile.cmake", error);
}

// The folder in which the tests were configured. With a preset or a script ctest runs elsewhere; then the folder is
// found from that of its children.
fs::path build_folder(const CtestRun& run) {
  const fs::path own = fs::path(run.runner.folder) / option(run.runner.command, {"--test-dir"});
  if (has_tests(own)) return own.lexically_normal();
  fs::path found;
  for (fs::path folder = run.child_folder; folder.has_relative_path(); folder = folder.parent_path()) {
    if (has_tests(folder)) found = folder;
  }
  return found;
}

// Its standard output, within kPatience.
Result<std::string> listing_of(const std::vector<std::string>& command, const fs::path& folder) {
  auto output = run_helper(command, folder.string(), steady_clock::now() + kPatience, kMostOutput);
  if (!output) return output.error();
  if (!output->ended) {
    return Error{fmt::format("{} did not list its tests within {} s", command.front(), kPatience.count())};
  }
  if (output->missing) return Error{fmt::format("{} is not there any more", command.front())};
  return std::move(output->text);
}

// The path that an exec of it in its folder would take, or the name for PATH.
std::string program_of(const report::PersonRecord& runner) {
  const std::string& name = runner.command.front();
  if (name.find('/') == std::string::npos || name.starts_with('/')) return name;
  return (fs::path(runner.folder) / name).lexically_normal();
}

Result<std::vector<ListedTest>> list_tests(const CtestRun& run, const fs::path& build) {
  const attempt::OutputFolder scratch(kScratch);
  if (!scratch.problem().empty()) return Error{scratch.problem()};
  std::ofstream(fs::path(scratch.path()) / "CTestTestfile.cmake")
      << "subdirs([=====[" << build.string() << "]=====])\n";
  std::vector<std::string> command{program_of(run.runner), "--show-only=json-v1"};
  if (const std::string config = option(run.runner.command, {"-C", "--build-config"}); !config.empty()) {
    command.insert(command.end(), {"-C", config});
  }
  command.insert(command.end(), run.selection.begin(), run.selection.end());
  auto output = listing_of(command, scratch.path());
  if (!output) return output.error();
  return read_ctest_listing(*output);
}

// 0: the file does not exist.
report::Realtime written_at(const fs::path& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return 0;
  return static_cast<report::Realtime>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

// The log has another name while ctest runs and after it was killed; with -T and -D its name contains the time.
fs::path log_file(const fs::path& folder, report::Realtime begin) {
  fs::path newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const bool log = name.starts_with("LastTest") && (name.ends_with(".log") || name.ends_with(".log.tmp")) &&
                     !name.starts_with("LastTestsFailed") && !name.starts_with("LastTestsDisabled");
    const report::Realtime written = log ? written_at(entry.path()) : 0;
    if (written < begin) continue;
    begin = written;
    newest = entry.path();
  }
  return newest;
}

}  // namespace

Result<AskedCtest> ask_ctest(const CtestRun& run, report::Realtime boot_ns) {
  const fs::path build = build_folder(run);
  if (build.empty()) {
    return Error{fmt::format("ctest {}: {} has no CTestTestfile.cmake, so its tests are not known", run.runner.pid,
                             run.runner.folder)};
  }
  AskedCtest asked;
  asked.runner = run.runner;
  if (const std::string timeout = option(run.runner.command, {"--timeout"}); !timeout.empty()) {
    if (const double seconds = std::strtod(timeout.c_str(), nullptr); seconds > 0) asked.timeout_s = seconds;
  }
  auto listed = list_tests(run, build);
  if (!listed) return Error{fmt::format("ctest {} in {}: {}", run.runner.pid, build.string(), listed.error().text)};
  asked.listed = std::move(*listed);
  if (!run.last) return asked;
  // A clock tick before its start: file systems and start times round differently.
  const report::Realtime begin = start_of(run.runner, boot_ns) - 20'000'000;
  const fs::path folder = build / "Testing/Temporary";
  if (const fs::path log = log_file(folder, begin); !log.empty()) asked.logged = read_ctest_log(content(log));
  if (written_at(folder / "LastTestsDisabled.log") >= begin)
    asked.disabled = read_ctest_names(content(folder / "LastTestsDisabled.log"));
  return asked;
}

}  // namespace rota::ci
