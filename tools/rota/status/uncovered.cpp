#include "tools/rota/status/uncovered.h"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

namespace rota::tool {
namespace {

namespace fs = std::filesystem;

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The value of a variable in a sequence of NAME=VALUE, each ended by a zero; "" if it is not set.
std::string_view variable(std::string_view block, std::string_view name) {
  while (!block.empty()) {
    const std::string_view one = block.substr(0, block.find('\0'));
    if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=')
      return one.substr(name.size() + 1);
    block.remove_prefix(std::min(block.size(), one.size() + 1));
  }
  return {};
}

// Programs that no preload reaches, or only the system's.
struct ProgramKind {
  bool is_static = false;  // no loader has started it
  bool secure = false;     // the loader ignores LD_PRELOAD: it is setuid, setgid, or has capabilities
  bool narrow = false;     // 32 bits
};

ProgramKind kind_of(const std::string& folder) {
  ProgramKind kind;
  std::ifstream program(folder + "/exe", std::ios::binary);
  char ident[EI_NIDENT] = {};
  program.read(ident, sizeof ident);
  kind.narrow = program.gcount() == sizeof ident && ident[EI_CLASS] == ELFCLASS32;
  const std::string values = content(folder + "/auxv");
  if (kind.narrow || values.empty()) return kind;
  kind.is_static = true;
  Elf64_auxv_t value;
  for (std::size_t at = 0; at + sizeof value <= values.size(); at += sizeof value) {
    std::memcpy(&value, values.data() + at, sizeof value);
    if (value.a_type == AT_BASE) kind.is_static = value.a_un.a_val == 0;
    if (value.a_type == AT_SECURE) kind.secure = value.a_un.a_val != 0;
  }
  return kind;
}

struct Mapped {
  bool driver = false;
  bool preload = false;
};

// By the files' names: rota's own preload appears as the driver to the loader, but not in its file's name.
Mapped mapped_in(const std::string& folder) {
  Mapped mapped;
  std::ifstream maps(folder + "/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::string::size_type slash = line.rfind('/');
    if (slash == std::string::npos) continue;
    const std::string_view name = std::string_view(line).substr(slash + 1);
    mapped.driver = mapped.driver || name.starts_with("libcuda.so");
    mapped.preload = mapped.preload || name.starts_with("librota.so");
  }
  return mapped;
}

}  // namespace

bool is_uncovered(pid_t process, Uncovered& found) {
  const std::string folder = "/proc/" + std::to_string(process);
  const std::string environment = content(folder + "/environ");
  const std::string_view limit = variable(environment, "ROTA_GPU_MEM_LIMIT");
  if (limit.empty() && variable(environment, "ROTA_SESSION").empty()) return false;
  const bool passed_on = variable(environment, "LD_PRELOAD").find("/librota.so") != std::string_view::npos;
  const ProgramKind kind = kind_of(folder);
  // Most have it, and are not examined any further.
  if (passed_on && !kind.is_static && !kind.secure && !kind.narrow) return false;
  const std::string_view off = variable(environment, "ROTA_OFF");
  if (!off.empty() && off != "0") return false;
  const Mapped mapped = mapped_in(folder);
  if (!mapped.driver || mapped.preload) return false;
  found.process = process;
  found.socket = variable(environment, "ROTA_SOCKET");
  found.limited = !limit.empty();
  found.command = content(folder + "/cmdline");
  while (found.command.ends_with('\0')) found.command.pop_back();
  std::ranges::replace(found.command, '\0', ' ');
  if (kind.narrow) {
    found.why = "it is a 32-bit program";
    found.remedy = "rota has no library for 32-bit programs";
  } else if (kind.is_static) {
    found.why = "it is statically linked";
    found.remedy = "link it dynamically: nothing is preloaded into static programs";
  } else if (passed_on) {
    found.why = "it runs with raised privileges (setuid, setgid or capabilities), which LD_PRELOAD does not reach";
    found.remedy = "use `rota run --system-preload` as root, which reaches it, or run it without them";
  } else {
    found.why = "LD_PRELOAD was removed from its environment";
    found.remedy = kUncoveredRemedy;
  }
  return true;
}

std::vector<Uncovered> uncovered_programs(const std::string& socket) {
  std::vector<Uncovered> all;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t process = 0;
    const auto [rest, failed] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (failed != std::errc{} || rest != name.data() + name.size()) continue;
    if (Uncovered found; is_uncovered(process, found) && found.socket == socket) all.push_back(std::move(found));
  }
  std::ranges::sort(all, {}, &Uncovered::process);
  return all;
}

}  // namespace rota::tool
