// A client that has a handle of another one's memory is introduced to that one, if both are of one trust domain: each
// gets one end of a socket, and rotad keeps none. As long as one has memory of the other open, both are of one gang
// (gang_membership.cpp).
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
  const protocol::ProcessNumber former = std::exchange(client.announced, number);
  if (former == number) return;
  for (auto each = openers_.lower_bound({former, 0}); each != openers_.end() && each->first == former; ++each) {
    const auto opener = clients_.find(each->second);
    if (opener == clients_.end()) continue;
    const auto open = opener->second->opened.find(former);
    if (open == opener->second->opened.end() || open->second != client.id) continue;
    open->second = 0;
    if (clients_.contains(client.id)) unlink_programs(*opener->second, client);  // otherwise leave_gang() does it
  }
  for (auto each = openers_.lower_bound({number, 0}); each != openers_.end() && each->first == number; ++each) {
    const auto opener = clients_.find(each->second);
    if (opener == clients_.end() || announcer(number, *opener->second) != &client) continue;
    const auto open = opener->second->opened.find(number);
    if (open == opener->second->opened.end() || open->second != 0) continue;
    open->second = client.id;
    link_programs(*opener->second, client);
  }
}

// Null: no client that this one may be introduced to has announced the number.
Server::Client* Server::announcer(const protocol::ProcessNumber& number, const Client& asks) const {
  const auto [first, end] = announced_.equal_range(number);
  const auto found = std::find_if(first, end, [&](const auto& each) {
    const Client& other = *clients_.at(each.second);
    return &other != &asks && other.connection != 0 && other.domain == asks.domain;
  });
  return found == end ? nullptr : clients_.at(found->second).get();
}

// What it says of clients that have not come yet is kept with the client, whose end ends it: after a restart of rotad
// the one that has opened memory may come first.
void Server::opened(Client& client, const protocol::Opened& said) {
  const auto known = client.opened.find(said.number);
  if (said.open == 0) {
    if (known == client.opened.end()) return;
    const auto other = clients_.find(known->second);
    client.opened.erase(known);
    openers_.erase({said.number, client.id});
    if (other == clients_.end()) return;
    const auto of = [](const Client& one, const Client& another) {
      return std::ranges::any_of(one.opened, [&](const auto& open) { return open.second == another.id; });
    };
    if (!of(client, *other->second) && !of(*other->second, client)) unlink_programs(client, *other->second);
    return;
  }
  if (known != client.opened.end() || client.opened.size() >= protocol::kMostOpened) return;
  Client* const other = announcer(said.number, client);
  client.opened.emplace(said.number, other == nullptr ? 0 : other->id);
  openers_.emplace(said.number, client.id);
  if (other != nullptr) link_programs(client, *other);
}

// For a client that has ended.
void Server::forget_opened(const Client& client) {
  for (const auto& [number, other] : client.opened) openers_.erase({number, client.id});
}

void Server::introduce(Connection& connection, Client& client, const protocol::Introduce& wanted) {
  Message answer{.kind = Kind::kIntroduced};
  answer.body.introduced = {.request = wanted.request, .padding = 0};
  Client* const found = announcer(wanted.number, client);
  if (found == nullptr) return tell(client, answer);
  Client& other = *found;
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
