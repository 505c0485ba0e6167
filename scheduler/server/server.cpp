// Connections, clients and their pages. What status shows is in snapshot.cpp, listening and its locks in listen.cpp.
#include "scheduler/server/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/error.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <charconv>
#include <cstring>
#include <utility>

#include "scheduler/server/client.h"
#include "scheduler/server/decode.h"
#include "scheduler/server/gangs.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"
#include "scheduler/server/metrics_server.h"

namespace rota::server {

using namespace std::chrono_literals;
using protocol::Kind;
using protocol::Message;
using scheduler::ClientId;
namespace event = scheduler::event;

namespace {

// How long programs of an earlier rotad have to come back and report what they have before others are granted more of
// what is limited. They try after half a second and a second (later, if rotad was away for long), and a program that is
// asked to wait does so for five.
constexpr auto kComeBack = 3s;

// Messages that make rotad store more than before. The others change what it has stored.
bool needs_memory(Kind kind) {
  return kind == Kind::kHello || kind == Kind::kAddGpu || kind == Kind::kSession || kind == Kind::kStatus ||
         kind == Kind::kStay || kind == Kind::kGang || kind == Kind::kChoose || kind == Kind::kOpened;
}

}  // namespace

void Server::start() {
  log::info("serving {} in {} mode, quantum {}", options_.socket, scheduler::mode_name(core_.settings().mode),
            scheduler::quantum_text(scheduler::quantum_of(core_.settings())));
  // If a rotad before this one had programs on a GPU, they will come back.
  const bool had_programs = access(clients_note().c_str(), F_OK) == 0;
  if (had_programs) {
    others_come_back_until_ = now() + kComeBack;
    apply(limit::Hold{others_come_back_until_});
  }
  read_books(had_programs);
  accept();
  control_.start();
  housekeeping();
}

void Server::stop() {
  if (stopped_) return;
  stopped_ = true;
  metrics_.reset();
  if (!listener_inherited_ && is_at(options_.socket, socket_id_)) unlink(options_.socket.c_str());
  // Closed only when the process ends, which does not wait: connections that were not accepted may have sent
  // descriptors.
  const int listener = listener_.release();
  if (!listener_inherited_) shutdown(listener, SHUT_RDWR);
  control_.stop();
  housekeeping_.cancel();
  deadline_.cancel();
  wake_.cancel();
  gang_check_.cancel();
  late_reading_.cancel();
  forced_reading_.cancel();
  accept_again_.cancel();
  claims_due_.cancel();
  returning_.reset();
  for (Paced* pass :
       {&limits_pass_, &shares_pass_, &recipients_pass_, &contexts_pass_, &host_pass_, &rooms_pass_, &others_pass_}) {
    pass->cancel();
  }
  elsewhere_.clear();
  for (const auto& [number, connection] : connections_) connection->close();
  connections_.clear();
  clients_.clear();
  gangs_.clear();
  stayers_.clear();
}

void Server::on_message(Connection& connection, const Message& message) {
  if (needs_memory(message.kind) && !reserve_.is_whole()) {
    const char* const why = "rotad has no memory left: end some programs, or give it more";
    if (message.kind == Kind::kAddGpu) return connection.refuse(why);
    return hang_up(connection, why);
  }
  switch (message.kind) {
    case Kind::kHello:
      on_hello(connection, message);
      return;
    case Kind::kStatus:
      on_status(connection);
      return;
    case Kind::kStay:
      on_stay(connection);
      return;
    case Kind::kChoose:
      choose_gpus(connection, message.body.choose);
      return;
    case Kind::kAddGpu:
    case Kind::kWant:
    case Kind::kGiveBack:
    case Kind::kUsage:
    case Kind::kRoom:
    case Kind::kSession:
    case Kind::kGang:
    case Kind::kReserve:
    case Kind::kState:
    case Kind::kHandOver:
    case Kind::kAnnounce:
    case Kind::kIntroduce:
    case Kind::kAwaitRoom:
    case Kind::kOpened:
      break;
    default:
      return;  // from a newer peer: decode() lets no other through
  }
  const auto found = clients_.find(connection.client);
  if (connection.client == 0 || found == clients_.end()) {
    hang_up(connection, "a client's first message is hello");
    return;
  }
  Client& client = *found->second;
  heard(client);
  switch (message.kind) {
    case Kind::kAddGpu:
      on_add_gpu(connection, client, message.body.add_gpu);
      break;
    case Kind::kWant:
      read_usage(client);
      if (claims_.withdrawing()) break;  // it asks again
      on_want_message(client, message.body.want);
      break;
    case Kind::kGiveBack:
      read_usage(client);
      on_give_back(client, message.body.give_back);
      break;
    case Kind::kUsage:
      read_usage(client);
      if (client.gang != 0 || !changed_.empty()) publish_changes(modelled_now());
      break;
    case Kind::kGang:
      on_gang(client, message.body.gang);
      break;
    case Kind::kRoom:
      if (Task* const task = client.tasks.on(message.body.room.gpu)) {
        say_asked(*task, message.body.room.gpu, message.body.room.bytes);
      }
      break;
    case Kind::kSession:
    case Kind::kReserve:
    case Kind::kState:
      on_limits(client, message);
      break;
    case Kind::kAnnounce:
      announce(client, message.body.announce.number);
      break;
    case Kind::kIntroduce:
      introduce(connection, client, message.body.introduce);
      break;
    case Kind::kOpened:
      opened(client, message.body.opened);
      break;
    case Kind::kAwaitRoom:
      await_room(client, message.body.await_room);
      break;
    default:  // also kHandOver without a descriptor
      break;
  }
}

void Server::on_end(Connection& connection, const std::string& problem) {
  if (!problem.empty()) {
    hang_up(connection, problem);
    return;
  }
  const auto found = clients_.find(connection.client);
  if (found != clients_.end()) {
    Client& client = *found->second;
    const bool may_stay = client.process && !client.gpus().empty();
    if (may_stay && guarded("wait for a program", [&] { orphans_.insert(client.id); })) {
      // The process may be about to die (its descriptors close first), to come back, or to have exec'ed.
      client.connection = 0;
      client.orphaned_at = now();
    } else {
      remove_client(client.id, "its connection ended");
    }
  }
  drop_connection(connection);
}

void Server::hang_up(Connection& connection, const std::string& reason) {
  if (refusals_logged_++ < kMaxRefusalsLogged) {
    guarded("log a refusal",
            [&] { log::warn("pid {} (user {}): {}", connection.peer().pid, connection.peer().uid, reason); });
  }
  const auto keep = connection.shared_from_this();
  guarded("tell a program why", [&] { connection.refuse(reason); });
  guarded("remove a client", [&] {
    if (clients_.count(connection.client) != 0) remove_client(connection.client, "it was refused");
  });
  drop_connection(connection);
}

void Server::drop_connection(Connection& connection) {
  const auto found = connections_.find(connection.number());
  if (found == connections_.end()) return;
  const auto keep = found->second;
  connections_.erase(found);
  connection.close();
  idle_since_ = now();
}

void Server::on_hello(Connection& connection, const Message& message) {
  if (connection.client != 0) {
    hang_up(connection, "a client sends hello only once");
    return;
  }
  const protocol::Hello& hello = message.body.hello;
  // The client speaks all versions in between; decode() has made sure that this rotad speaks its oldest.
  connection.version =
      static_cast<std::uint16_t>(std::clamp<std::uint32_t>(hello.newest_version, message.version, protocol::kVersion));
  auto lease = make_lease_page();
  auto usage = make_usage_page();
  if (!lease || !usage) {
    hang_up(connection, lease ? usage.error().text : lease.error().text);
    return;
  }
  // The same process has connected again: what its closed connection held no longer counts.
  std::vector<ClientId> former;
  for (const ClientId id : orphans_) {
    const Client& other = *clients_.at(id);
    if (other.pid == connection.peer().pid && other.pid != 0) former.push_back(id);
  }
  for (const ClientId id : former) remove_client(id, "it reconnected");

  auto client = std::make_unique<Client>();
  client->id = ++last_number_;
  client->connection = connection.number();
  client->connected_at = now();
  client->pid = connection.peer().pid;
  client->uid = connection.peer().uid;
  client->in_own_container = is_in_own_container(connection.peer(), options_.trust);
  client->name = hello.name;
  client->says_it_returns = hello.returns != 0;
  client->lease = std::move(*lease);
  client->usage = std::move(*usage);
  client->domain = connection.domain();
  client->hands_over = client->domain.exchanges_memory();
  if (Descriptor& process = connection.peer().process) {
    client->process.emplace(io_, process.get());
    process.release();
  }

  // The client's page has the limits that apply to every GPU before it gets its welcome. Of a new account it is not
  // known yet what is left.
  if (apply(limit::Join{client->id, limits_.memberships(client->id, client->pid, client->uid, client->domain,
                                                        user_names_.of(client->uid))})
          .yes) {
    follow_host();
  } else {
    host_pass_.run();
  }
  publish_limits(*client);
  bound_host(*client);
  Message welcome{.kind = Kind::kWelcome};
  welcome.body.welcome = {.client = client->id,
                          .mode = core_.settings().mode,
                          .daemon_pid = static_cast<std::uint64_t>(getpid()),
                          .quantum_ns = static_cast<std::uint64_t>(scheduler::quantum_of(core_.settings()).count())};
  if (!connection.send_with(welcome, {client->lease.descriptor(), client->usage.descriptor()})) {
    carry_out(apply(limit::Leave{client->id, false}).outcome);
    drop_connection(connection);
    return;
  }
  client->lease.forget_descriptor();
  client->usage.forget_descriptor();
  const ClientId id = client->id;
  connection.client = id;
  clients_.emplace(id, std::move(client));
  clients_.at(id)->domain_number = take_number(*clients_.at(id));
  share_host();
  watch_process(id);
  log::debug("client {}: {} (pid {}, user {})", id, hello.name, connection.peer().pid, connection.peer().uid);
}

scheduler::DomainId Server::take_number(Client& client) {
  const std::string& payer = client.domain.payer();
  const scheduler::DomainId number = number_of_payer(payer, &client.numbered);
  if (client.numbered) ++domains_[payer].clients;
  return number;
}

// `numbered`: set if the payer has a number only in domains_.
scheduler::DomainId Server::number_of_payer(const std::string& payer, bool* numbered) {
  // Users keep their own numbers, so that people can read an event log; to the core 0 also means that nobody is known.
  std::uint32_t user = 0;
  const auto [end, error] = std::from_chars(payer.data(), payer.data() + payer.size(), user);
  if (error == std::errc{} && end == payer.data() + payer.size()) return user;
  constexpr scheduler::DomainId kAfterUsers = scheduler::DomainId{1} << 32;
  Domain& known = domains_[payer];
  if (known.number == 0) known.number = kAfterUsers + ++last_domain_;
  if (numbered != nullptr) *numbered = true;
  return known.number;
}

void Server::leave_number(const Client& client) {
  if (!client.numbered) return;
  const auto found = domains_.find(client.domain.payer());
  if (--found->second.clients == 0) domains_.erase(found);
}

void Server::watch_process(ClientId id) {
  auto& process = clients_.at(id)->process;
  if (!process) return;
  process->async_wait(asio::posix::stream_descriptor::wait_read, [this, id](std::error_code error) {
    if (error || clients_.count(id) == 0) return;
    const std::uint32_t number = clients_.at(id)->connection;
    clients_.at(id)->ended = true;
    guarded("remove a client", [&] { remove_client(id, "its process ended"); });
    // A child of it may still hold the socket.
    const auto connection = connections_.find(number);
    if (connection != connections_.end()) drop_connection(*connection->second);
  });
}

// The client is removed from what others see before anything is called that can fail.
void Server::remove_client(ClientId id, const char* why) {
  auto entry = clients_.extract(id);
  const Client& client = *entry.mapped();
  gone_.insert(std::move(entry));
  named_.erase(named_.lower_bound({id, {}}), named_.lower_bound({id + 1, {}}));
  announce(*gone_.at(id), {});
  forget_opened(client);
  orphans_.erase(id);
  leave_session(client.session);
  leave_number(client);
  if (!client.gpus().empty() && !place_lost_ &&
      std::ranges::all_of(clients_, [](const auto& other) { return other.second->gpus().empty(); })) {
    unlink(clients_note().c_str());
  }
  idle_since_ = now();
  report_left_out(client);
  log::debug("client {} ({}, pid {}) is gone: {}", id, client.name, client.pid, why);
  forget_client(id);
}

// May be called again.
void Server::forget_client(ClientId id) {
  Client& client = *gone_.at(id);
  untrack(client);
  end_tasks(client);
  carry_out(apply(limit::Leave{id, client.ended}).outcome);
  for (const std::uint32_t gpu : client.gpus()) {
    const std::string uuid = uuid_text(gpus_.at(gpu)->uuid);
    const auto same = by_process_.find(process_of(client, gpu));
    if (same != by_process_.end() && same->second.erase(id) != 0 && same->second.empty()) by_process_.erase(same);
    assumed_contexts_.set(id, client.domain.payer(), gpu, 0);
    client.tasks.forget(gpu);
    const bool released = gpus_.remove_client(gpu);
    publish_contexts(gpu);
    if (released) claim(claims_.released(uuid));
  }
  gone_.erase(id);
  claim(claims_.left(id));
  check_if_quiet();
}

Result<std::string> Server::carry(const ControlRequest& request) {
  if (std::holds_alternative<control::Stop>(request)) {
    // After the answer has been sent.
    asio::post(io_, [this] {
      stop();
      io_.stop();
    });
    return std::string("rotad is stopping; its programs continue");
  }
  if (std::holds_alternative<control::Reload>(request)) return reload();
  if (const auto* nvml = std::get_if<control::UseNvml>(&request)) return use_nvml(nvml->use);
  scheduler::Settings settings = core_.settings();
  if (const auto* mode = std::get_if<control::SetMode>(&request)) settings.mode = mode->mode;
  if (const auto* quantum = std::get_if<control::SetQuantum>(&request)) set_quantum(settings, quantum->quantum);
  if (const auto* grace = std::get_if<control::SetGrace>(&request)) settings.grace = grace->grace;
  step(event::Configure{settings});
  using Milliseconds = std::chrono::duration<double, std::milli>;
  return fmt::format("{} mode, quantum {}, grace {} ms", scheduler::mode_name(settings.mode),
                     scheduler::quantum_text(scheduler::quantum_of(settings)), Milliseconds(settings.grace).count());
}

void Server::stepped(const scheduler::Event& event, scheduler::Time time,
                     const std::vector<scheduler::Decision>& decisions) {
  event_log_.write(event, time, decisions);
}

void Server::decided(Program& program, const scheduler::Decision& decision) {
  using scheduler::Change;
  auto& client = static_cast<Client&>(program);
  if (decision.change == Change::kRevoked) report_revoked(client, decision);
  if (decision.change == Change::kPassedOver) report_passed_over(client, decision);
  if (decision.change == Change::kGranted) {
    log::debug("client {}, task {}: grant {}", client.id, decision.client, decision.grant);
  }
  if (decision.change == Change::kPromised) {
    log::debug("client {}: may have {} bytes on GPU {}", client.id, decision.bytes, gpus_.number(decision.gpu));
  }
  if (decision.change == Change::kClear) {
    log::debug("client {}: is to evict {} bytes of GPU {}", client.id, decision.bytes, gpus_.number(decision.gpu));
  }
}

void Server::publish_all(scheduler::Time time) {
  const Published before = std::exchange(
      published_, {core_.clearing_gpus(), core_.shared_gpus(), core_.sampling_gpus(), core_.metered_gpus(),
                   core_.movable_gpus(), core_.timed_gpus(), core_.alone_gpus(), core_.later_gpus()});
  const scheduler::GpuMask clearing = before.clearing ^ published_.clearing;
  const scheduler::GpuMask watched = (before.shared ^ published_.shared) | (before.sampling ^ published_.sampling) |
                                     (before.metered ^ published_.metered) | (before.timed ^ published_.timed) |
                                     (before.alone ^ published_.alone);
  if ((clearing | watched) != 0) {
    for (const auto& [id, client] : clients_) {
      const bool concerned = std::ranges::any_of(client->tasks, [&](const Task& task) {
        return ((state_of(task).held & clearing) | (task.gpus & watched)) != 0;
      });
      if (concerned) changed_.insert(id);
    }
  }
  if (before.movable != published_.movable || before.later != published_.later) contexts_pass_.run();
  if (claims_.withdrawing()) check_if_quiet();
  if (!changed_.empty()) tell_next(time);
  for (const ClientId id : changed_) {
    const auto found = clients_.find(id);
    if (found != clients_.end()) publish(*found->second);
  }
  changed_.clear();
  publish_recipients();
  schedule_deadline();
  schedule_gang_check();
}

scheduler::Time Server::now() const {
  return std::chrono::steady_clock::now().time_since_epoch();
}

scheduler::Time Server::modelled_now() const {
  return time_.modelled(now());
}

Program* Server::program(ClientId id) const {
  const auto client = clients_.find(id);
  return client == clients_.end() ? nullptr : client->second.get();
}

std::optional<scheduler::Time> Server::withdraw_by() const {
  if (!claims_.withdrawing()) return std::nullopt;
  return time_.modelled(claims_.withdraw_by());
}

scheduler::SessionId Server::session_of(const Program& program) const {
  const auto session = sessions_.find(static_cast<const Client&>(program).session);
  return session == sessions_.end() ? 0 : session->second.number;
}

void Server::remark(const std::string& text) {
  event_log_.remark(text, modelled_now());
}

void Server::coupled(scheduler::GpuMask gpus) {
  for (const scheduler::GpuIndex gpu : GpuSet(gpus)) publish_too_much(gpu);
}

}  // namespace rota::server
