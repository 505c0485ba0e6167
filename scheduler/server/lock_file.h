// "Only one daemon may have this": a locked file that also says who has it. The kernel drops the lock with its process,
// however that dies.
//
// Whoever owns the folder may unlink or rename what lies in it. So a GPU's lock is first of all a *name*: an abstract
// socket made of the file's path, which nobody but its holder can take away. The file is for daemons that share the
// folder and not the network namespace, and for people; it goes with the lock. Where nobody has made the machine's
// usual folder there is only the name: rotad makes no folder but one that it was told of.
#pragma once

#include <sys/types.h>

#include <string>

#include "scheduler/protocol/descriptor.h"
#include "scheduler/protocol/result.h"

namespace rota::server {

class LockFile {
 public:
  LockFile() = default;
  LockFile(LockFile&&) noexcept = default;
  LockFile& operator=(LockFile&&) noexcept = default;
  ~LockFile();

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
  // Only the name.
  static Result<std::variant<LockFile, Taken>> take_name(const std::string& path);

 private:
  LockFile(Descriptor file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  Descriptor file_;
  std::string path_;
  Descriptor name_;
};

// Where the GPUs' locks of this machine are, in the one spelling that their names are made of.
struct LockPlace {
  std::string folder;
  bool files = true;  // false: nobody has made the folder, or this user may not write there; names only
};
// The same for every user, whether root or not. Makes nothing.
LockPlace default_lock_place();
// Makes the folder (mode 0755) unless it is there.
Result<LockPlace> make_lock_place(const std::string& path);

}  // namespace rota::server
