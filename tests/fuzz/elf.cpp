// Any file as a shared library whose exports are read and rewritten, as a program, and as a command that `rota run`
// looks at.
#include <filesystem>
#include <string_view>

#include "tests/fuzz/input.h"
#include "tools/elf/elf.h"
#include "tools/elf/program.h"
#include "tools/rota/run/executable.h"

namespace {

// A folder of this process, removed when it ends.
struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("rota-fuzz-elf-" + std::to_string(getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const rota::fuzz::InputFile input(data, size);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto program = rota::elf::read_program(bytes, input.path()); !program) {
    CHECK(rota::fuzz::is_a_line(program.error().text));
  } else {
    for (const std::string_view name : program->needed) {  // each with its end, in the file
      CHECK(name.data() >= bytes.data() && name.data() + name.size() < bytes.data() + bytes.size());
      CHECK(name.data()[name.size()] == '\0');
    }
  }
  // A script may name any file of this machine as its interpreter.
  if (!bytes.starts_with("#!")) {
    CHECK(rota::tool::inspect_command(input.path()).error == 0);
  }
  if (const auto id = rota::elf::read_build_id(input.path()); !id) CHECK(rota::fuzz::is_a_line(id.error().text));
  const auto exports = rota::elf::read_exports(input.path());
  if (!exports) {
    CHECK(rota::fuzz::is_a_line(exports.error().text));
    return 0;
  }
  // Every other export is removed; the first of those that stay gets a shorter name.
  rota::elf::ExportChange change;
  for (std::size_t index = 0; index < exports->functions.size(); index += 2)
    change.keep.insert(exports->functions[index]);
  if (!exports->functions.empty() && exports->functions[0].size() > 1) {
    change.rename[exports->functions[0]] = exports->functions[0].substr(1);
  }
  const std::string output = folder.path / "out.so";
  if (const auto written = rota::elf::write_with_exports(input.path(), output, change); !written) {
    CHECK(rota::fuzz::is_a_line(written.error().text));
  } else {
    const auto left = rota::elf::read_exports(output);
    CHECK(left && left->functions.size() <= exports->functions.size());
  }
  return 0;
}
