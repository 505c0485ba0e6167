// Writing a copy of simgpu's driver that poses as one version.
#include "tools/simgpu/pose.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "generated/driver_releases.h"
#include "generated/driver_symbols.h"
#include "tools/elf/elf.h"
#include "tools/simgpu/driver/entry/posed.h"

namespace rota::sim {
namespace {

elf::ExportChange exports_of(int version) {
  elf::ExportChange change;
  for (std::size_t index = 0; index < kSymbolCount; ++index) {
    if (exports(version, kSymbolSince[index])) change.keep.insert(kSymbolNames[index]);
  }
  if (has_future_exports(version)) {
    for (const FutureExport& future : kFutureExports) change.rename[future.name_as_built] = future.name;
  }
  return change;
}

// The offset of posed.h's record in the file; nothing if there is none, or if it already names a version.
std::optional<std::size_t> find_posed(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  const std::string bytes = content.str();
  const std::size_t at = bytes.find(std::string_view(ROTA_SIM_POSED_MARK, sizeof Posed::mark));
  int version = 0;
  const std::size_t version_at = at + offsetof(Posed, version);
  if (at == std::string::npos || at + sizeof(Posed) > bytes.size()) return std::nullopt;
  if (std::memcmp(bytes.data() + at + offsetof(Posed, end), ROTA_SIM_POSED_END, sizeof Posed::end) != 0)
    return std::nullopt;
  std::memcpy(&version, bytes.data() + version_at, sizeof version);
  return version == 0 ? std::optional(at) : std::nullopt;
}

bool write_version(const std::string& path, std::size_t posed_at, int version) {
  int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  auto offset = static_cast<off_t>(posed_at + offsetof(Posed, version));
  bool written = pwrite(file, &version, sizeof version, offset) == sizeof version;
  return close(file) == 0 && written;
}

}  // namespace

int parse_driver_version(const std::string& text) {
  int major = 0;
  int minor = 0;
  int read = 0;
  if (std::sscanf(text.c_str(), "%2d.%2d%n", &major, &minor, &read) != 2) return 0;
  if (static_cast<std::size_t>(read) != text.size() || major < 0 || minor < 0) return 0;
  int version = 1000 * major + 10 * minor;
  return version >= kOldestPosed && version <= kNewestPosed ? version : 0;
}

std::string write_posed_driver(const std::string& library, int version, const std::string& output) {
  const std::optional<std::size_t> posed_at = find_posed(library);
  if (!posed_at) {
    return library + " is not simgpu's libcuda.so.1 as built: name it with --library (a copy that poses as a " +
           "version already cannot pose as another)";
  }
  std::error_code error;
  // The result replaces the existing file; a device would be lost to the whole machine.
  const auto there = std::filesystem::status(output, error);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    return "cannot write " + output + ": something there is not a regular file; name another path";
  }
  const std::filesystem::path folder = std::filesystem::absolute(output).parent_path();
  std::filesystem::create_directories(folder, error);
  if (error) return "cannot create the folder " + folder.string() + ": " + error.message();
  // Written next to the result and renamed, so that readers only ever see a complete file.
  const std::string unfinished = output + "." + std::to_string(getpid());
  if (auto written = elf::write_with_exports(library, unfinished, exports_of(version)); !written) {
    return written.error().text;
  }
  if (!write_version(unfinished, *posed_at, version) || std::rename(unfinished.c_str(), output.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    unlink(unfinished.c_str());
    return "cannot write " + output + ": " + reason;
  }
  return {};
}

}  // namespace rota::sim
