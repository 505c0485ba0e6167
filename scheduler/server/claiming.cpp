// Carries out what core/claims.h decides about GPUs that other rotads have, and about ours that the machine's rotad
// asks for.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <asio/post.hpp>
#include <utility>

#include "scheduler/address/socket_path.h"
#include "scheduler/base/unix_address.h"
#include "scheduler/server/client.h"
#include "scheduler/server/decode.h"
#include "scheduler/server/gangs.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"

namespace rota::server {

using namespace std::chrono_literals;
using protocol::Kind;
using protocol::Message;
using scheduler::Claims;
using scheduler::ClientId;
namespace event = scheduler::event;

namespace {

// How long the rotad that has a GPU may take to say where it listens: it answers from its event loop. Until then only
// its process and user are known.
constexpr auto kSaysWhoItIs = 250ms;
// Between two attempts to take a lock whose holder cannot be connected to (it is in another network namespace, or is
// just ending): doubled each time.
constexpr auto kFirstRetry = 10ms;
constexpr auto kLastRetry = 1000ms;
constexpr auto kBetweenChecks = 1000ms;
// A driver may be loaded after rotad has been started. Without one, each attempt may have the kernel look for it.
constexpr auto kBetweenGpuSearches = 10s;
// How long programs of a rotad that has given up a GPU may take to come from there with their memory, and how often
// requests that do not fit until then are tried again. Judgments.
constexpr auto kMoversCome = 10s;
constexpr auto kBetweenTries = 200ms;

// Cuts a text that is too long, and marks the cut.
std::string at_most(const std::string& text, std::size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 3) + "...";
}

// Whether programs of this rotad's user can connect to the machine's rotad.
bool machine_can_be_reached() {
  const Descriptor probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe && connect_at(probe.get(), protocol::machine_socket()) == 0;
}

}  // namespace

void Server::on_add_gpu(Connection& connection, Client& client, const protocol::AddGpu& gpu) {
  std::string impossible = why_no_gpu(gpu);
  const auto waiting = std::distance(named_.lower_bound({client.id, {}}), named_.lower_bound({client.id + 1, {}}));
  if (impossible.empty() && static_cast<std::size_t>(waiting) >= protocol::kMaxGpus) {
    impossible = fmt::format("a program may name {} GPUs at most", protocol::kMaxGpus);
  }
  if (!impossible.empty()) {
    if (refusals_logged_++ < kMaxRefusalsLogged) log::warn("client {} ({}): {}", client.id, client.name, impossible);
    connection.refuse(impossible);
    return;
  }
  const std::string uuid = uuid_text(gpu.uuid);
  named_[{client.id, uuid}] = gpu;
  chosen_came(client, gpu.uuid);
  claim(claims_.named(client.id, client.pid, uuid, now()));
}

// The lock of the GPU is this rotad's. A client that was refused before takes turns from now on.
void Server::serve_gpu(Client& client, const protocol::AddGpu& named) {
  const protocol::AddGpu gpu = named;
  named_.erase({client.id, uuid_text(gpu.uuid)});
  const std::uint32_t index = gpus_.add_client(gpu);
  if (!client.gpus().contains(index)) {
    if (nvml_released_) guarded("use NVML again", [this] { use_nvml(true); });
    begin_task(client, index, last_grant_of(client, index));
    note_clients();
    by_process_[process_of(client, index)].insert(client.id);
    client.measured.erase(index);
    if (gpus_.says(index, client.domain.payer(), gpu.total_bytes, is_trusted(client))) {
      log::warn("client {} ({}, pid {}, user {}) says that GPU {} has {} bytes, and others or NVML say {}: that counts",
                client.id, client.name, client.pid, client.uid, gpus_.number(index), gpu.total_bytes,
                gpus_.bytes(index));
    }
    follow_size(index);
    const std::uint64_t total = gpus_.bytes(index);
    const scheduler::Bytes context = believed_context(client, index, gpu.context_bytes);
    if (!is_trusted(client)) assumed_contexts_.set(client.id, client.domain.payer(), index, context);
    say_gpu(client, index, total, context);
    tell_returned(client, index);
    apply(limit::AddGpu{client.id, index, context_bytes(client, index), is_measurable(client, index)});
    publish_limits(client);
    publish_contexts_of(client, scheduler::bit(index));
    publish_contexts(index);
    guarded("count what a program does", [&] { track(client, index); });
  } else {
    gpus_.remove_client(index);  // named again, to be measured: counted once
  }
  Message added{.kind = Kind::kGpuAdded};
  added.body.gpu_added = {.uuid = gpu.uuid, .index = index, .number = gpus_.number(index)};
  if (!has_said_what_it_brings(client, index) || !answers_when_read(client, index, added)) tell(client, added);
}

// Leaves a note for a later rotad, however this one ends. If the file cannot be created, the later one does not wait.
void Server::note_clients() const {
  const Descriptor note(::open(clients_note().c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
}

// What a client is told. Fits into a message's text.
std::string Server::elsewhere_text(const Elsewhere& elsewhere) {
  if (!elsewhere.problem.empty()) return elsewhere.problem;
  const HolderLink* link = elsewhere.link.get();
  if (link == nullptr || link->pid() == 0) {
    return fmt::format(
        "{} has it, perhaps in a container: only one rotad of the machine, root's `rotad --socket {}`, mounted there, "
        "serves all",
        at_most(elsewhere.owner, 60), protocol::kSystemSocket);
  }
  const bool says = link->holder() && link->holder()->socket[0] != '\0';
  std::string who = fmt::format("rotad pid {} of {}", link->pid(), at_most(user_names_.of(link->uid()), 32));
  std::string where = says ? fmt::format(" ({})", at_most(link->holder()->socket, 57)) : "";
  if (says && link->holder()->machine != 0 && link->uid() == 0) {
    return who + where + ", the machine's, has it: unset ROTA_SOCKET; in a container, mount that folder";
  }
  if (is_machine()) return who + where + " has it and has not given it up yet: end that rotad";
  const std::string helps =
      link->uid() == geteuid()
          ? (says ? " has it: set ROTA_SOCKET to that, or end that rotad" : " has it: use that one, or end it")
          : fmt::format(" has it; one for all users helps, which root starts: ask for `rotad --socket {}`",
                        protocol::kSystemSocket);
  if (who.size() + where.size() + helps.size() >= protocol::kTextLength) where.clear();
  return who + where + helps;
}

void Server::claim(Claims::Actions actions) {
  due_claims_.insert(due_claims_.end(), std::make_move_iterator(actions.begin()),
                     std::make_move_iterator(actions.end()));
  if (claiming_) return;  // the caller above takes them
  {
    // Also reset if one of the actions throws: the others are carried out with the next.
    const struct Claiming {
      explicit Claiming(bool& set) : claiming(set) { claiming = true; }
      ~Claiming() { claiming = false; }
      bool& claiming;
    } claiming(claiming_);
    while (!due_claims_.empty()) {
      const Claims::Action action = std::move(due_claims_.front());
      due_claims_.pop_front();
      carry_out(action);
    }
  }
  std::erase_if(elsewhere_, [&](const auto& entry) { return !claims_.waits_for(entry.first); });
  schedule_claims();
}

void Server::carry_out(const Claims::Action& action) {
  const auto named = named_.find({action.client, action.gpu});
  const auto client = clients_.find(action.client);
  switch (action.act) {
    case Claims::Act::kTry:
      return try_lock(action.gpu);
    case Claims::Act::kAsk:
      if (const auto at = elsewhere_.find(action.gpu); at != elsewhere_.end() && at->second.link) {
        log::info("asking rotad pid {} for {}", at->second.link->pid(), action.gpu);
        at->second.link->ask();
      }
      return;
    case Claims::Act::kServe:
      if (client == clients_.end() || named == named_.end()) return;
      return serve_gpu(*client->second, named->second);
    case Claims::Act::kRefuse:
      if (client == clients_.end()) return;
      return refuse_gpu(*client->second, action.gpu);
    case Claims::Act::kSendAway:
      if (client == clients_.end()) return;
      log::info("client {} ({}, pid {}) goes to the machine's rotad", action.client, client->second->name,
                client->second->pid);
      return send_away(*client->second);
    case Claims::Act::kDrop:
      if (const auto uuid = parse_uuid(action.gpu)) {
        gpus_.drop(*uuid);
        if (!gpus_.has(*uuid)) claim(claims_.released(action.gpu));
      }
      return;
    case Claims::Act::kWithdraw:
      return withdraw();
    case Claims::Act::kOverdue:
      return take_back();
    case Claims::Act::kLetGo:
      return let_go();
  }
}

// In whose budget the GPU counts: the first client's that waits for it.
std::string Server::first_to_name(const std::string& gpu) const {
  for (const auto& [who, unused] : named_) {
    const auto client = clients_.find(who.first);
    if (who.second == gpu && client != clients_.end()) return client->second->domain.payer();
  }
  return std::to_string(geteuid());
}

void Server::try_lock(const std::string& gpu) {
  const auto uuid = parse_uuid(gpu);
  if (!uuid) return;
  Elsewhere& there = elsewhere_[gpu];
  const auto taken = gpus_.take(*uuid, first_to_name(gpu));
  if (taken && !*taken) {
    elsewhere_.erase(gpu);
    return claim(claims_.taken(gpu, now()));
  }
  there.problem = taken ? "" : taken.error().text;
  there.owner = taken ? (*taken)->owner : "";
  there.answered = false;
  // Later, and not within the link's own handlers: they may destroy it.
  const auto later = [this](auto action) {
    asio::post(io_, [this, action = std::move(action)] {
      if (!stopped_) action();
    });
  };
  const auto heard = [this, gpu, later] {
    later([this, gpu] {
      const auto found = elsewhere_.find(gpu);
      if (found != elsewhere_.end() && !std::exchange(found->second.answered, true)) say_holder(gpu);
    });
  };
  // A rotad that says who it is only later is asked then.
  const auto says = [this, gpu, later] {
    later([this, gpu] {
      const auto found = elsewhere_.find(gpu);
      if (found == elsewhere_.end()) return;
      found->second.answered = true;
      say_holder(gpu);
    });
  };
  if (taken) {
    there.link = HolderLink::connect(
        io_, gpus_.lock_of(*uuid), workers_,
        {.holder = says,
         .yielded = [this, gpu, later](const auto& said) { later([this, gpu, said] { on_yielded(gpu, said); }); },
         .gone = [this, gpu, later] { later([this, gpu] { claim(claims_.gone(gpu)); }); }});
  } else {
    there.link = nullptr;
  }
  if (there.link) {
    there.retry = kFirstRetry;
    there.timer = std::make_unique<asio::steady_timer>(io_, kSaysWhoItIs);
    there.timer->async_wait([heard](std::error_code error) {
      if (!error) heard();
    });
    return;
  }
  // That rotad may just be ending. It will then have ended by the next attempt or the one after, before any client is
  // told.
  if (there.retry >= 8 * kFirstRetry || !there.problem.empty()) heard();
  there.timer = std::make_unique<asio::steady_timer>(io_, there.retry);
  there.retry = std::min<std::chrono::milliseconds>(there.retry * 2, kLastRetry);
  there.timer->async_wait([this, gpu](std::error_code error) {
    if (error || stopped_ || !elsewhere_.contains(gpu)) return;
    claim(claims_.again(gpu));
  });
}

void Server::say_holder(const std::string& gpu) {
  const Elsewhere& there = elsewhere_.at(gpu);
  const bool says = there.link && there.link->holder();
  const bool machine = says && there.link->holder()->machine != 0 && there.link->uid() == 0;
  const bool former = says && there.link->uid() == geteuid() && there.link->holder()->socket == options_.socket;
  claim(
      claims_.held_by(gpu, {.machine = machine && machine_can_be_reached(), .answers = says, .former = former}, now()));
}

void Server::on_yielded(const std::string& gpu, const protocol::DoorYielded& yielded) {
  std::vector<std::string> others;
  for (std::uint32_t i = 0; i < yielded.gpu_count; ++i) others.push_back(uuid_text(yielded.gpus[i]));
  const std::vector<std::int32_t> movers(yielded.movers, yielded.movers + yielded.mover_count);
  if (!movers.empty()) {
    movers_come_until_[gpu] = now() + kMoversCome;
    for (const std::string& each : others) movers_come_until_[each] = now() + kMoversCome;
  }
  claim(claims_.given(gpu, others, movers, now()));
}

bool Server::movers_may_come(std::uint32_t gpu) const {
  const GpuEntry* const entry = gpus_.at(gpu);
  const auto until = entry != nullptr ? movers_come_until_.find(uuid_text(entry->uuid)) : movers_come_until_.end();
  return until != movers_come_until_.end() && now() < until->second;
}

// The programs of the rotad that had the GPU are no clients yet, or none that could be asked to evict.
void Server::try_again_soon(Client& client, const protocol::AwaitRoom& wanted) {
  const auto timer = std::make_shared<asio::steady_timer>(io_, kBetweenTries);
  timer->async_wait([this, timer, id = client.id, gpu = wanted.gpu, number = wanted.number](std::error_code error) {
    const auto found = clients_.find(id);
    if (error || stopped_ || found == clients_.end()) return;
    Message again{.kind = Kind::kTryAgain};
    again.body.try_again = {.gpu = gpu, .number = number, .answer = protocol::TryAgain::Answer::kAgain, .padding = 0};
    guarded("let a program try again", [&] { tell(*found->second, again); });
  });
}

void Server::refuse_gpu(Client& client, const std::string& gpu) {
  const auto connection = connections_.find(client.connection);
  if (connection == connections_.end()) return;
  const auto there = elsewhere_.find(gpu);
  const std::string why = there != elsewhere_.end() ? elsewhere_text(there->second) : "another rotad has it";
  if (refusals_logged_++ < kMaxRefusalsLogged) log::warn("client {} ({}): {}: {}", client.id, client.name, gpu, why);
  connection->second->refuse(why);
  publish(client);  // wakes it
}

// The program searches for a rotad again, and finds the machine's first.
void Server::send_away(Client& client) {
  const std::uint32_t number = client.connection;
  remove_client(client.id, "another rotad serves it");
  const auto connection = connections_.find(number);
  if (connection != connections_.end()) drop_connection(*connection->second);
}

// ---- the machine's rotad asks, or the one that programs find in this one's place

void Server::on_asked(uid_t uid) {
  if (stopped_) return;
  keep_place();  // if another rotad has the place, all GPUs are given up
  if (uid == 0) claim(claims_.asked(now()));
}

void Server::withdraw() {
  log::info("giving up all GPUs: {}",
            place_lost_ ? "another rotad has this one's place" : "the machine's rotad asks for them");
  for (const auto& [id, client] : clients_) {
    for (const Task& task : client->tasks) {
      if (state_of(task).wanted != 0) step(event::Want{task.id, 0, false, false, false});
    }
  }
  for (const auto& [number, gang] : gangs_) gangs_due_.insert(number);
  check_gangs();
  schedule_gang_check();
  for (const auto& [id, client] : clients_) publish(*client);
  check_if_quiet();
}

// After each step: checks whether the last holder has given back.
void Server::check_if_quiet() {
  if (!claims_.withdrawing() || letting_go_) return;
  const bool held = std::ranges::any_of(clients_, [&](const auto& entry) {
    return std::ranges::any_of(entry.second->tasks, [&](const Task& task) { return holds(task) && !task.overdue; });
  });
  if (held) return;
  letting_go_ = true;  // posted, since a client's message may be in progress
  asio::post(io_, [this] {
    if (!stopped_) claim(claims_.quiet());
  });
}

// The clients' pages say so before their connections end: a program that only loses its rotad would run on.
void Server::take_back() {
  for (const auto& [id, client] : clients_) {
    bool any = false;
    for (Task& task : client->tasks) any |= task.overdue = holds(task);
    if (!any) continue;
    log::warn("client {} ({}, pid {}) did not give its GPU back: others run at the same time", id, client->name,
              client->pid);
    publish(*client);
  }
  check_if_quiet();
}

void Server::let_go() {
  protocol::DoorYielded yielded{};
  for (std::uint32_t gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if (const GpuEntry* entry = gpus_.at(gpu)) yielded.gpus[yielded.gpu_count++] = entry->uuid;
  }
  std::vector<ClientId> all;
  for (const auto& [id, client] : clients_) {
    all.push_back(id);
    if (!client->gpus().empty() && yielded.mover_count < protocol::kMostMovers) {
      yielded.movers[yielded.mover_count++] = client->pid;
    }
  }
  gpus_.tell(yielded);
  for (const ClientId id : all) {
    if (const auto client = clients_.find(id); client != clients_.end()) send_away(*client->second);
  }
  for (std::uint32_t gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if (const GpuEntry* entry = gpus_.at(gpu)) gpus_.drop(Uuid(entry->uuid));
  }
  gpus_.keep_none();
  letting_go_ = false;
  claims_.let_go();
  if (place_lost_) {
    log::info("exiting: another rotad serves {}", options_.socket);
    asio::post(io_, [this] {
      stop();
      io_.stop();
    });
  }
}

// The machine's rotad has all GPUs from its start on, or once the driver is loaded; GPUs that users' rotads have once
// these end, or once a program asks for them. Until the GPUs are known, NVML is asked for them again and again.
void Server::take_all_gpus() {
  if (!is_machine() || place_lost_ || nvml_released_ || now() < all_gpus_at_) return;
  if (all_gpus_.empty()) {
    all_gpus_at_ = now() + kBetweenGpuSearches;
    all_gpus_meter_.ask({Uuid{}});
  } else {
    keep_all_gpus();
  }
}

void Server::keep_all_gpus() {
  if (place_lost_ || all_gpus_.empty()) return;
  all_gpus_at_ = now() + kBetweenChecks;
  for (const Uuid& uuid : all_gpus_) gpus_.keep(uuid);
}

// While clients wait for what other users' rotads have, the machine's rotad may have been started.
void Server::look_for_machine() {
  if (is_machine() || named_.empty() || now() < machine_checked_at_ + kBetweenChecks) return;
  machine_checked_at_ = now();
  claim(claims_.machine_is_there(machine_can_be_reached()));
}

void Server::schedule_claims() {
  const auto next = claims_.next_deadline();
  if (!next) {
    claims_due_.cancel();
    return;
  }
  claims_due_.expires_at(
      asio::steady_timer::time_point(std::chrono::duration_cast<asio::steady_timer::duration>(*next)));
  claims_due_.async_wait([this](std::error_code error) {
    if (!error && !stopped_) claim(claims_.tick(now()));
  });
}

}  // namespace rota::server
