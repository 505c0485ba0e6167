// A temporary folder for what copies print, or what a report is made of.
#pragma once

#include <string>

#include "scheduler/protocol/descriptor.h"

namespace rota::attempt {

// In `parent` (empty: TMPDIR, or /tmp if that is not set), for this user alone. Goes with everything in it, unless
// somebody is to look into it. Where this process is killed, the next one of this user that makes a folder of that name
// removes it: a locked file in it says that its owner lives.
class OutputFolder {
 public:
  explicit OutputFolder(const std::string& name, std::string parent = {});
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  const std::string& path() const { return path_; }
  // One line why it could not be made, with what to do; empty: it is there.
  const std::string& problem() const { return problem_; }
  void remove() const;
  const std::string& keep();

  // Removes this user's folders of that name whose owners were killed, from TMPDIR and /tmp.
  static void remove_stale(const std::string& name);

 private:
  std::string lock_file() const;

  std::string path_;
  std::string problem_;
  Descriptor lock_;
  bool kept_ = false;
};

}  // namespace rota::attempt
