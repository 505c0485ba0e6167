// Tells `rota ci` and `rota run --report` which test runs in this process. C++14, in one header, for any program with
// tests; it needs the C library only (and -ldl before glibc 2.34). Without ROTA_REPORT, the folder of the report, it
// does nothing.
//
//   GoogleTest   #include <gtest/gtest.h>, then this header; in main, before RUN_ALL_TESTS():
//                    rota::test::listen_to_googletest();
//                Each iteration of --gtest_repeat is an attempt. The numbers are also properties in --gtest_output.
//   Catch2       v2: in the file with CATCH_CONFIG_MAIN or CATCH_CONFIG_RUNNER, after <catch2/catch.hpp>;
//                v3: in any one file, after <catch2/catch_all.hpp>, or
//                <catch2/reporters/catch_reporter_event_listener.hpp> and
//                <catch2/reporters/catch_reporter_registrars.hpp>:
//                    #include <rota/rota_test.h>
//                    ROTA_TEST_CATCH2_LISTENER
//   any other    rota::test::begin("name"); …; rota::test::end("name", rota::test::Outcome::kPassed);
//
// A test's line is written before the test runs: what kills the process leaves a begin without an end. Any thread may
// call; tests that run at the same time in one process each see what all of them do. Errors are one line on stderr, and
// end the recording, not the tests.
#ifndef ROTA_ROTA_TEST_H
#define ROTA_ROTA_TEST_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

// The version of Catch2, if this file may listen to it: v2 only in the file that has Catch2's main.
#if defined(CATCH_CONFIG_EXTERNAL_INTERFACES) && defined(TWOBLUECUBES_SINGLE_INCLUDE_CATCH_HPP_INCLUDED)
#define ROTA_TEST_CATCH2_VERSION 2
#elif defined(CATCH_REPORTER_EVENT_LISTENER_HPP_INCLUDED) || defined(CATCH_AMALGAMATED_HPP_INCLUDED)
#define ROTA_TEST_CATCH2_VERSION 3
#ifndef CATCH_AMALGAMATED_HPP_INCLUDED
#include <catch2/catch_test_case_info.hpp>
#endif
#endif

namespace rota {
namespace test {

enum class Outcome { kPassed, kFailed, kSkipped, kError };

namespace detail {

// As runtime/account/test_interface.h has it.
struct Account {
  uint64_t used_bytes, peak_bytes, allocations, live;
  uint64_t launches, copies, copied_bytes, synchronizations, calls, errors, waited_ns, busy_ns;
};
enum { kVersion = 1, kBegins = 0, kEnds = 1 };
typedef int CoreTest(uint32_t version, uint32_t what, const char* name, Account* account);

// The text as a JSON string; bytes that are not UTF-8 become U+FFFD.
inline std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const unsigned char first = static_cast<unsigned char>(text[at]);
    const size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    bool whole = first < 0x80 || (first >= 0xc2 && first <= 0xf4 && at + length <= text.size());
    for (size_t next = 1; whole && next < length; ++next) whole = (text[at + next] & 0xc0) == 0x80;
    if (whole && length > 1) {  // overlong forms, surrogates, and what is beyond U+10FFFF
      const unsigned char second = static_cast<unsigned char>(text[at + 1]);
      whole = !(first == 0xe0 && second < 0xa0) && !(first == 0xed && second > 0x9f) &&
              !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second > 0x8f);
    }
    if (!whole) {
      out += "\\ufffd";
      ++at;
      continue;
    }
    if (first < 0x20 || first == 0x7f) {
      char escaped[8];
      snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(first));
      out += escaped;
    } else {
      if (first == '"' || first == '\\') out += '\\';
      out.append(text, at, length);
    }
    at += length;
  }
  return out + "\"";
}

inline std::string json_of(const Account* account) {
  if (account == nullptr) return "null";
  std::string out;
  const auto add = [&out](const char* name, uint64_t value) {
    out += (out.empty() ? "{\"" : ",\"") + std::string(name) + "\":" + std::to_string(value);
  };
  add("used_bytes", account->used_bytes);
  add("peak_bytes", account->peak_bytes);
  add("allocations", account->allocations);
  add("live", account->live);
  add("launches", account->launches);
  add("copies", account->copies);
  add("copied_bytes", account->copied_bytes);
  add("synchronizations", account->synchronizations);
  add("calls", account->calls);
  add("errors", account->errors);
  add("waited_ns", account->waited_ns);
  add("busy_ns", account->busy_ns);
  return out + "}";
}

inline const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "passed";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kSkipped:
      return "skipped";
    case Outcome::kError:
      break;
  }
  return "error";
}

typedef std::vector<std::pair<std::string, std::string>> Properties;

inline std::string seconds(uint64_t ns) {
  char text[32];
  snprintf(text, sizeof text, "%.9g", static_cast<double>(ns) / 1e9);
  return text;
}

// As the pytest plugin names them.
inline Properties properties(const Account* begin, const Account* end) {
  if (end == nullptr) return {};
  const Account before = begin != nullptr ? *begin : Account();
  return {{"rota_peak_bytes", std::to_string(end->peak_bytes)},
          {"rota_base_bytes", std::to_string(before.used_bytes)},
          {"rota_growth_bytes", std::to_string(static_cast<int64_t>(end->used_bytes - before.used_bytes))},
          {"rota_launches", std::to_string(end->launches - before.launches)},
          {"rota_waited_seconds", seconds(end->waited_ns - before.waited_ns)},
          {"rota_gpu_seconds", seconds(end->busy_ns - before.busy_ns)}};
}

class Recorder {
 public:
  // Of the process; never destroyed, since tests may end after static destructors have begun.
  static Recorder& get() {
    static Recorder& recorder = *new Recorder;
    return recorder;
  }

  bool on() const { return !folder_.empty(); }

  void begin(const std::string& name, const char* runner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!on()) return;
    Test& test = tests_[name];
    ++test.attempt;
    write("{\"event\":\"begin\",\"test\":" + json_string(name) + ",\"runner\":\"" + runner +
          "\",\"attempt\":" + std::to_string(test.attempt) + ",\"pid\":" + std::to_string(getpid()) +
          ",\"time_ns\":" + std::to_string(now()) + "}\n");
    test.measured = mark(kBegins, name, &test.begin);
    test.pid = getpid();
  }

  // An end without a begin of this process is ignored.
  Properties end(const std::string& name, Outcome outcome, const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!on()) return {};
    const auto found = tests_.find(name);
    if (found == tests_.end() || found->second.pid != getpid()) return {};
    Test& test = found->second;
    test.pid = 0;
    Account account;
    const bool measured = mark(kEnds, name, &account);
    const Account* const begin = test.measured ? &test.begin : nullptr;
    const Account* const end = measured ? &account : nullptr;
    write("{\"event\":\"end\",\"test\":" + json_string(name) + ",\"attempt\":" + std::to_string(test.attempt) +
          ",\"outcome\":\"" + name_of(outcome) + "\",\"time_ns\":" + std::to_string(now()) +
          ",\"begin\":" + json_of(begin) + ",\"end\":" + json_of(end) +
          (message.empty() ? "" : ",\"message\":" + json_string(message.substr(0, 2000))) + "}\n");
    return properties(begin, end);
  }

 private:
  struct Test {
    unsigned attempt = 0;
    pid_t pid = 0;  // that began it and has not ended it
    bool measured = false;
    Account begin = Account();
  };

  Recorder() {
    const char* const report = getenv("ROTA_REPORT");
    if (report != nullptr && *report != '\0') folder_ = std::string(report) + "/tests";
  }

  static uint64_t now() {
    timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
  }

  void fail(const std::string& what) {
    fprintf(stderr, "rota: tests are not recorded: %s\n", what.c_str());
    folder_.clear();
  }

  bool mark(uint32_t what, const std::string& name, Account* account) {
    if (core_ == nullptr) {
      void* const library = dlopen("librota-core.so", RTLD_LAZY | RTLD_NOLOAD);
      if (library == nullptr) return false;  // no call of CUDA so far
      core_ = reinterpret_cast<CoreTest*>(dlsym(library, "rota_core_test"));
      if (core_ == nullptr) return false;
    }
    const int answer = core_(kVersion, what, name.c_str(), account);
    if (answer == 2 && on())
      fail("librota-core.so is of another version than rota_test.h; take both from the same one");
    return answer == 0;
  }

  // PID-START, START being field 22 of /proc/self/stat.
  static std::string process_name() {
    std::string stat;
    if (FILE* const file = fopen("/proc/self/stat", "re")) {
      char buffer[1024];
      stat.assign(buffer, fread(buffer, 1, sizeof buffer, file));
      fclose(file);
    }
    size_t at = stat.rfind(')');
    for (int field = 2; at != std::string::npos && field < 22; ++field) at = stat.find(' ', at + 1);
    const size_t last = at == std::string::npos ? at : stat.find(' ', at + 1);
    return std::to_string(getpid()) + "-" + (last == std::string::npos ? "0" : stat.substr(at + 1, last - at - 1));
  }

  void write(const std::string& line) {
    if (pid_ != getpid()) {  // a forked child has a file of its own
      mkdir(folder_.c_str(), 0777);
      const std::string path = folder_ + "/" + process_name() + ".jsonl";
      file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
      if (file_ < 0) return fail(path + ": " + strerror(errno));
      pid_ = getpid();
    }
    if (::write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      fail(folder_ + ": " + (errno != 0 ? strerror(errno) : "no space left"));
    }
  }

  std::mutex mutex_;
  std::string folder_;  // "": nothing is recorded
  std::map<std::string, Test> tests_;
  CoreTest* core_ = nullptr;
  int file_ = -1;
  pid_t pid_ = 0;
};

}  // namespace detail

// A test that begins again is another attempt of it.
inline void begin(const std::string& name, const char* runner = "program") {
  if (detail::Recorder::get().on()) detail::Recorder::get().begin(name, runner);
}
inline void end(const std::string& name, Outcome outcome, const std::string& message = std::string()) {
  if (detail::Recorder::get().on()) detail::Recorder::get().end(name, outcome, message);
}

#if defined(GTEST_INCLUDE_GTEST_GTEST_H_) || defined(GOOGLETEST_INCLUDE_GTEST_GTEST_H_)

class GoogleTestListener : public ::testing::EmptyTestEventListener {
 public:
  void OnTestStart(const ::testing::TestInfo& test) override { begin(name_of(test), "googletest"); }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const ::testing::TestResult& result = *test.result();
    Outcome outcome = result.Failed() ? Outcome::kFailed : Outcome::kPassed;
#ifdef GTEST_SKIP
    if (result.Skipped()) outcome = Outcome::kSkipped;
#endif
    std::string message;
    for (int part = 0; part < result.total_part_count() && message.empty(); ++part) {
      if (!result.GetTestPartResult(part).passed()) message = result.GetTestPartResult(part).message();
    }
    for (const auto& property : detail::Recorder::get().end(name_of(test), outcome, message)) {
      ::testing::Test::RecordProperty(property.first, property.second);
    }
  }

 private:
  static std::string name_of(const ::testing::TestInfo& test) {
    return std::string(test.test_case_name()) + "." + test.name();
  }
};

// Once, before RUN_ALL_TESTS().
inline void listen_to_googletest() {
  static bool listening = false;
  if (listening || !detail::Recorder::get().on()) return;
  listening = true;
  ::testing::UnitTest::GetInstance()->listeners().Append(new GoogleTestListener);
}

#endif

#ifdef ROTA_TEST_CATCH2_VERSION

namespace detail {

#if ROTA_TEST_CATCH2_VERSION == 2
typedef ::Catch::TestEventListenerBase Catch2Base;
inline const std::string& catch2_name_of(const ::Catch::TestCaseStats& stats) {
  return stats.testInfo.name;
}
#else
typedef ::Catch::EventListenerBase Catch2Base;
inline const std::string& catch2_name_of(const ::Catch::TestCaseStats& stats) {
  return stats.testInfo->name;
}
#endif

// From v3.3 on a test can skip itself.
template <typename Counts>
auto catch2_skipped(const Counts& counts, int) -> decltype(counts.skipped > 0) {
  return counts.skipped > 0;
}
template <typename Counts>
bool catch2_skipped(const Counts&, long) {
  return false;
}

}  // namespace detail

class Catch2Listener : public detail::Catch2Base {
 public:
  using Base = detail::Catch2Base;
  using Base::Base;

  void testCaseStarting(const ::Catch::TestCaseInfo& test) override {
    Base::testCaseStarting(test);
    message_.clear();
    begin(test.name, "catch2");
  }
#if ROTA_TEST_CATCH2_VERSION == 2
  bool assertionEnded(const ::Catch::AssertionStats& stats) override {
    note(stats.assertionResult);
    return Base::assertionEnded(stats);
  }
#else
  void assertionEnded(const ::Catch::AssertionStats& stats) override {
    note(stats.assertionResult);
    Base::assertionEnded(stats);
  }
#endif
  void testCaseEnded(const ::Catch::TestCaseStats& stats) override {
    const auto& counts = stats.totals.testCases;
    end(detail::catch2_name_of(stats),
        counts.failed > 0                   ? Outcome::kFailed
        : detail::catch2_skipped(counts, 0) ? Outcome::kSkipped
                                            : Outcome::kPassed,
        message_);
    Base::testCaseEnded(stats);
  }

 private:
  void note(const ::Catch::AssertionResult& result) {
    if (result.isOk() || !message_.empty()) return;
    if (result.hasExpression()) {
      message_ = result.getExpressionInMacro();
    } else {
      const auto message = result.getMessage();
      message_.assign(message.data(), message.size());
    }
  }

  std::string message_;  // of the first assertion that failed
};

#define ROTA_TEST_CATCH2_LISTENER                                \
  namespace {                                                    \
  struct RotaTestCatch2Listener : ::rota::test::Catch2Listener { \
    using ::rota::test::Catch2Listener::Catch2Listener;          \
  };                                                             \
  }                                                              \
  CATCH_REGISTER_LISTENER(RotaTestCatch2Listener)

#endif

}  // namespace test
}  // namespace rota

#endif
