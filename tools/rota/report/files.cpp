// See files.h.
#include "tools/rota/report/files.h"

#include <fmt/format.h>

#include <filesystem>

namespace rota::report {
namespace {

namespace fs = std::filesystem;

// Where a write to this path would go; the file need not exist, nor what links lead to.
fs::path destination(fs::path path) {
  std::error_code error;
  path = fs::absolute(path, error);
  constexpr int kMostLinks = 40;  // as the kernel's
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    const fs::path link = fs::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / link;  // an absolute link replaces all
  }
  const fs::path folder = fs::canonical(path.parent_path(), error);
  return error ? path.lexically_normal() : folder / path.filename();
}

}  // namespace

fs::path resolved(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  const fs::path found = fs::weakly_canonical(absolute, error);
  return error ? absolute.lexically_normal() : found;
}

namespace {

bool same_file(const std::string& one, const std::string& other) {
  std::error_code error;
  if (fs::exists(one, error) && fs::exists(other, error)) {
    return fs::is_regular_file(one, error) && fs::equivalent(one, other, error);
  }
  return destination(one) == destination(other);
}

}  // namespace

Result<bool> check_distinct(const std::vector<NamedFile>& files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const NamedFile& one = files[j];
      const NamedFile& other = files[i];
      if (one.path.empty() || other.path.empty() || (!one.written && !other.written)) continue;
      if (same_file(one.path, other.path)) {
        return Error{
            fmt::format("{} and {} are the same file, {}: name another one", one.option, other.option, other.path)};
      }
    }
  }
  return true;
}

}  // namespace rota::report
