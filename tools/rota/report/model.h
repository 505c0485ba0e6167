// What a job, its tests and its processes used, made of a session's files.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/rota/report/groups.h"
#include "tools/rota/report/session.h"

namespace rota::report {

// Function and error, by name.
using ErrorKey = std::pair<std::string, std::string>;

struct Use {
  std::uint64_t peak_bytes = 0;
  std::uint64_t peak_at_most_bytes = 0;   // of several processes, where the accounts do not say what was when
  std::uint64_t reserved_peak_bytes = 0;  // with contexts and modules; 0: not known
  std::uint64_t gpu_ns = 0;
  std::uint64_t waited_ns = 0;
  std::uint64_t launches = 0;
  std::uint64_t copies = 0;
  std::uint64_t copied_bytes = 0;
  std::uint64_t synchronizations = 0;
  std::uint64_t calls = 0;
  std::uint64_t errors = 0;
  std::uint64_t live = 0;
  std::uint64_t live_bytes = 0;
  // By base name. Not known for a test that shares its process with others.
  bool has_functions = true;
  std::map<std::string, std::uint64_t> functions;
  std::map<ErrorKey, std::uint64_t> failures;
};

struct ProcessReport {
  ProcessAccount account;
  Use use;
  std::map<std::string, ObjectCount> objects;
  std::string ending;              // a sentence: "ended with 0", "killed by SIGKILL"
  bool ended_by_itself = false;    // so objects that are alive at its end were left on purpose or forgotten
  std::optional<EndRecord> end;    // if `rota run` saw it
  std::vector<std::size_t> test;   // indices of the tests that it belongs to
  bool hosts_tests = false;        // tests ran within it
  std::vector<double> gpu_shares;  // by step of its timeline (gpu_time.h)
};

struct TestReport {
  TestRecord record;
  Use use;
  std::uint64_t base_bytes = 0;        // in use before, for a test within a process
  std::int64_t growth_bytes = 0;       // in use afterwards, less in_use_before
  std::vector<std::size_t> processes;  // indices
  std::optional<std::size_t> host;     // the process that it ran within
  std::uint64_t duration_ns() const;   // 0: not known
  std::string title() const;           // with the attempt, if it is not the first
};

struct Model {
  JobRecord job;
  std::string path;
  Use total;
  std::vector<ProcessReport> processes;
  std::vector<TestReport> tests;
  // If there are tests: processes that belong to none, and within which none ran.
  std::vector<std::size_t> rest;
  Use rest_use;
  std::vector<LeftRecord> left;
  std::vector<HangRecord> hangs;
  std::vector<std::string> problems;
  std::string job_title() const;  // the job's name, or its program's
};

Model make_model(Session session);

// Memory in use over time: changes of its sum over the processes, in order. The bytes are a difference, as if signed.
struct MemoryChange {
  Realtime time;
  std::int64_t bytes;
};
// By what was in use at least, or at most, at each moment.
enum class Bound { kLeast, kMost };
std::vector<MemoryChange> memory_changes(const std::vector<const ProcessReport*>& processes, Bound bound);

// The peak of memory in use: the least and the most that it can have been.
struct Peak {
  std::uint64_t bytes = 0;
  std::uint64_t at_most_bytes = 0;
};
Peak peak_together(const std::vector<const ProcessReport*>& processes);

// The program, without its folder, and its arguments as one would type them, cut off at `most` characters.
std::string command_text(const std::vector<std::string>& command, std::size_t most);

}  // namespace rota::report
