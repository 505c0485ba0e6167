// What the driver reports about memory: of each GPU, and of each client's process. What a process has there beyond its
// allocations is its contexts, modules and heaps, whose size no call reports; the accounting uses the measured figure
// instead of an assumption.
//
// A separate thread (meter.h) queries NVML once a second while there are clients, and at once for a client that has
// just named a GPU: it is answered once its contexts there are known, since the first thing that many programs ask is
// how much memory they may have. If NVML does not answer, or does not name the client's process, the accounting uses
// what the client says and the last figure or an assumption.
//
// With each reading the core is told what is free and what processes have that are not clients, and when there has been
// none for too long (scheduler/core/outside.h); the limits follow from that.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "scheduler/base/host_memory.h"
#include "scheduler/server/client.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"

namespace rota::server {

using namespace std::chrono_literals;
namespace event = scheduler::event;

namespace {

constexpr auto kEvery = 1s;
// How long a client that names a GPU waits for a reading of it: NVML starts in less time. Less than clients wait for
// the answer (runtime/client/budget.cpp). A judgment.
constexpr auto kReading = 200ms;
// How long all programs wait at most while NVML is closed on request. A judgment.
constexpr auto kCloses = 300ms;
// How often to retry without NVML: a driver may be installed or loaded while rotad runs.
constexpr auto kAgain = 30s;
// A reading this old is out of date, and so is an answer that took this long.
constexpr auto kStale = 10s;
// The driver counts in blocks of 2 MiB.
constexpr scheduler::Bytes kBlock = 2 << 20;
// The most that the driver takes for a process's contexts and counts for no process: 6.5 to 8 MiB have been seen (H200,
// 580.159.04). A reading's total and its processes are of different moments, and the difference must not be mistaken
// for such memory.
constexpr scheduler::Bytes kUncounted = 16 << 20;
constexpr scheduler::Bytes kUncountedFraction = 1024;  // of a GPU, if that is less
constexpr scheduler::Bytes kUncountedInAll = 256;      // of all processes, as a fraction of a GPU
// Readings in a row that have to say that a process has no context any more: some may be incomplete. Judgement.
constexpr unsigned kContextEnded = 2;
// How long after it has connected a client that had another rotad may name GPUs on which it has memory. A judgment.
constexpr auto kSaysWhatItBrings = 10s;
// Between two readings that clients ask for, so many times as long as one takes. A judgment.
constexpr int kBetweenAsked = 3;
// A client that allocates and frees all the time is eventually measured, with the most that it had allocated during the
// reading.
constexpr unsigned kMostPassedOver = 5;

// The part of a client's allocations that the driver counts as its process's.
scheduler::Bytes counted_by_driver(const protocol::UsagePage& usage, std::uint32_t gpu) {
  return std::max(usage.gpus[gpu].fixed_bytes.load(), usage.gpus[gpu].resident_bytes.load());
}

}  // namespace

void Server::measure() {
  forget_old_measurements();
  if (nvml_released_ || measuring_since_) return;
  if (now() < measure_at_) return;
  std::vector<Uuid> gpus;
  for (std::uint32_t index = 0; index < protocol::kMaxGpus; ++index) {
    if (const GpuEntry* entry = gpus_.at(index)) {
      gpus.push_back(entry->uuid);
    } else {
      readings_.erase(index);
      uncounted_.erase(index);
      read_at_.erase(index);
    }
  }
  // There are no clients, and NVML has been closed.
  if (gpus.empty() && measure_at_ == scheduler::Time{}) return;
  measure_at_ = gpus.empty() ? scheduler::Time{} : now() + kEvery;
  processes_when_asked_.clear();
  for (const auto& [id, client] : clients_) {
    processes_when_asked_.insert(client->pid);
    for (const std::uint32_t gpu : client->gpus()) {
      client->measured[gpu].fixed_when_asked = counted_by_driver(*client->usage, gpu);
    }
  }
  if (!meter_.ask(std::move(gpus))) {
    measure_at_ = now() + kAgain;
    return;
  }
  measuring_since_ = now();
}

// Without NVML rotad does not keep the driver from being unloaded: it uses no GPU itself.
Result<std::string> Server::use_nvml(bool use) {
  if (use) {
    if (!std::exchange(nvml_released_, false)) return std::string("NVML is in use already, while programs use GPUs");
    measuring_problem_.clear();
    measure_at_ = {};
    if (!clients_.empty()) measure_soon();
    return std::string("NVML is used again");
  }
  if (!std::exchange(nvml_released_, true)) {
    // As where there is no NVML; an answer that is on its way does not count.
    measuring_problem_ = "NVML is released";
    measuring_since_.reset();
    measure_again_ = false;
    readings_.clear();
    for (const auto& [gpu, at] : read_at_) step(event::Unmeasured{gpu});
    read_at_.clear();
    for (const auto& [id, client] : clients_) {
      for (auto& [gpu, measured] : client->measured) measured.current = false;
      count_not_measured(*client);
    }
    answer_all();
  }
  if (!meter_.close(kCloses) || !all_gpus_meter_.close(kCloses)) {
    return Error{fmt::format("the driver has not released NVML within {} ms: ask again, or see what it is busy with",
                             kCloses.count())};
  }
  return std::string("NVML is closed: rotad uses it again once a program uses a GPU, or with `rota control nvml use`");
}

// Requests a reading. Returns whether one that begins after this call is to come.
bool Server::measure_soon() {
  if (!measuring_problem_.empty()) return false;  // in its own time
  if (measuring_since_) {
    measure_again_ = true;
    return true;
  }
  // Not sooner, however many clients ask: each query of NVML takes time, of a processor as well.
  measure_at_ = std::min(measure_at_, std::max(now(), measured_at_ + kBetweenAsked * measuring_took_));
  if (measure_at_ <= now()) {
    measure();
    return measuring_since_.has_value();
  }
  forced_reading_.expires_at(
      asio::steady_timer::time_point(std::chrono::duration_cast<asio::steady_timer::duration>(measure_at_)));
  forced_reading_.async_wait([this](std::error_code error) {
    if (!error && !stopped_) guarded("measure", [this] { measure(); });
  });
  return true;
}

// Measures because requests on these GPUs would be refused for contexts that may have ended since the last reading.
void Server::measure_for_requests(const std::set<scheduler::GpuIndex>& gpus) {
  const bool soon = measure_soon();
  for (const scheduler::GpuIndex gpu : gpus) {
    if (!soon || silent_.contains(gpu)) carry_out(apply(limit::Read{gpu, std::nullopt}).outcome);
  }
}

// Whether a reading can be expected to show what a client's contexts take. If it turns out that none does, the client
// is no longer measurable (count_not_measured).
bool Server::is_measurable(const Client& client, std::uint32_t gpu) const {
  return measuring_problem_.empty() && !silent_.contains(gpu) && client.pid != 0;
}

// Measures for a client that has named a GPU, and says whether the answer comes with the reading. By then it is also
// known what others have there: otherwise two clients that do not both fit next to others' memory would be admitted
// together.
bool Server::answers_when_read(const Client& client, std::uint32_t gpu, const protocol::Message& added) {
  const scheduler::Time since = now();
  if (!measure_soon() || silent_.contains(gpu)) return false;
  // Named again before the answer: one answer, of the later reading.
  const auto [entry, fresh] = unanswered_.try_emplace({client.id, gpu});
  entry->second.since = since;
  if (!fresh) return true;
  entry->second.added = added;
  entry->second.until = since + kReading;
  late_.push_back({entry->first, entry->second.until});
  if (late_.size() == 1) answer_late();
  return true;
}

// Clients for which the reading takes too long are answered without it.
void Server::answer_late() {
  while (!late_.empty() && late_.front().until <= now()) {
    const auto late = unanswered_.find(late_.front().of);
    const bool unanswered = late != unanswered_.end() && late->second.until == late_.front().until;
    late_.pop_front();
    if (!unanswered) continue;
    const auto [of, each] = *late;
    unanswered_.erase(late);
    tell_added(of.first, each.added);
  }
  if (late_.empty()) return;
  late_reading_.expires_after(late_.front().until - now());
  late_reading_.async_wait([this](std::error_code error) {
    if (!error && !stopped_) answer_late();
  });
}

// A reading that was asked for at this time has come. If a client has allocated during it, it is not used for that
// client (take_measurement), and another follows at once.
void Server::answer_read(scheduler::Time asked) {
  std::erase_if(unanswered_, [&](const auto& entry) {
    const auto& [of, each] = entry;
    if (asked < each.since) return false;
    const auto client = clients_.find(of.first);
    if (client == clients_.end()) return true;
    const auto measured = client->second->measured.find(of.second);
    if (measured != client->second->measured.end() && measured->second.passed_over != 0) {
      measure_again_ = true;
      return false;
    }
    tell_added(of.first, each.added);
    return true;
  });
  if (unanswered_.empty()) answer_all();
}

void Server::answer_all() {
  for (const auto& [of, each] : std::exchange(unanswered_, {})) tell_added(of.first, each.added);
  late_.clear();
  late_reading_.cancel();
}

void Server::tell_added(scheduler::ClientId id, const protocol::Message& added) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  // First, without waiting for the pass over all clients' pages: the program may ask what is free as soon as it has its
  // answer.
  const std::uint32_t gpu = added.body.gpu_added.index;
  publish_too_much(gpu);
  publish_contexts_of(*found->second, scheduler::bit(gpu));
  publish_limits(*found->second);
  tell(*found->second, added);
}

// What was assumed for the client's contexts no longer counts where no reading can show them. A process that a complete
// list does not name has no context yet: what is assumed for the one that it is about to have continues to count.
void Server::count_not_measured(const Client& client) {
  for (const std::uint32_t gpu : client.gpus()) {
    const auto measured = client.measured.find(gpu);
    if (measured != client.measured.end() && measured->second.known) continue;
    const auto reading = readings_.find(gpu);
    const bool listed =
        reading != readings_.end() && reading->second.processes.has_value() && !reading->second.some_unknown;
    if (!listed || !is_measurable(client, gpu)) carry_out(apply(limit::NotMeasured{client.id, gpu}).outcome);
  }
}

void Server::on_measured(const Meter::Answer& answer) {
  if (!measuring_since_) return;  // NVML has been released meanwhile
  const scheduler::Time asked = *std::exchange(measuring_since_, std::nullopt);
  if (answer.problem != measuring_problem_ && !answer.problem.empty()) {
    log::info("the GPUs' memory is not measured, so rotad relies on what programs report: {}", answer.problem);
  }
  measuring_problem_ = answer.problem;
  measured_at_ = now();
  measuring_took_ = std::min<scheduler::Time>(measured_at_ - asked, kReading / 4);
  if (!answer.problem.empty()) {
    measure_at_ = now() + kAgain;
    measure_again_ = false;
    for (const auto& [id, client] : clients_) count_not_measured(*client);
    return answer_all();
  }
  if (now() - asked >= kStale) {
    measure_at_ = now();
    measure();
    return;
  }
  readings_.clear();
  for (const GpuReading& reading : answer.gpus) {
    for (std::uint32_t index = 0; index < protocol::kMaxGpus; ++index) {
      if (const GpuEntry* entry = gpus_.at(index); entry != nullptr && entry->uuid == reading.uuid) {
        readings_[index] = reading;
        gpus_.confirm(index, reading.total, reading.number);
        follow_size(index);
      }
    }
  }
  for (const auto& [id, client] : clients_) {
    read_usage(*client);
    for (const std::uint32_t gpu : client->gpus()) {
      client->measured[gpu].current = false;
      const auto reading = readings_.find(gpu);
      if (reading != readings_.end()) measure_client(*client, gpu, reading->second);
      confirm(*client, gpu);
    }
    count_not_measured(*client);
  }
  for (const auto& [gpu, reading] : readings_) {
    if (silent_.erase(gpu) != 0) log::info("GPU {}: NVML reports its memory again", gpus_.number(gpu));
    read_at_[gpu] = now();
    const scheduler::Bytes before = core_.gpu(gpu).measured_outside;
    step(event::Measured{.gpu = gpu, .free = reading.free, .others = bytes_of_others(gpu, reading)});
    // The core forgets the figure with the GPU's last client. For the next client it is new, even if follow_outside()
    // has seen the same one last.
    if (core_.gpu(gpu).measured_outside != before) publish_contexts(gpu);
  }
  follow_outside();
  for (const auto& [gpu, reading] : readings_) carry_out(apply(limit::Read{gpu, asked}).outcome);
  answer_read(asked);
  if (std::exchange(measure_again_, false)) measure_soon();
}

void Server::measure_client(Client& client, std::uint32_t gpu, const GpuReading& reading) {
  if (!reading.processes) return;
  Measurement& measured = client.measured[gpu];
  const auto process = reading.processes->find(client.pid);
  if (process != reading.processes->end()) {
    measured.absent = 0;
    take_measurement(client, gpu, process->second);
  } else if (measured.known && !reading.some_unknown && ++measured.absent >= kContextEnded) {
    // It was named before: its contexts there have ended, and with them what lay in them.
    take_measurement(client, gpu, 0);
  }
}

// Whether the client may have memory there that the driver counts for no process: memory handed over to it, or that it
// has open and its maker, for whom it counted, has freed (H100, H200: tests/gpu/nvml_facts.py).
bool Server::has_uncounted(const Client& client, std::uint32_t gpu) {
  return client.took_over.contains(gpu) || (client.usage->shares.load() & protocol::kSharesOfOthers) != 0;
}

// What is in use and counted for no process, as far as contexts can explain it. Unified Memory is counted for no
// process either. While a client has some, or other memory that is not counted, only a smaller figure than the last is
// believed; managed memory that a program makes itself, or that one without rota has, cannot be distinguished from
// contexts.
scheduler::Bytes Server::uncounted_bytes(std::uint32_t gpu, const GpuReading& reading) {
  const scheduler::Bytes total = core_.gpu(gpu).total;
  const scheduler::Bytes in_use = std::min(reading.used, total - std::min(total, reading.free));
  scheduler::Bytes counted = 0;
  for (const auto& [pid, bytes] : *reading.processes) counted += bytes;
  const auto counts = static_cast<scheduler::Bytes>(reading.processes->size()) + 1;
  const scheduler::Bytes most =
      std::min(counts * std::min(kUncounted, total / kUncountedFraction), total / kUncountedInAll);
  const scheduler::Bytes now = reading.some_unknown ? 0 : std::min(in_use - std::min(in_use, counted), most);
  const bool blurred = std::ranges::any_of(clients_, [&](const auto& each) {
    return has_uncounted(*each.second, gpu) ||
           protocol::is_unified(static_cast<protocol::MemoryMode>(each.second->usage->gpus[gpu].memory_mode.load()));
  });
  scheduler::Bytes& known = uncounted_[gpu];
  return known = blurred ? std::min(known, now) : now;
}

// What is in use on a GPU and not by clients. Clients that came or went during the query do not count as others.
// Nothing if the driver does not say whose memory it is, or if some client could be any of its processes.
std::optional<scheduler::Bytes> Server::bytes_of_others(std::uint32_t gpu, const GpuReading& reading) {
  if (!reading.processes) return std::nullopt;
  std::set<pid_t> known = processes_when_asked_;
  for (const auto& [id, client] : clients_) {
    if (client->pid == 0 && client->gpus().contains(gpu)) return std::nullopt;
    known.insert(client->pid);
  }
  scheduler::Bytes others = uncounted_bytes(gpu, reading);
  for (const auto& [pid, bytes] : *reading.processes) {
    if (!known.contains(pid)) others += bytes;
  }
  return others;
}

// A program that had another rotad may have memory there, and writes how much once it knows this rotad's number of the
// GPU.
bool Server::has_said_what_it_brings(const Client& client, std::uint32_t gpu) const {
  return !client.says_it_returns || now() > client.connected_at + kSaysWhatItBrings ||
         client.usage->gpus[gpu].memory_mode.load() != 0;
}

void Server::take_measurement(Client& client, std::uint32_t gpu, scheduler::Bytes process) {
  Measurement& measured = client.measured[gpu];
  // For memory modes of a newer rota it is not known here what the driver counts.
  if (client.usage->gpus[gpu].memory_mode.load() > protocol::kLastMemoryMode) return;
  measured.process = process;
  // Otherwise all that it has brought along would count as its contexts.
  if (!has_said_what_it_brings(client, gpu) && ++measured.passed_over < kMostPassedOver) return;
  // Then a reading shows only that the contexts have grown, as long as there are any.
  const bool part = process != 0 && measured.known && has_uncounted(client, gpu);
  const scheduler::Bytes fixed = counted_by_driver(*client.usage, gpu);
  measured.current = measured.known && !part;
  // It is not known which of the two figures the driver has seen.
  if (fixed != measured.fixed_when_asked && ++measured.passed_over < kMostPassedOver) return;
  measured.passed_over = 0;
  scheduler::Bytes context = process - std::min(process, std::max(fixed, measured.fixed_when_asked));
  if (part) context = std::max(context, measured.context);
  // Memory that is being evicted or handed over is for a moment counted by the client and not by the driver. So one
  // reading by itself lowers nothing.
  const bool lower = measured.known && process != 0 && context + kBlock <= measured.context;
  const std::optional<scheduler::Bytes> before = std::exchange(measured.lower, std::nullopt);
  if (lower && !before) {
    measured.lower = context;
    return;
  }
  if (lower) context = std::max(context, *before);
  context = std::min(context, process - std::min(process, contexts_before(client, gpu, process)));
  const scheduler::Bytes change = std::max(context, measured.context) - std::min(context, measured.context);
  const bool news = !measured.known || change >= kBlock;
  measured.known = true;
  measured.current = !part;
  if (!news) return;
  measured.context = context;
  log::debug("client {}: {} bytes on GPU {} besides its allocations", client.id, context, gpus_.number(gpu));
  assumed_contexts_.set(client.id, client.domain.payer(), gpu, 0);
  say_gpu(client, gpu, core_.gpu(gpu).total, context);
  carry_out(apply(limit::Measured{client.id, gpu, context}).outcome);
  publish_limits(client);
  publish_contexts(gpu);
  publish(client);
}

// What is counted there for earlier connections of the same process, up to `enough`: a process has its contexts once,
// however many connections it makes. Processes that cannot be seen count as one for each domain.
scheduler::Bytes Server::contexts_before(const Client& client, std::uint32_t gpu, scheduler::Bytes enough) const {
  scheduler::Bytes sum = 0;
  const auto same = by_process_.find(process_of(client, gpu));
  if (same == by_process_.end()) return sum;
  for (const scheduler::ClientId id : same->second) {
    if (id >= client.id || sum >= enough) break;
    const auto other = clients_.find(id);
    if (other != clients_.end()) sum += context_bytes(*other->second, gpu);
  }
  return sum;
}

// Whether the client's user is root or rotad's own.
bool Server::is_trusted(const Client& client) {
  return client.in_own_container && (client.uid == 0 || client.uid == geteuid());
}

std::tuple<pid_t, std::string, std::uint32_t> Server::process_of(const Client& client, std::uint32_t gpu) {
  return {client.pid, client.pid == 0 ? client.domain.key() : std::string(), gpu};
}

// What is believed of the size that a client gives for its context, as long as nothing measures it: no more than is
// assumed for a client that gives none, for all connections of a process together. Processes that cannot be seen may be
// several.
scheduler::Bytes Server::believed_context(const Client& client, std::uint32_t gpu, scheduler::Bytes said) const {
  const scheduler::Bytes total = gpus_.least_bytes(gpu);
  const scheduler::Bytes assumed = scheduler::assumed_context(total);
  const scheduler::Bytes most = client.pid != 0 ? assumed : std::max(assumed, total / 4);
  scheduler::Bytes left = most - std::min(most, contexts_before(client, gpu, most));
  if (!is_trusted(client)) {
    left = std::min(left, assumed_contexts_.left(client.id, client.domain.payer(), gpu, total));
  }
  // 0 would mean unknown.
  return std::max<scheduler::Bytes>(std::min({said != 0 ? said : assumed, assumed, left}), 1);
}

// For a client that says it has more than it was granted: tells the limits what the driver and the kernel say of the
// process. Once for each process, whatever its connections.
void Server::confirm(Client& client, std::uint32_t gpu) {
  if (client.pid == 0 || !quota_.claims(client.id, gpu)) return;
  const auto same = by_process_.find(process_of(client, gpu));
  if (same == by_process_.end() || *same->second.begin() != client.id) return;
  const auto measured = client.measured.find(gpu);
  const bool known = measured != client.measured.end() && measured->second.known;
  const scheduler::Bytes process = known ? measured->second.process : 0;
  const scheduler::Bytes context = known ? measured->second.context : 0;
  const scheduler::Bytes allocated = process - std::min(process, context);
  carry_out(apply(limit::Confirm{client.id, gpu, allocated, rota::resident_bytes(client.pid)}).outcome);
}

// NVML or another program has said how large a GPU is.
void Server::follow_size(std::uint32_t gpu) {
  const scheduler::Bytes bytes = gpus_.bytes(gpu);
  const scheduler::Bytes assumed = scheduler::assumed_context(gpus_.least_bytes(gpu));
  if (std::exchange(followed_[gpu], std::pair(bytes, assumed)) == std::pair(bytes, assumed)) return;
  for (const auto& [id, client] : clients_) {
    const scheduler::Bytes counted = context_bytes(*client, gpu);
    if (counted == 0) continue;  // it has not named this GPU, or not yet
    const auto measured = client->measured.find(gpu);
    const bool known = measured != client->measured.end() && measured->second.known;
    const scheduler::Bytes context = known ? counted : std::min(counted, assumed);
    if (core_.gpu(gpu).total == bytes && context == counted) continue;
    if (!known && !is_trusted(*client)) assumed_contexts_.set(id, client->domain.payer(), gpu, context);
    say_gpu(*client, gpu, bytes, context);
    if (context != counted) apply(limit::AddGpu{id, gpu, context, is_measurable(*client, gpu)});
    publish_contexts(gpu);
  }
  carry_out(apply(limit::GpuChanged{gpu}).outcome);
}

// For GPUs about which NVML has said nothing for too long.
void Server::forget_old_measurements() {
  for (auto reading = read_at_.begin(); reading != read_at_.end();) {
    const auto [gpu, at] = *reading;
    if (now() - at < kStale) {
      ++reading;
      continue;
    }
    log::warn(
        "GPU {}: NVML has not answered for {} s: until it does, rotad relies on what programs report and on the "
        "allocations that the driver refuses",
        gpus_.number(gpu), kStale.count());
    silent_.insert(gpu);
    reading = read_at_.erase(reading);
    readings_.erase(gpu);
    for (const auto& [id, client] : clients_) {
      if (const auto measured = client->measured.find(gpu); measured != client->measured.end()) {
        measured->second.current = false;
      }
    }
    step(event::Unmeasured{gpu});
  }
}

}  // namespace rota::server
