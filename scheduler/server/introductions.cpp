// A client that has a handle of another one's memory is introduced to that one, if both are of one trust domain: each
// gets one end of a socket, and rotad keeps none.
#include <sys/socket.h>

#include <algorithm>

#include "scheduler/server/client.h"
#include "scheduler/server/log.h"
#include "scheduler/server/server.h"

namespace rota::server {

using protocol::Kind;
using protocol::Message;

// Zeros: the client has no number any more.
void Server::announce(Client& client, const protocol::ProcessNumber& number) {
  const auto [first, end] = announced_.equal_range(client.announced);
  const auto before = std::find_if(first, end, [&](const auto& each) { return each.second == client.id; });
  if (number != protocol::ProcessNumber{})
    announced_.emplace(number, client.id);  // first: there may be no memory for it
  if (before != end) announced_.erase(before);
  client.announced = number;
}

void Server::introduce(Connection& connection, Client& client, const protocol::Introduce& wanted) {
  Message answer{.kind = Kind::kIntroduced};
  answer.body.introduced = {.request = wanted.request, .padding = 0};
  const auto [first, end] = announced_.equal_range(wanted.number);
  const auto found = std::find_if(first, end, [&](const auto& each) {
    const Client& other = *clients_.at(each.second);
    return &other != &client && other.connection != 0 && other.domain == client.domain;
  });
  if (found == end) return tell(client, answer);
  Client& other = *clients_.at(found->second);
  const auto to = connections_.find(other.connection);
  int ends[2];
  const bool may = to != connections_.end() && to->second->may_be_sent_to() && connection.may_be_sent_to();
  if (!may || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return tell(client, answer);
  const Descriptor one(ends[0]);
  const Descriptor another(ends[1]);
  Message asked{.kind = Kind::kIntroduced};
  asked.body.introduced = {.request = 0, .padding = 0};
  if (!to->second->send_with(asked, {one.get()})) return tell(client, answer);
  publish(other);
  if (!connection.send_with(answer, {another.get()})) return tell(client, answer);
  publish(client);
  log::debug("client {} is introduced to client {}", client.id, other.id);
}

}  // namespace rota::server
