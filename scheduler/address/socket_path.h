// Where rotad listens, and how to connect to it: used by rotad, by the command line and by the shim inside other
// programs' processes, so it makes only C library calls, without allocation or exceptions.
//
// If the user has set ROTA_SOCKET, only it counts. Otherwise these are tried in order: /run/rota/rotad.sock (the
// machine's rotad), the place that `rota run` found (it sets ROTA_SOCKET, too, and ROTA_SOCKET_FOUND to the same path),
// $XDG_RUNTIME_DIR/rota/rotad.sock and /tmp/rota-$UID/rotad.sock (a user's own). So a program follows its rotad's GPUs
// when those go to the machine's rotad, and back. Anyone may create a folder in /tmp, so a user's folder counts only if
// it belongs to that user and nobody else can write to it. Any other is skipped and named in the result; otherwise
// anyone could keep a user from reaching a rotad.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "scheduler/base/unix_address.h"
#include "scheduler/protocol/types.h"

namespace rota::protocol {

inline constexpr const char* kSystemSocket = "/run/rota/rotad.sock";
inline constexpr const char* kSystemControlSocket = "/run/rota-control/control.sock";
inline constexpr size_t kMaxSocketCandidates = 4;
// How long a connection may take: it waits only if a rotad is stopped and its queue of connections is full.
inline constexpr int kConnectSeconds = 2;

enum class SocketOwner {
  kChosen,   // ROTA_SOCKET: the user said so, nothing is checked
  kMachine,  // /run/rota
  kUser,     // the user's own folder: owner and mode are checked
};

struct SocketCandidate {
  char path[kSocketPathLength];
  SocketOwner owner;
};

// Where the machine's rotad listens. ROTA_MACHINE_SOCKET names another place than /run/rota/rotad.sock (for tests, and
// where /run cannot be written to): for rotad and for programs alike.
inline const char* machine_socket() {
  const char* other = getenv("ROTA_MACHINE_SOCKET");
  return other != nullptr && *other == '/' && strlen(other) < kSocketPathLength ? other : kSystemSocket;
}

// Where the rotad that listens at `socket` accepts changes to its settings. The machine's rotad has a separate folder
// for this, so that passing /run/rota to a container does not pass on this access. Returns false if the path is too
// long for a socket.
inline bool control_path(const char* socket, char (&path)[kSocketPathLength]) {
  const int length = strcmp(socket, kSystemSocket) == 0 ? snprintf(path, sizeof path, "%s", kSystemControlSocket)
                                                        : snprintf(path, sizeof path, "%s.control", socket);
  return length > 0 && static_cast<size_t>(length) < sizeof path;
}

// Whether the user has chosen rotad's socket. The place that `rota run` found for its programs is no such choice.
inline bool socket_is_chosen() {
  const char* named = getenv("ROTA_SOCKET");
  const char* found = getenv("ROTA_SOCKET_FOUND");
  return named != nullptr && *named != '\0' && (found == nullptr || strcmp(named, found) != 0);
}

struct SocketCandidates {
  SocketCandidate list[kMaxSocketCandidates];
  size_t count;
  // ENAMETOOLONG if ROTA_SOCKET is longer than a path may be; the list is empty then.
  int error;
};

// Whether XDG_RUNTIME_DIR is that of another user: `su` without `-` keeps the variable. There is no place for this user
// there, which is nobody's fault and nothing to remove.
inline bool is_of_another_user(const char* runtime) {
  struct stat info;
  if (stat(runtime, &info) != 0) return false;
  return (info.st_uid != geteuid() && info.st_uid != 0) || (access(runtime, X_OK) != 0 && errno == EACCES);
}

inline void drop_last_if_double(SocketCandidates& found) {
  const char* last = found.list[found.count - 1].path;
  for (size_t i = 0; i + 1 < found.count; ++i) {
    if (strcmp(found.list[i].path, last) != 0) continue;
    --found.count;
    return;
  }
}

// The paths where a rotad may listen for this process, best first. Reads the environment.
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
  const char* named = getenv("ROTA_SOCKET");
  if (socket_is_chosen()) {
    if (!add(SocketOwner::kChosen, "%s", named)) found.error = ENAMETOOLONG;
    return found;
  }
  add(SocketOwner::kMachine, "%s", machine_socket());
  if (named != nullptr && *named == '/' && add(SocketOwner::kUser, "%s", named)) drop_last_if_double(found);
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/' && !is_of_another_user(runtime)) {
    if (add(SocketOwner::kUser, "%s/rota/rotad.sock", runtime)) drop_last_if_double(found);
  }
  if (add(SocketOwner::kUser, "/tmp/rota-%lu/rotad.sock", static_cast<unsigned long>(geteuid()))) {
    drop_last_if_double(found);
  }
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
// is not this user's own), -EPROTOTYPE (something else listens there), -ENAMETOOLONG, -ETIMEDOUT (after
// kConnectSeconds).
inline int connect_socket(const SocketCandidate& candidate) {
  if (candidate.owner == SocketOwner::kUser) {
    const int refused = check_private_folder(candidate.path);
    if (refused != 0) return -refused;
  }
  const int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return -errno;
  timeval patience{kConnectSeconds, 0};
  setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  int result;
  do {
    result = connect_at(descriptor, candidate.path);
  } while (result == EINTR);
  if (result == 0) {
    patience = {};  // later sends wait as long as necessary
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return descriptor;
  }
  const int error = result == EAGAIN ? ETIMEDOUT : result;
  close(descriptor);
  return -error;
}

// A place that was skipped because its folder is not this user's own.
struct SkippedPlace {
  char path[kSocketPathLength];  // of the socket
  int error;                     // a positive errno value, see check_private_folder
};

struct SocketSearch {
  int descriptor;             // connected, or -1
  SocketCandidate candidate;  // the place that answered, otherwise the one that `error` is about
  // 0, or a positive errno value: ENOENT, ENOTDIR or ECONNREFUSED (no rotad anywhere), EPERM (none, and there is no
  // place for one but those in `skipped`), or why `candidate` cannot be used.
  int error;
  SkippedPlace skipped[kMaxSocketCandidates];  // in the order they were looked at
  size_t skipped_count;
};

// Whether check_private_folder's result means that the place belongs to another user.
inline bool is_untrusted(int error) {
  return error == EPERM || error == EACCES || error == ELOOP;
}

// Where this user's own rotad would listen: the place that the user chose, otherwise the first whose folder belongs to
// the user or can be created. Null: all of them belong to other users.
inline const SocketCandidate* own_place(const SocketCandidates& candidates) {
  for (size_t i = 0; i < candidates.count; ++i) {
    const SocketCandidate& candidate = candidates.list[i];
    if (candidate.owner == SocketOwner::kChosen) return &candidate;
    if (candidate.owner != SocketOwner::kUser) continue;
    const int error = check_private_folder(candidate.path);
    if (error == 0) return &candidate;
    if (error != ENOENT) continue;
    // XDG_RUNTIME_DIR may name a folder that does not exist (su, containers).
    char above[kSocketPathLength];
    memcpy(above, candidate.path, sizeof above);
    for (int parts = 0; parts < 2; ++parts) {
      if (char* end = strrchr(above, '/'); end != nullptr) *end = '\0';
    }
    if (access(*above == '\0' ? "/" : above, W_OK | X_OK) == 0) return &candidate;
  }
  return nullptr;
}

// Connects to the first rotad that answers. Skips another user's folder in place of the user's own. A rotad that
// refuses access ends the search: its administrator did not mean this user to use another one.
inline SocketSearch search_rotad(const SocketCandidates& candidates) {
  SocketSearch search{};
  search.descriptor = -1;
  search.error = candidates.count == 0 && candidates.error != 0 ? candidates.error : ENOENT;
  bool all_skipped = candidates.count != 0;
  for (size_t i = 0; i < candidates.count; ++i) {
    const SocketCandidate& candidate = candidates.list[i];
    if (candidate.owner == SocketOwner::kUser) {
      const int refused = check_private_folder(candidate.path);
      if (is_untrusted(refused)) {
        SkippedPlace& skipped = search.skipped[search.skipped_count++];
        memcpy(skipped.path, candidate.path, sizeof skipped.path);
        skipped.error = refused;
        continue;
      }
    }
    all_skipped = false;
    const int result = connect_socket(candidate);
    search.candidate = candidate;
    if (result >= 0) {
      search.descriptor = result;
      search.error = 0;
      return search;
    }
    search.error = -result;
    if (result != -ENOENT && result != -ECONNREFUSED && result != -ENOTDIR) return search;
  }
  if (all_skipped) {
    search.candidate = candidates.list[candidates.count - 1];
    search.error = EPERM;
  }
  return search;
}

// The same, for the places that this process's environment names.
inline SocketSearch find_rotad() {
  return search_rotad(socket_candidates());
}

// Whether a search's error simply means that there is no rotad.
inline bool nobody_there(int error) {
  return error == ENOENT || error == ECONNREFUSED || error == ENOTDIR;
}

}  // namespace rota::protocol
