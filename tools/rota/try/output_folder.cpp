#include "tools/rota/try/output_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace rota::attempt {

OutputFolder::OutputFolder(const std::string& name) {
  const char* parent = std::getenv("TMPDIR");
  path_ = fmt::format("{}/{}-XXXXXX", parent != nullptr && *parent != '\0' ? parent : "/tmp", name);
  if (mkdtemp(path_.data()) == nullptr) {
    problem_ = fmt::format("cannot make a folder {}: {}: set TMPDIR to another place", path_, strerror(errno));
  }
}

OutputFolder::~OutputFolder() {
  if (!kept_) remove();
}

void OutputFolder::remove() const {
  std::error_code ignored;
  if (problem_.empty()) std::filesystem::remove_all(path_, ignored);
}

const std::string& OutputFolder::keep() {
  kept_ = true;
  return path_;
}

}  // namespace rota::attempt
