// What rotad leaves to the next rotad at the same socket, and how it uses what the previous one has left (books.h).
//
// Programs reconnect within milliseconds. A program that held a GPU gets it again as soon as it says so. Requests of
// others for this GPU are held back until each program that held it or waited for it has said what it wants or is dead,
// for a second at most. Then the core gets the requests of programs that waited before, in their old order, and after
// them all others. A rotad that was killed leaves only a note that there were programs. After that, all requests are
// held back for half a second.
//
// A holder runs on for ten seconds without a rotad (turn::Machine::kGrace), and concurrently with the next holder if it
// comes back later than that. Thousands of programs need seconds to come back on a busy machine. So as long as some
// come, are told about a GPU or say what they want, requests are held back for longer, for eight seconds in all. Only
// programs that may have held something count, each as far as it has ever come: a process that started after this rotad
// has not, and one that comes again and again brings nothing new. The kernel does not say when a process started that
// rotad cannot see (a pidfd has no time, and an order of its inodes is not promised): such a process says itself
// whether it has lost a rotad.
#include <unistd.h>

#include <algorithm>
#include <asio/steady_timer.hpp>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/server/books.h"
#include "scheduler/server/client.h"
#include "scheduler/server/gangs.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"

namespace rota::server {

using namespace std::chrono_literals;
using scheduler::ClientId;
using scheduler::GpuIndex;
using scheduler::GpuMask;
namespace event = scheduler::event;

namespace {

// The longest time for which a GPU is granted only to programs that held it.
constexpr auto kHeldBack = 1s;
// The same for all GPUs if nothing but the note is left: programs look for rotad four times a second (turn::Machine).
constexpr auto kHeldBackBlindly = 500ms;
// After each program that comes, requests are held back for so much longer, but not beyond kMostHeldBack after the
// start, which leaves time before programs count rotad as dead.
constexpr auto kLately = 250ms;
constexpr auto kMostHeldBack = 8s;
// Larger sets of programs are measured anew: they hardly come back the same, and would fill the file. A judgment.
constexpr std::uint32_t kMostMeasured = 32;
// How often rotad checks whether programs that have not come back are dead.
constexpr auto kBetweenChecksForDead = 50ms;

}  // namespace

struct Server::Returning {
  explicit Returning(asio::io_context& io) : timer(io) {}

  struct HeldBack {
    ClientId client = 0;
    protocol::Want want{};
    std::uint64_t place = 0;  // in the previous rotad's queue; 0: it did not wait there
  };

  // What the previous rotad left about the client's process on this GPU; null: nothing.
  const Books::Task* task(const Program& client, const std::string& gpu) const {
    const auto [first, end] = by_pid.equal_range(client.pid);
    for (auto each = first; each != end && client.pid != 0; ++each) {
      const Books::Task& task = books.tasks[each->second];
      if (std::ranges::any_of(task.gpus, [&](const auto& on) { return on.gpu == gpu; })) return &task;
    }
    return nullptr;
  }
  // Whether the process may have held something under the previous rotad.
  bool may_return(const Client& client) {
    if (!blind) return by_pid.contains(client.pid);
    if (client.pid == 0) return client.says_it_returns;
    const auto [known, fresh] = existed.try_emplace(client.pid, true);
    if (fresh) {
      const std::uint64_t started = start_time(client.pid);
      known->second = started != 0 && started <= began;
    }
    return known->second;
  }
  static event::Returned returned(const Books::Task& task, GpuIndex gpu, const std::string& uuid, ClientId client) {
    event::Returned returned = std::ranges::find(task.gpus, uuid, &Books::OnGpu::gpu)->returned;
    returned.client = client;
    returned.gpu = gpu;
    return returned;
  }
  bool awaits(const std::string& gpu) const { return blind || expected.contains(gpu); }
  bool awaits(pid_t pid, const std::string& gpu) const {
    const auto found = expected.find(gpu);
    return found != expected.end() && found->second.contains(pid);
  }
  // Adds to the record of a task what the core does not know yet: what the task did under the previous rotad, or that
  // its request is held back here.
  void complete(Books::Task& left, const Client& client, GpuMask gpus) const {
    if (left.gpus.empty()) return;
    const std::string& gpu = left.gpus.front().gpu;
    const Books::Task* const before = task(client, gpu);
    const bool waits = std::ranges::any_of(wants, [&](const HeldBack& each) {
      return each.client == client.id && ((each.want.gpus | each.want.task) & gpus) != 0;
    });
    if (before != nullptr) left.place = before->place;
    if (before != nullptr && awaits(client.pid, gpu)) {
      left.did = before->did;
    } else if (waits) {
      left.did = Books::Did::kWaited;
    } else {
      left.place = 0;
    }
  }
  void came(pid_t pid, const std::string& gpu) {
    const auto found = expected.find(gpu);
    if (found == expected.end()) return;
    back += found->second.erase(pid);
    if (found->second.empty()) expected.erase(found);
  }

  Books books;
  std::multimap<pid_t, std::size_t> by_pid;            // indices in books.tasks
  std::map<std::string, std::set<pid_t>> expected;     // by GPU: processes that have not yet said what they want
  std::set<std::string> told;                          // GPUs whose Books::Had the core has been told
  std::set<std::pair<std::uint32_t, pid_t>> measured;  // of a set of programs, those that the core has been told of
  std::vector<HeldBack> wants;                         // in the order in which they came
  bool blind = false;                                  // nothing but the note is left: any GPU may have had a holder
  const std::uint64_t began = ticks_since_boot();      // as start_time() counts
  std::map<pid_t, bool> existed;                       // before that
  std::map<pid_t, std::size_t> furthest;               // by process: steps on the way back to its GPUs
  std::size_t back = 0;                                // how many of those that were expected have come
  std::size_t steps = 0;                               // Server::came_back() at the last check
  scheduler::Time until{};
  asio::steady_timer timer;
};

void Server::leave_books_to_next() {
  if (place_lost_ || claims_.withdrawing()) return;
  Books books;
  books.boot = boot_id();
  books.written = now();
  const scheduler::Time time = modelled_now();
  const auto payer_of = [&](scheduler::DomainId number) {
    if (number < scheduler::DomainId{1} << 32) return std::to_string(number);
    const auto known = std::ranges::find_if(domains_, [&](const auto& each) { return each.second.number == number; });
    return known == domains_.end() ? std::string() : known->first;
  };
  for (GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    const GpuEntry* const entry = gpus_.at(gpu);
    if (entry == nullptr) continue;
    for (const event::HadBefore& had : core_.carried(gpu, time)) {
      const std::string payer = payer_of(had.domain);
      if (!payer.empty()) books.had.push_back({uuid_text(entry->uuid), had.ahead, had.owed, payer});
    }
  }
  for (const auto& [id, client] : clients_) {
    if (client->pid == 0 || client->gpus().empty()) continue;
    const std::uint64_t started = start_time(client->pid);
    if (started == 0) continue;
    for (const Task& task : client->tasks) {
      const scheduler::ClientState state = state_of(task);
      Books::Task left{.pid = client->pid, .started = started, .grant = task.last_grant, .gang = task.gang != 0};
      const bool waits = task.gang == 0 ? state.wanted != 0 : task.wants;
      left.did = holds(task) ? Books::Did::kHeld : waits ? Books::Did::kWaited : Books::Did::kRested;
      for (const GpuIndex gpu : GpuSet(task.gpus)) {
        const auto carried = core_.carried(task.id, gpu, time);
        if (!carried) continue;
        if (left.did == Books::Did::kWaited) left.place = carried->place;
        left.gpus.push_back({uuid_text(gpus_.at(gpu)->uuid), carried->returned});
      }
      if (returning_ != nullptr && left.did == Books::Did::kRested) returning_->complete(left, *client, task.gpus);
      books.tasks.push_back(std::move(left));
    }
  }
  if (returning_ != nullptr) add_those_still_away(*returning_, books);
  for (const auto& [number, gang] : gangs_) {
    if (gang->named.empty()) continue;
    const bool counts = gang->whole && gang->size > 1;
    const GangVerdict verdict{gang->apart, std::max(gang->apart_until - now(), scheduler::Time{}), gang->revoked,
                              counts ? static_cast<unsigned>(gang->named.size()) : 0};
    if (verdict.left != scheduler::Time{} || verdict.revoked != 0 || counts)
      books.gangs.push_back({gang->key, verdict});
  }
  // Gangs of the previous rotad whose programs have not come back.
  for (const auto& [key, earlier] : earlier_verdicts_) {
    GangVerdict verdict = earlier;
    verdict.left = std::max(earlier.left - (now() - started_), scheduler::Time{});
    books.gangs.push_back({key, verdict});
  }
  leave_measured(books);
  leave_chosen(books);
  if (books.empty()) return;
  if (const auto left = leave_books(books_file(), books); !left) {
    log::warn("the next rotad will not know who held GPUs or waited for them: {}", left.error().text);
  }
}

// What was measured of programs that share a GPU; not of gangs, whose members may be different then.
void Server::leave_measured(Books& books) const {
  std::uint32_t sets = 0;
  std::set<std::uint32_t> left_out;
  for (const event::MeasuredBefore& measured : core_.measured(modelled_now())) {
    sets = measured.set + 1;
    const auto [program, task] = find_task(measured.client);
    const std::uint64_t started = task == nullptr || program->pid == 0 ? 0 : start_time(program->pid);
    if (started == 0 || measured.size > kMostMeasured) {
      left_out.insert(measured.set);
    } else {
      const GpuIndex first = *GpuSet(task->gpus).begin();
      books.measured.push_back({uuid_text(gpus_.at(first)->uuid), program->pid, started, measured});
    }
  }
  std::erase_if(books.measured, [&](const auto& each) { return left_out.contains(each.measured.set); });
  if (returning_ == nullptr) return;
  std::set<std::uint32_t> incomplete;  // not all of its programs have come back
  for (const Books::Measured& each : returning_->books.measured) {
    if (!returning_->measured.contains({each.measured.set, each.pid})) incomplete.insert(each.measured.set);
  }
  for (Books::Measured each : returning_->books.measured) {
    if (!incomplete.contains(each.measured.set)) continue;
    each.measured.set += sets;
    books.measured.push_back(std::move(each));
  }
}

// Adds what the previous rotad left about programs that have not come back yet: the next rotad expects them, too.
void Server::add_those_still_away(const Returning& all, Books& books) const {
  for (const Books::Had& had : all.books.had) {
    if (!all.told.contains(had.gpu)) books.had.push_back(had);
  }
  for (const auto& [pid, place] : all.by_pid) {
    const Books::Task& task = all.books.tasks[place];
    const auto is_back = [&](const Client& client) {
      if (client.pid != pid) return false;
      for (const GpuIndex gpu : client.gpus()) {
        if (all.task(client, uuid_text(gpus_.at(gpu)->uuid)) == &task) return true;
      }
      return false;
    };
    const bool away = std::ranges::none_of(clients_, [&](const auto& each) { return is_back(*each.second); });
    if (away && start_time(pid) == task.started) books.tasks.push_back(task);
  }
}

void Server::read_books(bool had_programs) {
  auto books = take_books(books_file());
  if (!books) log::warn("{} is ignored: {}", books_file(), books.error().text);
  const bool known = books && !books->empty();
  if (!known && !had_programs) return;
  returning_ = std::make_shared<Returning>(io_);
  Returning& all = *returning_;
  if (!known) {
    all.blind = true;
    all.until = now() + kHeldBackBlindly;
    return look_for_returning();
  }
  take_chosen(*books);
  all.books = std::move(*books);
  all.until = now() + kHeldBack;
  for (Books::Gang& gang : all.books.gangs) earlier_verdicts_[gang.key] = gang.verdict;
  std::erase_if(all.books.measured, [](const Books::Measured& each) { return start_time(each.pid) != each.started; });
  std::set<pid_t> expected;
  for (std::size_t i = 0; i < all.books.tasks.size(); ++i) {
    const Books::Task& task = all.books.tasks[i];
    if (start_time(task.pid) != task.started) continue;  // it is dead
    all.by_pid.emplace(task.pid, i);
    if (task.did == Books::Did::kRested) continue;
    expected.insert(task.pid);
    for (const Books::OnGpu& on : task.gpus) all.expected[on.gpu].insert(task.pid);
  }
  log::info("waiting for {} programs that held GPUs or waited for them under the previous rotad", expected.size());
  look_for_returning();
}

std::uint32_t Server::last_grant_of(const Client& client, std::uint32_t gpu) const {
  if (returning_ == nullptr) return 0;
  const Books::Task* const task = returning_->task(client, uuid_text(gpus_.at(gpu)->uuid));
  return task == nullptr ? 0 : task->grant;
}

// Tells the core what the previous rotad knew of this GPU's domains and of the client. The core ignores what it is told
// of a domain that it already knows there, or of a client that already wants or holds something.
void Server::tell_returned(Client& client, std::uint32_t gpu) {
  if (returning_ == nullptr) return;
  const std::string uuid = uuid_text(gpus_.at(gpu)->uuid);
  if (returning_->told.insert(uuid).second) {
    for (const Books::Had& had : returning_->books.had) {
      if (had.gpu == uuid) step(event::HadBefore{gpu, number_of_payer(had.payer), had.ahead, had.owed});
    }
  }
  for (const Books::Measured& each : returning_->books.measured) {
    if (each.pid != client.pid || each.gpu != uuid) continue;
    event::MeasuredBefore measured = each.measured;
    measured.client = client.tasks.id_on(gpu);
    step(measured);
    returning_->measured.emplace(measured.set, client.pid);
  }
  const Books::Task* const task = returning_->task(client, uuid);
  if (task != nullptr) step(returning_->returned(*task, gpu, uuid, client.tasks.id_on(gpu)));
}

// The core's client for the gang is new, too.
void Server::joined_gang(const Program& member, std::uint32_t gpu, ClientId gang) {
  if (returning_ == nullptr) return;
  const std::string uuid = uuid_text(gpus_.at(gpu)->uuid);
  const Books::Task* const task = returning_->task(member, uuid);
  if (task != nullptr && task->gang) step(returning_->returned(*task, gpu, uuid, gang));
}

void Server::on_want_message(Client& client, const protocol::Want& want) {
  if (returning_ == nullptr) return take_want(client, want, false);
  Returning& all = *returning_;
  const GpuMask added = client.gpus().mask();
  const GpuMask named = (want.gpus | want.task) & added;
  const GpuMask of = named != 0 ? named : added;
  bool held = false;
  bool awaited = false;
  std::uint64_t place = 0;
  for (const GpuIndex gpu : GpuSet(of)) {
    const std::string uuid = uuid_text(gpus_.at(gpu)->uuid);
    awaited = awaited || all.awaits(uuid);
    const Books::Task* const task = all.task(client, uuid);
    if (task == nullptr) continue;
    held = held || (task->did == Books::Did::kHeld && all.awaits(client.pid, uuid));
    place = task->place;
    all.came(client.pid, uuid);
  }
  std::erase_if(all.wants, [&](const Returning::HeldBack& each) {
    return each.client == client.id && ((each.want.gpus | each.want.task) & of) != 0;
  });
  if (!awaited || held || want.running != 0 || (want.gpus & added) == 0) {
    take_want(client, want, held);
  } else {
    all.wants.push_back({client.id, want, place});
  }
  take_wants_held_back();
}

// `held`: the client held these GPUs when the previous rotad ended.
void Server::take_want(Client& client, const protocol::Want& want, bool held) {
  const bool young = now() - started_ < std::chrono::seconds(protocol::kReclaimSeconds);
  protocol::Want taken = want;
  if (held && want.gpus != 0) taken.running = 1;
  const GpuMask added = client.gpus().mask();
  const GpuMask task = taken.task & added;
  const bool couples = (taken.gpus & added) != 0 && client.tasks.of(task) == nullptr;
  if (returning_ != nullptr && couples && couple(client, task)) {
    for (const GpuIndex gpu : GpuSet(task)) tell_returned(client, gpu);
  }
  on_want(client, taken, young);
  follow(client);
}

// Takes the wants that were held back, except those with a GPU on which programs are still expected. The wants of
// programs that waited under the previous rotad come first, in their old order.
void Server::take_wants_held_back() {
  if (returning_ == nullptr) return;
  std::vector<Returning::HeldBack> free;
  std::erase_if(returning_->wants, [&](const Returning::HeldBack& each) {
    const auto client = clients_.find(each.client);
    if (client == clients_.end()) return true;
    const GpuSet gpus((each.want.gpus | each.want.task) & client->second->gpus().mask());
    for (const GpuIndex gpu : gpus) {
      if (returning_->awaits(uuid_text(gpus_.at(gpu)->uuid))) return false;
    }
    free.push_back(each);
    return true;
  });
  std::ranges::stable_sort(free, {}, [](const auto& each) { return std::tuple(each.place == 0, each.place); });
  for (const Returning::HeldBack& each : free) {
    const auto client = clients_.find(each.client);
    if (client != clients_.end() && !claims_.withdrawing()) take_want(*client->second, each.want, false);
  }
}

// Grows with each step that a program that may have held something takes further than before: that it connects, names a
// GPU, is told about it, and says what it wants.
std::size_t Server::came_back() const {
  Returning& all = *returning_;
  std::map<pid_t, std::size_t> taken;
  for (const auto& [id, client] : clients_) {
    if (!all.may_return(*client)) continue;
    std::size_t& steps = taken[client->pid];
    ++steps;
    for (const GpuIndex gpu : client->gpus()) steps += unanswered_.contains({id, gpu}) ? 1 : 2;
  }
  for (const Returning::HeldBack& each : all.wants) {
    const auto client = clients_.find(each.client);
    if (client != clients_.end() && all.may_return(*client->second)) ++taken[client->second->pid];
  }
  std::size_t sum = all.back;
  for (const auto& [pid, steps] : taken) all.furthest[pid] = std::max(all.furthest[pid], steps);
  for (const auto& [pid, steps] : all.furthest) sum += steps;
  return sum;
}

void Server::look_for_returning() {
  Returning& all = *returning_;
  const std::size_t steps = came_back();
  const bool awaits = all.blind || !all.expected.empty();
  const bool more = std::exchange(all.steps, steps) < steps;
  if (awaits && more) all.until = std::min(std::max(all.until, now() + kLately), started_ + kMostHeldBack);
  const bool over = now() >= all.until;
  if (over && std::exchange(all.blind, false)) take_wants_held_back();
  if (!all.expected.empty()) {
    std::set<pid_t> missing;
    for (const auto& [gpu, pids] : all.expected) missing.insert(pids.begin(), pids.end());
    for (const pid_t pid : missing) {
      const auto task = all.by_pid.find(pid);
      if (!over && start_time(pid) == all.books.tasks[task->second].started) continue;
      if (over) log::debug("pid {} has not come back since the previous rotad ended", pid);
      for (auto& [gpu, pids] : all.expected) pids.erase(pid);
      std::erase_if(all.expected, [](const auto& each) { return each.second.empty(); });
    }
    take_wants_held_back();
  }
  // No program has come, so the note that there were some is obsolete.
  const auto uses_gpu = [](const auto& each) { return !each.second->gpus().empty(); };
  if (over && !place_lost_ && std::ranges::none_of(clients_, uses_gpu)) unlink(clients_note().c_str());
  // Once no program is expected any more, the records stay until `end`, for programs that come later.
  const scheduler::Time end = started_ + std::chrono::seconds(protocol::kReclaimSeconds);
  if (now() >= end) {
    // From now on a gang of the same name is another one.
    earlier_verdicts_.clear();
    return returning_.reset();
  }
  if (all.expected.empty() && !all.blind) {
    all.timer.expires_at(std::chrono::steady_clock::time_point(end));
  } else {
    all.timer.expires_after(kBetweenChecksForDead);
  }
  all.timer.async_wait([this](std::error_code error) {
    if (error || stopped_ || returning_ == nullptr) return;
    guarded("look for programs that are expected", [this] { look_for_returning(); });
  });
}

}  // namespace rota::server
