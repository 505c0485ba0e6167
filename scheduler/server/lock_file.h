// "Only one daemon may have this": a locked file that also says who has it. The kernel drops the lock with its process,
// however that dies.
//
// Whoever owns the folder may unlink or rename what lies in it, sticky or not, and the folder that all users share
// belongs to the user who was first to start a daemon. So a GPU's lock is also a *name*: an abstract socket made of the
// file's path, which nobody but its holder can take away. The file is for daemons that share the folder and not the
// network namespace, and for people.
#pragma once

#include <sys/types.h>

#include <string>

#include "scheduler/protocol/descriptor.h"
#include "scheduler/protocol/result.h"

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
  // The same with the name. The path's folder must be given in one spelling by all daemons.
  static Result<std::variant<LockFile, Taken>> take_with_name(const std::string& path, const std::string& owner,
                                                              mode_t mode);

 private:
  explicit LockFile(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
  Descriptor name_;
};

// Where the GPUs' lock files of this machine lie: the same for every user, whether root or not. Made if need be.
Result<std::string> default_lock_directory();
// Makes a folder that all users share (mode 1777) unless it is there.
Result<std::string> make_lock_directory(const std::string& path);

}  // namespace rota::server
