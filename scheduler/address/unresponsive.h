// A rotad that accepts connections and does not answer: whether it is stopped, and what to tell the user. The kernel
// accepts for a process that is stopped by Ctrl-Z, by a debugger, or with its container.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>

namespace rota::protocol {

// `rota run` tells the program by this variable of which rotad, by its process id, it has already said that.
inline constexpr const char* kSilentRotad = "ROTA_SILENT_ROTAD";

// The process that listens at the other end, according to the kernel.
struct Listener {
  pid_t pid = 0;  // 0: not visible in this process's pid namespace
  uid_t uid = 0;
};

inline Listener listener_of(int connected) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(connected, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  return {peer.pid, peer.uid};
}

// Whether the process is stopped: 'T' by a signal, 't' by a debugger. 0: it is not, or cannot be seen. Allocates
// nothing.
inline char stopped_state(pid_t pid) {
  char path[32];
  if (pid <= 0) return 0;
  snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[256];  // "12 (name) T …", where the name has at most 64 bytes, of any kind
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  text[length > 0 ? length : 0] = '\0';
  const char* const name_end = strrchr(text, ')');
  if (name_end == nullptr || name_end[1] != ' ') return 0;
  return name_end[2] == 'T' || name_end[2] == 't' ? name_end[2] : 0;
}

// One sentence for the user, without a full stop: what is wrong with the rotad at `socket`, and what helps.
inline std::string unresponsive_text(const std::string& socket, const Listener& rotad) {
  if (rotad.pid <= 0) {
    return fmt::format(
        "the rotad at {} does not answer: it is stopped or frozen, or its machine is too busy; its user can let it go "
        "on, or end it",
        socket);
  }
  const char state = stopped_state(rotad.pid);
  const char* const what = state == 'T' ? "is stopped"
                           : state == 't'
                               ? "is stopped by a debugger"
                               : "does not answer, since it is frozen with its container or the machine is too busy";
  const std::string go_on = state == 'T' ? fmt::format("`kill -CONT {}` lets it go on, ", rotad.pid) : "";
  const bool own = geteuid() == 0 || geteuid() == rotad.uid;
  const std::string who = own              ? ""
                          : rotad.uid == 0 ? " (ask root)"
                                           : fmt::format(" (ask uid {}, whose it is, or root)", rotad.uid);
  return fmt::format("the rotad at {} (pid {}) {}: {}`kill -KILL {}` ends it, and `rota run` then starts another{}",
                     socket, rotad.pid, what, go_on, rotad.pid, who);
}

}  // namespace rota::protocol
