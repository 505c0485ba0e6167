// The monitor's conversation with rotad, and what it says to the user.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/monitor/monitor.h"

namespace rota::turn {

using protocol::Kind;
using protocol::Message;

namespace {

// A process that has been granted more than this fraction of a GPU beyond what it uses tells rotad. A judgment.
constexpr std::uint64_t kSpareParts = 16;

// How long the monitor, which has other things to do, waits for a welcome. A judgment.
constexpr std::chrono::milliseconds kSoonWelcomed{50};

// How long a rotad that is stopped may leave unread what this process sends. A judgment: a debugger stops a process for
// moments.
constexpr Time kStoppedFor = std::chrono::seconds(2);

}  // namespace

void Monitor::send(const Message& message) {
  if (connection_ && !connection_->send(message)) lost_rotad();
}

void Monitor::connect() {
  if (unanswered_) return;  // that one is still asked
  Connection::Attempt attempt = Connection::open(kSoonWelcomed);
  connection_ = std::move(attempt.connection);
  unanswered_ = std::move(attempt.unanswered);
  if (connection_) {
    rotad_is_back();
  } else if (!unanswered_) {
    to_all(event::NotConnected{});
  }
}

// A rotad that had not answered may have done so, or may be gone.
void Monitor::look_for_welcome() {
  if (!unanswered_) return;
  std::string reason;
  switch (unanswered_->welcome(reason)) {
    case Connection::Welcome::kNotYet:
      return;
    case Connection::Welcome::kNo:
      unanswered_.reset();
      to_all(event::NotConnected{});
      return;
    case Connection::Welcome::kYes:
      connection_ = std::move(unanswered_);
      rotad_is_back();
      return;
  }
}

void Monitor::rotad_is_back() {
  connected();
  for (const auto& task : tasks_) task->told.reset();
  if (!connection_) return to_all(event::NotConnected{});  // it has gone again
  log::info("rotad is back");
  said_silent_ = false;
  to_all(event::Connected{});
}

// The process takes no turns rather than wait for a rotad that answers nothing; it is asked again at once, and may
// answer later.
void Monitor::hang_up() {
  log::warn("{}; until it answers this program does not take turns",
            protocol::unresponsive_text(connection_->socket(), connection_->rotad()));
  said_silent_ = true;
  lost_rotad();
}

// Only of a program that waits: one that runs loses nothing by a rotad that does not read for a while.
void Monitor::hang_up_if_unread() {
  if (!connection_) return;
  const Time unread = connection_->unread_for(now());
  const auto waits = [](const auto& task) { return task->machine.phase() == Phase::kWaiting; };
  if (std::ranges::none_of(tasks_, waits) || unread < kStoppedFor) return;
  if (unread >= Machine::kAnswer || protocol::stopped_state(connection_->rotad().pid) != 0) hang_up();
}

// A rotad has welcomed this process: sends what it must know first.
void Monitor::connected() {
  usage_.connected(connection_->usage());
  for (const auto& task : tasks_) task->activity.connected(connection_->usage());
  tell_shares();
  memory_.swap().host().follow(connection_->usage(), connection_->page(), [this] { usage_.tell(); });
  round_ = 0;
  budget_.serve(true);
  limits_.store(connection_->page(), std::memory_order_release);
  for (const protocol::SessionEntry& session : sessions_) {
    if (connection_) send(message_of(session));
  }
  gang_.connected();
  tell_gang();
}

// Before the first GPU: from then on rotad may grant it.
void Monitor::tell_gang() {
  if (!connection_) return;
  const std::optional<protocol::Gang> gang = gang_.take_untold();
  if (!gang) return;
  Message message;
  message.kind = Kind::kGang;
  message.body.gang = *gang;
  send(message);
}

Message Monitor::message_of(const protocol::SessionEntry& session) {
  Message message;
  message.kind = Kind::kSession;
  protocol::Session& told = message.body.session;
  std::strncpy(told.id, session.id.c_str(), protocol::kSessionLength - 1);
  told.device_bytes = session.device_bytes;
  told.host_bytes = session.host_bytes;
  return message;
}

void Monitor::lost_rotad() {
  connection_.reset();
  usage_.lost();
  for (const auto& task : tasks_) {
    task->activity.connected(nullptr);
    task->told.reset();
    task->served = 0;
  }
  memory_.swap().host().follow(nullptr, nullptr, {});
  for (Gpu& gpu : gpus_) {
    gpu.told = gpu.refused = false;
    gpu.index = -1;
  }
  service_.nobody_answers();
  limits_.store(nullptr, std::memory_order_release);
  for (std::atomic<int>& index : limits_index_) index.store(-1, std::memory_order_relaxed);
  budget_.serve(false);
  publish_room();
  to_all(event::Lost{});
}

void Monitor::read_messages() {
  if (!connection_->flush()) return lost_rotad();
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
        if (gpu.index == static_cast<int>(added.index)) {  // it was named again
          budget_.measured(gpu.device);
          continue;
        }
        gpu.index = static_cast<int>(added.index);
        driver::set_gpu_number(gpu.device, added.number);
        memory_.set_served(gpu.device, true);  // first: the page says how memory there is served
        usage_.set_index(gpu.device, gpu.index);
        limits_index_[static_cast<std::size_t>(gpu.device)].store(gpu.index, std::memory_order_relaxed);
        is_served(gpu);
        say_state(gpu);
        if (!connection_) return;  // lost
      }
    } else if (message.kind == Kind::kReserved) {
      message.body.reserved.text[protocol::kTextLength - 1] = '\0';
      for (const Gpu& gpu : gpus_) {
        if (gpu.index == static_cast<int>(message.body.reserved.gpu)) budget_.answer(gpu.device, message.body.reserved);
      }
    } else if (message.kind == Kind::kTighten) {
      round_ = message.body.tighten.round;
      memory_.sweep_deferred();  // frees that streams have passed
      for (const Gpu& gpu : gpus_) {
        if (gpu.index >= 0 && connection_) say_state(gpu);
      }
      if (!connection_) return;
    } else if (message.kind == Kind::kRefused) {
      // Answers arrive in order: this one is for the first GPU without one.
      message.body.refused.text[protocol::kTextLength - 1] = '\0';
      for (Gpu& gpu : gpus_) {
        if (!gpu.told || gpu.index >= 0 || gpu.refused) continue;
        is_refused(gpu, message.body.refused.text);
        break;
      }
    }
  }
}

// From now on new memory there is as the mode says; what is there already stays what it is.
void Monitor::is_served(Gpu& gpu) {
  if (std::exchange(gpu.refused, false)) {
    budget_.limit(gpu.device);
    log::info("this program takes turns on GPU {} from now on", driver::gpu_number(gpu.device));
  }
  gpu.said_why.clear();
  service_.serves(gpu.device);
}

// rotad says when that changes.
void Monitor::is_refused(Gpu& gpu, const std::string& why) {
  gpu.refused = true;
  budget_.open(gpu.device);
  memory_.set_served(gpu.device, false);
  service_.refuses(gpu.device, why);
  if (std::exchange(gpu.said_why, why) == why) return;
  log::warn("no turns on GPU {}{}: {}", driver::gpu_number(gpu.device),
            service_.waits() ? "" : " for now, and its memory stays there", why);
}

// Those that the program has touched since the last time.
void Monitor::add_gpus() {
  const std::lock_guard lock(new_gpus_mutex_);
  for (const Gpu& gpu : new_gpus_) {
    add_task(gpu.device);
    gpus_.push_back(gpu);
  }
  new_gpus_.clear();
}

void Monitor::announce_gpus() {
  tell_gang();
  for (Gpu& gpu : gpus_) {
    if (gpu.told || gpu.unusable || !connection_) continue;
    Message message;
    message.kind = Kind::kAddGpu;
    message.body.add_gpu = gpu.description;
    gpu.told = true;
    budget_.limit(gpu.device);
    send(message);
  }
  send_news();
}

// Tells rotad to look at the usage page, and what this process no longer needs.
void Monitor::send_news() {
  if (connection_ && usage_.take_news()) {
    tell_shares();
    Message message;
    message.kind = Kind::kUsage;
    send(message);
    // Freed memory is available to others.
    for (const Gpu& gpu : gpus_) {
      const std::uint64_t spare = budget_.spare(gpu.device);
      const bool much = spare != protocol::kUnlimited && spare > gpu.description.total_bytes / kSpareParts;
      if (connection_ && gpu.index >= 0 && much) say_state(gpu);
    }
  }
}

// Keeps only the part of the grant that is in use.
void Monitor::say_state(const Gpu& gpu) {
  const Budget::Has has = budget_.tighten(gpu.device, connection_->gpu(gpu.index).left_bytes.load());
  Message message;
  message.kind = Kind::kState;
  message.body.state = {.gpu = static_cast<std::uint32_t>(gpu.index),
                        .answered = has.answered,
                        .device_bytes = has.bytes.device,
                        .movable_bytes = has.bytes.movable,
                        .round = round_,
                        .padding = 0,
                        .fixed_bytes = has.bytes.fixed,
                        .swapped_bytes = has.bytes.swapped};
  send(message);
}

void Monitor::send_asks() {
  for (const Gpu& gpu : gpus_) {
    if (gpu.index < 0 || !connection_) continue;
    if (budget_.take_measure(gpu.device)) {
      Message again;
      again.kind = Kind::kAddGpu;
      again.body.add_gpu = gpu.description;
      send(again);
      if (!connection_) return;  // lost
    }
    const std::optional<Budget::Ask> ask = budget_.take_ask(gpu.device);
    if (!ask) continue;
    Message message;
    message.kind = Kind::kReserve;
    message.body.reserve = {.gpu = static_cast<std::uint32_t>(gpu.index),
                            .number = ask->number,
                            .device_bytes = ask->bytes.device,
                            .movable_bytes = ask->bytes.movable,
                            .fixed_bytes = ask->bytes.fixed,
                            .swapped_bytes = ask->bytes.swapped};
    send(message);
  }
}

void Monitor::tell_shares() {
  if (connection_) connection_->usage()->shares.store(shares_.load() ? 1 : 0);
}

// Tells the machines what rotad said about their GPUs, if that has changed.
void Monitor::tell_gpus() {
  if (!connection_) return;
  const bool waits = service_.waits();
  for (const auto& task : tasks_) {
    event::Gpus gpus{.any = false, .answered = true, .waits = waits};
    for (const Gpu& gpu : gpus_) {
      if (!task->has(gpu.device)) continue;
      gpus.any = true;
      if (gpu.index >= 0) gpus.served |= GpuMask{1} << gpu.index;
      const bool settled = gpu.index >= 0 || (gpu.refused && !waits) || gpu.unusable;
      gpus.answered = gpus.answered && settled;
    }
    if (task->told == gpus) continue;
    task->told = gpus;
    task->served = gpus.served;
    task->activity.serve(gpus.served, task->devices);
    feed(*task, gpus);
  }
}

// While the lease lasts, rotad's promise is the allowance.
void Monitor::publish_room() {
  GpuMask held = 0;
  for (const auto& task : tasks_) {
    if (connection_ && task->machine.grant() != 0) held |= connection_->lease(task->served).held;
  }
  for (const Gpu& gpu : gpus_) {
    const bool limited = gpu.index >= 0 && (held >> gpu.index & 1) != 0;
    budget_.promise(gpu.device, limited ? connection_->gpu(gpu.index).promised_bytes.load() : Budget::kUnlimited);
  }
  budget_.changed();
}

GpuMask Monitor::lacking(const Task& task) const {
  GpuMask lacking = 0;
  for (const Gpu& gpu : gpus_) {
    if (task.has(gpu.device) && gpu.index >= 0 && !budget_.covered(gpu.device)) lacking |= GpuMask{1} << gpu.index;
  }
  return lacking;
}

GpuMask Monitor::unasked(const Task& task) const {
  GpuMask unasked = 0;
  for (const Gpu& gpu : gpus_) {
    const std::uint64_t allowed = budget_.promised(gpu.device);
    if (!task.has(gpu.device) || gpu.index < 0 || allowed == Budget::kUnlimited) continue;
    const std::uint64_t needed = budget_.needed(gpu.device);
    const std::uint64_t asked = gpu.asked_grant == task.machine.grant() ? gpu.asked : 0;
    if (std::max(needed, asked) > allowed && needed != asked) unasked |= GpuMask{1} << gpu.index;
  }
  return unasked;
}

void Monitor::ask_room(const Task& task, GpuMask gpus) {
  for (Gpu& gpu : gpus_) {
    if (gpu.index < 0 || (gpus >> gpu.index & 1) == 0) continue;
    gpu.asked = budget_.needed(gpu.device);
    gpu.asked_grant = task.machine.grant();
    Message message;
    message.kind = Kind::kRoom;
    message.body.room = {.gpu = static_cast<std::uint32_t>(gpu.index), .padding = 0, .bytes = gpu.asked};
    send(message);
    if (!connection_) return;  // lost
  }
}

void Monitor::say(Task& task, const Action& action) {
  static log::Once held_back;
  static log::Once revoked;
  constexpr const char* kHeldBack =
      "the GPU made no progress while calls waited at the closed gate ({}): the gate is open again and will be closed "
      "later";
  if (action.note == Note::kHeldBack || action.note == Note::kHeldCapturing || action.note == Note::kBeside) {
    waits_for_others(task);
  }
  switch (action.note) {
    case Note::kRunsAlone:
      if (!said_silent_) log::warn("rotad is gone: the program continues without turns");
      break;
    case Note::kRevoked:
      if (revoked.first()) {
        log::warn("rotad took the GPU back before this program had drained; it waits for its next turn");
      }
      break;
    case Note::kHeldBack:
      if (held_back.first()) log::info(kHeldBack, "its work may be waiting for those calls");
      break;
    case Note::kHeldCapturing:
      if (held_back.first()) log::info(kHeldBack, "a stream capture is under way");
      break;
    case Note::kBeside:
      log::warn(
          "this program's GPU work waits for its own later calls, so it cannot take turns: it runs at the same time as "
          "the others, and rota retries from time to time");
      break;
    case Note::kTriesAgain:
      log::info("checking again whether this program can take turns");
      break;
    case Note::kNoRoom:
      log::warn(
          "this program's memory has not fit on the GPU for {} s: either other programs do not move theirs out (it may "
          "be unable to leave, their work may still run, or the host may have no memory left for it), or programs that "
          "do not run under rota use the GPU; `rota status` and nvidia-smi say who has what; still trying",
          Machine::kSayNoRoom.count() / 1'000'000'000);
      break;
    case Note::kInterrupted:
      log::warn(
          "this program can react to the signal only after it gets its turn and its memory is back on the GPU; "
          "`kill {}` ends it at once",
          getpid());
      break;
    case Note::kGaveBackUnused:
      log::debug("grant {}: given back unused after {} us, since the memory for it did not come", action.grant,
                 microseconds(action.held));
      break;
    case Note::kGaveBackIdle:
    case Note::kGaveBackBusy:
      log::debug("grant {}: given back {} after {} us, {} us of them drained, {} calls waiting", action.grant,
                 action.note == Note::kGaveBackIdle ? "idle" : "at the end of the turn", microseconds(action.held),
                 microseconds(action.draining), gate_.standing(task.devices));
      break;
  }
}

}  // namespace rota::turn
