// See locate.h. Searches the places that the loader would search, and those where containers, WSL and driver operators
// put a driver. A copy of the thin preload is recognized by its ELF note, whatever its inode.
//
// It parses the few bytes of ELF that this takes itself and does not use tools/elf: code that runs in every process has
// no libstdc++ and no memory to read a file into, and must not depend on tools.
#include "runtime/preload/cuda/locate.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/preload/attachment.h"
#include "runtime/preload/cuda/ld_cache.h"

namespace rota::thin {
namespace {

#if defined(__x86_64__)
#define ROTA_TRIPLET "x86_64-linux-gnu"
constexpr Elf64_Half kMachine = EM_X86_64;
#else
#define ROTA_TRIPLET "aarch64-linux-gnu"
constexpr Elf64_Half kMachine = EM_AARCH64;
#endif

// Each ends in a zero, the list in an empty one: a table of pointers would cost every process relocations.
constexpr char kDefaultFolders[] = "/lib/" ROTA_TRIPLET "\0/usr/lib/" ROTA_TRIPLET
                                   "\0/lib64\0/usr/lib64\0/lib\0/usr/lib\0"  // the loader's own
                                   "/usr/lib/" ROTA_TRIPLET "/nvidia\0/usr/lib/" ROTA_TRIPLET
                                   "/tegra\0"                                          // Debian's, Jetson's
                                   "/usr/local/nvidia/lib64\0/usr/local/nvidia/lib\0"  // container images, GKE
                                   "/run/nvidia/driver/usr/lib/" ROTA_TRIPLET
                                   "\0/run/nvidia/driver/usr/lib64\0"             // the driver container
                                   "/usr/lib/wsl/lib\0/run/opengl-driver/lib\0";  // WSL, NixOS

enum class File { kUsable, kUnreadable, kNoLibrary, kOtherMachine, kShim };

bool read_at(int file, void* buffer, size_t bytes, uint64_t offset) noexcept {
  return pread(file, buffer, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// Whether a PT_NOTE segment holds the note that thunks.S puts into every copy of this library.
bool has_shim_note(int file, const Elf64_Phdr& segment) noexcept {
  char notes[1024];
  const size_t bytes = segment.p_filesz < sizeof notes ? segment.p_filesz : sizeof notes;
  if (!read_at(file, notes, bytes, segment.p_offset)) return false;
  for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= bytes;) {
    Elf64_Nhdr note;
    memcpy(&note, notes + at, sizeof note);
    const size_t name = at + sizeof note;
    if (note.n_namesz == 5 && name + 5 <= bytes && memcmp(notes + name, "rota", 5) == 0) return true;
    at = name + ((size_t{note.n_namesz} + 3) & ~size_t{3}) + ((size_t{note.n_descsz} + 3) & ~size_t{3});
  }
  return false;
}

File inspect(int file) noexcept {
  Elf64_Ehdr header;
  if (!read_at(file, &header, sizeof header, 0) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return File::kNoLibrary;
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachine) return File::kOtherMachine;
  if (header.e_type != ET_DYN || header.e_phentsize != sizeof(Elf64_Phdr)) return File::kNoLibrary;
  for (uint32_t index = 0; index < header.e_phnum; ++index) {
    Elf64_Phdr segment;
    if (!read_at(file, &segment, sizeof segment, header.e_phoff + uint64_t{index} * sizeof segment)) {
      return File::kNoLibrary;
    }
    if (segment.p_type == PT_NOTE && has_shim_note(file, segment)) return File::kShim;
  }
  return File::kUsable;
}

File inspect_path(const char* path) noexcept {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return File::kUnreadable;
  const File kind = inspect(file);
  close(file);
  return kind;
}

void copy_text(char* to, size_t bytes, const char* from) noexcept {
  const size_t length = strnlen(from, bytes - 1);
  memcpy(to, from, length);
  to[length] = '\0';
}

// Joins folder and name; false if that is too long for a path.
bool join(char (&path)[kPathBytes], const char* folder, size_t folder_length, const char* name) noexcept {
  const size_t name_length = strlen(name);
  if (folder_length + 1 + name_length >= kPathBytes) return false;
  memcpy(path, folder, folder_length);
  path[folder_length] = '/';
  memcpy(path + folder_length + 1, name, name_length + 1);
  return true;
}

const char* why_unusable(File kind) noexcept {
  switch (kind) {
    case File::kUnreadable:
      // Without strerror, which depends on the locale.
      return errno == ENOENT ? kNoSuchFile : "it cannot be opened for reading";
    case File::kNoLibrary:
      return "it is not a shared library";
    case File::kOtherMachine:
      return "it is a library for another processor architecture";
    case File::kShim:
      return kOwnLibrary;
    default:
      return nullptr;
  }
}

// Judges driver.path, an absolute path; on refusal driver.detail says why.
bool try_path(Driver& driver, const DriverJudge& judge) noexcept {
  const char* why = why_unusable(inspect_path(driver.path));
  const bool usable = why == nullptr ? judge.accept(driver, judge.context) : refuse(driver, why);
  if (usable) {
    driver.detail[0] = '\0';
  } else if (judge.passed_over != nullptr && why != kNoSuchFile) {
    judge.passed_over(driver, judge.context);
  }
  return usable;
}

bool try_folder(Driver& driver, const WantedLibrary& wanted, const DriverJudge& judge, const char* folder,
                size_t length) noexcept {
  return join(driver.path, folder, length, wanted.name) && try_path(driver, judge);
}

// LD_LIBRARY_PATH as it is now: elements between colons or semicolons. An empty or relative one is skipped, since it
// means another place after a change of directory, and so is one with a $ token.
bool try_library_path(Driver& driver, const WantedLibrary& wanted, const DriverJudge& judge) noexcept {
  driver.found_by = kFoundInLibraryPath;
  const char* element = secure_getenv("LD_LIBRARY_PATH");
  while (element != nullptr && *element != '\0') {
    const size_t length = strcspn(element, ":;");
    if (element[0] == '/' && memchr(element, '$', length) == nullptr &&
        try_folder(driver, wanted, judge, element, length))
      return true;
    element += length + (element[length] != '\0' ? 1 : 0);
  }
  return false;
}

bool try_ld_cache(Driver& driver, const WantedLibrary& wanted, const DriverJudge& judge) noexcept {
  driver.found_by = kFoundInLoaderCache;
  const int file = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  bool found = false;
  // lseek rather than fstat, whose symbol version is newer than the oldest supported glibc.
  const off_t size = lseek(file, 0, SEEK_END);
  void* data = size > 0 ? mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  close(file);
  if (data == MAP_FAILED) return false;
  uint32_t cursor = 0;
  while (const char* path =
             next_in_ld_cache(static_cast<char*>(data), static_cast<size_t>(size), wanted.name, &cursor)) {
    if (strlen(path) >= kPathBytes) continue;
    copy_text(driver.path, sizeof driver.path, path);
    if (try_path(driver, judge)) {
      found = true;
      break;
    }
  }
  munmap(data, static_cast<size_t>(size));
  return found;
}

bool try_default_folders(Driver& driver, const WantedLibrary& wanted, const DriverJudge& judge) noexcept {
  driver.found_by = kFoundInDefaultFolder;
  for (const char* folder = kDefaultFolders; *folder != '\0'; folder += strlen(folder) + 1) {
    if (try_folder(driver, wanted, judge, folder, strlen(folder))) return true;
  }
  return false;
}

}  // namespace

bool refuse(Driver& driver, const char* why) noexcept {
  copy_text(driver.detail, sizeof driver.detail, why);
  return false;
}

void locate_library(Driver& driver, const WantedLibrary& wanted, const DriverJudge& judge) noexcept {
  driver.handle = nullptr;
  driver.path[0] = '\0';
  driver.detail[0] = '\0';
  // <variable>=<path>: the library to use, and no other. Ignored in programs that gain rights (secure_getenv).
  const char* chosen = wanted.variable != nullptr ? secure_getenv(wanted.variable) : nullptr;
  if (chosen != nullptr && *chosen != '\0') {
    char folder[kPathBytes];
    bool fits = strlen(chosen) < kPathBytes;
    if (fits && chosen[0] == '/') {
      copy_text(driver.path, sizeof driver.path, chosen);
    } else if (fits) {
      fits = getcwd(folder, sizeof folder) != nullptr && join(driver.path, folder, strlen(folder), chosen);
    }
    driver.found_by = kFoundByVariable;
    const bool usable = fits ? try_path(driver, judge) : refuse(driver, "the path is too long");
    driver.state = usable ? kRotaDriverFound : kRotaDriverRefused;
    return;
  }
  if (try_library_path(driver, wanted, judge) || try_ld_cache(driver, wanted, judge) ||
      try_default_folders(driver, wanted, judge)) {
    driver.state = kRotaDriverFound;
    return;
  }
  driver.state = kRotaDriverNotFound;
  driver.found_by = kFoundNowhere;
  driver.path[0] = '\0';
}

void locate_driver(Driver& driver, const DriverJudge& judge) noexcept {
  locate_library(driver, kCuda, judge);
}

}  // namespace rota::thin
