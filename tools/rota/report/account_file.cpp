// See account_file.h.
#include "tools/rota/report/account_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "runtime/preload/symbol_list.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/uuid.h"
#include "tools/rota/trace/tables.h"

namespace rota::report {
namespace {

using account::Header;
using account::ThreadPage;

// A copy of a part of the file, aligned as its words are.
template <class T>
class Part {
 public:
  Part() : words_((sizeof(T) + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t)) {}
  const T* operator->() const { return reinterpret_cast<const T*>(words_.data()); }
  // False: the file is shorter.
  bool read(int file, std::uint64_t offset) {
    auto* const bytes = reinterpret_cast<std::byte*>(words_.data());
    std::size_t have = 0;
    while (have < sizeof(T)) {
      const ssize_t got = pread(file, bytes + have, sizeof(T) - have, static_cast<off_t>(offset + have));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      have += static_cast<std::size_t>(got);
    }
    return true;
  }

 private:
  std::vector<std::uint64_t> words_;
};

// Text in a field that need not be terminated by a zero.
template <std::size_t kBytes>
std::string text_of(const char (&field)[kBytes]) {
  return {field, strnlen(field, kBytes)};
}

template <class T>
T load(const std::atomic<T>& word) {
  return word.load(std::memory_order_relaxed);
}

PersonRecord person_of(const account::Person& from) {
  PersonRecord person{.pid = from.pid, .start_ticks = from.start_ticks, .command = {}, .folder = text_of(from.folder)};
  const std::size_t bytes = std::min<std::size_t>(from.command_bytes, sizeof from.command);
  for (std::size_t begin = 0; begin < bytes;) {
    const std::size_t length = strnlen(from.command + begin, bytes - begin);
    person.command.emplace_back(from.command + begin, length);
    begin += length + 1;
  }
  return person;
}

std::string refusal(const Header& header) {
  if (std::all_of(std::begin(header.magic), std::end(header.magic), [](char c) { return c == 0; })) {
    return "the process was ended before it had written the header";
  }
  if (std::memcmp(header.magic, account::kMagic, sizeof header.magic) != 0) return "not an account of rota";
  if (header.version != account::kVersion) {
    return fmt::format("format version {}, this rota reads {}; use the rota that wrote it", header.version,
                       account::kVersion);
  }
  if (header.symbol_count != kSymbolCount || header.symbol_list != kSymbolListHash ||
      header.header_bytes != sizeof(Header) || header.thread_page_bytes != sizeof(ThreadPage)) {
    return "written by another build of rota; use the rota that wrote it";
  }
  if (load(header.thread_pages) > account::kMaxThreads) {
    return fmt::format("{} pages of threads, where {} are the most; the header is damaged", load(header.thread_pages),
                       account::kMaxThreads);
  }
  return {};
}

std::vector<GpuRecord> gpus_of(const Header& header) {
  std::vector<GpuRecord> gpus;
  for (std::size_t device = 0; device < account::kMaxGpus; ++device) {
    const account::Gpu& from = header.gpus[device];
    if (std::all_of(std::begin(from.uuid), std::end(from.uuid), [](unsigned char c) { return c == 0; })) continue;
    Uuid uuid{};
    std::memcpy(&uuid.bytes, from.uuid, sizeof from.uuid);
    GpuRecord gpu{.device = device,
                  .uuid = uuid_text(uuid),
                  .name = text_of(from.name),
                  .total_bytes = from.total_bytes,
                  .used_bytes = load(from.used_bytes),
                  .peak_bytes = load(from.used_peak_bytes),
                  .lap_peak_bytes = load(from.lap_peak_bytes),
                  .reserved_peak_bytes = load(from.reserved_peak_bytes)};
    for (std::size_t i = 0; i < account::kMemoryKinds; ++i) gpu.kind_peak_bytes[i] = load(from.kinds[i].peak_bytes);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

Timeline timeline_of(const Header& header, std::vector<std::string>& notes) {
  // No process lives long enough for longer steps.
  constexpr std::uint64_t kLongestStep = 1'000'000'000'000'000;
  Timeline timeline{.step_ns = load(header.timeline_step_ns), .steps = {}};
  if (timeline.step_ns == 0) return {};
  if (timeline.step_ns > kLongestStep) {
    notes.emplace_back("its timeline is damaged");
    return {};
  }
  std::size_t used = account::kTimelineSteps;
  const auto happened = [&](std::size_t i) {
    const account::Step& step = header.timeline[i];
    return load(step.waited_us) != 0 || load(step.busy_us) != 0;
  };
  while (used > 0 && !happened(used - 1)) --used;
  for (std::size_t i = 0; i < used; ++i) {
    const account::Step& step = header.timeline[i];
    timeline.steps.push_back({.waited_us = load(step.waited_us), .busy_us = load(step.busy_us)});
  }
  return timeline;
}

// A time on CLOCK_MONOTONIC as one since 1970; whatever the file holds, without overflow.
Realtime realtime(const Header& header, std::int64_t monotonic_ns) {
  const auto word = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return static_cast<Realtime>(word(header.began_realtime_ns) + (word(monotonic_ns) - word(header.began_monotonic_ns)));
}

std::vector<LevelRecord> levels_of(const Header& header) {
  std::vector<LevelRecord> levels;
  Realtime last = header.began_realtime_ns;
  for (std::size_t i = 0; i < std::min<std::uint64_t>(load(header.level_count), account::kLevels); ++i) {
    const account::Level& from = header.levels[i];
    last = std::max(last, realtime(header, static_cast<std::int64_t>(load(from.since_ns))));
    const std::uint64_t most = load(from.most_bytes);
    levels.push_back({.since = last, .most = most, .least = std::min(most, load(from.least_bytes))});
  }
  return levels;
}

void add_thread(const Header& header, const ThreadPage& page, ProcessAccount& process) {
  process.waits += load(page.waits);
  process.waited_ns += load(page.waited_ns);
  const auto add = [](CopyCount& sum, const ThreadPage::Copies& copies) {
    sum.calls += load(copies.calls);
    sum.bytes += load(copies.bytes);
  };
  add(process.to_device, page.to_device);
  add(process.to_host, page.to_host);
  add(process.on_device, page.on_device);
  add(process.by_address, page.by_address);
  for (std::size_t i = 0; i < kSymbolCount; ++i) process.calls[i] += load(page.calls[i]);
  if (const std::uint64_t since = load(page.waits_since_ns); load(page.tid) != 0 && since != 0) {
    process.waiting = true;
    process.waits_since.push_back(realtime(header, static_cast<std::int64_t>(since)));
  }
  if (const std::uint32_t tid = load(page.tid), function = load(page.function); tid != 0 && function != 0) {
    process.inside.push_back({tid, function_name(function - 1), load(page.waits_since_ns) != 0});
  }
}

void add_tables(const Header& header, ProcessAccount& process) {
  const std::size_t modules = std::min<std::size_t>(load(header.module_count), account::kMaxModules);
  for (std::size_t i = 0; i < modules; ++i) {
    const account::Module& module = header.modules[i];
    std::string path = text_of(module.path);
    // The account calls the program's own module "(program)"; the process's command names it.
    if (path == "(program)" && !process.self.command.empty()) path = process.self.command.front();
    process.modules.push_back({std::move(path), load(module.allocations), load(module.live), load(module.live_bytes)});
  }
  for (const account::Error& error : header.errors) {
    if (load(error.calls) != 0) process.errors.push_back({load(error.function), load(error.code), load(error.calls)});
  }
  for (const account::Finding& finding : header.findings) {
    if (load(finding.calls) == 0) continue;
    const auto kind = static_cast<account::FindingKind>(load(finding.kind));
    if (kind != account::FindingKind::kFreedTwice && kind != account::FindingKind::kEndedHandle) continue;
    const std::uint32_t module = load(finding.module);
    process.findings.push_back({.kind = kind,
                                .function = load(finding.function),
                                .ended_by = load(finding.ended_by),
                                .module = module < process.modules.size() ? process.modules[module].path : "",
                                .calls = load(finding.calls),
                                .value = load(finding.value)});
  }
  std::erase_if(process.modules, [](const ModuleRecord& module) { return module.allocations == 0; });
  if (load(header.errors_lost) != 0) process.notes.emplace_back("more kinds of errors than the account holds");
  if (load(header.findings_lost) != 0) process.notes.emplace_back("more findings than the account holds");
  if (load(header.uncounted_threads) != 0) {
    process.notes.push_back(
        fmt::format("more than {} threads at once: calls of some are not counted", account::kMaxThreads));
  }
}

}  // namespace

std::string PersonRecord::id() const {
  return fmt::format("{}-{}", pid, start_ticks);
}

std::string function_name(std::uint32_t symbol) {
  if (symbol >= kSymbolCount) return fmt::format("function {}", symbol);
  return std::string(tool::base_name(kSymbolNames[symbol]));
}

std::string error_name(std::uint32_t code) {
  switch (code) {
#define ROTA_ERROR(name, value) \
  case value:                   \
    return #name;
#include "generated/driver_errors.inc"
#undef ROTA_ERROR
    default:
      return fmt::format("CUDA error {}", code);
  }
}

bool waits_for_room(const ThreadRecord& thread) {
  return thread.at_gate && (thread.function == "cuCtxCreate" || thread.function == "cuDevicePrimaryCtxRetain");
}

std::uint64_t start_ticks_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  if (!std::getline(file, line)) return 0;
  // The name, field 2, may hold anything, also parentheses and blanks.
  const std::size_t close = line.rfind(')');
  if (close == std::string::npos) return 0;
  std::istringstream rest(line.substr(close + 1));
  constexpr int kBetween = 19;  // fields 3 to 21
  std::string skipped;
  for (int i = 0; i < kBetween; ++i) rest >> skipped;
  std::uint64_t ticks = 0;
  return rest >> ticks ? ticks : 0;
}

bool is_running(pid_t process, std::uint64_t start_ticks) {
  if (process <= 0 || start_ticks == 0 || start_ticks_of(process) != start_ticks) return false;
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  const std::size_t close = line.rfind(')');
  return close != std::string::npos && close + 2 < line.size() && line[close + 2] != 'Z' && line[close + 2] != 'X';
}

bool is_running(const std::string& id) {
  pid_t process = 0;
  std::uint64_t start_ticks = 0;
  const char* const end = id.data() + id.size();
  const auto [dash, error] = std::from_chars(id.data(), end, process);
  if (error != std::errc() || dash == end || *dash != '-') return false;
  const auto [rest, wrong] = std::from_chars(dash + 1, end, start_ticks);
  return wrong == std::errc() && rest == end && is_running(process, start_ticks);
}

Result<ProcessAccount> read_account(const std::string& path) {
  const auto refuse = [&](const std::string& why) { return Error{fmt::format("{}: {}", path, why)}; };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (!file || fstat(file.get(), &info) != 0) return refuse(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return refuse("not a regular file");
  Part<Header> header;
  // The timeline and the test of a process that runs may change meanwhile: they are consistent if the counters next to
  // them are unchanged and even. A process that was killed in between leaves an odd counter.
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    if (!header.read(file.get(), 0)) {
      return refuse(fmt::format("cut off at {} bytes, within its header of {}", info.st_size, sizeof(Header)));
    }
    if (std::string why = refusal(*header.operator->()); !why.empty()) return refuse(why);
    Part<std::uint64_t> timeline, test;
    if (!timeline.read(file.get(), offsetof(Header, timeline_changes)) ||
        !test.read(file.get(), offsetof(Header, test_changes))) {
      return refuse("cut off while it was read");
    }
    const auto whole = [](std::uint64_t before, std::uint64_t after) { return before == after && before % 2 == 0; };
    if (whole(load(header->timeline_changes), *timeline.operator->()) &&
        whole(load(header->test_changes), *test.operator->())) {
      break;
    }
  }
  ProcessAccount process;
  process.id = std::filesystem::path(path).stem().string();
  process.calls.resize(kSymbolCount);
  const std::uint32_t pages = load(header->thread_pages);
  const auto page = std::make_unique<Part<ThreadPage>>();
  for (std::uint32_t i = 0; i < pages; ++i) {
    const std::uint64_t offset = account::kHeaderBytes + std::uint64_t{i} * account::kThreadPageBytes;
    if (!page->read(file.get(), offset)) {
      return refuse(fmt::format("cut off at {} bytes, within page {} of its {} threads", info.st_size, i + 1, pages));
    }
    add_thread(*header.operator->(), *page->operator->(), process);
  }
  process.self = person_of(header->self);
  const std::size_t ancestors = std::min<std::size_t>(header->ancestor_count, account::kMaxAncestors);
  for (std::size_t i = 0; i < ancestors; ++i) process.ancestors.push_back(person_of(header->ancestors[i]));
  process.test = text_of(header->test);
  process.running_test = text_of(header->running_test);
  process.began_ns = header->began_realtime_ns;
  process.busy_ns = load(header->busy_ns);
  process.gpus = gpus_of(*header.operator->());
  add_tables(*header.operator->(), process);
  process.timeline = timeline_of(*header.operator->(), process.notes);
  process.levels = levels_of(*header.operator->());
  for (const account::Word& objects : header->gone_with_context) process.gone_with_context.push_back(load(objects));
  const std::uint32_t reason = load(header->oom_reason);
  if (reason <= static_cast<std::uint32_t>(account::OutOfMemory::kTooLarge)) {
    process.out_of_memory = static_cast<account::OutOfMemory>(reason);
  }
  if (const std::int64_t ended = load(header->ended_monotonic_ns); ended != 0) {
    process.ending = Ending::kExited;
    process.ended_ns = process.alive_ns = realtime(*header.operator->(), ended);
  } else if (is_running(static_cast<pid_t>(process.self.pid), process.self.start_ticks)) {
    process.ending = Ending::kRunning;
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    process.alive_ns = realtime(*header.operator->(), std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
  } else if (const std::uint64_t alive = load(header->alive_monotonic_ns); alive != 0) {
    process.alive_ns = realtime(*header.operator->(), static_cast<std::int64_t>(alive));
  }
  return process;
}

}  // namespace rota::report
