// Reading just enough of an ELF file: class, machine, whether it has a dynamic loader, and which libraries it names.
#include "tools/rota/run/executable.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace rota::tool {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kMachine = EM_AARCH64;
#else
#error "rota runs on x86-64 and aarch64"
#endif

// A file's content, mapped; every read is checked against its size, as the file may be anything.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat info;
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
      void* address = mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, file, 0);
      if (address != MAP_FAILED) content_ = {static_cast<const char*>(address), static_cast<std::size_t>(info.st_size)};
    }
    close(file);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (!content_.empty()) munmap(const_cast<char*>(content_.data()), content_.size());
  }

  std::string_view content() const { return content_; }

  template <typename T>
  std::optional<T> read(std::uint64_t offset) const {
    if (offset > content_.size() || content_.size() - offset < sizeof(T)) return std::nullopt;
    T value;
    memcpy(&value, content_.data() + offset, sizeof value);
    return value;
  }

  std::string text(std::uint64_t offset) const {
    if (offset >= content_.size()) return {};
    return std::string(content_.substr(offset, content_.substr(offset).find('\0')));
  }

 private:
  std::string_view content_;
};

struct Segment {
  std::uint64_t offset, address, size;
};

// The names of the libraries that an ELF file needs (DT_NEEDED).
std::vector<std::string> needed_libraries(const MappedFile& file, const std::vector<Segment>& loaded,
                                          const Segment& dynamic) {
  std::vector<std::uint64_t> names;
  std::uint64_t strings = 0;
  for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic.size; at += sizeof(Elf64_Dyn)) {
    const auto entry = file.read<Elf64_Dyn>(dynamic.offset + at);
    if (!entry || entry->d_tag == DT_NULL) break;
    if (entry->d_tag == DT_NEEDED) names.push_back(entry->d_un.d_val);
    if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
  }
  std::vector<std::string> libraries;
  for (const Segment& segment : loaded) {
    if (strings < segment.address || strings - segment.address >= segment.size) continue;
    for (const std::uint64_t name : names) {
      libraries.push_back(file.text(segment.offset + (strings - segment.address) + name));
    }
    break;
  }
  return libraries;
}

void inspect_elf(const MappedFile& file, Executable& result) {
  if (file.content().size() > EI_CLASS && file.content()[EI_CLASS] == ELFCLASS32) {
    result.uncovered = "a 32-bit program";
    result.preload_inherited = false;
    return;
  }
  const auto header = file.read<Elf64_Ehdr>(0);
  if (!header || header->e_machine != kMachine) {
    result.uncovered = "built for another kind of processor";
    result.preload_inherited = false;
    return;
  }
  bool has_loader = false;
  std::vector<Segment> loaded;
  std::optional<Segment> dynamic;
  for (unsigned i = 0; i < header->e_phnum; ++i) {
    const auto segment = file.read<Elf64_Phdr>(header->e_phoff + std::uint64_t{i} * header->e_phentsize);
    if (!segment) break;
    if (segment->p_type == PT_INTERP) has_loader = true;
    if (segment->p_type == PT_LOAD) loaded.push_back({segment->p_offset, segment->p_vaddr, segment->p_filesz});
    if (segment->p_type == PT_DYNAMIC) dynamic = {segment->p_offset, segment->p_vaddr, segment->p_filesz};
  }
  if (!has_loader) {
    result.uncovered = "statically linked";
    return;
  }
  if (!dynamic) return;
  for (const std::string& library : needed_libraries(file, loaded, *dynamic)) {
    for (const char* runtime : {"libasan.so", "libtsan.so", "liblsan.so"}) {
      if (library.rfind(runtime, 0) == 0) result.sanitizer = library;
    }
  }
}

// The kernel starts such a program in secure mode, in which the loader ignores LD_PRELOAD.
std::string privileged(const std::string& path) {
  struct stat info;
  struct statvfs system;
  if (stat(path.c_str(), &info) != 0) return {};
  if (statvfs(path.c_str(), &system) == 0 && (system.f_flag & ST_NOSUID) != 0) return {};
  // Those bits change nothing for who is that user already.
  if ((info.st_mode & S_ISUID) != 0 && info.st_uid != getuid()) return "setuid";
  if ((info.st_mode & S_ISGID) != 0 && (info.st_mode & S_IXGRP) != 0 && info.st_gid != getgid()) return "setgid";
  if (getuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0)
    return "a program with capabilities";
  return {};
}

std::vector<std::string> words(std::string_view line) {
  std::vector<std::string> result;
  while (true) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return result;
    line.remove_prefix(begin);
    const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
    result.emplace_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

// Finds the file that a command names, as execvp does. Sets error where there is none that can be executed.
std::string find_command(const std::string& command, int& error) {
  const auto usable = [](const std::string& path) {
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return errno == ENOTDIR ? ENOENT : errno;
    if (S_ISDIR(info.st_mode)) return EACCES;
    return access(path.c_str(), X_OK) == 0 ? 0 : errno;
  };
  if (command.find('/') != std::string::npos || command.empty()) {
    error = command.empty() ? ENOENT : usable(command);
    return command;
  }
  const char* variable = getenv("PATH");
  std::string_view folders = variable == nullptr ? "/bin:/usr/bin" : variable;
  error = ENOENT;
  std::string first_denied = command;
  while (true) {
    const std::size_t colon = folders.find(':');
    const std::string folder(folders.substr(0, colon));
    const std::string path = (folder.empty() ? "." : folder) + "/" + command;
    const int result = usable(path);
    if (result == 0) {
      error = 0;
      return path;
    }
    if (result == EACCES && error == ENOENT) {
      error = EACCES;
      first_denied = path;
    }
    if (colon == std::string_view::npos) return first_denied;
    folders.remove_prefix(colon + 1);
  }
}

}  // namespace

Executable inspect_command(const std::string& command) {
  Executable result;
  result.path = find_command(command, result.error);
  result.interpreter = result.path;
  if (result.error != 0) return result;
  // The kernel follows four interpreters at most.
  for (int depth = 0; depth < 5; ++depth) {
    const MappedFile file(result.interpreter);
    if (file.content().empty()) return result;  // not readable to us; executable all the same
    if (file.content().substr(0, 4) ==
        "\x7f"
        "ELF") {
      inspect_elf(file, result);
      const std::string secure = privileged(result.interpreter);
      if (!secure.empty()) result.uncovered = secure;
      return result;
    }
    if (file.content().substr(0, 2) != "#!") return result;  // a shell runs it
    const std::string_view line = file.content().substr(2, std::min<std::size_t>(file.content().find('\n'), 256) - 2);
    std::vector<std::string> parts = words(line);
    if (parts.empty()) return result;
    std::string next = parts[0];
    if (next == "/usr/bin/env" || next == "/bin/env") {
      // "env python3", "env -S python3 -u", "env NAME=value python3": the first word that is the program.
      for (std::size_t i = 1; i < parts.size(); ++i) {
        if (parts[i][0] == '-' || parts[i].find('=') != std::string::npos) continue;
        int missing = 0;
        const std::string found = find_command(parts[i], missing);
        if (missing == 0) next = found;
        break;
      }
    }
    result.interpreter = next;
  }
  return result;
}

}  // namespace rota::tool
