// The other side of a GPU's lock name (protocol/lock_door.h): a connection to the rotad that has a GPU which this one's
// clients want. It ends when that rotad lets the GPU go.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "scheduler/protocol/lock_door.h"
#include "scheduler/server/peer_socket.h"

namespace rota::server {

class HolderLink {
 public:
  struct Heard {
    std::function<void()> holder;  // it has said who it is
    std::function<void(const protocol::DoorYielded&)> yielded;
    std::function<void()> gone;  // may destroy the link
  };
  // Null: no rotad that can be reached from here listens at the name of the lock `path`.
  static std::unique_ptr<HolderLink> connect(asio::io_context& io, const std::string& path, Workers& workers,
                                             Heard heard);
  HolderLink(asio::io_context& io, Descriptor socket, const ucred& peer, Workers& workers, Heard heard);
  ~HolderLink() { *alive_ = false; }
  HolderLink(const HolderLink&) = delete;
  HolderLink& operator=(const HolderLink&) = delete;

  pid_t pid() const { return pid_; }  // by the kernel; 0: not known here
  uid_t uid() const { return uid_; }
  // What that rotad has said of itself; nothing: it has said nothing so far, or is of an older release.
  const std::optional<protocol::DoorHolder>& holder() const { return holder_; }
  void ask();

 private:
  void read();
  void on_readable();

  PeerSocket socket_;
  Heard heard_;
  pid_t pid_;
  uid_t uid_;
  std::optional<protocol::DoorHolder> holder_;
  bool asked_ = false;  // and not answered
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace rota::server
