#include "tools/elf/program.h"

#include <fmt/format.h>

#include "tools/elf/image.h"

namespace rota::elf {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kMachine = EM_AARCH64;
#else
#error "rota runs on x86-64 and aarch64"
#endif

Program::Kind kind_of(std::string_view bytes) {
  if (bytes.size() > EI_CLASS && bytes[EI_CLASS] == ELFCLASS32) return Program::Kind::k32Bit;
  Elf64_Ehdr header{};
  if (bytes.size() < sizeof header) return Program::Kind::kOtherMachine;
  std::memcpy(&header, bytes.data(), sizeof header);
  const bool native = header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB;
  return native && header.e_machine == kMachine ? Program::Kind::kNative : Program::Kind::kOtherMachine;
}

}  // namespace

bool is_elf(std::string_view bytes) {
  return bytes.substr(0, SELFMAG) == std::string_view(ELFMAG, SELFMAG);
}

Result<Program> read_program(std::string_view bytes, const std::string& path) {
  if (!is_elf(bytes)) return Error{fmt::format("{}: is not a program", path)};
  Program program{.kind = kind_of(bytes)};
  if (program.kind != Program::Kind::kNative) return program;
  const auto image = Image::parse_program(bytes, path);
  if (!image) return image.error();
  program.has_loader = image->has_loader();
  program.needed = image->needed();
  if (!image->ok()) return Error{fmt::format("{}: is a damaged program: a library that it needs has no name", path)};
  return program;
}

}  // namespace rota::elf
