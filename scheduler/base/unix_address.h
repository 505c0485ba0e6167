// Unix sockets at paths of any length. An address (sockaddr_un) holds 107 bytes; TMPDIR, XDG_RUNTIME_DIR or a user's
// choice may be longer. Such a path is kept: the kernel is given a short path to the same place, /proc/self/fd/N, where
// N is a descriptor of the socket itself (to connect) or of its folder (to bind). So the path that people read, pass on
// and remove is the one that they chose. The peer of such a socket sees the short path as its name, which nothing here
// asks for. Where there is no /proc the answer is ENAMETOOLONG.
//
// C library calls only, without allocation or exceptions: also used inside other programs' processes.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace rota {

// False if the path does not fit.
inline bool short_address(const char* path, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = strlen(path);
  if (length >= sizeof address.sun_path) return false;
  memcpy(address.sun_path, path, length);
  return true;
}

inline bool has_proc() {
  return access("/proc/self/fd", X_OK) == 0;
}

// Returns 0 or an errno value. EINTR is not repeated: a connection that is being made would be lost.
inline int connect_at(int socket, const char* path) {
  sockaddr_un address;
  int way = -1;
  if (!short_address(path, address)) {
    way = open(path, O_PATH | O_CLOEXEC);
    if (way < 0) return errno;
    char text[sizeof address.sun_path];
    snprintf(text, sizeof text, "/proc/self/fd/%d", way);
    short_address(text, address);
  }
  int error = connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  if (way >= 0) {
    close(way);
    if (error == ENOENT && !has_proc()) error = ENAMETOOLONG;
  }
  return error;
}

// Binds a short name in the path's folder and renames it to the path, which replaces a file there. `path` is one that
// does not fit an address. Returns 0 or an errno value.
inline int bind_in_folder(int socket, const char* path) {
  const char* const slash = strrchr(path, '/');
  char folder[4096];
  const size_t length = slash == nullptr ? 0 : slash == path ? 1 : static_cast<size_t>(slash - path);
  if (length >= sizeof folder) return ENAMETOOLONG;
  memcpy(folder, length == 0 ? "." : path, length == 0 ? 1 : length);
  folder[length == 0 ? 1 : length] = '\0';
  const int way = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (way < 0) return errno;
  char name[32];
  snprintf(name, sizeof name, ".rota-%d-%d", static_cast<int>(getpid()), socket);
  char text[sizeof(sockaddr_un::sun_path)];
  snprintf(text, sizeof text, "/proc/self/fd/%d/%s", way, name);
  sockaddr_un address;
  short_address(text, address);
  unlinkat(way, name, 0);  // of a process that died in between
  int error = 0;
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    error = errno == ENOENT && !has_proc() ? ENAMETOOLONG : errno;
  } else if (renameat(way, name, AT_FDCWD, path) != 0) {
    error = errno;
    unlinkat(way, name, 0);
  }
  close(way);
  return error;
}

// Returns 0 or an errno value.
inline int bind_at(int socket, const char* path) {
  sockaddr_un address;
  if (!short_address(path, address)) return bind_in_folder(socket, path);
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

}  // namespace rota
