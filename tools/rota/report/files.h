// Files that a command reads and writes, and whether two of its options mean the same one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::report {

struct NamedFile {
  std::string option;  // as the error names it: "--json"
  std::string path;    // empty: not asked for
  bool written = true;
};

// The absolute path without links and dots that the kernel would follow: "link/../file" is next to what the link leads
// to. The last parts need not exist.
std::filesystem::path resolved(const std::filesystem::path& path);

// Refuses two that are the same file, by whatever names and links, if one of them is written. Devices and pipes may be
// named twice.
Result<bool> check_distinct(const std::vector<NamedFile>& files);

}  // namespace rota::report
