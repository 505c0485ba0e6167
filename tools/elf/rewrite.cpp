// Writes a copy of a library with other exports.
//
// The dynamic symbol table has two parts: first what cannot be found by name (imports and local symbols), then the
// exports, ordered by the hash table's buckets. Exports that are removed are dropped from the second part, which is
// compacted and sorted again where names changed; the first part stays as it is. Then everything that counts by symbol
// number is brought in line: versions, hash tables, relocations, and the sizes in the section headers. Names stay where
// they lie in the string table, a new name overwrites the old one. So nothing in the file moves, and nothing grows.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>

#include "scheduler/base/descriptor.h"
#include "tools/elf/elf.h"
#include "tools/elf/image.h"

namespace rota::elf {
namespace {

constexpr std::uint32_t kGone = 0xffffffff;

std::uint32_t gnu_hash(std::string_view name) {
  std::uint32_t hash = 5381;
  for (const char byte : name) hash = hash * 33 + static_cast<unsigned char>(byte);
  return hash;
}

std::uint32_t old_hash(std::string_view name) {
  std::uint32_t hash = 0;
  for (const char byte : name) {
    hash = (hash << 4) + static_cast<unsigned char>(byte);
    hash = (hash ^ ((hash & 0xf0000000) >> 24)) & 0x0fffffff;
  }
  return hash;
}

class Rewrite {
 public:
  Rewrite(const Image& image, std::string_view bytes, const std::string& path, const ExportChange& change)
      : image_(image), out_(bytes), path_(path), change_(change) {}

  Result<std::string> run() {
    choose_symbols();
    if (problem_.empty()) write_names();
    if (problem_.empty()) order_exports();
    if (problem_.empty()) write_symbols();
    if (problem_.empty()) hide_symbols();
    if (problem_.empty()) write_gnu_hash();
    if (problem_.empty()) write_old_hash();
    for (const auto& [table, size, entry] :
         {std::tuple{DT_RELA, DT_RELASZ, DT_RELA}, std::tuple{DT_JMPREL, DT_PLTRELSZ, DT_PLTREL}}) {
      if (problem_.empty()) write_relocations(table, size, entry);
    }
    if (problem_.empty()) write_sections();
    if (problem_.empty()) write_build_id();
    if (problem_.empty() && !image_.ok()) fail("is damaged: its dynamic tables lead out of the file");
    if (!problem_.empty()) return Error{problem_};
    return std::move(out_);
  }

 private:
  struct Export {
    std::uint32_t index;  // in the input
    Elf64_Sym symbol;
    std::string_view name;  // the new one
    bool hidden = false;
  };

  template <class T>
  void put(std::uint64_t offset, const T& value) {
    if (offset > out_.size() || out_.size() - offset < sizeof(T)) {
      fail("is damaged: its dynamic tables lead out of the file");
    } else {
      std::memcpy(out_.data() + offset, &value, sizeof(T));
    }
  }

  template <class... Arguments>
  void fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    if (problem_.empty()) problem_ = path_ + ": " + fmt::format(format, std::forward<Arguments>(arguments)...);
  }

  void choose_symbols() {
    std::set<std::string_view> taken, renamed;
    for (std::uint32_t index = 0; index < image_.symbol_count() && image_.ok(); ++index) {
      const Elf64_Sym symbol = image_.symbol(index);
      if (!image_.exported(index, symbol)) {
        others_.push_back(index);
        continue;
      }
      const std::string_view name = image_.string(symbol.st_name);
      const auto rename = change_.rename.find(std::string(name));
      if (rename != change_.rename.end()) {
        if (!renamed.insert(name).second) fail("exports '{}' twice, so it cannot be renamed", name);
        exports_.push_back({index, symbol, rename->second});
      } else if (change_.keep.contains(std::string(name))) {
        taken.insert(name);
        exports_.push_back({index, symbol, name});
      } else if (change_.hide.contains(std::string(name))) {
        taken.insert(name);
        exports_.push_back({index, symbol, name, true});
      }
    }
    for (const auto& [from, to] : change_.rename) {
      if (!renamed.contains(from)) fail("does not export '{}', which is to be renamed", from);
      if (to.empty() || to.find('\0') != std::string::npos) fail("'{}' cannot be the new name of '{}'", to, from);
      if (to.size() > from.size()) fail("'{}' is longer than '{}', which it is to replace", to, from);
      if (!taken.insert(to).second) fail("would export '{}' twice", to);
    }
  }

  // A new name takes the place of the old one, unless another string ends in the same bytes (linkers share those).
  void write_names() {
    std::vector<std::uint64_t> used = image_.named_strings();
    for (std::uint32_t index = 0; index < image_.symbol_count(); ++index) {
      used.push_back(image_.symbol(index).st_name);
    }
    add_version_strings(used);
    std::ranges::sort(used);
    for (const Export& one : exports_) {
      const std::string_view before = image_.string(one.symbol.st_name);
      if (before == one.name) continue;
      const auto first = std::ranges::lower_bound(used, one.symbol.st_name);
      const auto last = std::ranges::upper_bound(used, one.symbol.st_name + before.size());
      if (last - first != 1) fail("'{}' shares its bytes with another name, so it cannot be renamed", before);
      const std::uint64_t at = image_.strings() + one.symbol.st_name;
      for (std::size_t i = 0; i < before.size(); ++i) put(at + i, i < one.name.size() ? one.name[i] : '\0');
    }
  }

  // Damaged lists may lead to the same entries again and again.
  bool plausible(const std::vector<std::uint64_t>& used) {
    if (used.size() > out_.size()) fail("is damaged: its versions have no end");
    return problem_.empty() && image_.ok();
  }

  // The strings that version definitions and needs name: lists linked by distances, each with a list of its own.
  void add_version_strings(std::vector<std::uint64_t>& used) {
    if (const auto address = image_.dynamic(DT_VERDEF)) {
      std::uint64_t at = image_.offset_of(*address, sizeof(Elf64_Verdef));
      for (std::uint64_t left = image_.dynamic(DT_VERDEFNUM).value_or(0); left > 0 && plausible(used); --left) {
        const auto definition = image_.read<Elf64_Verdef>(at);
        std::uint64_t name = at + definition.vd_aux;
        for (unsigned i = 0; i < definition.vd_cnt && plausible(used); ++i) {
          const auto entry = image_.read<Elf64_Verdaux>(name);
          used.push_back(entry.vda_name);
          name += entry.vda_next;
        }
        if (definition.vd_next == 0) break;
        at += definition.vd_next;
      }
    }
    if (const auto address = image_.dynamic(DT_VERNEED)) {
      std::uint64_t at = image_.offset_of(*address, sizeof(Elf64_Verneed));
      for (std::uint64_t left = image_.dynamic(DT_VERNEEDNUM).value_or(0); left > 0 && plausible(used); --left) {
        const auto need = image_.read<Elf64_Verneed>(at);
        used.push_back(need.vn_file);
        std::uint64_t name = at + need.vn_aux;
        for (unsigned i = 0; i < need.vn_cnt && plausible(used); ++i) {
          const auto entry = image_.read<Elf64_Vernaux>(name);
          used.push_back(entry.vna_name);
          name += entry.vna_next;
        }
        if (need.vn_next == 0) break;
        at += need.vn_next;
      }
    }
  }

  // By bucket, as the newer hash table wants it; then each symbol has its new number.
  void order_exports() {
    if (image_.gnu_hash() != 0) {
      const auto buckets = image_.read<std::uint32_t>(image_.gnu_hash());
      std::ranges::stable_sort(exports_, {}, [buckets](const Export& one) { return gnu_hash(one.name) % buckets; });
    }
    new_index_.assign(image_.symbol_count(), kGone);
    std::uint32_t next = 0;
    for (const std::uint32_t index : others_) new_index_[index] = next++;
    first_export_ = next;
    for (const Export& one : exports_) new_index_[one.index] = next++;
    count_ = next;
  }

  void write_symbols() {
    const auto move = [&]<class T>(std::uint64_t table, T) {
      for (std::uint32_t index = 0; index < image_.symbol_count(); ++index) {
        if (new_index_[index] == kGone) continue;
        put(table + new_index_[index] * sizeof(T), image_.read<T>(table + index * sizeof(T)));
      }
      for (std::uint32_t index = count_; index < image_.symbol_count(); ++index) put(table + index * sizeof(T), T{});
    };
    move(image_.symbols(), Elf64_Sym{});
    if (image_.versions() != 0) move(image_.versions(), Elf64_Half{});
  }

  // glibc (elf/dl-lookup.c) takes a symbol of the first version there is, hidden or not, for a reference without a
  // version: it must have been linked before there were versions. For dlsym, which wants the newest, hidden is hidden.
  // Which version that is does not matter: no program asks for it under this name. An export that has a version of its
  // own keeps it, for those linked with that.
  void hide_symbols() {
    if (std::ranges::none_of(exports_, &Export::hidden)) return;
    const bool versions = image_.dynamic(DT_VERDEFNUM).value_or(0) > 1 || image_.dynamic(DT_VERNEEDNUM).value_or(0) > 0;
    if (image_.versions() == 0 || !versions) return fail("has no versions, so none of its exports can be hidden");
    for (const Export& one : exports_) {
      if (!one.hidden) continue;
      const std::uint64_t at = image_.versions() + new_index_[one.index] * sizeof(Elf64_Half);
      const auto version =
          std::max(image_.read<Elf64_Half>(image_.versions() + one.index * sizeof(Elf64_Half)), kFirstVersion);
      put(at, static_cast<Elf64_Half>(kHiddenVersion | version));
    }
  }

  void write_gnu_hash() {
    const std::uint64_t table = image_.gnu_hash();
    if (table == 0) return;
    const auto buckets = image_.read<std::uint32_t>(table), words = image_.read<std::uint32_t>(table + 8),
               shift = image_.read<std::uint32_t>(table + 12);
    const std::uint64_t bloom = table + 16, bucket = bloom + std::uint64_t{8} * words,
                        chain = bucket + std::uint64_t{4} * buckets;
    if (buckets == 0 || !std::has_single_bit(words) || shift > 31 || words > out_.size() / 8 ||
        buckets > out_.size() / 4) {
      return fail("has a hash table of unknown form");
    }
    // Symbols in front of the exports that were within the table would need a longer chain than there is.
    const std::uint32_t first = std::max(first_export_, image_.read<std::uint32_t>(table + 4));
    if (first != first_export_) return fail("has a symbol table of unknown form");
    put(table + 4, first_export_);
    std::vector<std::uint64_t> filter(words);
    std::vector<std::uint32_t> starts(buckets);
    for (std::size_t i = 0; i < exports_.size(); ++i) {
      const std::uint32_t hash = gnu_hash(exports_[i].name);
      const auto index = first_export_ + static_cast<std::uint32_t>(i);
      filter[(hash / 64) % words] |= std::uint64_t{1} << (hash % 64) | std::uint64_t{1} << ((hash >> shift) % 64);
      if (starts[hash % buckets] == 0) starts[hash % buckets] = index;
      const bool last = i + 1 == exports_.size() || gnu_hash(exports_[i + 1].name) % buckets != hash % buckets;
      put(chain + 4 * i, (hash & ~std::uint32_t{1}) | (last ? 1 : 0));
    }
    for (std::uint32_t i = 0; i < words; ++i) put(bloom + 8 * i, filter[i]);
    for (std::uint32_t i = 0; i < buckets; ++i) put(bucket + 4 * i, starts[i]);
  }

  void write_old_hash() {
    const std::uint64_t table = image_.old_hash();
    if (table == 0) return;
    const auto buckets = image_.read<std::uint32_t>(table);
    if (buckets == 0 || buckets > out_.size() / 4 || image_.read<std::uint32_t>(table + 4) < count_) {
      return fail("has a hash table of unknown form");
    }
    std::vector<std::uint32_t> starts(buckets), chain(image_.symbol_count());
    for (std::size_t i = 0; i < exports_.size(); ++i) {
      const auto index = first_export_ + static_cast<std::uint32_t>(i);
      std::uint32_t& start = starts[old_hash(exports_[i].name) % buckets];
      chain[index] = start;
      start = index;
    }
    const std::uint64_t bucket = table + 8, links = bucket + std::uint64_t{4} * buckets;
    put(table + 4, count_);
    for (std::uint32_t i = 0; i < buckets; ++i) put(bucket + 4 * i, starts[i]);
    for (std::uint32_t i = 0; i < count_; ++i) put(links + 4 * i, chain[i]);
  }

  void write_relocations(std::int64_t table, std::int64_t size, std::int64_t kind) {
    if (image_.dynamic(DT_REL)) return fail("has relocations of an old form (REL)");
    const auto address = image_.dynamic(table);
    const std::uint64_t bytes = image_.dynamic(size).value_or(0);
    if (!address || bytes == 0) return;
    if (kind == DT_PLTREL && image_.dynamic(DT_PLTREL).value_or(DT_RELA) != DT_RELA) {
      return fail("has relocations of an old form (REL)");
    }
    const std::uint64_t start = image_.offset_of(*address, bytes);
    for (std::uint64_t at = 0; at + sizeof(Elf64_Rela) <= bytes && image_.ok(); at += sizeof(Elf64_Rela)) {
      auto relocation = image_.read<Elf64_Rela>(start + at);
      const std::uint64_t index = ELF64_R_SYM(relocation.r_info);
      if (index == 0) continue;
      if (index >= new_index_.size()) return fail("is damaged: a relocation names no symbol");
      if (new_index_[index] == kGone) {
        return fail("one of its own relocations needs '{}', which is to be removed; link it with -Bsymbolic",
                    image_.string(image_.symbol(static_cast<std::uint32_t>(index)).st_name));
      }
      relocation.r_info = ELF64_R_INFO(std::uint64_t{new_index_[index]}, ELF64_R_TYPE(relocation.r_info));
      put(start + at, relocation);
    }
  }

  // Section headers are for tools like nm and the linker; a library may have none.
  void write_sections() {
    const auto header = image_.read<Elf64_Ehdr>(0);
    if (header.e_shoff == 0 || header.e_shentsize != sizeof(Elf64_Shdr)) return;
    for (unsigned index = 0; index < header.e_shnum && image_.ok(); ++index) {
      const std::uint64_t at = header.e_shoff + index * sizeof(Elf64_Shdr);
      auto section = image_.read<Elf64_Shdr>(at);
      if (section.sh_type == SHT_DYNSYM) section.sh_size = count_ * sizeof(Elf64_Sym);
      if (section.sh_type == SHT_GNU_versym) section.sh_size = count_ * sizeof(Elf64_Half);
      if (section.sh_type == SHT_GNU_HASH || section.sh_type == SHT_HASH) {
        section.sh_size -= std::min<std::uint64_t>(section.sh_size, 4 * std::uint64_t{image_.symbol_count() - count_});
      }
      put(at, section);
    }
  }

  // The copy is a different library, and tools that identify libraries by their build-id must see that.
  void write_build_id() {
    const auto [offset, size] = image_.build_id();
    std::uint64_t mix = 14695981039346656037U;  // FNV-1a over the exports
    for (const Export& one : exports_) {
      for (const char byte : one.name) mix = (mix ^ static_cast<unsigned char>(byte)) * 1099511628211U;
      mix = (mix ^ (one.hidden ? 1 : 0)) * 1099511628211U;
    }
    for (std::uint64_t i = 0; i < size; ++i) {
      put(offset + i, static_cast<unsigned char>(image_.read<unsigned char>(offset + i) ^ (mix >> 56)));
      mix = mix * 6364136223846793005U + 1442695040888963407U;
    }
  }

  const Image& image_;
  std::string out_;
  const std::string& path_;
  const ExportChange& change_;
  std::string problem_;
  std::vector<std::uint32_t> others_;
  std::vector<Export> exports_;
  std::vector<std::uint32_t> new_index_;  // by number in the input; kGone for what leaves
  std::uint32_t first_export_ = 0, count_ = 0;
};

// Whether the copy reads as requested. If tables of a damaged library overlap, writing one changes another.
bool reads_as(std::string_view copy, const Exports& before, const ExportChange& change, const std::string& path) {
  const auto found = read_exports(copy, path);
  if (!found) return false;
  std::vector<std::string> expected;
  for (const std::vector<std::string>* names : {&before.functions, &before.objects}) {
    for (const std::string& name : *names) {
      const auto rename = change.rename.find(name);
      if (rename != change.rename.end()) {
        expected.push_back(rename->second);
      } else if (change.keep.contains(name)) {
        expected.push_back(name);
      }
    }
  }
  std::vector<std::string> got = found->functions;
  got.insert(got.end(), found->objects.begin(), found->objects.end());
  std::ranges::sort(expected);
  std::ranges::sort(got);
  return got == expected;
}

Result<bool> write_file(const std::string& path, const std::string& content, mode_t mode) {
  std::string temporary = path + ".XXXXXX";
  Descriptor file(mkostemp(temporary.data(), O_CLOEXEC));
  if (!file) return Error{fmt::format("{}: cannot be written: {}", path, std::strerror(errno))};
  bool written = true;
  for (std::size_t done = 0; written && done < content.size();) {
    const ssize_t now = write(file.get(), content.data() + done, content.size() - done);
    if (now > 0) done += static_cast<std::size_t>(now);
    written = now > 0 || (now < 0 && errno == EINTR);
  }
  written = written && fchmod(file.get(), mode) == 0;
  int error = written ? 0 : errno;
  file = {};
  if (written && rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return true;
  unlink(temporary.c_str());
  return Error{fmt::format("{}: cannot be written: {}", path, std::strerror(error))};
}

}  // namespace

Result<bool> write_with_exports(const std::string& input, const std::string& output, const ExportChange& change) {
  const auto file = MappedFile::open(input);
  if (!file) return file.error();
  const auto image = Image::parse(file->bytes(), input);
  if (!image) return image.error();
  const auto content = Rewrite(*image, file->bytes(), input, change).run();
  if (!content) return content.error();
  const auto before = read_exports(file->bytes(), input);
  if (!before) return before.error();
  if (!reads_as(*content, *before, change, input)) {
    return Error{
        fmt::format("{}: is damaged or not an ordinary library: a copy of it does not read as it should", input)};
  }
  struct stat info;
  if (stat(input.c_str(), &info) != 0) return Error{fmt::format("{}: {}", input, std::strerror(errno))};
  return write_file(output, *content, info.st_mode & 0755);
}

}  // namespace rota::elf
