// See exports.h. A separate reader, independent of tools/elf, since the generator uses nothing else of rota than
// scheduler/base.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "codegen/files.h"

#include "codegen/exports.h"

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

// The sections of a 64-bit little-endian ELF file.
class Sections {
 public:
  static Result<Sections> of(std::string_view bytes, const std::string& path) {
    const auto header = read_at<Elf64_Ehdr>(bytes, 0);
    if (!header) return damaged(path);
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB) {
      return Error{fmt::format("{}: not a 64-bit little-endian library", path)};
    }
    Sections sections;
    for (std::uint64_t i = 0; i < header->e_shnum; ++i) {
      const auto section = read_at<Elf64_Shdr>(bytes, header->e_shoff + i * sizeof(Elf64_Shdr));
      if (!section) return damaged(path);
      sections.list_.push_back(*section);
    }
    return sections;
  }

  static Error damaged(const std::string& path) {
    return {fmt::format("{}: a damaged or unusual ELF file: no dynamic symbol table can be read", path)};
  }

  const Elf64_Shdr* of_type(std::uint32_t type) const {
    const auto found = std::ranges::find(list_, type, &Elf64_Shdr::sh_type);
    return found == list_.end() ? nullptr : &*found;
  }
  // The string table of a section.
  const Elf64_Shdr* linked(const Elf64_Shdr& section) const {
    return section.sh_link < list_.size() ? &list_[section.sh_link] : nullptr;
  }

 private:
  std::vector<Elf64_Shdr> list_;
};

Result<std::vector<std::string>> elf_exports(std::string_view bytes, const std::string& path) {
  const auto sections = Sections::of(bytes, path);
  if (!sections) return sections.error();
  const Elf64_Shdr* const symbols = sections->of_type(SHT_DYNSYM);
  const Elf64_Shdr* const strings = symbols ? sections->linked(*symbols) : nullptr;
  if (!strings) return Sections::damaged(path);
  std::vector<std::string> names;
  for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols->sh_size; at += sizeof(Elf64_Sym)) {
    const auto symbol = read_at<Elf64_Sym>(bytes, symbols->sh_offset + at);
    if (!symbol) return Sections::damaged(path);
    const auto type = ELF64_ST_TYPE(symbol->st_info);
    if (symbol->st_shndx == SHN_UNDEF || (type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE)) continue;
    const auto name = string_at(bytes, strings->sh_offset + symbol->st_name);
    if (!name) return Sections::damaged(path);
    if (!name->empty()) names.push_back(*name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

Result<std::vector<std::string>> read_exports(const std::string& path) {
  const auto content = read_file(path);
  if (!content) return Error{fmt::format("{}: cannot be opened", path)};
  const std::string& bytes = *content;
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

Result<std::string> read_soname(const std::string& path) {
  const auto content = read_file(path);
  if (!content) return Error{fmt::format("{}: cannot be opened", path)};
  const auto sections = Sections::of(*content, path);
  if (!sections) return sections.error();
  const Elf64_Shdr* const dynamic = sections->of_type(SHT_DYNAMIC);
  const Elf64_Shdr* const strings = dynamic ? sections->linked(*dynamic) : nullptr;
  if (!strings) return Sections::damaged(path);
  for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic->sh_size; at += sizeof(Elf64_Dyn)) {
    const auto entry = read_at<Elf64_Dyn>(*content, dynamic->sh_offset + at);
    if (!entry || entry->d_tag == DT_NULL) break;
    if (entry->d_tag != DT_SONAME) continue;
    if (const auto name = string_at(*content, strings->sh_offset + entry->d_un.d_val)) return *name;
  }
  return Error{fmt::format("{}: has no SONAME", path)};
}

Result<RuntimeLibrary> read_runtime_library(const std::string& path, const Api& runtime) {
  auto name = read_soname(path);
  if (!name) return name.error();
  if (!name->starts_with("libcudart.so.")) return Error{fmt::format("{}: is {}, not a libcudart", path, *name)};
  const auto exports = read_exports(path);
  if (!exports) return exports.error();
  RuntimeLibrary library{.name = std::move(*name), .undeclared = {}, .unexported = {}};
  for (const std::string& symbol : *exports) {
    if (symbol.find("cuda") == std::string::npos || runtime.find_function(symbol)) continue;
    // If the headers have only other stream forms of a function, they hide it.
    const bool per_thread = symbol.ends_with("_ptsz") || symbol.ends_with("_ptds");
    const std::string base = per_thread ? symbol.substr(0, symbol.size() - 5) : symbol;
    if (std::ranges::find(runtime.functions, base, &Function::base) != runtime.functions.end()) {
      return Error{
          fmt::format("{} exports {}, but the headers declare only other forms of it: a macro hides it", path, symbol)};
    }
    library.undeclared.push_back(symbol);
  }
  for (const Function& function : runtime.functions) {
    if (!std::ranges::binary_search(*exports, function.name)) library.unexported.push_back(function.name);
  }
  return library;
}

}  // namespace rota::codegen
