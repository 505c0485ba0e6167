// What the monitor does with memory: restores it with a grant, evicts it for others, and passes frees on to the driver
// where nothing runs.
#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/core/log.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/memory/swap/reach.h"
#include "runtime/monitor/bring_back.h"
#include "runtime/monitor/monitor.h"
#include "scheduler/base/byte_text.h"
#include "scheduler/base/not_cancelled.h"

namespace rota::monitor {

using namespace std::chrono_literals;

namespace {

// How long memory that the driver did not release counts as pinned, unless a turn comes first. As long as rotad
// considers a client unresponsive (scheduler/core/policy/clearing.h).
constexpr turn::Time kStuck = 10s;

// How long memory of a process that is being checkpointed counts as pinned before the driver is asked again. A
// judgment.
constexpr turn::Time kCheckpointed = 1s;

// The same for memory that work of another GPU may use, before the GPUs are one task. A judgment.
constexpr turn::Time kCouples = 100ms;

// The same for memory of a process that exits, unless one of its handlers waits for a turn. A judgment.
constexpr turn::Time kExits = 1s;

// How long the load of a library waits for memory at most, and when a line says that it waits. Judgments.
constexpr turn::Time kMostForLoad = 30s;
constexpr turn::Time kSayLoad = 1s;

constexpr const char* kNoHostMemory =
    "GPU {}: {} of {} that other programs need cannot be evicted, because the host, or a limit on its memory, has no "
    "memory left for them: the others wait until it has some or until this program frees GPU memory";

}  // namespace

// Handed over by rotad because of this process's deficit there. The process may use what arrives while it restores its
// own memory.
memory::Exchange Monitor::exchange(int device) {
  const client::Conversation::Gpu* const gpu = rotad_.gpu(device);
  if (gpu == nullptr || gpu->index < 0) return {};
  const int index = gpu->index;
  return {.gives = [this, index] { return rotad_ && rotad_->hands_over(index); },
          .give =
              [this, index](int memory, std::uint64_t bytes) {
                if (!rotad_) return;
                protocol::Message message;
                message.kind = protocol::Kind::kHandOver;
                message.body.extent = {.gpu = static_cast<std::uint32_t>(index), .padding = 0, .bytes = bytes};
                rotad_->send(message, memory);
              },
          .coming = [this, device] { return published_.others_leave(device); },
          .take = [this, index]() -> std::optional<driver::Handed> {
            if (!rotad_) return std::nullopt;
            return rotad_->take_extent(index);
          }};
}

// The answer to Act::kBringBack.
turn::event::Brought Monitor::bring_memory_back(Task& task) {
  if (restores_.lost()) return {.resident = false, .lost = true};
  if (const turn::GpuMask without_room = rotad_.lacking(task.devices); without_room != 0) return {true, without_room};
  const memory::Devices reachable = memory_.reachable(task.devices);
  if (!memory_.in_place(reachable) && being_checkpointed()) return {.resident = false};
  std::vector<Destination> destinations;
  for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
    if (task.has(gpu.device)) destinations.push_back({gpu.device, budget_.promised(gpu.device)});
  }
  const turn::Time begun = now();
  const Back back = bring_back(
      contexts_, memory_, destinations, [this](int device) { return exchange(device); },
      [&] { return stops_waiting() || (rotad_ && now() >= task.machine.last_moment(rotad_->lease(task.served))); },
      [this, asked = Resting{}]() mutable { return rests(asked); });
  for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
    if (!task.has(gpu.device)) continue;
    const auto shortage = std::find_if(back.shortages.begin(), back.shortages.end(),
                                       [&](const auto& each) { return each.device == gpu.device; });
    const bool lacks = shortage != back.shortages.end() && task.machine.grant() != 0;
    usage_.set_short(gpu.device, lacks ? shortage->bytes : 0, lacks ? shortage->free_bytes : 0);
  }
  took_over_ = took_over_ || back.taken_over != 0;
  for (const Back::Copied& each : back.copied) usage_.moved_in(each.device, each.bytes, each.time);
  rotad_.send_news();
  keeper_.end_moving(task.devices);
  const bool resident = back.resident && memory_.in_place(reachable);
  if (back.resident) restores_.succeeded();
  if (back.error != api::CUDA_SUCCESS && restores_.refused(begun)) {
    lose_memory(back.error, turn::Restores::kLongestRefusal);
  } else if (std::ranges::any_of(back.shortages, &Back::Shortage::denied)) {
    if (restores_.denied(begun)) lose_memory(api::CUDA_ERROR_OUT_OF_MEMORY, turn::Restores::kLongestDenial);
  } else if (!back.shortages.empty()) {
    restores_.lacks();
  }
  if (restores_.lost()) return {.resident = false, .lost = true};
  const turn::Time ended = now();
  log::debug("grant {}: {} after {} us, {} bytes of it swapped, {} of it in memory that others handed over, at {} ns",
             task.machine.grant(), resident ? "memory back" : "no room for all memory",
             turn::microseconds(ended - begun), back.bytes, back.taken_over, ended.count());
  return {.resident = resident, .lacking = 0, .some = back.some};
}

bool Monitor::being_checkpointed() {
  if (!memory::being_checkpointed()) return false;
  static log::Once told;
  if (took_over_ && told.first()) {
    log::warn(
        "a checkpoint of this process is being taken, and the driver will not restore it, since other programs have "
        "handed memory over to it: start programs that are to be checkpointed under `rotad --trust none`");
  }
  return true;
}

// The process's memory on GPUs is useless from then on, and in the way of others.
void Monitor::lose_memory(api::CUresult error, turn::Time refused_for) {
  const char* name = nullptr;
  if (real::cuGetErrorName(error, &name) != api::CUDA_SUCCESS || name == nullptr) name = "an unknown error";
  log::warn(
      "this program's memory cannot be restored to the GPU: the driver has returned {} ({}) for {} s{}. Its contents "
      "are lost, and every call that needs the GPU returns this error from now on. End the program and start it again",
      name, static_cast<int>(error), refused_for / 1s,
      error == api::CUDA_ERROR_OUT_OF_MEMORY ? ", although it has enough free" : "");
  keeper_.begin_moving(gate::kAllDevices);
  memory_.release_all();
  keeper_.refuse(error);
}

// Called while no work of this process runs: the driver waits for kernels before it unpins memory (measured on an
// H100).
void Monitor::give_host_back_if_low() {
  if (!memory_.host_low()) return;
  for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
    const driver::ContextLife context = contexts_.any(gpu.device);
    if (!context) continue;
    contexts_.within(context, [&] { memory_.trim_host(); });
    return;
  }
}

// What rotad leaves this process of the host's memory (scheduler/protocol/pages.h): says what it has, and gives back
// reclaimable memory beyond that. Pinned memory is given back only while no work of this process runs: here, at the end
// of a turn, or behind a gate that is closed for it (collect_if_idle()).
void Monitor::keep_to_host_share() {
  if (memory_.host_bytes() == 0 && !memory_.host_limited()) return host_pauses_.exceeds(false, now());
  if (chores_.count.due(
          now(), memory_.host_limited() ? turn::Chores::kBetweenCounts : turn::Chores::kBetweenUnlimitedCounts)) {
    memory_.count_copies();
    const bool asked =
        rotad_ && std::any_of(rotad_.gpus().begin(), rotad_.gpus().end(), [this](const client::Conversation::Gpu& gpu) {
          return gpu.index >= 0 && rotad_->to_clear(gpu.index) != 0;
        });
    if (!asked) memory_.needs_no_more_host();
  }
  if (memory_.host_excess() != 0 && memory_.has_prepared_host()) memory_.drop_prepared_host();
  host_pauses_.exceeds(memory_.host_excess() != 0, now());
  if (memory_.host_excess() == 0) return;
  if (!all_still()) return;
  for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
    const driver::ContextLife context = contexts_.any(gpu.device);
    if (!context) continue;
    contexts_.within(context, [&] { memory_.give_host_back(memory_.host_excess(), true); });
    return;
  }
}

// Called while others have a deficit for which this process will have to evict, so that the first eviction need not
// wait for host memory. Returns whether there is more to do. Calls no driver.
bool Monitor::prepare_host() {
  // It needs no driver calls, so this is possible while the GPU works.
  if (memory_.has_prepared_host() && memory_.host_low()) memory_.drop_prepared_host();
  const bool moves = rotad_ && memory_.has_extents() && !memory_.all_pinned();
  const auto drains = [](const auto& task) { return task->machine.phase() == turn::Phase::kDraining; };
  if (!moves || std::ranges::any_of(tasks_, drains)) return false;
  std::vector<memory::Overcommitment> all;
  for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
    if (gpu.index < 0) continue;
    const std::uint64_t too_much = rotad_->gpu(gpu.index).too_much_bytes.load(std::memory_order_relaxed);
    if (too_much != 0) all.push_back({gpu.device, too_much});
  }
  if (all.empty() && !memory_.has_prepared_host()) return false;
  const bool more = memory_.prepare_host(all);
  if (std::exchange(prepares_, more) && !more) {
    log::debug("{} bytes of host memory are ready for memory that may have to be evicted", memory_.kept_host_bytes());
  }
  return more;
}

// Extents of a process that may still run work cannot be evicted; a holder's are not asked for. Nor can memory from
// pools whose contexts have ended, until there is another context to copy it.
void Monitor::publish_pins(Task& task) {
  const bool holds = task.machine.grant() != 0;
  const bool stuck = now() < task.stuck_until || contexts_.captures() != 0;
  if (holds) task.stuck_until = turn::Time{0};
  for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
    if (!task.has(gpu.device)) continue;
    if (!holds) usage_.set_short(gpu.device, 0, 0);
    const bool stranded = memory_.resident_bytes(gpu.device) != 0 && contexts_.none(gpu.device);
    client::Usage::Pinned pinned = client::Usage::Pinned::kNo;
    if (!holds && (!task.machine.still() || stuck)) pinned = client::Usage::Pinned::kForNow;
    const protocol::PinAll why = memory_.all_pinned() ? memory_.pinned_all() : protocol::PinAll::kNoContext;
    if (memory_.all_pinned() || stranded) pinned = client::Usage::Pinned::kForGood;
    if (exits_.load() && pinned == client::Usage::Pinned::kForGood)
      pinned = client::Usage::Pinned::kForNow;  // it is gone soon
    const bool for_good = pinned == client::Usage::Pinned::kForGood;
    const client::Usage::Pinned before = usage_.set_pinned(gpu.device, pinned, for_good ? why : protocol::PinAll::kNo);
    if (before == pinned) continue;
    usage_.changed(gpu.device);
    if (before == client::Usage::Pinned::kForNow) usage_.tell();  // others may wait for it
  }
}

bool Monitor::open(Task& task) {
  if (!keeper_.open(task.devices)) return false;
  interrupted_.fetch_and(~task.devices);
  return true;
}

// Whether memory may be accessed without a call that rota sees: then it is no longer evicted.
bool Monitor::pins_what_is_reached() {
  const std::string outside = memory::reached_from_outside();
  if (outside.empty()) return false;
  log::warn("{}, so GPU memory may be reached without any CUDA call: this program's memory stays on the GPU", outside);
  memory_.pin_all(protocol::PinAll::kReached);
  reached_from_outside_ = true;
  return true;
}

// rota does not see the opening of a device, so a device that is opened while memory is evicted is found a little
// later. The memory is restored with a turn that no thread at the gate waits for.
void Monitor::look_outside() {
  if (reached_from_outside_ || memory_.all_in_place() || !chores_.look_outside.due(now())) return;
  pins_what_is_reached();
}

void Monitor::keep_in_place(turn::Time so_long) {
  kept_until_.store(now() + so_long);
  bell_.ring();
}

void Monitor::bring_back_for(std::string_view library) {
  const NotCancelled waiting;
  const turn::Time begun = now();
  const turn::Time so_long = loads_->stays(library, now());
  for (bool said = false;; std::this_thread::sleep_for(now() - begun < 10ms ? 100us : 1ms)) {
    keep_in_place(so_long);  // in each round, so that all of that time is left once memory is there
    if (gate::out_of_place.load() == 0 || gate::may_not_wait() || stopping()) break;
    const turn::Time waited = now() - begun;
    if (waited >= kMostForLoad) {
      log::warn("{} is loaded before this program's memory is back on the GPU, after {} s", library, waited / 1s);
      break;
    }
    if (waited < kSayLoad || std::exchange(said, true)) continue;
    log::warn(
        "loading {} waits until this program's memory is back on the GPU, since it may be used from then on without "
        "any CUDA call; `rota status` says who has the GPU",
        library);
  }
  loads_->loads(library, now());
}

// Extents move only where all work that may use them is proven to have finished and no call uses addresses or captures.
void Monitor::swap_out_of_the_way(Task& task, const std::vector<Destination>& from) {
  if (memory_.all_pinned() || pins_what_is_reached()) return;
  if (kept()) {
    task.stuck_until = std::max(task.stuck_until, kept_until_.load());
    return;
  }
  if (may_be_gone()) {
    task.stuck_until = std::max(task.stuck_until, now() + kExits);
    return;
  }
  if (being_checkpointed()) {
    task.stuck_until = std::max(task.stuck_until, now() + kCheckpointed);
    return;
  }
  gate::Devices users = task.devices;
  for (const Destination& each : from) users |= memory_.reachers(each.device) & touched();
  // Work of other tasks may use it, or a call has used it with another GPU: they take their turns together first.
  couplings_->ask(couplings_->with(users, now()), turn::Couplings::When::kAtOnce, now());
  if (couplings_->with(task.devices, now()) != task.devices) {
    task.stuck_until = std::max(task.stuck_until, now() + kCouples);
    return;
  }
  const driver::ContextLife context = contexts_.any(from.front().device);
  bool none_captures = false;
  keeper_.close(task.devices);
  if (!context) return;
  using Within = driver::Contexts::Within;
  const Within looked = contexts_.within(context, [&] {
    none_captures = contexts_.captures() == 0;
    if (none_captures) keeper_.begin_moving(task.devices);
  });
  if (looked == Within::kRefused) task.stuck_until = now() + kStuck;
  if (looked != Within::kRan) return;
  // Check once more, for calls that hold memory in place: from now on they wait.
  keeper_.close(task.devices);
  // Check again: a thread that pins after this, or keeps memory in place, sees that it may be out and waits for it.
  if (none_captures && !memory_.all_pinned() && !kept() &&
      gate_.wait_until_empty(std::chrono::steady_clock::now() + 5ms, task.devices)) {
    for (const Destination& each : from) {
      const turn::Time begun = now();
      const Left left = swap_out(
          contexts_, memory_, each, [this](int device) { return exchange(device); },
          [this] { return stops_waiting() || may_be_gone(); });
      if (left.failed) task.stuck_until = now() + kStuck;
      if (left.bytes != 0) {
        task.due.push_back(turn::event::Cleared{});
        usage_.tell();  // a process with a small deficit asks once rotad knows that nothing more is on its way
      }
      chores_.look_outside.at_once();  // something may have been opened in the meantime
      usage_.moved_out(each.device, left.copied, left.spared, now() - begun);
      const turn::Time ended = now();
      log::debug("GPU {}: {} of {} bytes moved out in {} us, {} of them copied{}, at {} ns",
                 driver::gpu_number(each.device), left.bytes, each.most, turn::microseconds(ended - begun), left.copied,
                 left.failed       ? "; the rest cannot be moved"
                 : left.lacks_host ? "; the host has no memory for the rest"
                                   : "",
                 ended.count());
      static log::Once lacks_host;
      if (host_pauses_.lacks(left.lacks_host, ended) && lacks_host.first()) {
        log::warn(kNoHostMemory, driver::gpu_number(each.device),
                  bytes_text(each.most - std::min(each.most, left.bytes)), bytes_text(each.most));
      }
    }
  }
  keeper_.end_moving(task.devices);
}

void Monitor::move_out_of_the_way(Task& task, turn::GpuMask gpus) {
  if (!rotad_) return;
  std::vector<Destination> from;
  std::vector<Destination> extents;
  for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
    if (gpu.index < 0 || (gpus >> gpu.index & 1) == 0) continue;
    from.push_back({gpu.device, rotad_->to_clear(gpu.index)});
    if (memory_.resident_bytes(gpu.device) != 0) extents.push_back(from.back());
  }
  if (!extents.empty()) return swap_out_of_the_way(task, extents);
  if (!memory_.settings().move_out) return;
  const turn::Time begun = now();
  // Half of the remaining time: the other half is a reserve.
  const turn::Time by = rotad_->give_back_by(task.served);
  const auto latest = by == turn::Time{0}
                          ? std::chrono::steady_clock::time_point::max()
                          : std::chrono::steady_clock::time_point(begun + std::max(by - begun, turn::Time{0}) / 2);
  const std::uint64_t bytes = move_out(contexts_, memory_, from, latest, [this] { return stops_waiting(); });
  log::debug("{} bytes moved to the host in {} us, for the next program", bytes, turn::microseconds(now() - begun));
}

// The gate is closed and nothing runs: memory whose free would wait for the GPU can be freed.
void Monitor::collect() {
  for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
    const driver::ContextLife context = contexts_.any(gpu.device);
    if (!context) continue;
    contexts_.within(context, [&] {
      memory_.collect_deferred();
      if (memory_.host_low()) memory_.give_host_back(UINT64_MAX, false);
      if (const std::uint64_t excess = memory_.host_excess(); excess != 0)
        memory_.give_host_back(excess, host_pauses_.presses(now()));
    });
    return;
  }
  memory_.collect_deferred(memory::Owner::of(api::CUcontext{}));  // memory without a context needs none to be freed
}

// Whether it is proven, behind a closed gate, that no work of this process runs.
bool Monitor::rests(Resting& asked) {
  if (asked.proven || all_still()) return asked.proven = true;
  if (!asked.marked) {
    if (!gate_.wait_until_empty(std::chrono::steady_clock::now())) return false;
    asked.marked = contexts_.mark() == driver::Contexts::Mark::kMarked;
  }
  if (!*asked.marked) return false;
  const driver::Contexts::Progress progress = contexts_.progress();
  return asked.proven = progress.looked && progress.done;
}

// Whether threads inside the closed gate only work on the CPU, as far as that can be told: all GPU work is done.
bool Monitor::only_calls(std::optional<bool>& marked) {
  if (!marked) marked = contexts_.mark() == driver::Contexts::Mark::kMarked;
  if (!*marked) return true;
  const driver::Contexts::Progress progress = contexts_.progress();
  return progress.looked && progress.done;
}

// Waits for that proof, behind a gate that has just been closed, for at most this long.
turn::HostPauses::Rest Monitor::rests_within(turn::Time pause) {
  constexpr turn::Time kShort = turn::HostPauses::kShortPause;
  Resting asked;
  std::optional<bool> marked_with_calls;
  for (const turn::Time begun = now();;) {
    if (rests(asked)) return turn::HostPauses::Rest::kProven;
    const turn::Time waited = now() - begun;
    const bool futile = asked.marked ? !*asked.marked : waited > kShort && only_calls(marked_with_calls);
    if (futile) return turn::HostPauses::Rest::kCannotTell;
    if (waited >= pause || (waited > kShort ? stops_waiting() : stopping())) return turn::HostPauses::Rest::kNotYet;
    std::this_thread::sleep_for(waited < kShort ? 20us : 200us);
  }
}

// Only where nothing runs and no thread is inside the gate; otherwise later. The gate is closed for a moment, and calls
// that come in that time wait for the free as they would for their own.
void Monitor::collect_if_idle() {
  const turn::HostPauses::Pause pause = host_pauses_.plan(now());
  keeper_.close();
  const turn::Time begun = now();
  const turn::HostPauses::Rest rest = rests_within(pause.most);
  const turn::Time waited = now() - begun;
  if (rest == turn::HostPauses::Rest::kProven) collect();
  for (const auto& task : tasks_) {
    if (turn::may_open(task->machine.claim())) open(*task);
  }
  host_pauses_.over(pause, rest, waited, now());
}

}  // namespace rota::monitor
