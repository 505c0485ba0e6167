// The process at the other end of a socket, according to the kernel, and when it dies.
#pragma once

#include <sys/types.h>

#include "scheduler/base/descriptor.h"

namespace rota::server {

struct Peer {
  pid_t pid = 0;  // 0: in a pid namespace that this daemon cannot see into
  uid_t uid = 0;
  gid_t gid = 0;
  // Becomes readable when the process is dead; empty if that is not available (then the end of the socket is used).
  Descriptor process;
};

// The process that connected, even if a child of it now also holds the socket.
Peer identify_peer(int socket);

// Whether it was a member of the group when it connected, if only by a supplementary group.
bool is_member(int socket, const Peer& peer, gid_t group);

}  // namespace rota::server
