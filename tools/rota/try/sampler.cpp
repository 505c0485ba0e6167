#include "tools/rota/try/sampler.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "scheduler/address/socket_path.h"
#include "tools/rota/status/sharing.h"
#include "tools/rota/try/processes.h"

namespace rota::attempt {
namespace {

using namespace std::chrono_literals;

// Often at first: short runs would otherwise not be seen at all.
constexpr auto kFirst = 2s;
constexpr auto kOften = 20ms;
constexpr auto kSeldom = 100ms;
// More than a driver or a display server has on a GPU that is otherwise idle.
constexpr std::uint64_t kMuch = std::uint64_t{512} << 20;

// The peer's pid according to the kernel, if the daemon reports the same: otherwise it is in another pid namespace.
bool is_in_our_namespace(int rotad, std::uint64_t daemon_pid) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(rotad, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.pid > 0 &&
         static_cast<std::uint64_t>(peer.pid) == daemon_pid;
}

}  // namespace

Sampler::Sampler() {
  auto nvml = server::Nvml::open();
  if (nvml) {
    nvml_ = std::move(*nvml);
  } else {
    nvml_problem_ = nvml.error().text;
  }
  rotad_ = Descriptor(protocol::find_rotad().descriptor);
  if (const auto status = rotad_ ? tool::request_status(rotad_.get()) : std::nullopt) {
    rotad_is_here_ = is_in_our_namespace(rotad_.get(), status->daemon.pid);
  }
}

Sampler::~Sampler() {
  if (thread_.joinable()) stop();
}

void Sampler::look_before() {
  used_before_ = 0;
  there_before_ = 0;
  used_known_ = nvml_ != nullptr && !gpus_.empty();
  for (const Gpu& gpu : gpus_) {
    const auto reading = nvml_ ? nvml_->read(gpu.uuid) : std::nullopt;
    if (!reading) {
      used_known_ = false;
      if (nvml_problem_.empty()) nvml_problem_ = fmt::format("NVML does not report the memory in use on {}", gpu.name);
      return;
    }
    used_before_ += reading->used;
    // Otherwise processes are named as they appear.
    if (!reading->processes && reading->used >= kMuch) there_before_ += reading->used;
  }
}

void Sampler::start() {
  seen_ = {};
  waited_ns_.clear();
  others_.clear();
  grants_before_.reset();
  most_active_ = 0;
  ending_ = false;
  thread_ = std::thread([this] { run(); });
}

Seen Sampler::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (lost_rotad_) seen_.allocated.reset();
  if (!lost_rotad_ && !waited_ns_.empty()) {
    std::uint64_t sum = 0;
    for (const auto& [client, waited] : waited_ns_) sum += waited;
    seen_.waited = static_cast<double>(sum) / 1e9;
  }
  if (there_before_ != 0) {
    seen_.others.push_back(
        fmt::format("programs that NVML does not name, with {} MiB from before", there_before_ >> 20));
  }
  for (const auto& [pid, name] : others_) seen_.others.push_back(fmt::format("{} (pid {})", name, pid));
  return seen_;
}

void Sampler::run() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!ending_) {
    lock.unlock();
    ask_rotad();
    ask_nvml();
    lock.lock();
    const bool often = std::chrono::steady_clock::now() - begin < kFirst;
    changed_.wait_for(lock, often ? kOften : kSeldom, [this] { return ending_; });
  }
}

void Sampler::ask_rotad() {
  if (!rotad_ || !rotad_is_here_) return;
  const auto status = tool::request_status(rotad_.get());
  if (!status) {
    rotad_ = {};  // rotad has ended, and what happened afterwards is not known
    lost_rotad_ = true;
    return;
  }
  if (!grants_before_) grants_before_ = status->daemon.grants;
  seen_.grants = status->daemon.grants - *grants_before_;
  std::uint64_t allocated = 0;
  bool some = false;
  for (const protocol::ProgramRow& client : status->programs) {
    if (!descends_from(client.pid, getpid())) {
      const bool here = std::ranges::any_of(status->gpus, [&](const protocol::GpuRow& gpu) {
        const bool touched = gpu.index < protocol::kMaxGpus && (client.gpus >> gpu.index & 1) != 0;
        return touched && std::ranges::find(gpus_, gpu.uuid, &Gpu::uuid) != gpus_.end();
      });
      // One that has ended no longer exists, and may have been a copy.
      if (here && !process_name(client.pid).empty()) saw_other(client.pid, client.name);
      continue;
    }
    if (client.gpus == 0) continue;
    some = true;
    allocated += status->sum(client.client, &protocol::TaskRow::device_bytes) +
                 status->sum(client.client, &protocol::TaskRow::context_bytes);
    waited_ns_[client.client] = client.waited_ns;
    seen_.uses[client.pid] = {.waited = static_cast<double>(client.waited_ns) / 1e9,
                              .held = static_cast<double>(client.held_ns) / 1e9};
    for (const protocol::GpuRow& gpu : status->gpus) {
      const bool touched = gpu.index < protocol::kMaxGpus && (client.gpus >> gpu.index & 1) != 0;
      if (!touched) continue;
      if (gpu.active >= most_active_) {
        if (const std::string sharing = tool::sharing_text(gpu); !sharing.empty()) {
          seen_.sharing = sharing;
          most_active_ = gpu.active;
        }
      }
      if (std::ranges::find(seen_.gpus, gpu.uuid, &Gpu::uuid) == seen_.gpus.end()) {
        seen_.gpus.push_back({gpu.uuid, gpu.name});
      }
    }
  }
  if (some) seen_.allocated = std::max(seen_.allocated.value_or(0), allocated);
}

void Sampler::ask_nvml() {
  if (!used_known_) return;
  std::uint64_t used = 0;
  for (const Gpu& gpu : gpus_) {
    const auto reading = nvml_->read(gpu.uuid);
    if (!reading) return;
    used += reading->used;
    if (!reading->processes) continue;
    for (const auto& [pid, bytes] : *reading->processes) {
      if (descends_from(pid, getpid())) continue;
      const std::string name = process_name(pid);
      if (!name.empty()) saw_other(pid, name);
    }
  }
  seen_.in_use = std::max(seen_.in_use.value_or(0), used - std::min(used, used_before_));
}

void Sampler::saw_other(pid_t pid, const std::string& name) {
  others_.emplace(pid, name);
}

}  // namespace rota::attempt
