// simgpu-driver: writes a libcuda.so.1 that poses as the driver of one CUDA version: it exports what a driver of that
// version exports (generated/driver_releases.h) and calls itself so.
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
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
#include "tools/simgpu/driver/posed.h"

using namespace rota;

namespace {

int fail(const std::string& text) {
  std::fprintf(stderr, "simgpu-driver: %s\n", text.c_str());
  return 1;
}

// "12.4" is 12040; 0 for what is no version that a driver may pose as.
int parse_version(const std::string& text) {
  int major = 0;
  int minor = 0;
  int read = 0;
  if (std::sscanf(text.c_str(), "%2d.%2d%n", &major, &minor, &read) != 2) return 0;
  if (static_cast<std::size_t>(read) != text.size() || major < 0 || minor < 0) return 0;
  int version = 1000 * major + 10 * minor;
  return version >= sim::kOldestPosed && version <= sim::kNewestPosed ? version : 0;
}

elf::ExportChange exports_of(int version) {
  elf::ExportChange change;
  for (std::size_t index = 0; index < kSymbolCount; ++index) {
    if (sim::exports(version, kSymbolSince[index])) change.keep.insert(kSymbolNames[index]);
  }
  if (sim::has_future_exports(version)) {
    for (const sim::FutureExport& future : sim::kFutureExports) change.rename[future.name_as_built] = future.name;
  }
  return change;
}

// Where the file holds the record of posed.h; nothing if it has none, or one that names a version already.
std::optional<std::size_t> find_posed(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  const std::string bytes = content.str();
  const std::size_t at = bytes.find(std::string_view(ROTA_SIM_POSED_MARK, sizeof sim::Posed::mark));
  int version = 0;
  const std::size_t version_at = at + offsetof(sim::Posed, version);
  if (at == std::string::npos || version_at + sizeof version > bytes.size()) return std::nullopt;
  std::memcpy(&version, bytes.data() + version_at, sizeof version);
  return version == 0 ? std::optional(at) : std::nullopt;
}

bool write_version(const std::string& path, std::size_t posed_at, int version) {
  int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  auto offset = static_cast<off_t>(posed_at + offsetof(sim::Posed, version));
  bool written = pwrite(file, &version, sizeof version, offset) == sizeof version;
  return close(file) == 0 && written;
}

}  // namespace

int main(int argc, char** argv) {
  std::string version_text;
  std::string output;
  std::string library = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libcuda.so.1";
  CLI::App app("Writes a libcuda.so.1 of the simulated GPU that poses as the driver of one CUDA version.",
               "simgpu-driver");
  app.add_option("--version", version_text, "CUDA version, such as 12.4")->required();
  app.add_option("-o,--output", output, "where to write it, such as 12.4/libcuda.so.1")->required();
  app.add_option("--library", library, "simgpu's libcuda.so.1 as built; by default the one beside this program");
  CLI11_PARSE(app, argc, argv);

  const int version = parse_version(version_text);
  if (version == 0) return fail("--version is '" + version_text + "': give a CUDA version from 6.0 on, such as 12.4");
  const std::optional<std::size_t> posed_at = find_posed(library);
  if (!posed_at) {
    return fail(library + " is not simgpu's libcuda.so.1 as built: name it with --library (a copy that poses as a " +
                "version already cannot pose as another)");
  }
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(output).parent_path();
  std::filesystem::create_directories(folder, error);
  if (error) return fail("cannot make the folder " + folder.string() + ": " + error.message());
  // Beside the result, so that whoever finds that finds it complete.
  const std::string unfinished = output + "." + std::to_string(getpid());
  if (auto written = elf::write_with_exports(library, unfinished, exports_of(version)); !written) {
    return fail(written.error().text);
  }
  if (!write_version(unfinished, *posed_at, version) || std::rename(unfinished.c_str(), output.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    unlink(unfinished.c_str());
    return fail("cannot write " + output + ": " + reason);
  }
  return 0;
}
