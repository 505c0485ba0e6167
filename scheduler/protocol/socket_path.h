// Where rotad listens, and how one connects there: used by rotad, by the command line and by the shim inside other
// people's processes, hence C library calls only, no allocation and no exceptions.
//
// ROTA_SOCKET alone counts where it is set. Otherwise these are tried in order: /run/rota/rotad.sock (the machine's
// rotad), $XDG_RUNTIME_DIR/rota/rotad.sock and /tmp/rota-$UID/rotad.sock (a user's own). Anybody may create a folder in
// /tmp, so a user's own folder counts only if it belongs to that user and nobody else can write to it.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace rota::protocol {

inline constexpr const char* kSystemSocket = "/run/rota/rotad.sock";
inline constexpr size_t kSocketPathLength = sizeof(sockaddr_un::sun_path);  // bytes, NUL included
inline constexpr size_t kMaxSocketCandidates = 3;

enum class SocketOwner {
  kChosen,   // ROTA_SOCKET: the user said so, nothing is checked
  kMachine,  // /run/rota
  kUser,     // the user's own folder: owner and mode are checked
};

struct SocketCandidate {
  char path[kSocketPathLength];
  SocketOwner owner;
};

struct SocketCandidates {
  SocketCandidate list[kMaxSocketCandidates];
  size_t count;
  // ENAMETOOLONG if ROTA_SOCKET does not fit a Unix socket's address (107 bytes); the list is empty then.
  int error;
};

// The places where a rotad may listen for this process, best first. Reads the environment.
inline SocketCandidates socket_candidates() {
  SocketCandidates found{};
  const auto add = [&found](SocketOwner owner, const char* format, auto... parts) {
    SocketCandidate& next = found.list[found.count];
    const int length = snprintf(next.path, sizeof next.path, format, parts...);
    if (length < 0 || static_cast<size_t>(length) >= sizeof next.path) return false;
    next.owner = owner;
    ++found.count;
    return true;
  };
  const char* chosen = getenv("ROTA_SOCKET");
  if (chosen != nullptr && *chosen != '\0') {
    if (!add(SocketOwner::kChosen, "%s", chosen)) found.error = ENAMETOOLONG;
    return found;
  }
  add(SocketOwner::kMachine, "%s", kSystemSocket);
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') add(SocketOwner::kUser, "%s/rota/rotad.sock", runtime);
  add(SocketOwner::kUser, "/tmp/rota-%lu/rotad.sock", static_cast<unsigned long>(geteuid()));
  return found;
}

// Whether the folder of `path` belongs to this user (or root) and nobody else can write there.
// Returns 0, or an errno value: ENOENT/ENOTDIR (no such folder), EPERM (somebody else's, a link, or open to others).
inline int check_private_folder(const char* path) {
  char folder[kSocketPathLength];
  const char* end = strrchr(path, '/');
  if (end == nullptr || end == path || static_cast<size_t>(end - path) >= sizeof folder) return EPERM;
  memcpy(folder, path, static_cast<size_t>(end - path));
  folder[end - path] = '\0';
  struct stat info;
  if (lstat(folder, &info) != 0) return errno;
  if (!S_ISDIR(info.st_mode)) return S_ISLNK(info.st_mode) ? EPERM : ENOTDIR;
  if (info.st_uid != geteuid() && info.st_uid != 0) return EPERM;
  return (info.st_mode & (S_IWGRP | S_IWOTH)) != 0 ? EPERM : 0;
}

// Connects to one candidate. Returns a descriptor (blocking, close-on-exec), or a negative errno value: -ENOENT or
// -ECONNREFUSED (no rotad there), -EACCES (a rotad may be there, but this user may not talk to it), -EPERM (the folder
// is not this user's own), -EPROTOTYPE (something else listens there), -ENAMETOOLONG.
inline int connect_socket(const SocketCandidate& candidate) {
  if (candidate.owner == SocketOwner::kUser) {
    const int refused = check_private_folder(candidate.path);
    if (refused != 0) return -refused;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = strlen(candidate.path);
  if (length >= sizeof address.sun_path) return -ENAMETOOLONG;
  memcpy(address.sun_path, candidate.path, length);
  const int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return -errno;
  int result;
  do {
    result = connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return descriptor;
  const int error = errno;
  close(descriptor);
  return -error;
}

struct SocketSearch {
  int descriptor;             // connected, or -1
  SocketCandidate candidate;  // the place that answered, else the one that `error` is about
  // 0, or a positive errno value: ENOENT, ENOTDIR or ECONNREFUSED (no rotad anywhere), or why `candidate` cannot be
  // used.
  int error;
};

// Connects to the first rotad that answers. A place that may not be opened ends the search: whoever set up that rotad
// meant this user to use no other one.
inline SocketSearch find_rotad() {
  SocketSearch search{-1, {}, ENOENT};
  const SocketCandidates candidates = socket_candidates();
  if (candidates.count == 0) search.error = candidates.error;
  for (size_t i = 0; i < candidates.count; ++i) {
    const int result = connect_socket(candidates.list[i]);
    search.candidate = candidates.list[i];
    if (result >= 0) {
      search.descriptor = result;
      search.error = 0;
      return search;
    }
    search.error = -result;
    if (result != -ENOENT && result != -ECONNREFUSED && result != -ENOTDIR) return search;
  }
  return search;
}

}  // namespace rota::protocol
