// SO_PEERCRED, and a pidfd for the same process.
#include "scheduler/server/peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
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

}  // namespace rota::server
