// What the driver says of memory: of each GPU, and of each client's process. What a process has there beyond what it
// has allocated is its contexts, modules and heaps, which no call names; the books count with that instead of an
// assumption.
//
// NVML is asked once a second while clients are there, and at once for a GPU that a client has just come to, by a
// thread of its own (meter.h). Where it does not answer, or does not name the client's process, the books count with
// what the client says and with the last figure or an assumption.
#include <algorithm>
#include <utility>

#include "scheduler/server/client.h"
#include "scheduler/server/log.h"

namespace rota::server {

using namespace std::chrono_literals;
namespace event = scheduler::event;

namespace {

constexpr auto kEvery = 1s;
// Where there is no NVML: a driver may be installed, or loaded, under a running rotad.
constexpr auto kAgain = 30s;
// An answer that is late by so much says nothing of now, nor does the one before it.
constexpr auto kStale = 10s;
// The driver counts in blocks of 2 MiB.
constexpr scheduler::Bytes kBlock = 2 << 20;
// A client that allocates and frees all the time is measured at last, with the most that it has allocated meanwhile.
constexpr unsigned kMostPassedOver = 5;

// What of a client's allocations the driver counts as its process's.
scheduler::Bytes counted_by_driver(const protocol::UsagePage& usage, std::uint32_t gpu) {
  return std::max(usage.fixed_bytes[gpu].load(), usage.resident_bytes[gpu].load());
}

}  // namespace

void Server::measure() {
  if (measuring_since_) {
    if (now() - *measuring_since_ >= kStale && !readings_.empty()) {
      log::warn("NVML has not answered for {} s: memory is what programs report until it does",
                std::chrono::duration_cast<std::chrono::seconds>(now() - *measuring_since_).count());
      forget_measurements();
    }
    return;
  }
  if (now() < measure_at_) return;
  std::vector<protocol::Uuid> gpus;
  for (std::uint32_t index = 0; index < protocol::kMaxGpus; ++index) {
    if (const GpuEntry* entry = gpus_.at(index)) {
      gpus.push_back(entry->uuid);
    } else {
      readings_.erase(index);
    }
  }
  // Nobody is there, and NVML has been told.
  if (gpus.empty() && measure_at_ == scheduler::Time{}) return;
  measure_at_ = gpus.empty() ? scheduler::Time{} : now() + kEvery;
  for (const auto& [id, client] : clients_) {
    for (const std::uint32_t gpu : client->gpus) {
      client->measured[gpu].fixed_when_asked = counted_by_driver(*client->usage, gpu);
    }
  }
  if (!meter_.ask(std::move(gpus))) {
    measure_at_ = now() + kAgain;
    return;
  }
  measuring_since_ = now();
}

void Server::measure_soon() {
  if (!measuring_problem_.empty()) return;  // in its own time
  if (measuring_since_) {
    measure_again_ = true;
    return;
  }
  measure_at_ = std::min(measure_at_, now());
  measure();
}

void Server::on_measured(const Meter::Answer& answer) {
  measuring_since_.reset();
  if (answer.problem != measuring_problem_ && !answer.problem.empty()) {
    log::info("memory is what programs report: {}", answer.problem);
  }
  measuring_problem_ = answer.problem;
  if (!answer.problem.empty()) {
    measure_at_ = now() + kAgain;
    forget_measurements();
    return;
  }
  readings_.clear();
  for (const GpuReading& reading : answer.gpus) {
    for (std::uint32_t index = 0; index < protocol::kMaxGpus; ++index) {
      if (const GpuEntry* entry = gpus_.at(index); entry != nullptr && entry->uuid == reading.uuid) {
        readings_[index] = reading;
      }
    }
  }
  for (const auto& [id, client] : clients_) {
    for (const std::uint32_t gpu : client->gpus) {
      client->measured[gpu].current = false;
      const auto reading = readings_.find(gpu);
      if (reading == readings_.end() || !reading->second.processes || !client->says_fixed) continue;
      const auto process = reading->second.processes->find(client->pid);
      if (process != reading->second.processes->end()) take_measurement(*client, gpu, process->second);
    }
  }
  if (std::exchange(measure_again_, false)) {
    measure_at_ = now();
    measure();
  }
}

void Server::take_measurement(Client& client, std::uint32_t gpu, scheduler::Bytes process) {
  Measurement& measured = client.measured[gpu];
  // Of memory that a newer rota serves in its own way nobody says here what the driver counts.
  if (client.usage->memory_modes[gpu].load() > protocol::kLastMemoryMode) return;
  const scheduler::Bytes fixed = counted_by_driver(*client.usage, gpu);
  measured.process = process;
  measured.current = measured.known;
  // Which of the two the driver has seen is not known.
  if (fixed != measured.fixed_when_asked && ++measured.passed_over < kMostPassedOver) return;
  measured.passed_over = 0;
  const scheduler::Bytes context = process - std::min(process, std::max(fixed, measured.fixed_when_asked));
  const scheduler::Bytes change = std::max(context, measured.context) - std::min(context, measured.context);
  const bool news = !measured.known || change >= kBlock;
  measured.known = measured.current = true;
  if (!news) return;
  measured.context = context;
  log::debug("client {}: {} bytes on GPU {} beside its allocations", client.id, context, gpu);
  // 0 would be read as unknown.
  step(event::AddGpu{client.id, gpu, core_.gpu(gpu).total, std::max<scheduler::Bytes>(context, 1)});
  carry_out(quota_.measured(client.id, gpu, context, now()));
  publish_limits(client);
  publish_contexts(gpu);
  publish(client);
}

void Server::forget_measurements() {
  readings_.clear();
  for (const auto& [id, client] : clients_) {
    for (auto& [gpu, measured] : client->measured) measured.current = false;
  }
}

}  // namespace rota::server
