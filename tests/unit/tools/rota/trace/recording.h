// For tests of tracing: a temporary folder, and a child process that records into it. A process records at most once
// and for its whole life, so each test records in a separate child, and the parent reads the files that it leaves.
#pragma once

#include <sys/wait.h>
#include <unistd.h>
#include <iostream>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "generated/trace_schema.h"
#include "runtime/trace/recorder.h"
#include "tools/rota/trace/file.h"

namespace rota::test {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "rota-trace-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline trace::WriterOptions options_for(const Folder& folder) {
  trace::WriterOptions options;
  options.directory = folder.path();
  options.driver_schema = trace::kDriverSchema;
  options.runtime_schema = trace::kRuntimeSchema;
  // The parent reads what a child says from a file, as the child's stderr is the test's.
  options.log = [](const char* line) {
    const char* const path = std::getenv("ROTA_TEST_LOG");
    if (path == nullptr) return;
    if (FILE* const file = std::fopen(path, "ae")) {
      std::fprintf(file, "%s\n", line);
      std::fclose(file);
    }
  };
  return options;
}

// Runs `work` in a child that records; returns its wait status. The child leaves by exit(0) unless `work` does
// otherwise.
inline int record(const trace::WriterOptions& options, const std::function<void()>& work) {
  std::cout.flush();  // what Catch2 has buffered would be written a second time by the child
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv("ROTA_TEST_LOG", (options.directory + "/log").c_str(), 1);
    if (!trace::start_recording(options)) _exit(3);
    work();
    std::exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

inline std::vector<std::string> log_lines(const Folder& folder) {
  std::vector<std::string> lines;
  if (FILE* const file = std::fopen((folder.path() + "/log").c_str(), "re")) {
    char line[1024];
    while (std::fgets(line, sizeof line, file) != nullptr) lines.emplace_back(line);
    std::fclose(file);
  }
  return lines;
}

struct Read {
  std::vector<std::unique_ptr<tool::TraceFile>> files;
  std::vector<tool::TraceCall> calls;
  std::vector<tool::TraceFile*> file_of;  // by call
  std::vector<std::string> problems;      // of opening and of reading
};

inline Read read_all(const std::string& path) {
  Read read;
  read.files = tool::open_traces(path, read.problems);
  tool::TraceMerge merge(read.files);
  tool::TraceCall call;
  tool::TraceFile* file = nullptr;
  while (merge.next(call, file)) {
    read.calls.push_back(call);
    read.file_of.push_back(file);
  }
  for (const auto& each : read.files) {
    read.problems.insert(read.problems.end(), each->problems().begin(), each->problems().end());
  }
  return read;
}

}  // namespace rota::test
