// What the monitor makes of what rotad says (runtime/client/conversation.h), and what it says to the user.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/monitor/monitor.h"

namespace rota::monitor {

void Monitor::rotad_came(client::Connection& connection) {
  next_rotad_.served_by(connection, now());
  for (const auto& task : tasks_) task->sampler.connected(connection.usage());
  memory_.follow_host_share(connection.usage(), connection.page(), [this] { usage_.tell(); });
}

void Monitor::rotad_went() {
  next_rotad_.lost(now());
  for (const auto& task : tasks_) {
    task->sampler.connected(nullptr);
    task->told.reset();
    task->served = 0;
  }
  memory_.follow_host_share(nullptr, nullptr, {});
  publish_room();
  to_all(turn::event::Lost{.silent = rotad_.said_silent()});
}

void Monitor::rotad_is_back(bool is) {
  if (!is) {
    if (rotad_is_awaited()) next_rotad_.awaited(now());
    return to_all(turn::event::NotConnected{});
  }
  for (const auto& task : tasks_) task->told.reset();
  to_all(turn::event::Connected{});
}

// Whether work of the program waits for a rotad that there is not.
bool Monitor::rotad_is_awaited() const {
  if (stopping() || may_be_gone()) return false;
  if (gate_.standing() != 0 || out_of_memory_.waits()) return true;
  // Whatever accesses that memory is in effect waiting for it.
  return (reached_from_outside_ || kept()) && !memory_.all_in_place();
}

void Monitor::serves(int device, bool is) {
  memory_.set_served(device, is);
}

void Monitor::introduced(Descriptor&& socket) {
  memory_.serve_opener(std::move(socket));
}

void Monitor::announce(const protocol::ProcessNumber& number) {
  // There is no longer wait for a rotad that is slow to read: the process that opens the memory asks again for a while.
  constexpr std::chrono::seconds kMost{1};
  const bool first = introductions_.announce(number);
  if (first) bell_.ring();
  if (first && served()) introductions_.wait_until_announced(client::Introductions::Clock::now() + kMost);
}

client::Introductions::Answer Monitor::introduce(const protocol::ProcessNumber& number,
                                                 std::chrono::steady_clock::time_point until) {
  const std::uint32_t request = introductions_.ask(number);
  bell_.ring();
  return introductions_.wait(request, until);
}

// The GPUs that the program has touched since the last time.
void Monitor::add_gpus() {
  const std::lock_guard lock(new_gpus_mutex_);
  for (const client::Conversation::Gpu& gpu : new_gpus_) {
    add_task(gpu.device);
    rotad_.add(gpu);
  }
  new_gpus_.clear();
}

// Tells the machines what rotad said about their GPUs, if that has changed.
void Monitor::tell_gpus() {
  if (!rotad_) return;
  const bool waits = service_.waits();
  for (const auto& task : tasks_) {
    turn::event::Gpus gpus{.any = false, .answered = true, .waits = waits};
    for (const client::Conversation::Gpu& gpu : rotad_.gpus()) {
      if (!task->has(gpu.device)) continue;
      gpus.any = true;
      if (gpu.index >= 0) gpus.served |= turn::GpuMask{1} << gpu.index;
      const bool settled = gpu.index >= 0 || (gpu.refused && !waits) || gpu.unusable;
      gpus.answered = gpus.answered && settled;
    }
    if (task->told == gpus) continue;
    task->told = gpus;
    task->served = gpus.served;
    task->sampler.serve(gpus.served, task->devices);
    feed(*task, gpus);
  }
}

void Monitor::publish_room() {
  turn::GpuMask held = 0;
  for (const auto& task : tasks_) {
    if (rotad_ && task->machine.grant() != 0) held |= rotad_->lease(task->served).held;
  }
  rotad_.publish_promises(held);
}

void Monitor::say(Task& task, const turn::Action& action) {
  static log::Once held_back;
  static log::Once revoked;
  constexpr const char* kHeldBack =
      "the GPU made no progress while calls waited at the closed gate ({}): the gate is open again and will be closed "
      "later";
  if (action.note == turn::Note::kHeldBack || action.note == turn::Note::kHeldCapturing ||
      action.note == turn::Note::kBeside || action.note == turn::Note::kBesideSharer) {
    waits_for_others(task);
  }
  switch (action.note) {
    case turn::Note::kRunsAlone:
      if (!rotad_.said_silent()) {
        if (memory_.in_place(memory_.reachable(task.devices))) {
          log::warn("rotad is gone: the program continues without turns");
        } else {
          log::warn("rotad is gone: the program continues without turns once all of its memory is on the GPU; {}",
                    next_rotad_.remedy());
        }
      }
      break;
    case turn::Note::kRevoked:
      if (revoked.first()) {
        log::warn("rotad took the GPU back before this program had drained; it waits for its next turn");
      }
      break;
    case turn::Note::kHeldBack:
      if (held_back.first()) log::info(kHeldBack, "its work may be waiting for those calls");
      break;
    case turn::Note::kHeldCapturing:
      if (held_back.first()) log::info(kHeldBack, "a stream capture is under way");
      break;
    case turn::Note::kBeside:
      log::warn(
          "this program's GPU work waits for its own later calls, so it cannot take turns: it runs at the same time as "
          "the others, and rota retries from time to time");
      break;
    case turn::Note::kBesideSharer:
      log::warn(
          "this program's GPU work made no progress while a program with which it may share GPU memory or events "
          "waited for its turn: both run at the same time, and rota retries from time to time");
      break;
    case turn::Note::kTriesAgain:
      log::info("checking again whether this program can take turns");
      break;
    case turn::Note::kNoRoom: {
      const int device = std::countr_zero(task.devices);
      const auto here = device < memory::kMaxDevices ? published_.gpu(device) : std::nullopt;
      const std::string others = here ? client::who_is_on(here->index) : "";
      log::warn(
          "this program's memory has not fit on the GPU for {} s: either other programs do not evict theirs (it may be "
          "pinned, their work may still run, or the host may have no memory left for it), or programs that do not run "
          "under rota use the GPU; `rota status` and nvidia-smi say who has what{}{}; still trying",
          turn::Machine::kSayNoRoom.count() / 1'000'000'000, others.empty() ? "" : "; there now: ", others);
      break;
    }
    case turn::Note::kInterrupted:
      log::warn(
          "this program can react to the signal only after it gets its turn and its memory is back on the GPU; "
          "`kill -9 {}` ends it at once",
          getpid());
      break;
    case turn::Note::kGaveBackUnused:
      log::debug("grant {}: given back unused after {} us, since its memory could not be restored", action.grant,
                 turn::microseconds(action.held));
      break;
    case turn::Note::kGaveBackIdle:
    case turn::Note::kGaveBackBusy:
      log::debug("grant {}: given back {} after {} us, {} us of them drained, {} calls waiting", action.grant,
                 action.note == turn::Note::kGaveBackIdle ? "idle" : "at the end of the turn",
                 turn::microseconds(action.held), turn::microseconds(action.draining), gate_.standing(task.devices));
      break;
  }
}

}  // namespace rota::monitor
