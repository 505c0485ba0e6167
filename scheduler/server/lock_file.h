// A lock that only one daemon can have: a locked file that also names its owner. The kernel releases the lock when the
// process ends, however that happens.
//
// The owner of the folder can unlink or rename files in it. So a GPU's lock is primarily a *name*: an abstract socket
// named after the file's path, which only its holder can release. The file is for daemons that share the folder but not
// the network namespace, and for people; it is removed with the lock. If the machine's usual folder does not exist
// there is only the name: rotad creates no folder except one that it was told to use.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <variant>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/result.h"

namespace rota::server {

class LockFile {
 public:
  LockFile() = default;
  LockFile(LockFile&&) noexcept = default;
  LockFile& operator=(LockFile&&) noexcept = default;
  ~LockFile();

  // Locks `path`, making the file if need be, and writes `owner` (one line, e.g. "rotad pid 12 at /run/...") into it.
  // What another daemon wrote is displayed but not trusted. `mode` is that of a new file: 0666 where all users' daemons
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
  // A non-blocking connection to the process that has the name (protocol/lock_door.h); none: no process has it in this
  // network namespace.
  static Descriptor connect_to_name(const std::string& path);

  // Whether the file is still at its path.
  bool is_there() const;
  // There is a file, or was before something removed it: not only a name.
  bool has_file() const { return static_cast<bool>(file_); }
  // Creates and locks the file again after something has removed it. Returns nothing, or who has locked another file
  // there meanwhile. The name stays.
  Result<std::optional<Taken>> make_again(const std::string& owner, mode_t mode);

  // The socket that holds the name; -1: there is only a file. A duplicate of it holds the name, too.
  int name_socket() const { return name_ ? name_.get() : -1; }

 private:
  LockFile(Descriptor file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  Descriptor file_;
  std::string path_;
  Descriptor name_;
};

// Where the GPUs' locks of this machine are, in the one spelling that their names are made of.
struct LockPlace {
  std::string folder;
  bool files = true;    // false: the folder does not exist, or this user may not write there; names only
  bool chosen = false;  // the user has named it: this rotad creates it if it is missing
};
// The same for every user, root or not. Creates nothing.
LockPlace default_lock_place();
// Makes the folder (mode 0755) unless it is there.
Result<LockPlace> make_lock_place(const std::string& path);
// A program that cleans /tmp may have removed the folder: creates a chosen one again, and checks whether the machine's
// is there. Returns whether it has created it.
Result<bool> renew(LockPlace& place);

}  // namespace rota::server
