// Reads trace files (runtime/trace/format.h). A file may come from a process that was killed or is running, from a full
// disk, or be damaged: everything is checked against the file's end, nothing is trusted, and errors are recorded as
// problems that name file and offset while the rest is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/trace/format.h"
#include "scheduler/base/descriptor.h"

namespace rota::tool {

struct TraceCall {
  std::uint32_t thread = 0;
  std::uint32_t api = 0;        // trace::kDriverApi, trace::kRuntimeApi
  std::uint32_t function = 0;   // checked to be one of that API's
  std::uint32_t depth = 0;      // calls of this thread that were under way at its begin
  std::uint64_t begin_ns = 0;   // CLOCK_MONOTONIC
  std::uint64_t end_ns = 0;     // likewise; if not returned, the file's last time stamp
  std::uint64_t waited_ns = 0;  // of that time, how long it waited at the gate, with the calls inside it
  bool returned = false;
  std::uint32_t value = 0;           // the result, where it is a status or a number
  std::vector<std::byte> arguments;  // payload of the entry record
  std::vector<std::byte> results;    // payload of the return record
};

class TraceFile {
 public:
  // Null if it is no trace of this version, then `problem` says why: "FILE: at offset N: …".
  static std::unique_ptr<TraceFile> open(const std::string& path, std::string& problem);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint32_t pid() const { return header_.pid; }
  std::uint32_t parent_pid() const { return header_.parent_pid; }
  trace::State state() const { return header_.state; }
  // The command line, arguments separated by blanks.
  std::string command() const;
  // The first part of the file's name.
  std::string program() const;
  std::uint64_t begin_ns() const { return header_.start.monotonic_ns; }
  // Nanoseconds since 1970 of a CLOCK_MONOTONIC time.
  std::uint64_t realtime_ns(std::uint64_t monotonic_ns) const;
  std::uint64_t monotonic_ns(std::uint64_t ticks) const;
  // Thread ids with their names.
  const std::map<std::uint32_t, std::string>& threads() const { return threads_; }
  // The damage, each "FILE: at offset N: …"; grows while calls are read.
  const std::vector<std::string>& problems() const { return problems_; }
  // How the trace ended, as a sentence; empty if the process ended by exit().
  std::string ending() const;

 private:
  friend class TraceThread;
  // Records of one thread within one chunk.
  struct Stretch {
    std::uint64_t begin;  // offsets in the file
    std::uint64_t end;
    std::uint64_t first_ticks;
  };

  explicit TraceFile(std::string path) : path_(std::move(path)) {}
  bool read_header(std::string& problem);
  void index_chunks();
  void index_chunk(std::uint64_t offset, const std::vector<std::byte>& chunk);
  // Fewer bytes than asked for at the end of the file or after an error.
  std::vector<std::byte> read(std::uint64_t offset, std::size_t bytes) const;
  void report(std::uint64_t offset, const std::string& what);

  std::string path_;
  Descriptor file_;
  std::uint64_t size_ = 0;
  trace::FileHeader header_{};
  std::uint64_t last_ticks_ = 0;
  std::map<std::uint32_t, std::string> threads_;
  std::map<std::uint32_t, std::vector<Stretch>> stretches_;
  std::vector<std::string> problems_;
};

// The calls of one thread in the order in which they began.
class TraceThread {
 public:
  // The file must outlive it.
  TraceThread(TraceFile& file, std::uint32_t thread);
  // False at the end.
  bool next(TraceCall& call);

 private:
  struct Pending {
    TraceCall call;
    bool complete = false;
  };
  bool read_record();
  void take_return(std::uint64_t offset, std::uint64_t word, std::uint64_t ticks, std::uint32_t value,
                   std::span<const std::byte> payload);

  TraceFile& file_;
  std::uint32_t thread_;
  const std::vector<TraceFile::Stretch>* stretches_;
  std::size_t next_stretch_ = 0;
  std::uint64_t offset_ = 0;       // of the buffer
  std::vector<std::byte> buffer_;  // the current stretch
  std::size_t position_ = 0;       // in the buffer
  std::uint64_t epoch_ = 0;        // high half of the ticks, from the last kTime record
  std::deque<Pending> pending_;    // the first is number `first_pending_`
  std::uint64_t first_pending_ = 0;
  std::vector<std::uint64_t> open_;  // numbers of calls under way, innermost last
};

// The calls of several files, all threads, in the order in which they began.
class TraceMerge {
 public:
  explicit TraceMerge(const std::vector<std::unique_ptr<TraceFile>>& files);
  // False at the end; `file` is the call's.
  bool next(TraceCall& call, TraceFile*& file);

 private:
  struct Source {
    TraceFile* file;
    TraceThread thread;
    TraceCall call;
  };
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<Source*> heap_;
};

// Every *.rotatrace below a folder (or the one file that `path` names), opened; those that cannot be read are named in
// `problems`. Sorted by start.
std::vector<std::unique_ptr<TraceFile>> open_traces(const std::string& path, std::vector<std::string>& problems);

}  // namespace rota::tool
