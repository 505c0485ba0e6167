// Chooses GPUs for `rota run --gpus`.
#include <algorithm>

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

// If the asker says that more of a GPU's memory is in use than rotad knows of, the asker's figure counts: a false one
// only makes the asker's own choice worse. A reservation takes nothing from others. It only makes them prefer another
// GPU.
void Server::choose_gpus(Connection& connection, const protocol::Choose& wanted) {
  constexpr std::uint64_t kMiB = 1 << 20;
  if (wanted.candidates == 0 || wanted.candidates > protocol::kMaxCandidates || wanted.count == 0 ||
      wanted.count > wanted.candidates) {
    return connection.refuse("a choice of so many GPUs is none");
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
  const Chooser who{connection.peer().pid, session_key(connection.domain(), wanted.session)};
  const std::vector<Uuid> chosen = choices_.choose(who, std::move(gpus), wanted.count, now());
  Message answer{.kind = Kind::kChosen};
  answer.body.chosen.count = static_cast<std::uint32_t>(chosen.size());
  std::ranges::copy(chosen, answer.body.chosen.gpus);
  log::debug("pid {} gets {} GPU{}: {}", who.pid, chosen.size(), chosen.size() == 1 ? "" : "s",
             chosen.empty() ? "" : uuid_text(chosen.front()));
  connection.send(answer);
}

void Server::chosen_came(const Client& client, const Uuid& uuid) {
  std::vector<std::string> sessions;
  for (const protocol::Session& session : client.sessions) sessions.push_back(session_key(client.domain, session.id));
  choices_.came(client.pid, sessions, uuid);
}

}  // namespace rota::server
