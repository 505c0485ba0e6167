// "Only one daemon may have this": a locked file that also says who has it. The kernel drops the lock with its process,
// however that dies.
#pragma once

#include <sys/types.h>

#include <string>

#include "scheduler/server/descriptor.h"
#include "scheduler/server/result.h"

namespace rota::server {

class LockFile {
 public:
  LockFile() = default;

  // Locks `path`, making the file if need be, and writes `owner` (one line, e.g. "rotad pid 12 at /run/...") into it.
  // What another daemon wrote is shown, never believed. `mode` is that of a new file: 0666 where all users' daemons
  // compete for it, 0644 where only one user may.
  struct Taken {
    std::string owner;  // who has it; "another rotad" if the file does not say
  };
  // The lock, who else has it, or (Error) why the file cannot be used.
  static Result<std::variant<LockFile, Taken>> take(const std::string& path, const std::string& owner, mode_t mode);

 private:
  explicit LockFile(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

// Where the GPUs' lock files of this machine lie: the same for every user, whether root or not. Made if need be.
Result<std::string> default_lock_directory();
// Makes a folder that all users share (mode 1777) unless it is there.
Result<std::string> make_lock_directory(const std::string& path);

}  // namespace rota::server
