// The holder's side of a GPU's lock name (protocol/lock_door.h): says who has the GPU, and is asked for it by the
// machine's rotad.
#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>
#include <memory>

#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/lock_door.h"
#include "scheduler/server/peer_socket.h"

namespace rota::server {

class LockDoor {
 public:
  // `name`: the listening socket. `holder`: what each visitor is told. `asked`: root, or a process of this one's user,
  // asks for the GPU.
  LockDoor(asio::io_context& io, Descriptor name, Workers& workers, std::function<protocol::DoorHolder()> holder,
           std::function<void(uid_t)> asked);
  // Visitors learn that the GPU is free: the lock itself has to be free by then.
  ~LockDoor();
  LockDoor(const LockDoor&) = delete;
  LockDoor& operator=(const LockDoor&) = delete;

  // Tells the visitors that have asked.
  void tell(const protocol::DoorYielded& yielded);

 private:
  struct Visitor {
    PeerSocket socket;
    uid_t uid;
    bool asks = false;
  };
  void accept();
  void accept_all();
  void take_in(Descriptor&& socket, uid_t uid);
  void listen_to(std::uint64_t number);
  void on_readable(std::uint64_t number);

  asio::io_context& io_;
  Workers& workers_;
  const std::function<protocol::DoorHolder()> holder_;
  const std::function<void(uid_t)> asked_;
  asio::posix::stream_descriptor listener_;
  std::map<std::uint64_t, std::unique_ptr<Visitor>> visitors_;
  std::uint64_t last_ = 0;
  // Handlers in the event loop when this is destroyed see that it was destroyed.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace rota::server
