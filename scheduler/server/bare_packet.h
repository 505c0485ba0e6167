// Packets from peers that nobody trusts. A packet may come with descriptors. A thread that takes it out of the queue
// without them, or closes the socket with the packet in its queue, drops them, and the kernel closes a file in the
// thread that drops its last descriptor. That may take as long as the peer likes: a socket with SO_LINGER, FUSE, NFS, a
// tape, a socket whose own queue holds such a file. So the event loop takes only packets that come without descriptors,
// and closes only sockets whose queue is empty; the others are for a worker process (workers.h).
//
// This examines a packet before it takes it. MSG_PEEK without space for control messages shows by MSG_CTRUNC whether
// there are any. The packet keeps its descriptors meanwhile, so none is dropped.
#pragma once

#include <cstddef>

namespace rota::server {

struct BarePacket {
  enum class Kind {
    kNone,             // not yet
    kEnd,              // the peer has closed the socket, or the socket failed
    kPacket,           // taken from the queue
    kWithDescriptors,  // still in the queue
  };
  Kind kind;
  std::size_t length = 0;  // of the packet, even if only a part of it fits
};

// Does not wait. No other thread may read from this socket meanwhile.
BarePacket read_bare(int socket, void* bytes, std::size_t size);

// Ends the connection in both directions and takes out what is left unread. False: there is a packet with descriptors
// (or more packets than a peer needs), so the socket must not be closed here.
bool end_and_empty(int socket);

}  // namespace rota::server
