// Account files: of processes that ended, that were killed, that run, and files that are none.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <iterator>
#include <utility>

#include "account_builder.h"
#include "scheduler/base/descriptor.h"
#include "tools/rota/report/groups.h"
#include "tools/rota/report/session.h"
#include "tools/rota/report/upkeep.h"

namespace rota::report {
namespace {

namespace fs = std::filesystem;

std::string refusal(const std::string& path) {
  const auto process = read_account(path);
  REQUIRE_FALSE(process);
  CHECK(process.error().text.starts_with(path + ": "));
  return process.error().text;
}

TEST_CASE("an account says who the process was and what it did") {
  const ScratchFolder scratch;
  AccountBuilder builder;
  builder.command("/opt/app/run", "--fast").memory({kMiB, 0, 3 * kMiB}).exited(4);
  builder.calls(Symbol::k_cuMemAlloc_v2, 2).calls(Symbol::k_cuLaunchKernel_ptsz, 5);
  builder.error(Symbol::k_cuMemAlloc_v2, 2).module("/opt/app/libapp.so", 2 * kMiB).module("(program)", kMiB);
  builder.thread().to_device.calls = 1;
  builder.thread().to_device.bytes = 4096;
  builder.thread().waited_ns = 12;
  const auto process = read_account(builder.write(scratch.path()));
  REQUIRE(process);
  CHECK(process->id == "4000001-7");
  CHECK(process->self.command == std::vector<std::string>{"/opt/app/run", "--fast"});
  CHECK(process->ending == Ending::kExited);
  CHECK(process->ended_ns == kBegan + 4 * kSecond);
  REQUIRE(process->gpus.size() == 1);
  CHECK(process->gpus[0].peak_bytes == 3 * kMiB);
  CHECK(process->calls[static_cast<std::size_t>(Symbol::k_cuLaunchKernel_ptsz)] == 5);
  CHECK(process->to_device.bytes == 4096);
  CHECK(process->waited_ns == 12);
  REQUIRE(process->errors.size() == 1);
  CHECK(error_name(process->errors[0].code) == "CUDA_ERROR_OUT_OF_MEMORY");
  REQUIRE(process->modules.size() == 2);
  CHECK(process->modules[1].path == "/opt/app/run");
  REQUIRE(process->timeline.steps.size() == 3);
  REQUIRE(process->levels.size() == 3);
  CHECK(process->levels[2].since == kBegan + 2 * kSecond);
  CHECK(process->levels[2].most == 3 * kMiB);
}

TEST_CASE("of a process without an end, only one with its pid and start time still runs") {
  const ScratchFolder scratch;
  const auto self = static_cast<std::uint32_t>(getpid());
  AccountBuilder alive(self, start_ticks_of(getpid()));
  CHECK(read_account(alive.write(scratch.path()))->ending == Ending::kRunning);
  AccountBuilder earlier(self, start_ticks_of(getpid()) - 1);
  CHECK(read_account(earlier.write(scratch.path()))->ending == Ending::kKilled);
}

TEST_CASE("files that are no accounts are refused by name") {
  const ScratchFolder scratch;
  CHECK(contains(refusal((scratch.path() / "none.account").string()), "No such file"));
  CHECK(contains(refusal(scratch.path().string()), "not a regular file"));
  const std::string header = std::to_string(sizeof(account::Header));
  CHECK(contains(refusal(AccountBuilder().write(scratch.path(), 0)),
                 "cut off at 0 bytes, within its header of " + header));
  CHECK(contains(refusal(AccountBuilder().write(scratch.path(), account::kHeaderBytes + 8)),
                 "within page 1 of its 1 threads"));
  AccountBuilder foreign;
  foreign.header().magic[0] = 'x';
  CHECK(contains(refusal(foreign.write(scratch.path())), "not an account of rota"));
  AccountBuilder begun;
  std::memset(begun.header().magic, 0, sizeof begun.header().magic);
  CHECK(contains(refusal(begun.write(scratch.path())), "before it had written the header"));
  AccountBuilder later;
  later.header().version = account::kVersion + 1;
  CHECK(contains(refusal(later.write(scratch.path())), "use the rota that wrote it"));
  AccountBuilder other;
  other.header().symbol_list ^= 1;
  CHECK(contains(refusal(other.write(scratch.path())), "another build of rota"));
  AccountBuilder damaged;
  damaged.header().thread_pages = account::kMaxThreads + 1;
  CHECK(contains(refusal(damaged.write(scratch.path())), "the header is damaged"));
}

TEST_CASE("indices and lengths beyond their tables are not followed") {
  const ScratchFolder scratch;
  AccountBuilder builder;
  account::Header& header = builder.header();
  std::memset(header.self.command, 'a', sizeof header.self.command);
  std::memset(header.self.folder, 'a', sizeof header.self.folder);
  header.self.command_bytes = ~0U;
  header.ancestor_count = ~0U;
  header.module_count = ~0U;
  for (account::Module& module : header.modules) module.allocations = 1;
  header.timeline_step_ns = ~std::uint64_t{0};
  header.level_count = ~std::uint64_t{0};
  for (std::size_t i = 0; i < account::kLevels; ++i) {
    header.levels[i].since_ns = i % 2 == 0 ? ~std::uint64_t{0} : i;
    header.levels[i].least_bytes = ~std::uint64_t{0};
  }
  header.began_monotonic_ns = INT64_MIN;
  header.ended_monotonic_ns = INT64_MAX;
  header.oom_reason = 77;
  builder.finding(account::FindingKind::kFreedTwice, Symbol::k_cuMemFree_v2, Symbol::k_cuMemFree_v2);
  header.findings[0].module = ~0U;
  header.errors[0].function = 70000;
  header.errors[0].code = 12345;
  header.errors[0].calls = 1;
  const auto process = read_account(builder.write(scratch.path()));
  REQUIRE(process);
  CHECK(process->self.folder.size() == sizeof header.self.folder);
  CHECK(process->modules.size() == account::kMaxModules);
  CHECK(process->findings[0].module.empty());
  CHECK(function_name(process->errors[0].function) == "function 70000");
  CHECK(error_name(process->errors[0].code) == "CUDA error 12345");
  CHECK(process->timeline.steps.empty());
  CHECK(process->levels.size() == account::kLevels);
  CHECK(std::ranges::is_sorted(process->levels, {}, &LevelRecord::since));
  CHECK(process->levels[0].least == 0);
  CHECK(process->out_of_memory == account::OutOfMemory::kNone);
}

TEST_CASE("functions are grouped by what they do") {
  CHECK(group_of("cuLaunchKernelEx") == Group::kLaunch);
  CHECK(group_of("cuGraphLaunch") == Group::kLaunch);
  CHECK(group_of("cuLaunchHostFunc") == Group::kOther);
  CHECK(group_of("cuMemcpyHtoDAsync") == Group::kCopy);
  CHECK(group_of("cuMemcpy3DPeer") == Group::kCopy);
  CHECK(group_of("cuGraphAddMemcpyNode") == Group::kOther);
  CHECK(group_of("cuCtxSynchronize") == Group::kSynchronize);
  CHECK(group_of("cuMemAlloc") == Group::kOther);
}

TEST_CASE("objects are those that successful calls made and did not end") {
  const ScratchFolder scratch;
  AccountBuilder builder;
  builder.calls(Symbol::k_cuStreamCreate, 3).calls(Symbol::k_cuStreamCreateWithPriority, 1);
  builder.calls(Symbol::k_cuStreamDestroy_v2, 2).error(Symbol::k_cuStreamCreate, 2);
  builder.calls(Symbol::k_cuEventCreate, 2).calls(Symbol::k_cuEventDestroy_v2, 2);
  builder.calls(Symbol::k_cuMemAlloc_v2, 9);
  const auto process = read_account(builder.write(scratch.path()));
  REQUIRE(process);
  const auto left = objects_left(*process);
  REQUIRE(left.size() == 1);
  CHECK(left.at("stream").created == 3);
  CHECK(left.at("stream").ended == 2);
}

// The account of a process with one ancestor, all of it reserved on disk; its size there.
std::uint64_t reserved_account(AccountBuilder& builder, const fs::path& folder, const std::string& ancestor) {
  account::Header& header = builder.header();
  header.ancestor_count = 1;
  header.ancestors[0].pid = static_cast<std::uint32_t>(std::stoul(ancestor));
  header.ancestors[0].start_ticks = std::stoull(ancestor.substr(ancestor.find('-') + 1));
  const std::string path = builder.write(folder);
  const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(posix_fallocate(file.get(), 0, account::kHeaderBytes + 8 * account::kThreadPageBytes) == 0);
  fsync(file.get());  // some file systems decide only then
  struct stat info{};
  REQUIRE(fstat(file.get(), &info) == 0);
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

TEST_CASE("an account of a process that has ended takes no more space than it needs, and reads the same") {
  const ScratchFolder scratch;
  const fs::path processes = fs::path(scratch.path()) / kProcessFolder;
  const std::string own = std::to_string(getpid()) + "-" + std::to_string(start_ticks_of(getpid()));
  const auto on_disk = [](const std::string& path) {
    struct stat info{};
    REQUIRE(stat(path.c_str(), &info) == 0);
    return std::pair(static_cast<std::uint64_t>(info.st_blocks) * 512, info.st_size);
  };
  struct Case {
    std::uint32_t pid;
    std::uint64_t start;
    std::string ancestor;
    bool spared;
  };
  const auto pid = static_cast<std::uint32_t>(getpid());
  for (const Case& each : {Case{4'000'001, 7, own, true},                    // gone
                           Case{pid, start_ticks_of(getpid()), own, false},  // runs
                           Case{pid, 1, own, true},                          // another one has its number now
                           Case{4'000'002, 7, "4000003-9", false}}) {        // perhaps of another pid namespace
    CAPTURE(each.pid, each.start, each.ancestor);
    fs::remove_all(processes);
    AccountBuilder builder(each.pid, each.start);
    builder.command("program", "x").calls(Symbol::k_cuMemAlloc_v2, 9).module("/lib/x.so", 5).memory({1, 2, 3});
    const std::uint64_t before = reserved_account(builder, processes, each.ancestor);
    const std::string path = (processes / (builder.name() + ".account")).string();
    const auto size = on_disk(path).second;
    const auto text = [&] {
      std::ifstream file(path, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string content = text();
    Upkeep upkeep(scratch.path(), own);
    upkeep.sweep();
    upkeep.sweep();
    CHECK(on_disk(path).second == size);
    CHECK((text() == content));
    if (each.spared) {
      CHECK(on_disk(path).first <= before / 2);
    } else {
      CHECK(on_disk(path).first == before);
    }
  }
}

TEST_CASE("a process that gave no sign of life lived when its session last saw it") {
  const ScratchFolder scratch;
  const fs::path processes = fs::path(scratch.path()) / kProcessFolder;
  const std::string own = std::to_string(getpid()) + "-" + std::to_string(start_ticks_of(getpid()));
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t{time.tv_sec} * kSecond + time.tv_nsec;
  };
  enum class Sign { kNone, kLater, kExit };
  for (const Sign sign : {Sign::kNone, Sign::kLater, Sign::kExit}) {
    CAPTURE(sign);
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    AccountBuilder builder(static_cast<std::uint32_t>(child), start_ticks_of(child));
    account::Header& header = builder.header();
    const std::int64_t began = now() - 60 * kSecond;
    header.began_monotonic_ns = began;
    if (sign == Sign::kLater) header.alive_monotonic_ns = static_cast<std::uint64_t>(began + 3600 * kSecond);
    if (sign == Sign::kExit) header.ended_monotonic_ns = began + kSecond;
    builder.thread().tid = 5;
    builder.thread().waits_since_ns = static_cast<std::uint64_t>(began + kSecond);
    reserved_account(builder, processes, own);
    Upkeep upkeep(scratch.path(), own);
    const std::int64_t before = now();
    upkeep.sweep();
    const std::int64_t after = now();
    kill(child, SIGKILL);
    REQUIRE(waitpid(child, nullptr, 0) == child);
    upkeep.sweep();
    const auto process = read_account((processes / (builder.name() + ".account")).string());
    REQUIRE(process);
    if (sign == Sign::kNone) {
      CHECK(process->ending == Ending::kKilled);
      CHECK(process->alive_ns >= kBegan + (before - began));
      CHECK(process->alive_ns <= kBegan + (after - began));
      CHECK(process->ended_ns == 0);
    } else {
      CHECK(process->alive_ns == kBegan + (sign == Sign::kLater ? 3600 : 1) * kSecond);
    }
  }
}

TEST_CASE("what is no account is left alone, whatever its name is") {
  const ScratchFolder scratch;
  const fs::path processes = fs::path(scratch.path()) / kProcessFolder;
  fs::create_directories(processes);
  const std::string zeros(1 << 20, '\0');
  for (const char* name : {"1-2.account", "x.account", "-", "99999999999-1.account", "4000001-7-3.account"}) {
    std::ofstream(processes / name, std::ios::binary) << zeros;
  }
  fs::create_symlink("/dev/null", processes / "4000001-8.account");
  fs::create_directory(processes / "4000001-9.account");
  Upkeep(scratch.path(), "1-1").sweep();
  for (const auto& entry : fs::directory_iterator(processes)) {
    if (!entry.is_regular_file()) continue;
    struct stat info{};
    REQUIRE(stat(entry.path().c_str(), &info) == 0);
    CHECK(info.st_blocks > 0);
  }
  Upkeep("/no/such/folder", "1-1").sweep();
}

}  // namespace
}  // namespace rota::report
