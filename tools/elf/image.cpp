#include "tools/elf/image.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "scheduler/base/descriptor.h"

namespace rota::elf {

Result<MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Error{fmt::format("{}: cannot be opened: {}", path, std::strerror(errno))};
  struct stat info;
  void* address = MAP_FAILED;
  std::size_t size = 0;
  if (fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
    size = static_cast<std::size_t>(info.st_size);
    address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  }
  if (address == MAP_FAILED) return Error{fmt::format("{}: is not a shared library: not a file with content", path)};
  return MappedFile({static_cast<const char*>(address), size});
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

Result<Image> Image::parse_headers(std::string_view bytes, const std::string& path) {
  Image image(bytes);
  const auto header = image.read<Elf64_Ehdr>(0);
  if (!image.ok() || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return Error{fmt::format("{}: is not a shared library", path)};
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_DYN) {
    return Error{fmt::format("{}: is not a 64-bit little-endian shared library", path)};
  }
  if (!image.read_segments() || !image.dynamic_segment_) {
    return Error{fmt::format("{}: is a damaged library: its segments cannot be read", path)};
  }
  return image;
}

Result<Image> Image::parse(std::string_view bytes, const std::string& path) {
  auto image = parse_headers(bytes, path);
  if (!image) return image;
  image->read_dynamic();
  image->find_strings();
  image->find_symbols();
  if (image->ok()) image->count_symbols();
  if (!image->ok()) {
    return Error{fmt::format("{}: is damaged or not an ordinary library: its dynamic symbols cannot be read", path)};
  }
  return image;
}

Result<Image> Image::parse_program(std::string_view bytes, const std::string& path) {
  Image image(bytes);
  const auto header = image.read<Elf64_Ehdr>(0);
  if (!image.ok() || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return Error{fmt::format("{}: is not a program", path)};
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return Error{fmt::format("{}: is not a 64-bit little-endian program", path)};
  }
  if (!image.read_segments()) return Error{fmt::format("{}: is a damaged program: its segments cannot be read", path)};
  if (image.dynamic_segment_) image.read_dynamic();
  if (!image.needed_.empty()) image.find_strings();
  if (!image.ok()) return Error{fmt::format("{}: is a damaged program: its dynamic section cannot be read", path)};
  return image;
}

bool Image::read_segments() {
  const auto header = read<Elf64_Ehdr>(0);
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return false;
  for (unsigned index = 0; index < header.e_phnum && ok_; ++index) {
    const auto segment = read<Elf64_Phdr>(header.e_phoff + index * sizeof(Elf64_Phdr));
    const Segment place{segment.p_offset, segment.p_vaddr, segment.p_filesz};
    if (segment.p_type == PT_LOAD) loaded_.push_back(place);
    if (segment.p_type == PT_NOTE) notes_.push_back(place);
    if (segment.p_type == PT_DYNAMIC) dynamic_segment_ = place;
    if (segment.p_type == PT_INTERP) has_loader_ = true;
  }
  return ok_;
}

std::uint64_t Image::offset_of(std::uint64_t address, std::uint64_t size) const {
  for (const Segment& segment : loaded_) {
    if (address < segment.address || address - segment.address > segment.size) continue;
    if (size > segment.size - (address - segment.address)) continue;
    const std::uint64_t offset = segment.offset + (address - segment.address);
    if (offset > bytes_.size() || size > bytes_.size() - offset) break;
    return offset;
  }
  ok_ = false;
  return 0;
}

std::optional<std::uint64_t> Image::dynamic(std::int64_t tag) const {
  const auto found = dynamic_.find(tag);
  if (found == dynamic_.end()) return std::nullopt;
  return found->second;
}

void Image::read_dynamic() {
  for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic_segment_->size; at += sizeof(Elf64_Dyn)) {
    const auto entry = read<Elf64_Dyn>(dynamic_segment_->offset + at);
    if (!ok_ || entry.d_tag == DT_NULL) break;
    dynamic_[entry.d_tag] = entry.d_un.d_val;
    if (entry.d_tag == DT_NEEDED) needed_.push_back(entry.d_un.d_val);
    switch (entry.d_tag) {
      case DT_NEEDED:
      case DT_SONAME:
      case DT_RPATH:
      case DT_RUNPATH:
      case DT_AUXILIARY:
      case DT_FILTER:
        named_strings_.push_back(entry.d_un.d_val);
    }
  }
}

void Image::find_strings() {
  const auto strings = dynamic(DT_STRTAB), size = dynamic(DT_STRSZ);
  if (!strings || !size) {
    ok_ = false;
    return;
  }
  strings_ = offset_of(*strings, *size);
  if (ok_) strings_size_ = *size;
}

void Image::find_symbols() {
  const auto symbols = dynamic(DT_SYMTAB), gnu = dynamic(DT_GNU_HASH), old = dynamic(DT_HASH);
  const auto versions = dynamic(DT_VERSYM);
  if (!symbols || (!gnu && !old)) {
    ok_ = false;
    return;
  }
  symbols_ = offset_of(*symbols, sizeof(Elf64_Sym));
  if (gnu) gnu_hash_ = offset_of(*gnu, 4 * sizeof(std::uint32_t));
  if (old) old_hash_ = offset_of(*old, 2 * sizeof(std::uint32_t));
  if (versions) versions_ = offset_of(*versions, sizeof(Elf64_Half));
}

// Nothing says how many dynamic symbols there are but the hash tables: the older one's chain has one link for each, in
// the newer one the last chain that a bucket leads to ends with the last symbol.
void Image::count_symbols() {
  std::uint64_t count = 0;
  if (gnu_hash_ != 0) {
    const auto buckets = read<std::uint32_t>(gnu_hash_);
    first_hashed_ = read<std::uint32_t>(gnu_hash_ + 4);
    const std::uint64_t bucket = gnu_hash_ + 16 + std::uint64_t{8} * read<std::uint32_t>(gnu_hash_ + 8);
    std::uint32_t last = 0;
    for (std::uint64_t i = 0; i < buckets && ok_; ++i) last = std::max(last, read<std::uint32_t>(bucket + 4 * i));
    count = first_hashed_;
    if (last != 0) {
      const std::uint64_t chain = bucket + std::uint64_t{4} * buckets;
      for (count = last; ok_ && count >= first_hashed_; ++count) {
        if ((read<std::uint32_t>(chain + 4 * (count - first_hashed_)) & 1) != 0) break;
      }
      ++count;
    }
    if (buckets == 0 || (last != 0 && last < first_hashed_)) ok_ = false;
  }
  if (old_hash_ != 0) count = std::max<std::uint64_t>(count, read<std::uint32_t>(old_hash_ + 4));
  // Behind the first symbol there must be room for the others.
  if (count == 0 || count > bytes_.size() / sizeof(Elf64_Sym)) ok_ = false;
  if (!ok_) return;
  symbol_count_ = static_cast<std::uint32_t>(count);
  offset_of(*dynamic(DT_SYMTAB), count * sizeof(Elf64_Sym));
  if (versions_ != 0) offset_of(*dynamic(DT_VERSYM), count * sizeof(Elf64_Half));
}

std::string_view Image::string(std::uint64_t at) const {
  if (at < strings_size_) {
    const std::string_view rest = bytes_.substr(strings_ + at, strings_size_ - at);
    if (const auto end = rest.find('\0'); end != std::string_view::npos) return rest.substr(0, end);
  }
  ok_ = false;
  return {};
}

std::vector<std::string_view> Image::needed() const {
  std::vector<std::string_view> names;
  for (const std::uint64_t at : needed_) names.push_back(string(at));
  return names;
}

bool Image::exported(std::uint32_t index, const Elf64_Sym& symbol) const {
  const unsigned binding = ELF64_ST_BIND(symbol.st_info);
  const unsigned visibility = ELF64_ST_VISIBILITY(symbol.st_other);
  return index != 0 && (gnu_hash_ == 0 || index >= first_hashed_) && symbol.st_shndx != SHN_UNDEF &&
         binding != STB_LOCAL && (visibility == STV_DEFAULT || visibility == STV_PROTECTED);
}

bool Image::hidden(std::uint32_t index) const {
  if (versions_ == 0) return false;
  const auto version = read<Elf64_Half>(versions_ + index * sizeof(Elf64_Half));
  return (version & kHiddenVersion) != 0 && (version & ~kHiddenVersion) >= kFirstVersion;
}

Image::Range Image::build_id() const {
  for (const Segment& segment : notes_) {
    for (std::uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= segment.size && ok_;) {
      const auto note = read<Elf64_Nhdr>(segment.offset + at);
      const std::uint64_t name = at + sizeof note;
      const std::uint64_t description = name + ((std::uint64_t{note.n_namesz} + 3) & ~std::uint64_t{3});
      const std::uint64_t next = description + ((std::uint64_t{note.n_descsz} + 3) & ~std::uint64_t{3});
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && next <= segment.size &&
          read<std::uint32_t>(segment.offset + name) == 0x00554e47 /* "GNU" */) {
        const std::uint64_t offset = segment.offset + description;
        if (offset <= bytes_.size() && note.n_descsz <= bytes_.size() - offset) return {offset, note.n_descsz};
      }
      at = next;
    }
  }
  return {};
}

}  // namespace rota::elf
