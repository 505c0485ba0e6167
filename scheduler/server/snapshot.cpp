// The answer to `rota status`: rotad's state as rows (protocol/snapshot.h), made for all who have asked by then.
#include <fmt/format.h>

#include <algorithm>
#include <asio/post.hpp>
#include <cmath>
#include <utility>

#include "scheduler/server/client.h"
#include "scheduler/server/decode.h"
#include "scheduler/server/gangs.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/metrics_server.h"
#include "scheduler/server/pinned.h"
#include "scheduler/server/processor_time.h"

namespace rota::server {

using protocol::Kind;
using protocol::Message;
using protocol::Snapshot;

namespace {

// Clients whose rows are made at a time: other work has its turn in between.
constexpr int kClientsAtOnce = 16;

std::uint32_t thousandths(double value) {
  return static_cast<std::uint32_t>(std::clamp(std::round(value * 1000), 0.0, 1e9));
}

std::uint64_t nanoseconds(scheduler::Time time) {
  return static_cast<std::uint64_t>(time.count());
}

// The row at this place of a part. If the part is shorter, nothing, and `at` is counted down for the next part.
template <typename Row>
std::optional<Message> row_at(const std::vector<Row>& rows, std::size_t& at, Kind kind, Row Message::Body::* body) {
  if (at >= rows.size()) {
    at -= rows.size();
    return std::nullopt;
  }
  Message message{.kind = kind};
  message.body.*body = rows[at];
  return message;
}

std::optional<Message> row_at(const Snapshot& all, std::size_t at) {
  using Body = Message::Body;
  if (auto row = row_at(all.gpus, at, Kind::kStatusGpu, &Body::gpu)) return row;
  if (auto row = row_at(all.programs, at, Kind::kStatusProgram, &Body::program)) return row;
  if (auto row = row_at(all.tasks, at, Kind::kStatusTask, &Body::task)) return row;
  if (auto row = row_at(all.gangs, at, Kind::kStatusGang, &Body::gang_row)) return row;
  if (auto row = row_at(all.sessions, at, Kind::kStatusSession, &Body::session_row)) return row;
  if (auto row = row_at(all.accounts, at, Kind::kStatusAccount, &Body::account)) return row;
  if (auto row = row_at(all.reservations, at, Kind::kStatusReservation, &Body::reservation)) return row;
  if (at != 0) return std::nullopt;
  Message last{.kind = Kind::kStatusDaemon};
  last.body.daemon = all.daemon;
  return last;
}

// Keys are those of users, sessions and processes; those of processes do not say to whom they belong.
bool is_of(const std::string& key, const TrustDomain& domain) {
  return key == "host" || key == fmt::format("user {}", domain.payer()) ||
         key.starts_with(fmt::format("session {} ", domain.key()));
}

// "session DOMAIN ID" (LimitBook::membership); a domain's key has no space.
std::string id_in(const std::string& key) {
  return key.substr(key.find(' ', key.find(' ') + 1) + 1);
}

void hide(protocol::ProgramRow& program) {
  program.pid = 0;
  program.uid = protocol::kHiddenUser;
  program.session = 0;
  program.session_name[0] = program.container[0] = '\0';
  set_text(program.name, protocol::kHiddenProgram);
}

}  // namespace

// A snapshot that is being made, and for whom; once it is made, what they read.
struct Server::SnapshotWork {
  Snapshot rows;
  // Whose the programs, gangs, sessions and accounts are, in their order.
  std::vector<TrustDomain> programs;
  std::vector<std::string> gangs;     // keys
  std::vector<std::string> sessions;  // the same
  std::vector<std::string> accounts;  // the same
  std::vector<std::string> choosers;  // of the reservations: Chooser::session
  scheduler::ClientId next_client = 0;
  std::vector<std::pair<std::weak_ptr<Connection>, Budget::Share>> askers;
  bool for_metrics = false;

  bool shows(Message& row, std::size_t at, const TrustDomain* only) const;
};

// A snapshot that is being made lacks what has changed since it was begun, so connections that ask meanwhile get the
// next one.
void Server::on_status(Connection& connection) {
  Budget::Share share = snapshots_budget_.take(connection.domain().payer(), connection.is_root());
  if (!share) return connection.refuse("too many programs of this user ask for rotad's status and do not read it");
  if (next_snapshot_ == nullptr) next_snapshot_ = std::make_shared<SnapshotWork>();
  next_snapshot_->askers.emplace_back(connection.weak_from_this(), std::move(share));
  connection.await_answer();
  if (snapshot_ == nullptr) make_snapshot();
}

void Server::make_snapshot_for_metrics() {
  if (next_snapshot_ == nullptr) next_snapshot_ = std::make_shared<SnapshotWork>();
  next_snapshot_->for_metrics = true;
  if (snapshot_ == nullptr) make_snapshot();
}

void Server::make_snapshot() {
  if (stopped_) return;
  if (snapshot_ == nullptr) snapshot_ = std::move(next_snapshot_);
  if (snapshot_ == nullptr) return;
  const bool begins = snapshot_->next_client == 0;
  bool whole = false;
  const std::chrono::nanoseconds before = processor_time();
  const bool made = guarded("say what rotad knows", [&] { whole = add_to_snapshot(*snapshot_); });
  // The beginning is charged with the message.
  const auto asker = snapshot_->askers.empty() ? nullptr : snapshot_->askers.front().first.lock();
  if (asker != nullptr && !begins) {
    guarded("charge a user", [&] { time_budget_->spend(asker->domain().payer(), processor_time() - before); });
  }
  if (made && !whole) return asio::post(io_, [this] { make_snapshot(); });
  const std::shared_ptr<SnapshotWork> done = std::exchange(snapshot_, nullptr);
  auto askers = std::exchange(done->askers, {});
  if (done->for_metrics && metrics_ != nullptr) {
    metrics_->publish(made ? std::shared_ptr<const Snapshot>(done, &done->rows) : nullptr);
  }
  for (auto& [weak, share] : askers) {
    const auto connection = weak.lock();
    if (connection == nullptr) continue;
    const bool sent = made && guarded("answer a client", [&] { send_snapshot(*connection, done, std::move(share)); });
    if (!sent) hang_up(*connection, "rotad lacks the memory for an answer");
  }
  if (next_snapshot_ != nullptr) asio::post(io_, [this] { make_snapshot(); });
}

// Row by row, as the peer reads them.
void Server::send_snapshot(Connection& connection, const std::shared_ptr<const SnapshotWork>& snapshot,
                           Budget::Share share) const {
  const bool hides = visibility_ == Visibility::kOwn && !connection.is_root();
  auto only = hides ? std::optional(connection.domain()) : std::nullopt;
  auto holds = std::make_shared<Budget::Share>(std::move(share));
  connection.send_rows([snapshot, only = std::move(only), at = std::size_t{0},
                        holds = std::move(holds)]() mutable -> std::optional<Message> {
    std::optional<Message> row;
    do {
      row = row_at(snapshot->rows, at);
    } while (row && !snapshot->shows(*row, at++, only ? &*only : nullptr));
    return row;
  });
}

// Whether users of this domain (null: all users) may see the row. Hides the parts that they may not see.
bool Server::SnapshotWork::shows(Message& row, std::size_t at, const TrustDomain* only) const {
  if (only == nullptr) return true;
  const std::size_t first_program = rows.gpus.size();
  const std::size_t first_gang = first_program + rows.programs.size() + rows.tasks.size();
  const std::size_t first_session = first_gang + rows.gangs.size();
  const std::size_t first_account = first_session + rows.sessions.size();
  const std::size_t first_reservation = first_account + rows.accounts.size();
  switch (row.kind) {
    case Kind::kStatusProgram:
      if (programs[at - first_program] != *only) hide(row.body.program);
      return true;
    case Kind::kStatusGang:
      return gangs[at - first_gang].starts_with(only->key() + "\n");
    case Kind::kStatusSession:
      return is_of(sessions[at - first_session], *only);
    case Kind::kStatusAccount:
      return is_of(accounts[at - first_account], *only);
    case Kind::kStatusReservation:
      if (!choosers[at - first_reservation].starts_with(only->key() + " ")) {
        row.body.reservation.pid = 0;
        row.body.reservation.uid = protocol::kHiddenUser;
      }
      return true;
    default:
      return true;
  }
}

// Adds the rows of some more clients. Returns whether all rows are there.
bool Server::add_to_snapshot(SnapshotWork& work) {
  int clients = 0;
  if (work.for_metrics && work.next_client == 0) book_.begin_gauges();
  sums_.clear();
  const Within writing(keeps_sums_);
  auto next = clients_.lower_bound(work.next_client);
  for (; next != clients_.end() && clients < kClientsAtOnce; ++next, ++clients) {
    Client& client = *next->second;
    if (work.for_metrics) {
      count(client);
      add_gauges(client);
    }
    work.rows.programs.push_back(program_row(client));
    work.programs.push_back(client.domain);
    for (const std::uint32_t gpu : client.gpus()) work.rows.tasks.push_back(task_row(client, gpu));
    work.next_client = next->first + 1;
  }
  if (next != clients_.end()) return false;
  for (std::uint32_t gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if (const GpuEntry* entry = gpus_.at(gpu)) work.rows.gpus.push_back(gpu_row(gpu, *entry));
  }
  for (const auto& [number, gang] : gangs_) {
    if (gang->clients.empty()) continue;  // its programs are of another one for now
    work.rows.gangs.push_back(gang_row(*gang));
    work.gangs.push_back(gang->key);
  }
  for (const auto& [key, session] : sessions_) {
    protocol::SessionRow& row = work.rows.sessions.emplace_back();
    row = {.number = session.number, .programs = static_cast<std::uint32_t>(session.clients), .id = {}};
    set_text(row.id, id_in(key));
    work.sessions.push_back(key);
  }
  for (std::string after; const scheduler::Quota::Entry* entry = quota_.account_after(after);) {
    after = entry->first;
    if (const auto row = account_row(entry->second)) {
      work.rows.accounts.push_back(*row);
      work.accounts.push_back(entry->first);
    }
  }
  for (const GpuChoice::Reserved& each : choices_.all(now())) {
    work.rows.reservations.push_back(
        {.uuid = each.uuid, .pid = each.who.pid, .uid = each.who.uid, .left_ns = nanoseconds(each.until - now())});
    work.choosers.push_back(each.who.session);
  }
  work.rows.daemon = daemon_row();
  if (!work.for_metrics) return true;
  work.rows.gpu_totals = book_.gpus();
  work.rows.series = book_.rows(now());
  return true;
}

protocol::GpuRow Server::gpu_row(std::uint32_t index, const GpuEntry& entry) const {
  const scheduler::GpuState state = core_.gpu(index);
  const scheduler::SharingWhy why = core_.sharing_why(index);
  protocol::GpuRow row{};
  row.uuid = entry.uuid;
  row.index = index;
  row.number = entry.number;
  set_text(row.name, entry.name);
  row.mode = core_.settings().mode;
  row.total_bytes = state.total;
  row.used_bytes = state.used;
  row.clients = state.clients;
  row.holders = state.holders;
  row.waiters = state.waiters;
  for (const auto& [number, gang] : gangs_) row.waiters += any_waits(*gang, index) ? 1 : 0;
  if (const auto reading = readings_.find(index); reading != readings_.end()) {
    row.measured = 1;
    row.driver_used_bytes = reading->second.used;
    row.driver_free_bytes = reading->second.free;
  }
  if (const auto sum = handed_over_.find(index); sum != handed_over_.end()) row.handed_over_bytes = sum->second;
  const auto uncounted = uncounted_.find(index);
  row.outside_bytes = state.outside - std::min(state.outside, uncounted == uncounted_.end() ? 0 : uncounted->second);
  row.candidate = static_cast<std::uint32_t>(state.candidate);
  row.looking = state.looking ? 1 : 0;
  row.active = state.active;
  row.reason = why.reason;
  row.turn_ns = nanoseconds(state.turn);
  row.switch_ns = nanoseconds(state.switching);
  row.trial_permille = thousandths(why.trial);
  return row;
}

protocol::ProgramRow Server::program_row(const Client& client) const {
  protocol::ProgramRow row{};
  row.client = client.id;
  row.pid = client.pid;
  row.uid = client.uid;
  if (const auto session = sessions_.find(client.session); session != sessions_.end()) {
    row.session = session->second.number;
  }
  set_text(row.name, client.name);
  set_text(row.session_name, session_name(client));
  if (client.series) set_text(row.container, client.series->container);
  row.gpus = client.gpus().mask();
  std::uint64_t held_since = 0;
  std::uint64_t waits_since = 0;
  for (const Task& task : client.tasks) {
    const protocol::TaskRow shown = task_row(client, *GpuSet(task.gpus).begin());
    const scheduler::ClientState state = state_of(task);
    row.held_gpus |= state.held & task.gpus;
    row.wanted_gpus |= state.wanted & task.gpus;
    std::uint64_t& since = shown.waits != 0 ? waits_since : held_since;
    since = std::max(since, shown.since_ns);
    row.held_ns = std::max(row.held_ns, shown.held_ns);
    row.waited_ns = std::max(row.waited_ns, shown.waited_ns);
    row.overrun |= shown.overrun;
  }
  row.since_ns = waits_since != 0 ? waits_since : held_since;
  row.moves = moves_of(*client.usage);
  return row;
}

protocol::TaskRow Server::task_row(const Client& client, std::uint32_t gpu) const {
  const protocol::GpuUsage& usage = client.usage->gpus[gpu];
  const Task& task = *client.tasks.on(gpu);
  const scheduler::ClientState state = state_of(task);
  const scheduler::ClientUse use = core_.use(task.id, gpu, modelled_now());
  protocol::TaskRow row{};
  row.client = client.id;
  row.gpu = gpu;
  if (const std::uint8_t mode = usage.memory_mode.load(); mode <= protocol::kLastMemoryMode) {
    row.mode = static_cast<protocol::MemoryMode>(mode);
  }
  if (const auto measured = client.measured.find(gpu); measured != client.measured.end() && measured->second.current) {
    row.measured = 1;
    row.driver_bytes = measured->second.process;
  }
  row.light = use.light ? 1 : 0;
  row.known =
      static_cast<std::uint8_t>((use.busy ? protocol::kKnowsBusy : 0) | (use.calls ? protocol::kKnowsCalls : 0));
  row.busy_permille = thousandths(use.busy.value_or(0));
  row.calls_per_1000s = static_cast<std::uint64_t>(std::clamp(use.calls.value_or(0) * 1000, 0.0, 1e18));
  row.device_bytes = usage.device_bytes.load();
  row.promised_bytes = promised_bytes(task, gpu);
  row.asked_bytes = core_.asked_bytes(task.id, gpu);
  row.resident_bytes = resident_bytes(task, gpu);
  row.context_bytes = context_bytes(client, gpu);
  row.fixed_bytes = use.fixed;
  row.fixed_for_now_bytes = use.fixed_for_now;
  const Pinned pinned = pinned_of(usage, use.fixed - std::min(use.fixed, use.fixed_for_now));
  row.pinned_bytes = pinned.all;
  std::ranges::copy(pinned.by, std::begin(row.pinned_by));
  if (const std::uint8_t why = usage.pinned_all.load(); pinned.rest() != 0 && why <= protocol::kLastPinAll) {
    row.pinned_all = static_cast<protocol::PinAll>(why);
  }
  row.lacks_bytes = use.lacks;
  row.lacks_for_now_bytes = use.lacks_for_now;
  if (const auto* const request = quota_.rooms().waits(client.id, gpu, usage.awaited != 0)) {
    row.awaited_bytes = request->bytes;
    row.awaited_ns = nanoseconds(now() - request->since);
    row.awaits_context = request->what == protocol::AwaitRoom::What::kContext ? 1 : 0;
  } else if (const auto found = client.for_movers.find(gpu);
             found != client.for_movers.end() && usage.awaited != 0 && movers_may_come(gpu)) {
    row.awaited_bytes = found->second.bytes;
    row.awaited_ns = nanoseconds(now()) - std::min(nanoseconds(now()), found->second.since_ns);
    row.awaits_context = found->second.what == protocol::AwaitRoom::What::kContext ? 1 : 0;
    row.awaits_movers = 1;
  }
  row.gpus = task.gpus;
  if (state.held != 0) row.since_ns = nanoseconds(modelled_now() - state.held_since);
  if (state.wanted != 0) row.since_ns = nanoseconds(modelled_now() - state.wanted_since);
  row.held_ns = nanoseconds(use.held);
  row.waited_ns = nanoseconds(use.waited);
  row.holds = scheduler::has(state.held, gpu) && !task.gave_back ? 1 : 0;
  row.waits_for_gang = waits_for_gang(task) ? 1 : 0;
  if (row.waits_for_gang != 0) row.since_ns = nanoseconds(modelled_now() - task.wants_since);
  row.waits = scheduler::has(state.wanted, gpu) || row.waits_for_gang != 0 ? 1 : 0;
  row.overrun = state.overrun ? 1 : 0;
  row.gang = task.gang;
  return row;
}

protocol::GangRow Server::gang_row(const Gang& gang) const {
  protocol::GangRow row{};
  row.number = gang.number;
  row.programs = static_cast<std::uint32_t>(gang.clients.size());
  row.size = gang.size;
  row.why = gang.why;
  row.drains = holds(gang) && gang.drain.drains() ? 1 : 0;
  row.apart = is_apart(gang) ? gang.apart : protocol::GangApart::kNo;
  set_text(row.name, gang.name);
  return row;
}

// Nothing for an account without a limit; for the host only once something may have to be evicted there.
std::optional<protocol::AccountRow> Server::account_row(const scheduler::Quota::Account& account) const {
  const scheduler::Bytes host = quota_.host_bytes(account);
  if (account.limits.device == scheduler::kNoLimit && host == 0) return std::nullopt;
  protocol::AccountRow row{};
  row.clients = static_cast<std::uint32_t>(account.clients.size());
  row.device_limit = account.limits.device;
  for (scheduler::GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    row.device_used = std::max(row.device_used, account.device(gpu));
  }
  row.host_limit = account.limits.host;
  row.host_used = host;
  row.host_swap_bytes = account.host.has;
  row.host_spare_bytes = account.host.spare;
  set_text(row.name, account.name);
  return row;
}

protocol::DaemonRow Server::daemon_row() const {
  protocol::DaemonRow row{};
  row.pid = static_cast<std::uint64_t>(getpid());
  row.quantum_ns = nanoseconds(scheduler::quantum_of(core_.settings()));
  row.grants = core_.grants();
  row.mode = core_.settings().mode;
  row.chooses = 1;
  row.gpus = gpus_by_default_;
  set_text(row.rota_version, ROTA_VERSION);
  row.nvml_released = nvml_released_ ? 1 : 0;
  return row;
}

}  // namespace rota::server
