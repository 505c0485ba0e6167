// The bytes of a shared library or a program and its dynamic tables, read with every offset checked.
//
// The file may be anything, so each read can fail; rather than making every caller check each time, a failed read
// returns zero and is recorded: loops stop when `ok()` no longer holds, and what was read counts only if it still does.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::elf {

// In the table of versions: 0 is local, 1 has no version, from 2 on are the library's definitions and needs.
inline constexpr Elf64_Half kHiddenVersion = 0x8000;
inline constexpr Elf64_Half kFirstVersion = 2;

// A read-only mapping of a file.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = {}; }
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  std::string_view bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::string_view bytes) : bytes_(bytes) {}
  std::string_view bytes_;
};

class Image {
 public:
  // `bytes` must outlive the image. The error names `path`.
  static Result<Image> parse(std::string_view bytes, const std::string& path);
  // Without the dynamic tables: enough for build_id().
  static Result<Image> parse_headers(std::string_view bytes, const std::string& path);
  // A program, which need not have a dynamic section, nor any symbol: enough for has_loader() and needed().
  static Result<Image> parse_program(std::string_view bytes, const std::string& path);

  bool ok() const { return ok_; }

  // Offsets below are offsets in the file.
  template <class T>
  T read(std::uint64_t offset) const {
    T value{};
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) {
      ok_ = false;
    } else {
      std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    }
    return value;
  }
  Elf64_Sym symbol(std::uint32_t index) const { return read<Elf64_Sym>(symbols_ + index * sizeof(Elf64_Sym)); }
  // The string at an offset of the dynamic string table; it must end within the table.
  std::string_view string(std::uint64_t at) const;
  // The file offset of an address range of the loaded library; 0, and no longer ok, if it is not in the file.
  std::uint64_t offset_of(std::uint64_t address, std::uint64_t size) const;
  // A value of the dynamic section; nothing if it has no such entry.
  std::optional<std::uint64_t> dynamic(std::int64_t tag) const;

  // The dynamic symbol table: symbols [0, first_hashed) cannot be found by name.
  std::uint64_t symbols() const { return symbols_; }
  std::uint32_t symbol_count() const { return symbol_count_; }
  bool exported(std::uint32_t index, const Elf64_Sym& symbol) const;
  // Whether an export has a version that only a reference to that version finds, or a program's reference without one.
  bool hidden(std::uint32_t index) const;
  std::uint64_t strings() const { return strings_; }
  std::uint64_t strings_size() const { return strings_size_; }
  // 0 where the library has none. One of the first two is there.
  std::uint64_t gnu_hash() const { return gnu_hash_; }
  std::uint64_t old_hash() const { return old_hash_; }
  std::uint64_t versions() const { return versions_; }
  // Offsets in the string table that the dynamic section names (needed libraries, SONAME, search paths).
  const std::vector<std::uint64_t>& named_strings() const { return named_strings_; }
  // Whether the kernel starts this program through a dynamic loader (PT_INTERP); otherwise it is statically linked.
  bool has_loader() const { return has_loader_; }
  // The libraries that it needs (DT_NEEDED), in their order.
  std::vector<std::string_view> needed() const;
  // The offset and size of the build-id; {0, 0} if there is none.
  struct Range {
    std::uint64_t offset = 0, size = 0;
  };
  Range build_id() const;

 private:
  explicit Image(std::string_view bytes) : bytes_(bytes) {}
  bool read_segments();
  void read_dynamic();
  void find_strings();
  void find_symbols();
  void count_symbols();

  struct Segment {
    std::uint64_t offset, address, size;
  };
  std::string_view bytes_;
  mutable bool ok_ = true;
  bool has_loader_ = false;
  std::vector<Segment> loaded_, notes_;
  std::optional<Segment> dynamic_segment_;
  std::map<std::int64_t, std::uint64_t> dynamic_;
  std::vector<std::uint64_t> named_strings_, needed_;
  std::uint64_t symbols_ = 0, strings_ = 0, strings_size_ = 0, gnu_hash_ = 0, old_hash_ = 0, versions_ = 0;
  std::uint32_t symbol_count_ = 0, first_hashed_ = 1;
};

}  // namespace rota::elf
