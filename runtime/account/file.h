// The file of an account: created, mapped as a whole, and grown before anything beyond its end is touched.
#pragma once

#include <sys/types.h>

#include <string>

#include "runtime/account/format.h"

namespace rota::account {

class File {
 public:
  // Creates DIR/processes/PID-START[-N].account. Null, with the reason in `problem`, if that fails.
  static File* create(const std::string& folder, std::string& problem);
  // Gives it a second name in the folder of a session around this one, if that can be: the inner session's rota makes
  // up for it at its end.
  void share(const std::string& outer) const;
  // Leaves an empty file with this process's pid in DIR/lost, if possible.
  static void mark_lost(const std::string& folder);
  // Unmaps; the file stays.
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  Header& header() { return *reinterpret_cast<Header*>(mapped_); }
  ThreadPage& thread_page(std::size_t index) {
    return *reinterpret_cast<ThreadPage*>(mapped_ + kHeaderBytes + index * kThreadPageBytes);
  }
  // Makes sure that this many thread pages can be written; false: the disk is full, or the file was removed. One thread
  // at a time.
  bool grow(std::size_t pages);
  const std::string& path() const { return path_; }

 private:
  File() = default;
  bool reserve(int file, std::size_t bytes);

  std::string path_;
  std::byte* mapped_ = nullptr;
  std::size_t bytes_ = 0;  // that may be touched
  dev_t device_{};
  ino_t inode_{};
};

// Fills in what Header says about the process itself and its ancestors.
void describe_self(Header& header);

}  // namespace rota::account
