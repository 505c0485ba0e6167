// Who is at the other end of a socket, as the kernel says it, and when that process dies.
#pragma once

#include <sys/types.h>

#include "scheduler/protocol/descriptor.h"

namespace rota::server {

struct Peer {
  pid_t pid = 0;  // 0: in a pid namespace that this daemon cannot see into
  uid_t uid = 0;
  // Becomes readable when the process is dead; empty if there is no telling (then the socket's end has to do).
  Descriptor process;
};

// The process that connected, even if a child of it now holds the socket too.
Peer identify_peer(int socket);

}  // namespace rota::server
