// SO_PEERCRED, and a pidfd for the same process.
#include "scheduler/server/peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif
#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59  // Linux 4.13
#endif

namespace rota::server {

Peer identify_peer(int socket) {
  Peer peer;
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.gid = credentials.gid;
  int process = -1;
  size = sizeof process;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &process, &size) == 0 && process >= 0) {
    peer.process = Descriptor(process);
  } else if (peer.pid > 0) {
    // An older kernel: by number. The pid can belong to another process only if the one that connected is dead. Then
    // its end of the socket is closed, unless a child holds it, which a client's child must not.
    peer.process = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  }
  return peer;
}

bool is_member(int socket, const Peer& peer, gid_t group) {
  if (peer.gid == group) return true;
  constexpr std::size_t kMostGroups = 65536;  // Linux's NGROUPS_MAX
  std::vector<gid_t> groups(64);
  socklen_t size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  int failed = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size);
  if (failed != 0 && errno == ERANGE) {
    groups.resize(std::min(kMostGroups, size / sizeof(gid_t)));
    size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    failed = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size);
  }
  if (failed != 0) return false;
  groups.resize(std::min(groups.size(), size / sizeof(gid_t)));
  return std::ranges::find(groups, group) != groups.end();
}

}  // namespace rota::server
