// Starting, the conversation with rotad, and the phases of client.h. Draining is in client_yield.cpp.
#include "runtime/turn/client.h"

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "generated/driver_real.h"
#include "runtime/core/log.h"

namespace rota::client {

using namespace std::chrono_literals;
using protocol::Kind;
using protocol::Message;

namespace {

// A waiter whose rotad died runs after this: long enough for a restarted rotad, short enough for a person.
constexpr auto kGrace = 1s;
// How long a reconnected client that is running waits for the new rotad's yes before it closes its gate.
constexpr auto kReclaim = 200ms;
// A look at the socket now and then: nothing else tells that rotad has gone.
constexpr auto kLookAtSocket = 250ms;
constexpr auto kFarAway = 1s;
// Changes of usage below 1/64 of a GPU are not worth a message.
constexpr std::uint64_t kUsageFraction = 64;

// Whom the exit handler stops.
constinit std::atomic<Client*> exiting{nullptr};

bool wants_to_wait() {
  const char* value = std::getenv("ROTA_WAIT");  // NOLINT(concurrency-mt-unsafe)
  return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace

Client::Client(gate::Gate& gate, gate::Contexts& contexts, memory::Memory& memory)
    : gate_(gate), contexts_(contexts), memory_(memory) {
  gate_.set_attendant(this);
  gate_.close();
  memory_.set_observer([this](int device) { usage_changed(device); });
}

Client::~Client() {
  at_exit();
  if (monitor_runs_) pthread_join(monitor_, nullptr);
  Client* own = this;
  exiting.compare_exchange_strong(own, nullptr);
  gate_.set_attendant(nullptr);
  memory_.set_observer({});
}

// --- the program's threads

void Client::context_made(api::CUcontext context, int device, bool primary) {
  contexts_.add(context, device, primary);
  if (device < 0 || device >= memory::kMaxDevices) return;
  const std::uint64_t bit = std::uint64_t{1} << device;
  if ((devices_seen_.fetch_or(bit, std::memory_order_acq_rel) & bit) == 0) {
    Gpu gpu;
    gpu.device = device;
    api::CUuuid uuid{};
    if (real::cuDeviceGetUuid_v2(&uuid, device) != api::CUDA_SUCCESS) real::cuDeviceGetUuid(&uuid, device);
    static_assert(sizeof uuid == sizeof gpu.description.uuid);
    std::memcpy(&gpu.description.uuid, &uuid, sizeof uuid);
    std::size_t total = 0;
    real::cuDeviceTotalMem_v2(&total, device);
    gpu.description.total_bytes = total;
    real::cuDeviceGetName(gpu.description.name, static_cast<int>(protocol::kNameLength), device);
    usage_[static_cast<std::size_t>(device)].worth_telling.store(total / kUsageFraction, std::memory_order_relaxed);
    const std::lock_guard lock(new_gpus_mutex_);
    new_gpus_.push_back(gpu);
  }
  start();
  bell_.ring();
}

void Client::arrived() {
  // A context that we did not see being made (a library with a way of its own) shows up here at the latest.
  if (!started_.load(std::memory_order_acquire) || devices_seen_.load(std::memory_order_relaxed) == 0) {
    api::CUcontext context = nullptr;
    api::CUdevice device = 0;
    if (real::cuCtxGetCurrent(&context) == api::CUDA_SUCCESS && context != nullptr &&
        real::cuCtxGetDevice(&device) == api::CUDA_SUCCESS) {
      context_made(context, device, false);
      return;
    }
    start();
  }
  bell_.ring();
}

bool Client::submits_nothing(const gate::Call& call) {
  return contexts_.submits_nothing(call);
}

void Client::usage_changed(int device) {
  if (device < 0 || device >= memory::kMaxDevices) return;
  UsageSlot& slot = usage_[static_cast<std::size_t>(device)];
  const int index = slot.index.load(std::memory_order_acquire);
  protocol::UsagePage* page = usage_page_.load(std::memory_order_acquire);
  if (index < 0 || page == nullptr) return;
  std::uint64_t bytes = 0;
  std::uint64_t fixed = 0;
  do {
    bytes = memory_.ledger().live_bytes(device);
    fixed = memory_.ledger().fixed_bytes(device);
    // Whoever writes last looks again: another thread may have written newer sums before these. One total order of
    // these stores and of the ledger's sums makes that sure (no fence: TSan does not know fences).
    page->device_bytes[index].store(bytes);
    page->fixed_bytes[index].store(fixed);
  } while (bytes != memory_.ledger().live_bytes(device) || fixed != memory_.ledger().fixed_bytes(device));
  const std::uint64_t told = slot.last_told.load(std::memory_order_relaxed);
  const std::uint64_t change = bytes > told ? bytes - told : told - bytes;
  if (change < slot.worth_telling.load(std::memory_order_relaxed)) return;
  slot.last_told.store(bytes, std::memory_order_relaxed);
  usage_news_.store(true, std::memory_order_release);
  bell_.ring();
}

void Client::start() {
  if (started_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(start_mutex_);
  if (started_.load(std::memory_order_relaxed)) return;
  if (connect_first()) {
    memory_.set_served(true);
    served_.store(true, std::memory_order_release);
    start_monitor();
  } else {
    gate_.open_for_good();
  }
  started_.store(true, std::memory_order_release);
}

bool Client::connect_first() {
  bool told = false;
  for (;;) {
    Connection::Attempt attempt = Connection::open();
    if (attempt.connection) {
      connection_ = std::move(attempt.connection);
      usage_page_.store(connection_->usage(), std::memory_order_release);
      log::debug("client {} of rotad {}", connection_->welcome().client, connection_->welcome().daemon_pid);
      return true;
    }
    const bool wait = wants_to_wait();
    if (!told) {
      if (!attempt.reason.empty()) {
        log::warn("no turns on the GPU: {}; {}", attempt.reason,
                  wait ? "waiting for rotad (ROTA_WAIT=1)" : "the program runs as without rota");
      } else if (wait) {
        log::warn("waiting for rotad (ROTA_WAIT=1): start one, or use `rota run`");
      } else {
        log::info("no rotad is running: the program runs as without rota");
      }
      told = true;
    }
    if (!wait) return false;
    std::this_thread::sleep_for(200ms);
  }
}

void Client::start_monitor() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(
      &monitor_, nullptr,
      [](void* client) -> void* {
        static_cast<Client*>(client)->run();
        return nullptr;
      },
      this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    log::warn("no turns on the GPU: the monitor thread cannot be started ({})", error);
    connection_.reset();
    gate_.open_for_good();
    return;
  }
  monitor_runs_ = true;
  pthread_setname_np(monitor_, "rota");
  // Registered after the driver has registered its own (a context exists), and so run before those: the driver must not
  // be taken down while the monitor is inside it.
  exiting.store(this);
  static const int registered = std::atexit([] {
    if (Client* client = exiting.load()) client->at_exit();
  });
  (void)registered;
}

void Client::at_exit() {
  stopping_.store(true, std::memory_order_release);
  contexts_.shut();
  bell_.ring();
  gate_.open_for_good();
}

void Client::after_fork_in_child() {
  // The parent's monitor is not here, and its connection is not ours.
  if (connection_) connection_->close_descriptor();
  connection_.release();  // NOLINT(bugprone-unused-return-value): nothing left to free but the object itself
  new (&start_mutex_) std::mutex;
  new (&new_gpus_mutex_) std::mutex;
  new (&bell_) Bell;
  new_gpus_.clear();
  gpus_.clear();
  started_.store(false);
  served_.store(false);
  stopping_.store(false);
  devices_seen_.store(0);
  usage_page_.store(nullptr);
  for (UsageSlot& slot : usage_) slot.index.store(-1);
  monitor_runs_ = false;
  exiting.store(nullptr);
  phase_ = Phase::kIdle;
  grant_ = given_back_ = 0;
  wanted_ = 0;
  gate_.close();
}

// --- the monitor

void Client::run() {
  // Measured: a query from a thread that is not in RELAXED mode invalidates a global capture (facts/interposition.md).
  api::CUstreamCaptureMode mode = api::CU_STREAM_CAPTURE_MODE_RELAXED;
  real::cuThreadExchangeStreamCaptureMode(&mode);
  while (!stopping()) {
    const std::uint32_t heard = bell_.heard();
    // Read before the page is: what changes while we look wakes us at once.
    const std::uint32_t event_seen = connection_ ? connection_->event().load() : 0;
    if (connection_) read_messages();
    if (connection_) announce_gpus();
    const std::chrono::nanoseconds pause = step();
    if (stopping()) break;
    bell_.wait(heard, connection_ ? &connection_->event() : nullptr, event_seen, pause);
  }
}

void Client::nap(std::chrono::nanoseconds time) const {
  std::this_thread::sleep_for(time);
}

void Client::send(const Message& message) {
  if (connection_ && !connection_->send(message)) lost_rotad();
}

void Client::read_messages() {
  Message message;
  for (;;) {
    switch (connection_->receive(message)) {
      case Connection::Received::kNothing:
        return;
      case Connection::Received::kGone:
        lost_rotad();
        return;
      case Connection::Received::kMessage:
        break;
    }
    if (message.kind == Kind::kGpuAdded) {
      const protocol::GpuAdded& added = message.body.gpu_added;
      if (added.index >= protocol::kMaxGpus) continue;
      for (Gpu& gpu : gpus_) {
        if (!gpu.told || !(gpu.description.uuid == added.uuid)) continue;
        gpu.index = static_cast<int>(added.index);
        usage_[static_cast<std::size_t>(gpu.device)].index.store(gpu.index, std::memory_order_release);
        usage_changed(gpu.device);
      }
    } else if (message.kind == Kind::kRefused) {
      // Answers come in order: it is about the first GPU that has none yet.
      message.body.refused.text[protocol::kTextLength - 1] = '\0';
      for (Gpu& gpu : gpus_) {
        if (!gpu.told || gpu.index >= 0 || gpu.refused) continue;
        gpu.refused = true;
        log::warn("no turns on GPU {}: {}", gpu.device, message.body.refused.text);
        break;
      }
    }
  }
}

void Client::announce_gpus() {
  {
    const std::lock_guard lock(new_gpus_mutex_);
    gpus_.insert(gpus_.end(), new_gpus_.begin(), new_gpus_.end());
    new_gpus_.clear();
  }
  for (Gpu& gpu : gpus_) {
    if (gpu.told || !connection_) continue;
    Message message;
    message.kind = Kind::kAddGpu;
    message.body.add_gpu = gpu.description;
    gpu.told = true;
    send(message);
  }
  if (connection_ && usage_news_.exchange(false, std::memory_order_acq_rel)) {
    Message message;
    message.kind = Kind::kUsage;
    send(message);
  }
}

void Client::lost_rotad() {
  connection_.reset();
  usage_page_.store(nullptr, std::memory_order_release);
  for (Gpu& gpu : gpus_) {
    gpu.told = gpu.refused = false;
    gpu.index = -1;
    usage_[static_cast<std::size_t>(gpu.device)].index.store(-1, std::memory_order_relaxed);
    usage_[static_cast<std::size_t>(gpu.device)].last_told.store(0, std::memory_order_relaxed);
  }
  lost_at_ = Clock::now();
  next_attempt_ = lost_at_ + 500ms;
  grant_ = given_back_ = 0;
  wanted_ = 0;
  running_want_until_.reset();
  if (phase_ != Phase::kBeside) phase_ = Phase::kAlone;
}

std::uint64_t Client::mask() const {
  std::uint64_t all = 0;
  for (const Gpu& gpu : gpus_) {
    if (gpu.index >= 0) all |= std::uint64_t{1} << gpu.index;
  }
  return all;
}

bool Client::all_answered() const {
  for (const Gpu& gpu : gpus_) {
    if (gpu.index < 0 && !gpu.refused) return false;
  }
  return true;
}

void Client::write_submissions() {
  if (connection_) connection_->usage()->submissions.store(gate_.traffic().calls, std::memory_order_relaxed);
}

void Client::give_back(std::uint32_t grant) {
  Message message;
  message.kind = Kind::kGiveBack;
  message.body.give_back = {.grant = grant, .reserved = 0};
  given_back_ = grant;
  grant_ = 0;
  send(message);
}

void Client::want(bool running) {
  Message message;
  message.kind = Kind::kWant;
  message.body.want = {.gpus = mask(), .running = running ? 1U : 0U, .reserved = 0};
  wanted_ = mask();
  phase_ = Phase::kWaiting;
  send(message);
}

std::chrono::nanoseconds Client::step() {
  if (!connection_) return step_alone();
  if (phase_ == Phase::kBeside) return kFarAway;
  if (gpus_.empty()) return kFarAway;  // the first one rings
  if (!all_answered()) {
    // The answer comes by the socket, which no bell rings for; it takes microseconds.
    connection_->wait_for_message(50);
    return 0ns;
  }
  const std::uint64_t all = mask();
  if (all == 0) {
    // rotad serves none of these GPUs, and said why.
    if (gate_.closed()) gate_.open();
    return kFarAway;
  }
  const Lease lease = connection_->lease();
  if (phase_ == Phase::kAlone) {
    // Back again. What runs goes on running while the new rotad is asked; what stands at the gate waits its turn.
    const bool running = !gate_.closed();
    if (running) running_want_until_ = Clock::now() + kReclaim;
    want(running);
    return running ? std::chrono::nanoseconds(kReclaim) : std::chrono::nanoseconds(kLookAtSocket);
  }
  if (phase_ == Phase::kHolding) return step_holding(lease);

  if (phase_ == Phase::kIdle) {
    // Open while rotad served none of our GPUs, and now it serves one.
    if (!gate_.closed()) gate_.close();
    if (gate_.standing() == 0) return kFarAway;
    if (gave_back_idle_at_) {
      // Came back at once: it was a breath, not a rest. Give up less easily next time; and more easily after long
      // rests.
      const auto away = Clock::now() - *gave_back_idle_at_;
      if (away < 4 * idle_grace_) idle_grace_ = std::min<std::chrono::nanoseconds>(idle_grace_ * 2, 16ms);
      if (away > 20 * idle_grace_) idle_grace_ = std::max<std::chrono::nanoseconds>(idle_grace_ / 2, 1ms);
      gave_back_idle_at_.reset();
    }
    want(false);
  }
  if (phase_ != Phase::kWaiting) return kLookAtSocket;
  if (lease.grant != 0 && lease.grant != given_back_ && (lease.held_gpus & all) == all) {
    take(lease);
    return 0ns;
  }
  if (lease.grant != 0 && lease.grant != given_back_ && gate_.closed()) {
    // Fewer GPUs than this process has touched meanwhile. Nothing has run under this grant, and to sit on it would keep
    // others waiting until rotad takes it back.
    give_back(lease.grant);
    if (!connection_) return 0ns;
  }
  if (wanted_ != all) want(false);
  if (running_want_until_ && Clock::now() >= *running_want_until_) {
    // The new rotad let others go first.
    running_want_until_.reset();
    yield(false);
  }
  return running_want_until_ ? std::chrono::nanoseconds(kReclaim / 10) : std::chrono::nanoseconds(kLookAtSocket);
}

std::chrono::nanoseconds Client::step_alone() {
  const auto now = Clock::now();
  if (gate_.closed() && now - lost_at_ >= kGrace) {
    log::warn("rotad has gone: the program runs on without turns");
    gate_.open();
  }
  if (now >= next_attempt_) {
    Connection::Attempt attempt = Connection::open();
    if (attempt.connection) {
      connection_ = std::move(attempt.connection);
      usage_page_.store(connection_->usage(), std::memory_order_release);
      log::info("rotad is back");
      return 0ns;
    }
    next_attempt_ = now + 1s;
  }
  return gate_.closed() ? std::min<std::chrono::nanoseconds>(kLookAtSocket, lost_at_ + kGrace - now)
                        : std::chrono::nanoseconds(next_attempt_ - now);
}

void Client::take(const Lease& lease) {
  const auto begun = Clock::now();
  phase_ = Phase::kHolding;
  grant_ = lease.grant;
  running_want_until_.reset();
  idle_since_.reset();
  calls_seen_ = 0;
  mark_due_ = true;
  retry_at_ = begun;
  if (gate_.closed()) {
    bring_memory_back();
    gate_.open();
  }
  // However short the turn: what came by a transfer is used for at least as long again, or a GPU could spend its time
  // with transfers alone.
  const auto now = Clock::now();
  earliest_yield_ = now + std::max<std::chrono::nanoseconds>(now - begun, 5ms);
  taken_at_ = now;
  log::debug("grant {}: memory back after {} us", grant_,
             std::chrono::duration_cast<std::chrono::microseconds>(now - begun).count());
}

// Managed memory may have made room for others meanwhile. Moving it in one go before the first kernel runs at the copy
// engine's speed (50 GB/s measured); left to faults it would come at 10 GB/s, each kernel waiting. Waits for the move,
// since kernels that fault beside it would only be in its way; but not for ever.
void Client::bring_memory_back() {
  struct Move {
    api::CUcontext context;
    api::CUstream stream = nullptr;
    api::CUevent event = nullptr;
  };
  std::vector<Move> moves;
  std::uint64_t bytes = 0;
  for (const Gpu& gpu : gpus_) {
    if (memory_.ledger().live_bytes(gpu.device) == memory_.ledger().fixed_bytes(gpu.device)) continue;
    Move move{.context = contexts_.any(gpu.device)};
    if (move.context == nullptr) continue;
    contexts_.within(move.context, [&] {
      if (real::cuStreamCreate(&move.stream, api::CU_STREAM_NON_BLOCKING) != api::CUDA_SUCCESS) return;
      bytes += memory_.prefetch_all(gpu.device, move.stream);
      if (real::cuEventCreate(&move.event, api::CU_EVENT_DISABLE_TIMING) == api::CUDA_SUCCESS) {
        real::cuEventRecord(move.event, move.stream);
      }
    });
    if (move.stream != nullptr) moves.push_back(move);
  }
  // 20 GB/s: well below what the link does, well above faults.
  const auto until = Clock::now() + 20ms + std::chrono::nanoseconds(bytes / 20);
  for (const Move& move : moves) {
    bool waiting = move.event != nullptr;
    for (std::chrono::nanoseconds pause = 50us; waiting && !stopping() && Clock::now() < until;) {
      // Under the lock each time: the context may be destroyed while we wait, and stream and event with it.
      const auto looked = contexts_.within(
          move.context, [&] { waiting = real::cuEventQuery(move.event) == api::CUDA_ERROR_NOT_READY; });
      if (looked == gate::Contexts::Within::kGone) break;
      if (waiting) nap(pause);
      pause = std::min<std::chrono::nanoseconds>(pause * 2, 1ms);
    }
    contexts_.within(move.context, [&] {
      if (move.event != nullptr) real::cuEventDestroy_v2(move.event);
      real::cuStreamDestroy_v2(move.stream);
    });
  }
}

void Client::lease_revoked() {
  static log::Once once;
  if (once.first()) log::warn("rotad took the GPU back before this program had drained; it waits for its next turn");
  gate_.close();
  grant_ = 0;
  phase_ = Phase::kIdle;
}

}  // namespace rota::client
