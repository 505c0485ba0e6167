#include <fmt/format.h>

#include <algorithm>

#include "tools/elf/elf.h"
#include "tools/elf/image.h"

namespace rota::elf {
namespace {

void sort_once(std::vector<std::string>& names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace

Result<Exports> read_exports(std::string_view bytes, const std::string& path) {
  const auto image = Image::parse(bytes, path);
  if (!image) return image.error();
  Exports exports;
  for (std::uint32_t index = 1; index < image->symbol_count() && image->ok(); ++index) {
    const Elf64_Sym symbol = image->symbol(index);
    if (!image->exported(index, symbol) || image->hidden(index)) continue;
    const unsigned type = ELF64_ST_TYPE(symbol.st_info);
    const std::string_view name = image->string(symbol.st_name);
    if (name.empty()) continue;
    if (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE) exports.functions.emplace_back(name);
    if (type == STT_OBJECT || type == STT_COMMON || type == STT_TLS) exports.objects.emplace_back(name);
  }
  if (!image->ok()) return Error{fmt::format("{}: is damaged: a dynamic symbol has no name", path)};
  sort_once(exports.functions);
  sort_once(exports.objects);
  return exports;
}

Result<Exports> read_exports(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file) return file.error();
  return read_exports(file->bytes(), path);
}

Result<std::string> read_build_id(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file) return file.error();
  const auto image = Image::parse_headers(file->bytes(), path);
  if (!image) return image.error();
  const auto [offset, size] = image->build_id();
  std::string text;
  for (std::uint64_t i = 0; i < size; ++i) text += fmt::format("{:02x}", image->read<unsigned char>(offset + i));
  return text;
}

}  // namespace rota::elf
