#include "tools/rota/run/executable.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tools/elf/image.h"
#include "tools/elf/program.h"

namespace rota::tool {
namespace {

// Reads a program's file. A damaged one is not judged: the kernel will report what is wrong with it.
void inspect_elf(std::string_view content, Executable& result) {
  using Kind = elf::Program::Kind;
  const auto program = elf::read_program(content, result.interpreter);
  if (!program) return;
  if (program->kind != Kind::kNative) {
    result.uncovered = program->kind == Kind::k32Bit ? "a 32-bit program" : "built for another processor architecture";
    result.preload_inherited = false;
    return;
  }
  if (!program->has_loader) {
    result.uncovered = "statically linked";
    return;
  }
  for (const std::string_view library : program->needed) {
    for (const char* runtime : {"libasan.so", "libtsan.so", "liblsan.so"}) {
      if (library.starts_with(runtime)) result.sanitizer = library;
    }
  }
}

// The kernel starts such a program in secure mode, in which the loader ignores LD_PRELOAD.
std::string privileged(const std::string& path) {
  struct stat info;
  struct statvfs system;
  if (stat(path.c_str(), &info) != 0) return {};
  if (statvfs(path.c_str(), &system) == 0 && (system.f_flag & ST_NOSUID) != 0) return {};
  // Those bits change nothing for a process that already has that user.
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

// Finds the file that a command names, as execvp does. Sets error if there is none that can be executed.
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

bool has_static_cuda_runtime(const std::string& path) {
  const auto file = elf::MappedFile::open(path);
  if (!file) return false;
  const auto program = elf::read_program(file->bytes(), path);
  if (!program || file->bytes().find(".nvFatBinSegment") == std::string_view::npos) return false;
  return std::ranges::none_of(program->needed,
                              [](std::string_view library) { return library.starts_with("libcudart.so"); });
}

std::string not_found_text(const std::string& command) {
  return (command.empty() ? "''" : command) + ": command not found";
}

Executable inspect_command(const std::string& command) {
  Executable result;
  result.path = find_command(command, result.error);
  result.interpreter = result.path;
  if (result.error != 0) return result;
  // The kernel follows four interpreters at most.
  for (int depth = 0; depth < 5; ++depth) {
    const auto file = elf::MappedFile::open(result.interpreter);
    if (!file) return result;  // not readable, but it may be executable
    const std::string_view content = file->bytes();
    if (elf::is_elf(content)) {
      inspect_elf(content, result);
      const std::string secure = privileged(result.interpreter);
      if (!secure.empty()) result.uncovered = secure;
      return result;
    }
    if (!content.starts_with("#!")) return result;  // a shell runs it
    const std::string_view line = content.substr(2, std::min<std::size_t>(content.find('\n'), 256) - 2);
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
