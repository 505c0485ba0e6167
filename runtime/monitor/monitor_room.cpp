// What this process may have within limits that it shares, what it has besides its allocations, and room for its
// contexts.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>
#include <thread>

#include "generated/driver_real.h"
#include "runtime/core/held_signals.h"
#include "runtime/core/log.h"
#include "runtime/core/undo.h"
#include "runtime/core/waiters.h"
#include "runtime/driver/freed.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/monitor/monitor.h"
#include "scheduler/rules/context_cost.h"

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

// How long a thread that wants a context on another GPU waits for the process's grant to cover it. A judgment.
constexpr Time kGrantGrows = 250ms;
// A GPU counts as crowded for so long after programs had more than fits, so that what one gives back for that reason is
// not taken anew at once. A judgment.
constexpr Time kStaysCrowded = 10s;
// Between two checks of whether the monitor has closed the gate, or rotad has written a page. A judgment.
constexpr auto kGateCloses = 50us;
// How long rotad may take to hear of the process's sessions. A judgment.
constexpr auto kSessionsHeard = 250ms;
// Between two checks of whether memory that could not leave can now. A judgment.
constexpr auto kForNowLooks = 5ms;
// How long a thread goes on waiting after a signal handler has run in it before that is said, as for threads at the
// gate.
constexpr auto kSaySignal = 500ms;
// How long a call may wait for room, its turns included, before that is said. A judgment.
constexpr Time kSayWait = 2s;
// How long a context waits for memory of others that can leave and does not: without a context a program cannot run at
// all, and the others may be slow to hear of it on a busy machine. A judgment.
constexpr Time kContextWaits = 10s;
// Between two looks for calls that were left. A judgment.
constexpr Time kBetweenUndo = 250ms;

}  // namespace

memory::Room::Limit Monitor::limit(int device) {
  if (device < 0 || device >= memory::kMaxDevices) return {};
  if (!started_.load(std::memory_order_acquire)) return {.total = limit_before_contexts()};
  const protocol::LeasePage* page = limits_.load(std::memory_order_acquire);
  if (page == nullptr) return {};
  // A process that asks right at the start must not be told the size of the whole GPU.
  const bool known = budget_.wait_until_known(device);
  const int index = limits_index_[static_cast<std::size_t>(device)].load(std::memory_order_relaxed);
  const std::uint64_t total = page->limit_bytes.load(std::memory_order_relaxed);
  if (index < 0) return known ? memory::Room::Limit{} : unanswered_limit(device, total);
  if (total == protocol::kUnlimited) return {};
  return {total, budget_.available(device, page->gpus[index].left_bytes.load())};
}

// As far as it is known here while rotad does not answer, for `said` in its page: what others use of it is not.
memory::Room::Limit Monitor::unanswered_limit(int device, std::uint64_t said) const {
  std::uint64_t total = said;
  for (const protocol::SessionEntry& session : sessions_) total = std::min(total, session.device_bytes);
  if (total == protocol::kUnlimited) return {};
  const std::uint64_t used = memory_.ledger().live_bytes(device) + context_bytes(device);
  return {total, total - std::min(total, used)};
}

// Where memory stays native and nothing is limited, the driver's answer needs no rotad.
void Monitor::refresh(int device) {
  if (device < 0 || device >= memory::kMaxDevices || limits_.load(std::memory_order_acquire) == nullptr) return;
  const protocol::MemoryMode mode = memory_.mode(device);
  const bool moves = protocol::is_unified(mode) || mode == protocol::MemoryMode::kSwap;
  const bool has_limit = limited() || memory_.settings().limit_bytes != memory::kNoLimit ||
                         std::ranges::any_of(sessions_, [](const protocol::SessionEntry& session) {
                           return session.device_bytes != protocol::kUnlimited;
                         });
  budget_.wait_until_known(device, moves || has_limit);
}

// A program may ask how large a GPU is before it makes a context. rotad is asked once, over a connection that ends with
// its answer: no thread is started in a program that may never use a GPU.
std::uint64_t Monitor::limit_before_contexts() {
  const HeldSignals held;  // until the lock is free again
  const std::lock_guard lock(early_limit_mutex_);
  if (early_limit_) return *early_limit_;
  early_limit_ = protocol::kUnlimited;
  const Connection::Attempt attempt = Connection::open();
  silent_.store(attempt.unanswered != nullptr);
  if (attempt.connection) {
    // Sessions may have limits of their own, which are in the page once rotad has heard of them.
    const std::atomic<std::uint32_t>& event = attempt.connection->event();
    const std::uint32_t before = event.load();
    for (const protocol::SessionEntry& session : sessions_) attempt.connection->send(message_of(session));
    const auto until = std::chrono::steady_clock::now() + kSessionsHeard;
    while (event.load() - before < sessions_.size() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kGateCloses);
    }
    early_limit_ = attempt.connection->page()->limit_bytes.load(std::memory_order_relaxed);
  }
  return *early_limit_;
}

bool Monitor::limited() const {
  const protocol::LeasePage* page = limits_.load(std::memory_order_acquire);
  return page != nullptr && page->limit_bytes.load(std::memory_order_relaxed) != protocol::kUnlimited;
}

void Monitor::say_full(int device) const {
  static log::Once once;
  const auto here = on_page(device);
  if (!here || !log::enabled(log::Level::kWarn)) return;
  const std::string others = who_has_memory(here->index);
  if (others.empty() || !once.first()) return;
  log::warn("GPU {} has no room for an allocation of this program; others have there: {}", driver::gpu_number(device),
            others);
}

std::optional<Monitor::OnPage> Monitor::on_page(int device) const {
  if (device < 0 || device >= memory::kMaxDevices) return std::nullopt;
  const protocol::LeasePage* page = limits_.load(std::memory_order_acquire);
  const int index = limits_index_[static_cast<std::size_t>(device)].load(std::memory_order_relaxed);
  return page != nullptr && index >= 0 ? std::optional(OnPage{page->gpus[index], index}) : std::nullopt;
}

std::uint64_t Monitor::context_bytes(int device) const {
  if (device < 0 || device >= memory::kMaxDevices) return 0;
  const auto here = on_page(device);
  const std::uint64_t counted = here ? here->lease.context_bytes.load() : 0;
  // As rotad would assume.
  return counted != 0 ? counted
                      : protocol::assumed_context(
                            total_bytes_[static_cast<std::size_t>(device)].load(std::memory_order_relaxed));
}

std::uint64_t Monitor::all_context_bytes(int device) const {
  const auto here = on_page(device);
  return here ? here->lease.all_context_bytes.load() : 0;
}

std::uint64_t Monitor::fixed_of_others_bytes(int device) const {
  const auto here = on_page(device);
  return here ? here->lease.fixed_of_others_bytes.load() : 0;
}

void Monitor::make_room_for_context(int device, FunctionRef<bool()> again) {
  if (device < 0 || device >= memory::kMaxDevices || gate::may_not_wait() || contexts_.captures() != 0) return;
  touch(device);
  // A new GPU: rotad has to be told, and the grant has to be extended to it. If this is the process's first GPU, the
  // grant is there at the first look; until then the gate is closed.
  for (const auto until = std::chrono::steady_clock::now() + kGrantGrows; served();) {
    gate_.pass(gate::bit_of(device));
    if (budget_.promised(device) != Budget::kUnlimited || std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(1ms);
  }
  make_room(device, again, kContextWaits);
}

void Monitor::make_room(int device, FunctionRef<bool()> again) {
  make_room(device, again, Time{0});
}

// `patience`: how long memory of others that can leave is waited for although it is not leaving.
void Monitor::make_room(int device, FunctionRef<bool()> again, Time patience) {
  if (device < 0 || device >= memory::kMaxDevices) return;
  if (memory_.swap().drop_kept(device) != 0 && again()) return;
  if (!served()) return;
  if (gate::may_not_wait() || contexts_.captures() != 0) return;
  std::size_t total = 0;
  if (real::cuDeviceTotalMem_v2(&total, device) != api::CUDA_SUCCESS || total == 0) return;
  if (memory_.ledger().live_bytes(device) > total) return;
  static log::Once once;
  // A process without a turn has to wait for one: the present holder would only lose its turn. A turn that ends before
  // the others have cleared (a program that has just started goes first) says nothing about whether there is room.
  const auto until = std::chrono::steady_clock::now() + for_now_patience_;
  static log::Once waits;
  const Time begun = now();
  for (bool stayed = false; !stayed;) {
    gate_.pass(gate::bit_of(device));
    if (!served() || gate::refusal.load() != api::CUDA_SUCCESS) return;
    if (budget_.promised(device) == Budget::kUnlimited) {
      if (gate_.closed(gate::bit_of(device))) continue;  // the turn has just ended
      return;
    }
    if (once.first())
      log::info("GPU {} is out of memory: the other programs on it are making room", driver::gpu_number(device));
    budget_.wait_for_all(device, total);
    // The turn must last during that: other processes' memory would come back with their turns. But not until it is
    // revoked: then this waits for the next one.
    const auto leaves = [&] { return others_clear(device) || (now() - begun < patience && others_can_clear(device)); };
    const auto coming = [&] { return leaves() && !turn_ends(device); };
    bool done = false;
    stayed = gate_.run_if_open(device, [&] {
      const auto tried = [&] {
        if (now() - begun >= kSayWait && waits.first()) {
          log::warn("GPU {} is full: a call of this program waits until others have made room; `rota status` says who",
                    driver::gpu_number(device));
        }
        return done = again();
      };
      tried() || ((coming() || others_can_clear(device)) && driver::retry_while_freed(tried, coming));
    });
    if (done) return;
    const bool in_time = std::chrono::steady_clock::now() < until;
    if (stayed && ((in_time && turn_ends(device)) || wait_for_later(device, until))) stayed = false;
  }
}

// Whether rotad takes the lease back soon if it does not get it. By then a wait for room has to be over, which ends
// 0.2 s after nothing more is coming.
bool Monitor::turn_ends(int device) const {
  constexpr Time kBefore = 250ms;
  const auto here = on_page(device);
  const std::uint64_t by = here ? here->lease.give_back_by_ns.load() : 0;
  return by != 0 && now() >= Time(static_cast<std::int64_t>(by)) - kBefore;
}

// Memory of others that cannot leave for now will be able to once their work has finished, possibly in a turn of their
// own: so this waits outside the gate, where this process's turn can end. False: there is none, or it has taken too
// long.
bool Monitor::wait_for_later(int device, std::chrono::steady_clock::time_point until) {
  const auto over = [&] { return stopping() || std::chrono::steady_clock::now() >= until; };
  if (!others_can_later(device) || over()) return false;
  static log::Once once;
  if (once.first() && log::enabled(log::Level::kWarn)) {
    const auto here = on_page(device);
    const std::string who = here ? who_stays_for_now(here->index) : "";
    log::warn(
        "an allocation waits for memory on GPU {} that cannot leave it yet because work of its program may still "
        "run{}; it waits {} s at most",
        driver::gpu_number(device), who.empty() ? "" : ": " + who, for_now_patience_ / 1s);
  }
  std::optional<std::chrono::steady_clock::time_point> interrupted;
  bool said = false;
  while (others_can_later(device) && !others_clear(device) && !others_can_clear(device) &&
         !gate_.closed(gate::bit_of(device))) {
    if (over()) return false;
    if (interrupted_sleep(kForNowLooks) && !interrupted) interrupted = std::chrono::steady_clock::now();
    if (!interrupted || said || std::chrono::steady_clock::now() - *interrupted < kSaySignal) continue;
    said = true;
    log::warn(
        "a signal has come during an allocation that waits for memory on GPU {}; the program can react to it only once "
        "that has ended; `kill {}` ends it at once",
        driver::gpu_number(device), getpid());
  }
  return true;
}

void Monitor::make_room(FunctionRef<bool()> again) {
  api::CUdevice device = -1;
  if (real::cuCtxGetDevice(&device) == api::CUDA_SUCCESS) make_room(device, again);
}

void Monitor::close_for_room(int device, FunctionRef<void()> begin) {
  if (gate::may_not_wait() || contexts_.captures() != 0) return;
  if (!others_can_clear(device)) return;
  begin();
  bell_.ring();
  while (!gate_.closed(gate::bit_of(device)) && !stopping() && others_can_clear(device))
    std::this_thread::sleep_for(kGateCloses);
}

bool Monitor::crowded(int device) {
  const auto here = on_page(device);
  if (!here) return false;
  std::atomic<Time>& until = crowded_until_[static_cast<std::size_t>(device)];
  if (here->lease.too_much_bytes.load(std::memory_order_relaxed) != 0) until = now() + kStaysCrowded;
  return now() < until.load();
}

bool Monitor::others_can_clear(int device) const {
  const auto here = on_page(device);
  return here && here->lease.movable.load() != 0;
}

bool Monitor::others_can_later(int device) const {
  const auto here = on_page(device);
  return here && here->lease.fixed_for_now.load() != 0;
}

bool Monitor::others_clear(int device) const {
  const auto here = on_page(device);
  return here && here->lease.clearing.load() != 0;
}

// Calls that waited for room, and that their threads have left without returning.
void Monitor::undo_what_was_left() {
  if (now() < next_undo_) return;
  next_undo_ = now() + kBetweenUndo;
  if (!undo_left_calls()) return;
  for (gate::Devices rest = touched(); rest != 0; rest &= rest - 1) usage_.changed(std::countr_zero(rest));
  budget_.changed();
}

}  // namespace rota::turn
