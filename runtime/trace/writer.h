// One trace file while it is written: reserves space, maps it, and hands out chunks. Threads come here only when a
// chunk is full, and then take a lock; the writer does not read what they write into their chunks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/trace/format.h"

namespace rota::trace {

struct WriterOptions {
  std::string directory;
  std::uint64_t max_bytes = std::uint64_t{1} << 30;  // of one file; raised to kMinimumBytes
  std::uint64_t driver_schema = 0;
  std::uint64_t runtime_schema = 0;
  // Called with one line without a newline, at most once per file for a failure.
  void (*log)(const char* line) = nullptr;
  // Reserves [offset, offset + bytes) of the file; 0 or an errno. Null: posix_fallocate within RLIMIT_FSIZE. Tests
  // inject a full disk here.
  int (*reserve)(int file, off_t offset, off_t bytes) = nullptr;
};

class Writer {
 public:
  // A stretch of a chunk that may be written: zeros from `begin` on.
  struct Stretch {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
    bool continued = false;  // the rest of another thread's chunk: open it with a kThread record
  };

  explicit Writer(WriterOptions options);
  // Unmaps; writes nothing.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Creates and maps the file. False: it failed (logged); take() then returns nothing.
  bool open();
  // A fresh stretch for the calling thread, or an empty one once the trace has stopped. Any thread.
  Stretch take();
  // Returns the rest of a stretch when a thread ends, for the next thread. Any thread.
  void give_back(std::byte* cursor, std::byte* end);
  // Records the time on all clocks in the header, for the reader's calibration. Any thread.
  void refresh_calibration();
  // The process is ending: records that in the header and cuts the file to the size in use. Chunks that were handed out
  // stay writable, as threads may still run.
  void finish();

  // Around fork(), so that the child does not inherit a held lock.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  Clock clock() const { return clock_; }
  const std::string& path() const { return path_; }
  State state() const;

 private:
  struct Segment {
    std::byte* address;
    std::size_t bytes;
  };

  // The file is open only while it grows or is cut: a descriptor that stays open could be closed by the program
  // (daemons close all) and reused for another file. -1 with errno if the file is not there any more.
  int open_again() const;
  bool grow(int file);
  void stop(State state, int error);
  void log(const std::string& line) const;
  FileHeader* header() const { return header_; }

  WriterOptions options_;
  Clock clock_;
  mutable std::mutex mutex_;
  std::string path_;
  std::uint64_t device_ = 0;  // with inode_: which file is ours
  std::uint64_t inode_ = 0;
  FileHeader* header_ = nullptr;
  std::vector<Segment> segments_;
  std::vector<Stretch> left_over_;
  std::uint64_t reserved_ = 0;  // bytes of the file
  std::uint64_t used_ = 0;      // bytes of the file that were handed out, header included
  std::uint64_t chunks_ = 0;
  std::atomic<bool> stopped_{false};
};

// For file names: the last part of the program's path with what is not alphanumeric, '.', '-' or '_' made '_'.
std::string program_name();

}  // namespace rota::trace
