// How a user's own rotad, which `rota run` has started, is told from one that somebody runs: by its command line.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "scheduler/base/above_standard.h"
#include "scheduler/base/descriptor.h"

namespace rota::protocol {

// With this option rotad says when it listens, which only `rota run` wants to know.
inline constexpr const char* kReadyOption = "--ready-fd";

// The arguments of a process, each with a NUL behind it; empty: they cannot be read.
inline std::string command_line_of(pid_t process) {
  constexpr std::size_t kMost = 16384;  // bytes: a path and a few options
  const Descriptor file(above_standard(open(fmt::format("/proc/{}/cmdline", process).c_str(), O_RDONLY | O_CLOEXEC)));
  std::string text(kMost, '\0');
  const ssize_t length = file ? read(file.get(), text.data(), text.size()) : 0;
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return text;
}

}  // namespace rota::protocol
