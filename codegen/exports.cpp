// The names that a driver exports: from the library itself, or from a recorded list.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "codegen/check.h"

namespace rota::codegen {
namespace {

// The bytes at `offset` as a T; nothing if the file ends before that.
template <class T>
std::optional<T> read_at(std::string_view bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The zero-terminated string at `offset`; nothing if it is not within the file.
std::optional<std::string> string_at(std::string_view bytes, std::uint64_t offset) {
  if (offset >= bytes.size()) return std::nullopt;
  const std::size_t end = bytes.find('\0', offset);
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(bytes.substr(offset, end - offset));
}

Result<std::vector<std::string>> elf_exports(std::string_view bytes, const std::string& path) {
  const Error damaged{fmt::format("{}: a damaged or unusual ELF file: no dynamic symbol table can be read", path)};
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  if (!header) return damaged;
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB) {
    return Error{fmt::format("{}: not a 64-bit little-endian library", path)};
  }
  const auto section = [&](std::uint64_t index) {
    return read_at<Elf64_Shdr>(bytes, header->e_shoff + index * sizeof(Elf64_Shdr));
  };
  for (std::uint64_t i = 0; i < header->e_shnum; ++i) {
    const auto symbols = section(i);
    if (!symbols) return damaged;
    if (symbols->sh_type != SHT_DYNSYM) continue;
    const auto strings = section(symbols->sh_link);
    if (!strings) return damaged;
    std::vector<std::string> names;
    for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols->sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = read_at<Elf64_Sym>(bytes, symbols->sh_offset + at);
      if (!symbol) return damaged;
      const auto type = ELF64_ST_TYPE(symbol->st_info);
      if (symbol->st_shndx == SHN_UNDEF || (type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE)) continue;
      const auto name = string_at(bytes, strings->sh_offset + symbol->st_name);
      if (!name) return damaged;
      if (!name->empty()) names.push_back(*name);
    }
    std::ranges::sort(names);
    return names;
  }
  return damaged;
}

}  // namespace

Result<std::vector<std::string>> read_exports(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{fmt::format("{}: cannot be opened", path)};
  std::ostringstream content;
  content << file.rdbuf();
  const std::string bytes = content.str();
  if (bytes.starts_with(ELFMAG)) return elf_exports(bytes, path);

  std::vector<std::string> names;
  std::istringstream lines(bytes);
  for (std::string line; std::getline(lines, line);) {
    line.erase(std::find(line.begin(), line.end(), '#'), line.end());
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") !=
        std::string::npos) {
      return Error{fmt::format("{}: neither a shared library nor a list of names, one per line", path)};
    }
    if (!line.empty()) names.push_back(line);
  }
  if (names.empty()) return Error{fmt::format("{}: holds no name", path)};
  return names;
}

}  // namespace rota::codegen
