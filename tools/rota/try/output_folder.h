// A temporary folder for what copies print.
#pragma once

#include <string>

namespace rota::attempt {

// In TMPDIR (/tmp if that is not set), for this user alone. Goes with everything in it, unless somebody is to look into
// it.
class OutputFolder {
 public:
  explicit OutputFolder(const std::string& name);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  const std::string& path() const { return path_; }
  // One line why it could not be made, with what to do; empty: it is there.
  const std::string& problem() const { return problem_; }
  void remove() const;
  const std::string& keep();

 private:
  std::string path_;
  std::string problem_;
  bool kept_ = false;
};

}  // namespace rota::attempt
