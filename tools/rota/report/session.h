// A session's folder: what `rota run --report` and `rota ci` write about a job, the accounts of its processes, and what
// test runners' plugins say. The README describes the files. Whatever is missing or damaged is recorded as a problem,
// in one line that names the file, and the rest is read.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/account/test_interface.h"
#include "tools/rota/report/account_file.h"

namespace rota::report {

struct JobRecord {
  std::string name;  // by --name; or ""
  std::string host;
  std::string rota;  // version
  std::string folder;
  std::vector<std::string> command;
  std::string recorder = {};  // PID-START of the rota that runs it
  std::string boot = {};      // own_boot() there
  Realtime begin_ns = 0;
  Realtime end_ns = 0;           // 0: not over, or rota was killed
  std::optional<int> exit_code;  // as a shell says it
};

// A process whose end `rota run` saw itself, or one within this session.
struct EndRecord {
  Realtime time_ns = 0;
  int exit_code = 0;  // if no signal ended it
  int signal = 0;
};

// A process that was still running when the command had ended.
struct LeftRecord {
  std::string id;
  std::string name;
};

// One attempt of one test.
struct TestRecord {
  std::string name;
  std::string runner;
  std::uint64_t attempt = 1;
  std::string outcome;  // passed, failed, error, skipped, timeout, died; unknown
  std::string message;
  Realtime begin_ns = 0;
  Realtime end_ns = 0;    // 0: not known
  Realtime limit_ns = 0;  // its time-out, if that ends the process without telling the runner; 0: none
  // A test within a process: which one, and its numbers before and after; nothing before it called CUDA.
  std::string within;
  std::optional<RotaTestAccount> before, after;
  // A test of processes of its own.
  bool ambiguous = false;
  std::string folder;
  std::vector<std::string> command;
  std::vector<std::string> processes;
};

// A process that made no progress, and where it waited, as `rota ci` found out; several lines.
struct HangRecord {
  std::string id;  // PID-START
  std::string text;
};

struct Session {
  std::string path;
  JobRecord job;
  std::vector<ProcessAccount> processes;  // by begin
  std::vector<TestRecord> tests;
  std::map<std::string, EndRecord> ends;  // by PID-START
  std::vector<LeftRecord> left;
  std::vector<HangRecord> hangs;
  std::vector<std::string> problems;
};

inline constexpr const char* kSessionFile = "session.json";
inline constexpr const char* kProcessFolder = "processes";
inline constexpr const char* kTestFolder = "tests";
inline constexpr const char* kTestFile = "tests.json";
inline constexpr const char* kHangFolder = "hangs";
// A file PID-START.json for each session within this one, by its rota: the list `ended` of its session.json.
inline constexpr const char* kEndFolder = "ends";
// A file "PID UID NAME" for each process whose account could not be made. Every user may write there, so only names
// count.
inline constexpr const char* kLostFolder = "lost";

// The kernel's id of this machine's last start; "" if it does not say.
std::string own_boot();

// An error only if this is no session's folder at all.
Result<Session> read_session(const std::string& path);

// Writes a file of the session's, whole or not at all: a full disk does not cost what was there before. The error names
// the file.
Result<bool> replace_file(const std::string& path, const std::string& text);

// What the plugins wrote in one file, tests/PID-START.jsonl. Damaged lines are problems, except for a last one that was
// being written when its process died.
std::vector<TestRecord> read_test_events(const std::string& text, const std::string& process, const std::string& file,
                                         std::vector<std::string>& problems);
// tests.json.
std::vector<TestRecord> read_test_list(const std::string& text, const std::string& file,
                                       std::vector<std::string>& problems);

}  // namespace rota::report
