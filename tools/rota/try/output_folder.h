// A temporary folder for what copies print, or what a report is made of.
#pragma once

#include <string>
#include <vector>

#include "scheduler/base/descriptor.h"

namespace rota::attempt {

// Where temporary folders are made, in the first that can be used: TMPDIR as an absolute path, /tmp, /dev/shm.
std::vector<std::string> temporary_folders();

// Made in the first usable folder of `parents`, for this user only. Removed with everything in it, unless somebody has
// to read it. If this process is killed, the next process of this user that makes a folder of that name removes it: a
// locked file in it shows that its owner is alive.
class OutputFolder {
 public:
  explicit OutputFolder(const std::string& name, const std::vector<std::string>& parents = temporary_folders());
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  const std::string& path() const { return path_; }
  // One line that says why it could not be made, and what to do; empty: it exists.
  const std::string& problem() const { return problem_; }
  void remove() const;
  const std::string& keep();

  // Removes this user's folders of that name whose owners were killed, from temporary_folders().
  static void remove_stale(const std::string& name);

 private:
  std::string lock_file() const;

  std::string path_;
  std::string problem_;
  Descriptor lock_;
  bool kept_ = false;
};

}  // namespace rota::attempt
