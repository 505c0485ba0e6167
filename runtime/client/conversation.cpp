#include "runtime/client/conversation.h"
#include "runtime/client/waiting.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/core/log.h"
#include "runtime/driver/gpu_number.h"

namespace rota::client {

using protocol::Kind;
using protocol::Message;

namespace {

// A process that has been granted more than this fraction of a GPU beyond what it uses tells rotad. A judgment.
constexpr std::uint64_t kSpareParts = 16;

// How long the monitor, which has other things to do, waits for a welcome. A judgment.
constexpr std::chrono::milliseconds kSoonWelcomed{50};

// How long a rotad that is stopped may leave unread what this process sends. A judgment: a debugger stops a process for
// moments.
constexpr turn::Time kStoppedFor = std::chrono::seconds(2);

// Whether `rota run` has told the user that this rotad does not answer.
bool run_has_said(const protocol::Listener& rotad) {
  const char* said = std::getenv(protocol::kSilentRotad);  // NOLINT(concurrency-mt-unsafe)
  return said != nullptr && std::to_string(rotad.pid) == said;
}

}  // namespace

void Conversation::send(const Message& message) {
  if (connection_ && !connection_->send(message)) went();
}

// --- rotad starts and ends

Conversation::First Conversation::find_first(bool silent) {
  Connection::Attempt attempt;
  if (!unanswered_) {
    places_ = protocol::socket_candidates();
    ask_at(places_);
    attempt = Connection::open(silent ? Connection::kPatience / 10 : Connection::kPatience, false, places_);
    unanswered_ = std::move(attempt.unanswered);
  } else if (unanswered_->welcome(attempt.reason) == Connection::Welcome::kYes) {
    attempt.connection = std::move(unanswered_);
  } else if (!attempt.reason.empty()) {
    unanswered_.reset();
  }
  if (attempt.connection) {
    connection_ = std::move(attempt.connection);
    log::debug("client {} of rotad {}", connection_->welcome().client, connection_->welcome().daemon_pid);
    came();
    if (connection_) return First::kServed;
    attempt.reason = "rotad closed the connection";
  }
  const bool wait = parts_.service.waits_for_rotad();
  if (unanswered_ && !wait) {
    log::message(run_has_said(unanswered_->rotad()) ? log::Level::kInfo : log::Level::kWarn,
                 "{}; until it answers this program does not take turns", attempt.reason);
    said_silent_ = true;
    return First::kSilent;
  }
  if (!std::exchange(told_no_rotad_, true)) {
    if (!attempt.reason.empty()) {
      log::warn("no turns on the GPU: {}; {}", attempt.reason,
                wait ? "waiting for rotad (ROTA_WAIT=1)" : "the program runs as it would without rota");
    } else if (wait) {
      log::warn("waiting for rotad (ROTA_WAIT=1): start one, or use `rota run`");
    } else {
      log::info("no rotad is running: the program runs as it would without rota");
    }
  }
  if (!wait) return First::kNone;
  parts_.service.set_reason(attempt.reason);
  return First::kWait;
}

void Conversation::give_up() {
  connection_.reset();
  unanswered_.reset();
  Connection::expect_no_other();
}

void Conversation::connect() {
  if (unanswered_) return;  // that one may still answer
  Connection::Attempt attempt = Connection::open(kSoonWelcomed, true, places_);
  connection_ = std::move(attempt.connection);
  unanswered_ = std::move(attempt.unanswered);
  if (connection_) {
    is_back();
  } else if (!unanswered_) {
    is_not_back(attempt.reason);
  }
}

void Conversation::look_for_welcome() {
  if (!unanswered_) return;
  std::string reason;
  switch (unanswered_->welcome(reason)) {
    case Connection::Welcome::kNotYet:
      return;
    case Connection::Welcome::kNo:
      unanswered_.reset();
      return is_not_back(reason);
    case Connection::Welcome::kYes:
      connection_ = std::move(unanswered_);
      return is_back();
  }
}

void Conversation::is_back() {
  came();
  const bool is = connection_ != nullptr;  // it may have been lost again
  if (is) {
    log::info("rotad is back");
    said_silent_ = told_no_descriptor_ = false;
  }
  listener_.rotad_is_back(is);
}

void Conversation::is_not_back(const std::string& why) {
  if (why == Connection::kNoDescriptor && !std::exchange(told_no_descriptor_, true)) log::warn("{}", why);
  listener_.rotad_is_back(false);
}

// Sends what rotad must know first.
void Conversation::came() {
  parts_.usage.connected(connection_->usage());
  tell_shares();
  listener_.rotad_came(*connection_);
  round_ = 0;
  parts_.budget.serve(true);
  parts_.published.follow(connection_->page());
  for (const protocol::SessionEntry& session : sessions_) {
    if (connection_) send(message_of(session));
  }
  parts_.introductions.connected();
  parts_.rooms.connected();
  parts_.gang.connected();
  tell_gang();
}

void Conversation::went() {
  connection_.reset();
  parts_.usage.lost();
  for (Gpu& gpu : gpus_) {
    gpu.told = gpu.refused = false;
    gpu.index = -1;
  }
  parts_.service.nobody_answers();
  parts_.published.forget();
  parts_.budget.serve(false);
  listener_.rotad_went();
}

void Conversation::hang_up() {
  log::warn("{}; until it answers this program does not take turns",
            protocol::unresponsive_text(connection_->socket(), connection_->rotad()));
  said_silent_ = true;
  went();
}

void Conversation::hang_up_if_unread(turn::Time now, bool waits) {
  const turn::Time unread = connection_->unread_for(now);
  if (!waits || unread < kStoppedFor) return;
  if (unread >= turn::Machine::kAnswer || protocol::stopped_state(connection_->rotad().pid) != 0) hang_up();
}

// --- what rotad says

void Conversation::read_messages() {
  if (!connection_->flush()) return went();
  Message message;
  while (connection_) {
    switch (connection_->receive(message)) {
      case Connection::Received::kNothing:
        return;
      case Connection::Received::kGone:
        return went();
      case Connection::Received::kMessage:
        heard(message);
        break;
    }
  }
}

void Conversation::heard(const Message& message) {
  if (message.kind == Kind::kGpuAdded) {
    added(message.body.gpu_added);
  } else if (message.kind == Kind::kReserved) {
    protocol::Reserved reserved = message.body.reserved;
    reserved.text[protocol::kTextLength - 1] = '\0';
    for (const Gpu& gpu : gpus_) {
      if (gpu.index == static_cast<int>(reserved.gpu)) parts_.budget.answer(gpu.device, reserved);
    }
  } else if (message.kind == Kind::kTighten) {
    round_ = message.body.tighten.round;
    listener_.count_freed();
    for (const Gpu& gpu : gpus_) {
      if (gpu.index >= 0 && connection_) say_state(gpu);
    }
  } else if (message.kind == Kind::kIntroduced) {
    Descriptor socket = connection_->take_socket();
    const std::uint32_t request = message.body.introduced.request;
    if (request != 0) {
      parts_.introductions.answered(request, std::move(socket));
    } else if (socket) {
      listener_.introduced(std::move(socket));
    }
  } else if (message.kind == Kind::kTryAgain) {
    parts_.rooms.answered(message.body.try_again);
  } else if (message.kind == Kind::kRefused) {
    // Answers arrive in order: this one is for the first GPU without one.
    protocol::Refused refused = message.body.refused;
    refused.text[protocol::kTextLength - 1] = '\0';
    const auto first =
        std::ranges::find_if(gpus_, [](const Gpu& gpu) { return gpu.told && gpu.index < 0 && !gpu.refused; });
    if (first != gpus_.end()) is_refused(*first, refused.text);
  }
}

void Conversation::added(const protocol::GpuAdded& added) {
  if (added.index >= protocol::kMaxGpus) return;
  for (Gpu& gpu : gpus_) {
    if (!gpu.told || !(gpu.description.uuid == added.uuid)) continue;
    if (gpu.index == static_cast<int>(added.index)) {  // it was named again
      parts_.budget.measured(gpu.device);
      continue;
    }
    gpu.index = static_cast<int>(added.index);
    driver::set_gpu_number(gpu.device, added.number);
    listener_.serves(gpu.device, true);  // first: the page says how memory there is served
    parts_.usage.set_index(gpu.device, gpu.index);
    parts_.published.set_index(gpu.device, gpu.index);
    is_served(gpu);
    say_state(gpu);
    if (!connection_) return;  // lost
  }
}

// From now on new memory there is of the GPU's mode; existing memory stays what it is.
void Conversation::is_served(Gpu& gpu) {
  if (std::exchange(gpu.refused, false)) {
    parts_.budget.limit(gpu.device);
    log::info("this program takes turns on GPU {} from now on", driver::gpu_number(gpu.device));
  }
  gpu.said_why.clear();
  parts_.service.serves(gpu.device);
}

// rotad says when that changes.
void Conversation::is_refused(Gpu& gpu, const std::string& why) {
  gpu.refused = true;
  parts_.budget.open(gpu.device);
  listener_.serves(gpu.device, false);
  parts_.service.refuses(gpu.device, why);
  if (std::exchange(gpu.said_why, why) == why) return;
  log::warn("no turns on GPU {}{}: {}", driver::gpu_number(gpu.device),
            parts_.service.waits() ? "" : " for now, and its memory stays there", why);
}

// --- what rotad is told

Message Conversation::message_of(const protocol::SessionEntry& session) {
  Message message;
  message.kind = Kind::kSession;
  protocol::Session& told = message.body.session;
  std::strncpy(told.id, session.id.c_str(), protocol::kSessionLength - 1);
  told.device_bytes = session.device_bytes;
  told.host_bytes = session.host_bytes;
  std::strncpy(told.name, session.name.c_str(), protocol::kSessionLength - 1);
  return message;
}

void Conversation::tell_shares() {
  if (connection_) connection_->usage()->shares.store(parts_.shares.load());
}

// Before the first GPU: from then on rotad may grant it.
void Conversation::tell_gang() {
  if (!connection_) return;
  const std::optional<protocol::Gang> gang = parts_.gang.take_untold();
  if (!gang) return;
  Message message;
  message.kind = Kind::kGang;
  message.body.gang = *gang;
  send(message);
}

const Conversation::Gpu* Conversation::gpu(int device) const {
  const auto found = std::ranges::find(gpus_, device, &Gpu::device);
  return found != gpus_.end() ? &*found : nullptr;
}

void Conversation::announce_gpus() {
  tell_gang();
  for (Gpu& gpu : gpus_) {
    if (gpu.told || gpu.unusable || !connection_) continue;
    Message message;
    message.kind = Kind::kAddGpu;
    message.body.add_gpu = gpu.description;
    gpu.told = true;
    parts_.budget.limit(gpu.device);
    send(message);
  }
  send_news();
}

void Conversation::send_news() {
  if (!connection_ || !parts_.usage.take_news()) return;
  tell_shares();
  Message message;
  message.kind = Kind::kUsage;
  send(message);
  // Freed memory is available to others.
  for (const Gpu& gpu : gpus_) {
    const std::uint64_t spare = parts_.budget.spare(gpu.device);
    const bool much = spare != protocol::kUnlimited && spare > gpu.description.total_bytes / kSpareParts;
    if (connection_ && gpu.index >= 0 && much) say_state(gpu);
  }
}

void Conversation::say_state(const Gpu& gpu) {
  const Budget::Has has = parts_.budget.tighten(gpu.device, connection_->gpu(gpu.index).left_bytes.load());
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

void Conversation::send_introductions() {
  for (const Message& message : parts_.introductions.take_untold()) {
    if (connection_) send(message);
  }
  if (connection_) parts_.introductions.told();
}

// rotad is not asked about a GPU that it does not serve.
void Conversation::send_room_requests() {
  if (!connection_) return;
  for (auto& [device, request] : parts_.rooms.take_untold()) {
    const Gpu* const there = gpu(device);
    if (there != nullptr && there->index < 0 && !there->refused && !there->unusable) {
      parts_.rooms.untold(request.number);  // a new rotad has yet to say how it calls the GPU
      continue;
    }
    if (there == nullptr || there->index < 0) {
      parts_.rooms.answered({.gpu = 0, .number = request.number, .answer = {}, .padding = 0});
      continue;
    }
    request.gpu = static_cast<std::uint32_t>(there->index);
    Message message{.kind = Kind::kAwaitRoom};
    message.body.await_room = request;
    if (connection_) send(message);
  }
}

void Conversation::send_asks() {
  for (const Gpu& gpu : gpus_) {
    if (gpu.index < 0 || !connection_) continue;
    if (parts_.budget.take_measure(gpu.device)) {
      Message again;
      again.kind = Kind::kAddGpu;
      again.body.add_gpu = gpu.description;
      send(again);
      if (!connection_) return;  // lost
    }
    const std::optional<Budget::Ask> ask = parts_.budget.take_ask(gpu.device);
    if (!ask) continue;
    parts_.usage.show_if_all_pinned(gpu.device);  // rotad reads it with the request
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

// --- memory for a turn

void Conversation::publish_promises(turn::GpuMask held) {
  for (const Gpu& gpu : gpus_) {
    const bool limited = gpu.index >= 0 && (held >> gpu.index & 1) != 0;
    parts_.budget.promise(gpu.device, limited ? connection_->gpu(gpu.index).promised_bytes.load() : Budget::kUnlimited);
  }
  parts_.budget.changed();
}

turn::GpuMask Conversation::lacking(Devices has) const {
  turn::GpuMask lacking = 0;
  for (const Gpu& gpu : gpus_) {
    const bool counts = (has & bit_of(gpu.device)) != 0 && gpu.index >= 0;
    if (counts && !parts_.budget.covered(gpu.device)) lacking |= turn::GpuMask{1} << gpu.index;
  }
  return lacking;
}

turn::GpuMask Conversation::unasked(Devices has, std::uint32_t grant) const {
  turn::GpuMask unasked = 0;
  for (const Gpu& gpu : gpus_) {
    const std::uint64_t allowed = parts_.budget.promised(gpu.device);
    if ((has & bit_of(gpu.device)) == 0 || gpu.index < 0 || allowed == Budget::kUnlimited) continue;
    const std::uint64_t needed = parts_.budget.needed(gpu.device);
    const std::uint64_t asked = gpu.asked_grant == grant ? gpu.asked : 0;
    if (std::max(needed, asked) > allowed && needed != asked) unasked |= turn::GpuMask{1} << gpu.index;
  }
  return unasked;
}

void Conversation::ask_room(turn::GpuMask gpus, std::uint32_t grant) {
  for (Gpu& gpu : gpus_) {
    if (gpu.index < 0 || (gpus >> gpu.index & 1) == 0) continue;
    gpu.asked = parts_.budget.needed(gpu.device);
    gpu.asked_grant = grant;
    Message message;
    message.kind = Kind::kRoom;
    message.body.room = {.gpu = static_cast<std::uint32_t>(gpu.index), .padding = 0, .bytes = gpu.asked};
    send(message);
    if (!connection_) return;  // lost
  }
}

}  // namespace rota::client
