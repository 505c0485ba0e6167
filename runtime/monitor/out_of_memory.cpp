#include "runtime/monitor/out_of_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/client/waiting.h"
#include "runtime/core/log.h"
#include "runtime/core/undo.h"
#include "runtime/core/waiters.h"
#include "runtime/driver/freed.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/monitor/now.h"
#include "scheduler/rules/context_cost.h"

namespace rota::monitor {

using namespace std::chrono_literals;

namespace {

// How long a thread that wants a context on another GPU waits for the process's grant to cover it. A judgment.
constexpr turn::Time kGrantGrows = 250ms;
// Between two checks of whether the monitor has closed the gate. A judgment.
constexpr auto kGateCloses = 50us;
// Between two checks of whether rotad has answered, at first: it decides most requests at once, and a program that
// fills the GPU makes one that is refused. A judgment.
constexpr auto kAnswersAtOnce = 50us;
// Between two checks of whether memory that could not be evicted can be now. A judgment.
constexpr auto kForNowLooks = 5ms;
// How long a thread continues to wait after a signal handler has run in it before a line says so, as for threads at the
// gate.
constexpr auto kSaySignal = 500ms;
// How long rotad may be silent about a request before it counts as refused. A running rotad answers at once, but a new
// one may need up to turn::Machine::kGrace to appear. A judgment.
constexpr auto kAnswers = 12s;
// Between two wake-ups of the monitor, which then repeats requests that rotad has not answered for half of kAnswers. A
// judgment.
constexpr auto kAsksAgain = 2500ms;
// Between two attempts of a waiting call while there is no rotad to say when it may try. A judgment.
constexpr auto kTriesAlone = 1s;
// How long a call may wait for memory, including the time in which it waits for its turns, before a line says so. A
// judgment.
constexpr turn::Time kSayWait = 2s;
// How long a context waits for memory of others that can be evicted and is not: without a context a program cannot run
// at all, and the others may be slow to react on a busy machine. A judgment.
constexpr turn::Time kContextWaits = 10s;

std::uint64_t nanoseconds_of(std::chrono::steady_clock::time_point time) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(time.time_since_epoch()).count());
}

// An address that identifies the connection to rotad. Null: no rotad serves the process on this GPU.
const void* page_of(const client::Published& published, int device) {
  const auto here = published.gpu(device);
  return here ? &here->lease : nullptr;
}

}  // namespace

void OutOfMemory::say_full(int device) const {
  static log::Once once;
  const auto here = published_.gpu(device);
  if (!here || !log::enabled(log::Level::kWarn)) return;
  const std::string others = client::who_has_memory(here->index);
  if (others.empty() || !once.first()) return;
  log::warn("GPU {} has no free memory for an allocation of this program; other programs have memory there: {}",
            driver::gpu_number(device), others);
}

void OutOfMemory::retry_context(int device, FunctionRef<bool()> again) {
  const auto made = std::chrono::steady_clock::now();
  // A new GPU: rotad has to be told, and the grant has to be extended to it. If this is the process's first GPU, the
  // grant is there at the first check; until then the gate is closed.
  for (const auto until = std::chrono::steady_clock::now() + kGrantGrows; served();) {
    gate_.pass(gate::bit_of(device));
    if (budget_.promised(device) != client::Budget::kUnlimited || std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(1ms);
  }
  bool done = false;
  const auto tried = [&] { return done = again(); };
  retry(device, tried, kContextWaits);
  const std::uint64_t total = done ? 0 : total_if_waiting_helps(device, {});
  if (total == 0) return;
  protocol::AwaitRoom request{};
  request.what = protocol::AwaitRoom::What::kContext;
  request.bytes = protocol::assumed_context(total);
  request.since_ns = nanoseconds_of(made);
  request.tried_ns = nanoseconds_of(std::chrono::steady_clock::now());
  await_room(device, request, [] { return false; }, tried);
}

// The GPU's total memory in bytes. 0: waiting cannot help or is not possible: no rotad serves the process, the thread
// must not wait, a capture is under way, or the process wants more than the GPU has.
std::uint64_t OutOfMemory::total_if_waiting_helps(int device, std::optional<std::uint64_t> pending) const {
  if (device < 0 || device >= memory::kMaxDevices || !served()) return 0;
  if (gate::may_not_wait() || contexts_.captures() != 0) return 0;
  std::atomic<std::uint64_t>& known = totals_[static_cast<std::size_t>(device)];
  std::size_t total = known.load(std::memory_order_relaxed);
  if (total == 0 && real::cuDeviceTotalMem_v2(&total, device) != api::CUDA_SUCCESS) return 0;
  known.store(total, std::memory_order_relaxed);
  // If `pending` is known, only settled memory counts, since pending requests of other threads may be refused as well.
  const memory::Ledger& ledger = memory_.ledger();
  return (pending ? ledger.settled(device).bytes + *pending : ledger.live_bytes(device)) > total ? 0 : total;
}

turn::Time OutOfMemory::retry(int device, FunctionRef<bool()> again, turn::Time patience,
                              std::optional<std::uint64_t> pending) {
  std::optional<turn::Time> turn_came;
  const auto waited = [&] { return turn_came ? now() - *turn_came : turn::Time{0}; };
  if (device < 0 || device >= memory::kMaxDevices) return waited();
  if (memory_.drop_kept(device) != 0 && again()) return waited();
  const std::uint64_t total = total_if_waiting_helps(device, pending);
  if (total == 0) return waited();
  static log::Once once;
  // A process without a turn waits for one here, and does not ask for memory outside it: that would only cost the
  // holder its turn. If the turn ends before the others have evicted, for example because a new program goes first,
  // this tries again in the next turn.
  const auto until = std::chrono::steady_clock::now() + for_now_patience_;
  static log::Once waits;
  const turn::Time begun = now();
  for (bool stayed = false; !stayed;) {
    gate_.pass(gate::bit_of(device));
    if (!turn_came) turn_came = now();
    if (!served() || gate::refusal.load() != api::CUDA_SUCCESS) return waited();
    if (budget_.promised(device) == client::Budget::kUnlimited) {
      if (gate_.closed(gate::bit_of(device))) continue;  // the turn has just ended
      return waited();
    }
    if (once.first())
      log::info("GPU {} is out of memory: the other programs on it are evicting theirs", driver::gpu_number(device));
    {
      const gate::ToldWait wait;
      budget_.wait_for_all(device, total, [&] { return needs_room(device); });
    }
    // The process keeps its turn while it waits, since other processes' memory would be restored in theirs. Shortly
    // before rotad would revoke the lease it gives the turn up and waits for the next one.
    const auto leaves = [&] {
      return published_.others_leave(device) || (waited() < patience && published_.others_can_leave(device));
    };
    const auto coming = [&] { return leaves() && !published_.turn_ends(device, now()); };
    bool done = false;
    stayed = gate_.run_if_open(device, [&] {
      const auto tried = [&] {
        if (now() - begun >= kSayWait && waits.first()) {
          log::warn(
              "GPU {} is full: a call of this program waits until others have evicted memory; `rota status` says who",
              driver::gpu_number(device));
        }
        return done = again();
      };
      tried() || ((coming() || published_.others_can_leave(device)) && driver::retry_while_freed(tried, coming));
    });
    if (done) return waited();
    const bool in_time = std::chrono::steady_clock::now() < until;
    if (stayed && ((in_time && published_.turn_ends(device, now())) || wait_for_later(device, until))) stayed = false;
  }
  return waited();
}

void OutOfMemory::retry_call(int device, FunctionRef<bool()> again) {
  if (device < 0 || device >= memory::kMaxDevices) return;
  // Programs seldom check the result of a launch, and others may be slow to evict on a busy machine. But if a call
  // has waited in vain, for instance because another program is stopped, later calls do not wait for the time kFutile.
  // Both are judgments.
  constexpr turn::Time kCallWaits = 3s;
  constexpr turn::Time kFutile = 60s;
  std::atomic<turn::Time>& patient_from = patient_from_[static_cast<std::size_t>(device)];
  bool done = false;
  const auto tried = [&] { return done = again(); };
  const turn::Time waited = retry(device, tried, now() >= patient_from.load() ? kCallWaits : turn::Time{0});
  if (!done && waited >= kCallWaits) patient_from.store(now() + kFutile);
}

std::string OutOfMemory::awaited(int device, bool in_extents, bool by_rotad) const {
  const auto here = published_.gpu(device);
  const std::string stay = here ? client::who_stays(here->index) : "";
  if (by_rotad && (!in_extents || stay.empty())) {
    const std::string others = here ? client::who_has_memory(here->index) : "";
    return fmt::format("free memory on GPU {} next to what other programs need there for their turns{}{}",
                       driver::gpu_number(device), others.empty() ? "" : ": ", others);
  }
  return fmt::format("memory of other programs on GPU {} that cannot be evicted{}{}", driver::gpu_number(device),
                     stay.empty() ? "" : ": ", stay);
}

std::string OutOfMemory::needs_room(int device) const {
  const auto here = published_.gpu(device);
  const std::string others = here ? client::who_is_on(here->index) : "";
  return fmt::format("room for this program's memory on GPU {}{}{}", driver::gpu_number(device),
                     others.empty() ? "" : ", where others have theirs: ", others);
}

void OutOfMemory::end_awaiting(void* self, int device, std::uint64_t, std::uint32_t) {
  static_cast<OutOfMemory*>(self)->usage_.end_awaiting(device);
}

void OutOfMemory::end_waiting(void* self, int, std::uint64_t, std::uint32_t number) {
  auto& of = *static_cast<OutOfMemory*>(self);
  --of.waiting_;
  of.usage_.set_all_threads_wait(false);
  of.others_.end(number);
  of.rooms_.end(number);
}

void OutOfMemory::await(int device, const memory::Refused& what, FunctionRef<bool()> again) {
  if (!may_wait(device, what.bytes)) return;
  protocol::AwaitRoom request{};
  request.what = what.in_extents ? protocol::AwaitRoom::What::kSwapped : protocol::AwaitRoom::What::kStays;
  request.bytes = what.bytes;
  request.since_ns = request.tried_ns = nanoseconds_of(what.since);
  await_room(device, request, [&] { return what.by_rotad; }, again);
}

void OutOfMemory::await_room(int device, protocol::AwaitRoom request, FunctionRef<bool()> by_rotad,
                             FunctionRef<bool()> again) {
  std::optional<std::uint64_t> pending;
  if (request.what != protocol::AwaitRoom::What::kContext) pending = request.bytes;
  usage_.begin_awaiting(device);
  Undo awaiting(&end_awaiting, this, device, 0);
  awaiting.begin();
  if (gate::self == nullptr) gate::register_this_thread();
  client::WaitLines lines;
  const std::chrono::steady_clock::time_point since{std::chrono::nanoseconds(request.since_ns)};
  const auto say = [&] {
    lines.stands(std::chrono::steady_clock::now() - since,
                 [&] { return awaited(device, request.what == protocol::AwaitRoom::What::kSwapped, by_rotad()); });
  };
  bool done = false;
  const void* const rotad = page_of(published_, device);
  const auto tried = [&] { return done = again(); };
  while (!done) {
    if (!may_try(device, request, tried, say)) {
      // A new rotad does not know of memory that was freed before it started, or by a program that never connected to
      // it.
      if (!stopping() && page_of(published_, device) != rotad) tried();
      break;
    }
    if (done) break;
    request.tried_ns = nanoseconds_of(std::chrono::steady_clock::now());
    // If rotad refused the request, it would not fit even after others have evicted their memory.
    if (!tried() && !by_rotad()) retry(device, tried, {}, pending);
  }
}

// Waits for the answer of rotad or its successor, outside the gate, so that the process's turn can end meanwhile. While
// there is no rotad, the call is tried every second, and once more when a rotad has come; if no answer comes, it is
// tried a last time. True: the call may be tried, or has succeeded already.
bool OutOfMemory::may_try(int device, const protocol::AwaitRoom& request, FunctionRef<bool()> again,
                          FunctionRef<void()> say) {
  bool all_waited = false;
  const auto look = [this, &all_waited] {
    const bool wait = waiting_ != 0 && waiting_ >= gate_.threads_of_program() && others_.sleep();
    usage_.set_all_threads_wait(wait);
    if (!std::exchange(all_waited, wait) && wait) usage_.tell();
  };
  ++waiting_;
  std::optional<gate::ToldWait> wait(std::in_place);
  const auto attempt = [&] {  // which may wait as well
    wait.reset();
    const bool done = again();
    if (!done) wait.emplace();
    return done;
  };
  const std::uint32_t number = rooms_.ask(device, request);
  others_.begin(number);
  Undo waiting(&end_waiting, this, device, 0, number);
  waiting.begin();
  bell_.ring();
  std::optional<std::chrono::steady_clock::time_point> interrupted;
  const auto asked = std::chrono::steady_clock::now();
  auto rung = asked;
  auto tried = asked;
  bool alone = false;  // no rotad
  bool said = false;
  std::optional<bool> answer;
  while (!(answer = rooms_.answer(number, kAnswers)) && !stopping()) {
    const bool at_once = std::chrono::steady_clock::now() < asked + kForNowLooks;
    const std::chrono::nanoseconds pause = at_once ? kAnswersAtOnce : kForNowLooks;
    if (interrupted_sleep(pause) && !interrupted) interrupted = std::chrono::steady_clock::now();
    if (at_once) continue;
    // The monitor repeats the request if it is due.
    if (const auto at = std::chrono::steady_clock::now(); at > rung + kAsksAgain) {
      rung = at;
      bell_.ring();
    }
    const bool was_alone = std::exchange(alone, !published_.gpu(device));
    if (was_alone && (!alone || std::chrono::steady_clock::now() > tried + kTriesAlone)) {
      if (attempt()) return true;
      tried = std::chrono::steady_clock::now();
    }
    if (!alone) tried = std::chrono::steady_clock::now();
    look();
    say();
    if (!interrupted || said || std::chrono::steady_clock::now() - *interrupted < kSaySignal) continue;
    said = true;
    say_interrupted(device);
  }
  if (!answer || *answer) return answer.value_or(false);
  return !rooms_.is_answered(number) && attempt();
}

// Waits for memory of others that is pinned temporarily. It can be evicted once their work has finished, perhaps only
// in their turn; so this waits outside the gate, and this process's turn can end. False: there is no such memory, the
// time is over, or the process is ending.
bool OutOfMemory::wait_for_later(int device, std::chrono::steady_clock::time_point until) {
  const auto over = [&] { return stopping() || std::chrono::steady_clock::now() >= until; };
  if (!published_.others_can_later(device) || over()) return false;
  const gate::ToldWait wait;
  static log::Once once;
  if (once.first() && log::enabled(log::Level::kWarn)) {
    const auto here = published_.gpu(device);
    const std::string who = here ? client::who_stays_for_now(here->index) : "";
    log::warn(
        "an allocation waits for memory on GPU {} that cannot be evicted while GPU work of the program that owns it "
        "may run{}; it waits {} s at most",
        driver::gpu_number(device), who.empty() ? "" : ": " + who, for_now_patience_ / 1s);
  }
  std::optional<std::chrono::steady_clock::time_point> interrupted;
  bool said = false;
  while (published_.others_can_later(device) && !published_.others_leave(device) &&
         !published_.others_can_leave(device) && !gate_.closed(gate::bit_of(device))) {
    if (over()) return false;
    if (interrupted_sleep(kForNowLooks) && !interrupted) interrupted = std::chrono::steady_clock::now();
    if (!interrupted || said || std::chrono::steady_clock::now() - *interrupted < kSaySignal) continue;
    said = true;
    say_interrupted(device);
  }
  return true;
}

void OutOfMemory::say_interrupted(int device) {
  log::warn(
      "a signal has come during an allocation that waits for memory on GPU {}; the program can react to it only after "
      "the allocation; `kill -9 {}` ends the program at once",
      driver::gpu_number(device), getpid());
}

void OutOfMemory::close_gate(int device, FunctionRef<void()> begin) {
  if (gate::may_not_wait() || contexts_.captures() != 0) return;
  if (!published_.others_can_leave(device)) return;
  begin();
  bell_.ring();
  while (!gate_.closed(gate::bit_of(device)) && !stopping() && published_.others_can_leave(device))
    std::this_thread::sleep_for(kGateCloses);
}

}  // namespace rota::monitor
