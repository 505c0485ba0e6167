// The trace writer: what is left in the file after every kind of end, and that the program never suffers.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "generated/driver_symbols.h"
#include "runtime/trace/interface.h"
#include "runtime/trace/record.h"
#include "tests/unit/tools/rota/trace/recording.h"

namespace rota::test {
namespace {

constexpr auto kFunction = static_cast<std::uint32_t>(Symbol::k_cuCtxSynchronize);
constexpr auto kOuter = static_cast<std::uint32_t>(Symbol::k_cuInit);

void enter(std::uint32_t function, std::uint64_t argument) {
  trace::enter(trace::kDriverApi, function, argument);
}

void leave(std::uint32_t function, std::uint32_t result) {
  trace::Thread& thread = trace::this_thread();
  trace::leave(thread, trace::returned(thread), trace::kDriverApi, function, result);
}

void calls(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    enter(kFunction, i);
    leave(kFunction, 0);
  }
}

std::uint64_t argument_of(const tool::TraceCall& call) {
  std::uint64_t value = 0;
  REQUIRE(call.arguments.size() >= sizeof value);
  std::memcpy(&value, call.arguments.data(), sizeof value);
  return value;
}

// Each thread's arguments must be 0, 1, 2, …: nothing lost, nothing twice, nothing of another thread.
void check_sequences(const Read& read, std::uint64_t per_thread) {
  std::map<std::pair<const tool::TraceFile*, std::uint32_t>, std::uint64_t> next;
  for (std::size_t i = 0; i < read.calls.size(); ++i) {
    std::uint64_t& expected = next[{read.file_of[i], read.calls[i].thread}];
    REQUIRE(argument_of(read.calls[i]) == expected);
    REQUIRE(read.calls[i].returned);
    ++expected;
  }
  for (const auto& [thread, count] : next) CHECK(count == per_thread);
}

TEST_CASE("A trace holds every call with its times, result and nesting, and says that the process ended") {
  const Folder folder;
  const int status = record(options_for(folder), [] {
    enter(kOuter, 7);
    enter(kFunction, 8);
    leave(kFunction, 700);
    leave(kOuter, 0);
  });
  CHECK(status == 0);
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.files.size() == 1);
  CHECK(read.files[0]->state() == trace::State::kEnded);
  CHECK(read.files[0]->parent_pid() == static_cast<std::uint32_t>(getpid()));
  CHECK(read.files[0]->command().find("trace_writer_test") != std::string::npos);
  CHECK(read.files[0]->program() == "trace_writer_test");
  REQUIRE(read.calls.size() == 2);
  const tool::TraceCall& outer = read.calls[0];
  const tool::TraceCall& inner = read.calls[1];
  CHECK(outer.function == kOuter);
  CHECK(inner.function == kFunction);
  CHECK(outer.depth == 0);
  CHECK(inner.depth == 1);
  CHECK(inner.value == 700);
  CHECK(outer.begin_ns <= inner.begin_ns);
  CHECK(inner.end_ns <= outer.end_ns);
  // What is not used is given back: header and one chunk stay.
  CHECK(std::filesystem::file_size(read.files[0]->path()) == trace::kMinimumBytes);
}

TEST_CASE("Time stamps agree with CLOCK_MONOTONIC and CLOCK_REALTIME") {
  const Folder folder;
  std::uint64_t before = trace::clock_nanoseconds(CLOCK_MONOTONIC);
  const std::uint64_t real_before = trace::clock_nanoseconds(CLOCK_REALTIME);
  REQUIRE(record(options_for(folder), [] { calls(1000); }) == 0);
  std::uint64_t after = trace::clock_nanoseconds(CLOCK_MONOTONIC);
  const Read read = read_all(folder.path());
  REQUIRE(read.calls.size() == 1000);
  // The counter's rate is measured over 200 us at least, to some 50 ns; a second's trace may be off by that much.
  constexpr std::uint64_t kTolerance = 1'000'000;
  CHECK(read.calls.front().begin_ns + kTolerance > before);
  CHECK(read.calls.back().end_ns < after + kTolerance);
  const std::uint64_t real = read.files[0]->realtime_ns(read.calls.front().begin_ns);
  CHECK(real + kTolerance > real_before);
  CHECK(real < real_before + (after - before) + kTolerance);
}

TEST_CASE("A second has about as many ticks as each clock is taken to have") {
  for (const trace::Clock clock : {trace::usable_clock(), trace::Clock::kMonotonic}) {
    constexpr std::uint64_t kMoment = 10'000'000;
    const std::uint64_t first = trace::read_ticks(clock);
    const std::uint64_t begin = trace::clock_nanoseconds(CLOCK_MONOTONIC);
    std::uint64_t end = begin;
    while (end < begin + kMoment) end = trace::clock_nanoseconds(CLOCK_MONOTONIC);
    const double taken = static_cast<double>(trace::read_ticks(clock) - first);
    const double seconds = static_cast<double>(end - begin) / 1e9;
    const auto nominal = static_cast<double>(trace::nominal_ticks_per_second(clock));
    CHECK(taken / seconds > nominal / 4);
    CHECK(taken / seconds < nominal * 4);
  }
}

TEST_CASE("Times are whole although a record holds the low half of its ticks: calls of minutes, and time going back") {
  const Folder folder;
  REQUIRE(record(options_for(folder), [] {
            trace::Thread& thread = trace::this_thread();
            enter(kOuter, 0);
            enter(kFunction, 1);
            // Later by 40 times what fits the half, then the clock as it is.
            trace::leave(thread, trace::returned(thread) + (std::uint64_t{40} << 32), trace::kDriverApi, kFunction,
                         700);
            leave(kOuter, 0);
            calls(3);
          }) == 0);
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.calls.size() == 5);
  const tool::TraceFile& file = *read.files[0];
  const std::uint64_t now = trace::read_ticks(trace::usable_clock());
  const std::uint64_t late = file.monotonic_ns(now + (std::uint64_t{40} << 32)) - file.monotonic_ns(now);
  constexpr std::uint64_t kSecond = 1'000'000'000;
  const tool::TraceCall& inner = read.calls[1];
  CHECK(inner.value == 700);
  CHECK(inner.end_ns - inner.begin_ns >= late - 1);
  CHECK(inner.end_ns - inner.begin_ns < late + kSecond);
  CHECK(read.calls[0].end_ns - read.calls[0].begin_ns < kSecond);
  CHECK(read.calls[4].end_ns - read.calls[0].begin_ns < kSecond);
}

TEST_CASE("After kill -9 the trace is readable up to the last call, and the call under way shows as not returned") {
  const Folder folder;
  const int status = record(options_for(folder), [] {
    calls(5000);
    enter(kOuter, 1);
    kill(getpid(), SIGKILL);
  });
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGKILL);
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.calls.size() == 5001);
  CHECK(read.files[0]->state() == trace::State::kRunning);
  for (std::uint64_t i = 0; i < 5000; ++i) REQUIRE(argument_of(read.calls[i]) == i);
  CHECK(read.calls[4999].returned);
  CHECK_FALSE(read.calls[5000].returned);
  CHECK(read.calls[5000].function == kOuter);
}

TEST_CASE("At its size limit the trace stops with a note and one line, and the program goes on") {
  const Folder folder;
  trace::WriterOptions options = options_for(folder);
  options.max_bytes = 300 << 10;
  CHECK(record(options, [] { calls(100'000); }) == 0);
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.files.size() == 1);
  CHECK(read.files[0]->state() == trace::State::kCapped);
  CHECK(read.files[0]->ending().find("ROTA_TRACE_MAX_BYTES") != std::string::npos);
  CHECK(std::filesystem::file_size(read.files[0]->path()) <= options.max_bytes);
  // 3 chunks of 64 KiB at 16 + 8 bytes a call; the last call may lack its return.
  CHECK(read.calls.size() > 8100);
  CHECK(read.calls.size() < 8200);
  const std::vector<std::string> lines = log_lines(folder);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("ROTA_TRACE_MAX_BYTES") != std::string::npos);
}

TEST_CASE("A full disk gives one message, keeps what was recorded, and the program goes on") {
  const Folder folder;
  trace::WriterOptions options = options_for(folder);
  options.reserve = [](int file, off_t offset, off_t bytes) {
    return offset >= 2 << 20 ? ENOSPC : posix_fallocate(file, offset, bytes);
  };
  CHECK(record(options, [] { calls(200'000); }) == 0);
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.files.size() == 1);
  CHECK(read.files[0]->state() == trace::State::kOutOfSpace);
  CHECK(read.files[0]->ending().find("No space left on device") != std::string::npos);
  CHECK(read.calls.size() > 40'000);
  const std::vector<std::string> lines = log_lines(folder);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("No space left on device") != std::string::npos);
  CHECK(lines[0].find(read.files[0]->path()) != std::string::npos);
}

TEST_CASE("No space at all leaves no file behind, and the program goes on") {
  const Folder folder;
  trace::WriterOptions options = options_for(folder);
  options.reserve = [](int, off_t, off_t) { return ENOSPC; };
  CHECK(WEXITSTATUS(record(options, [] {})) == 3);
  const Read read = read_all(folder.path());
  CHECK(read.files.empty());
  CHECK(read.problems.empty());
  CHECK(log_lines(folder).size() == 1);
}

TEST_CASE("RLIMIT_FSIZE ends the trace and not the program (SIGXFSZ is never raised)") {
  const Folder folder;
  const int status = record(options_for(folder), [] {
    // The first piece of 1 MiB is there; the limit hits the second.
    const rlimit limit{1536 << 10, 1536 << 10};
    setrlimit(RLIMIT_FSIZE, &limit);
    calls(100'000);
  });
  CHECK(status == 0);
  const Read read = read_all(folder.path());
  REQUIRE(read.files.size() == 1);
  CHECK(read.files[0]->state() == trace::State::kOutOfSpace);
  CHECK(read.calls.size() > 20'000);
  CHECK(log_lines(folder).size() == 1);
}

TEST_CASE(
    "A program that closes every descriptor and changes its folder neither loses its trace nor a file of its own") {
  const Folder folder;
  const std::string own = folder.path() + "/own";
  REQUIRE(record(options_for(folder), [&] {
            for (int descriptor = 0; descriptor < 100; ++descriptor) close(descriptor);
            // These take the numbers that were closed, whoever had them.
            std::vector<int> files;
            for (int i = 0; i < 50; ++i) files.push_back(open(own.c_str(), O_RDWR | O_CREAT | O_APPEND, 0600));
            if (chdir("/") != 0) _exit(4);
            calls(50'000);
            for (const int file : files) {
              if (write(file, "x", 1) != 1) _exit(5);
            }
          }) == 0);
  std::ifstream written(own);
  CHECK(std::string(std::istreambuf_iterator<char>(written), {}) == std::string(50, 'x'));
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.files.size() == 1);
  CHECK(read.calls.size() == 50'000);
  CHECK(read.files[0]->state() == trace::State::kEnded);
}

TEST_CASE("A folder that cannot be made is one message") {
  const Folder folder;
  trace::WriterOptions options = options_for(folder);
  options.directory = folder.path() + "/missing/deeper";
  static std::atomic<int> lines;
  lines = 0;
  options.log = [](const char* line) {
    if (std::strstr(line, "/missing/deeper") != nullptr) ++lines;
  };
  trace::Writer writer(options);
  CHECK_FALSE(writer.open());
  CHECK(writer.take().begin == nullptr);
  CHECK(lines == 1);
}

TEST_CASE("A forked child records into its own file, and only if it makes a call") {
  const Folder folder;
  REQUIRE(record(options_for(folder), [] {
            calls(10);
            const pid_t quiet = fork();
            if (quiet == 0) _exit(0);
            const pid_t child = fork();
            if (child == 0) {
              calls(20);
              std::exit(0);
            }
            int status = 0;
            waitpid(quiet, &status, 0);
            waitpid(child, &status, 0);
            enter(kFunction, 10);
            leave(kFunction, 0);
            if (status != 0) _exit(9);
          }) == 0);
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.files.size() == 2);
  CHECK(read.files[1]->parent_pid() == read.files[0]->pid());
  CHECK(read.files[1]->state() == trace::State::kEnded);
  std::size_t of_child = 0;
  for (const tool::TraceFile* file : read.file_of) of_child += file == read.files[1].get() ? 1 : 0;
  CHECK(of_child == 20);
  CHECK(read.calls.size() == 31);
}

TEST_CASE("Many threads record at once, and threads that end leave their space to the next") {
  const Folder folder;
  constexpr int kRounds = 40;
  constexpr int kThreads = 4;
  constexpr std::uint64_t kCalls = 300;
  REQUIRE(record(options_for(folder), [] {
            for (int round = 0; round < kRounds; ++round) {
              std::vector<std::thread> threads;
              for (int i = 0; i < kThreads; ++i) threads.emplace_back([] { calls(kCalls); });
              for (std::thread& thread : threads) thread.join();
            }
          }) == 0);
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.calls.size() == kRounds * kThreads * kCalls);
  // The kernel may give a thread id again, so arguments start over within one id.
  std::map<std::uint32_t, std::uint64_t> next;
  for (const tool::TraceCall& call : read.calls) {
    std::uint64_t& expected = next[call.thread];
    REQUIRE(argument_of(call) == expected);
    REQUIRE(call.returned);
    expected = (expected + 1) % kCalls;
  }
  // 160 threads of 7 KiB each would take 160 chunks of 64 KiB if none were passed on.
  CHECK(std::filesystem::file_size(read.files[0]->path()) < 80 * trace::kChunkBytes);
}

TEST_CASE("Threads that fill many chunks at the same time keep their records apart") {
  const Folder folder;
  REQUIRE(record(options_for(folder), [] {
            std::vector<std::thread> threads;
            for (int i = 0; i < 4; ++i) threads.emplace_back([] { calls(20'000); });
            for (std::thread& thread : threads) thread.join();
          }) == 0);
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.calls.size() == 80'000);
  check_sequences(read, 20'000);
}

TEST_CASE("A call left by an exception through a callback shows as not returned, and what follows is in order") {
  const Folder folder;
  REQUIRE(record(options_for(folder), [] {
            enter(kOuter, 0);
            enter(kFunction, 1);  // never returns
            leave(kOuter, 0);
            enter(kOuter, 2);
            leave(kOuter, 0);
          }) == 0);
  const Read read = read_all(folder.path());
  REQUIRE(read.calls.size() == 3);
  CHECK(read.calls[0].returned);
  CHECK_FALSE(read.calls[1].returned);
  CHECK(read.calls[2].returned);
  CHECK(read.calls[2].depth == 0);
}

}  // namespace
}  // namespace rota::test
