// Processes that are about to become programs: they ask rotad to stay, and for GPUs (`rota run --gpus`).
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "scheduler/server/books.h"
#include "scheduler/server/client.h"
#include "scheduler/server/log.h"

namespace rota::server {

using protocol::Kind;
using protocol::Message;

namespace {

std::string session_key(const TrustDomain& domain, const char* id) {
  return domain.key() + " " + id;
}

}  // namespace

void Server::on_stay(Connection& connection) {
  // Such processes outlive their connections, so each counts once, and all of them within the descriptors set aside.
  const pid_t pid = connection.peer().pid;
  if (connection.stays || !connection.peer().process) return;
  if (staying_.contains(pid)) return;
  Budget::Share share = stayers_budget_.take(connection.domain().payer(), connection.is_root());
  if (!share) return;
  // The connection may also say hello, and then needs the descriptor itself.
  Descriptor process(fcntl(connection.peer().process.get(), F_DUPFD_CLOEXEC, 0));
  if (!process) return;  // none left; asio would throw
  connection.stays = true;
  watch_stayer(pid, std::move(process), std::move(share));
}

// Watches the process until it ends. False: its user has too many already.
bool Server::watch_stayer(pid_t pid, Descriptor process, Budget::Share share) {
  if (pid != 0 && staying_.contains(pid)) return true;
  if (!share) return false;
  const std::uint32_t number = ++last_number_;
  auto stayer = std::make_unique<Stayer>();
  stayer->pid = pid;
  stayer->share = std::move(share);
  stayer->process.emplace(io_, process.get());
  process.release();
  stayer->process->async_wait(asio::posix::stream_descriptor::wait_read, [this, number, pid](std::error_code error) {
    if (error) return;
    staying_.erase(pid);
    choices_.left(pid);
    stayers_.erase(number);
    idle_since_ = now();
  });
  if (pid != 0) staying_.insert(pid);
  stayers_.emplace(number, std::move(stayer));
  return true;
}

// If the asker says that more of a GPU's memory is in use than rotad knows of, the asker's figure counts: a false one
// only makes the asker's own choice worse. A reservation takes nothing from others. It only makes them prefer another
// GPU.
void Server::choose_gpus(Connection& connection, const protocol::Choose& wanted) {
  constexpr std::uint64_t kMiB = 1 << 20;
  if (wanted.candidates == 0 || wanted.candidates > protocol::kMaxCandidates || wanted.count == 0 ||
      wanted.count > wanted.candidates) {
    return connection.refuse("that many GPUs cannot be chosen");
  }
  // A process that asks counts as one that has sent kStay, of which each user may have only so many.
  on_stay(connection);
  if (!connection.stays && !staying_.contains(connection.peer().pid)) {
    return connection.refuse("too many programs of this user are about to start");
  }
  std::vector<GpuChoice::Gpu> gpus;
  for (std::uint32_t i = 0; i < wanted.candidates; ++i) {
    const protocol::Candidate& candidate = wanted.gpus[i];
    GpuChoice::Gpu gpu{.uuid = candidate.uuid,
                       .total_bytes = std::min(candidate.total_mib * kMiB, protocol::kMaxGpuBytes),
                       .taken_bytes = candidate.used_mib * kMiB,
                       .programs = 0};
    for (std::uint32_t index = 0; index < protocol::kMaxGpus; ++index) {
      const GpuEntry* const entry = gpus_.at(index);
      if (entry == nullptr || entry->uuid != gpu.uuid) continue;
      const scheduler::GpuState state = core_.gpu(index);
      gpu.total_bytes = state.total;
      gpu.taken_bytes = std::max(gpu.taken_bytes, state.used + state.outside);
      gpu.programs = state.clients;
    }
    gpus.push_back(gpu);
  }
  const Chooser who{connection.peer().pid, session_key(connection.domain(), wanted.session),
                    connection.domain().payer(), connection.peer().uid};
  const auto chosen = choices_.choose(who, std::move(gpus), wanted.count, now());
  if (!chosen) return connection.refuse(chosen.error().text);
  Message answer{.kind = Kind::kChosen};
  answer.body.chosen.count = static_cast<std::uint32_t>(chosen->size());
  std::ranges::copy(*chosen, answer.body.chosen.gpus);
  std::string names;
  for (const Uuid& uuid : *chosen) names += (names.empty() ? "" : ", ") + uuid_text(uuid);
  log::debug("pid {} gets {} GPU{}: {}", who.pid, chosen->size(), chosen->size() == 1 ? "" : "s", names);
  connection.send(answer);
}

void Server::chosen_came(const Client& client, const Uuid& uuid) {
  std::vector<std::string> sessions;
  for (const protocol::Session& session : client.sessions) sessions.push_back(session_key(client.domain, session.id));
  choices_.came(client.pid, sessions, uuid);
}

void Server::leave_chosen(Books& books) {
  for (const GpuChoice::Reserved& each : choices_.all(now())) {
    const std::uint64_t started = each.who.pid == 0 ? 0 : start_time(each.who.pid);
    if (each.who.pid != 0 && started == 0) continue;
    books.chosen.push_back({.gpu = uuid_text(each.uuid),
                            .pid = each.who.pid,
                            .started = started,
                            .left = each.until - now(),
                            .uid = each.who.uid,
                            .payer = each.who.payer,
                            .session = each.who.session});
  }
}

// The processes that asked are watched again.
void Server::take_chosen(const Books& books) {
  for (const Books::Chosen& each : books.chosen) {
    const auto uuid = parse_uuid(each.gpu);
    const scheduler::Time until = books.written + std::min<scheduler::Time>(each.left, GpuChoice::kExpected);
    if (!uuid || until <= now()) continue;
    if (each.pid != 0) {
      Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, each.pid, 0)));
      if (start_time(each.pid) != each.started) continue;  // it is dead, and this may be another process
      if (!process || !watch_stayer(each.pid, std::move(process), stayers_budget_.take(each.payer))) continue;
    }
    choices_.keep({.who = {each.pid, each.session, each.payer, each.uid}, .uuid = *uuid, .until = until});
  }
}

}  // namespace rota::server
