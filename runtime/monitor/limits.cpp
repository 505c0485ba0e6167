#include "runtime/monitor/limits.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/client/conversation.h"
#include "runtime/core/held_signals.h"

namespace rota::monitor {

using namespace std::chrono_literals;

namespace {

// How long rotad may take to hear of the process's sessions. A judgment.
constexpr auto kSessionsHeard = 250ms;
// Between two checks of whether it has. A judgment.
constexpr auto kLooks = 50us;

}  // namespace

memory::SharedLimit Limits::of(int device) {
  if (device < 0 || device >= memory::kMaxDevices) return {};
  if (!started_.load(std::memory_order_acquire)) return {.total = before_contexts()};
  const protocol::LeasePage* const page = published_.page();
  if (page == nullptr) return {};
  // A process that asks right at the start must not be told the size of the whole GPU.
  const bool known = budget_.wait_until_known(device);
  const auto here = published_.gpu(device);
  const std::uint64_t total = page->limit_bytes.load(std::memory_order_relaxed);
  if (!here) return known ? memory::SharedLimit{} : unanswered(device, total);
  if (total == protocol::kUnlimited) return {};
  return {total, budget_.available(device, here->lease.left_bytes.load())};
}

// While rotad does not answer, only this process's own use of the limit is known, not the others'.
memory::SharedLimit Limits::unanswered(int device, std::uint64_t said) const {
  std::uint64_t total = said;
  for (const protocol::SessionEntry& session : sessions_) total = std::min(total, session.device_bytes);
  if (total == protocol::kUnlimited) return {};
  const std::uint64_t used = memory_.ledger().live_bytes(device) + published_.context_bytes(device);
  return {total, total - std::min(total, used)};
}

// Where memory stays native and nothing is limited, the driver's answer needs no rotad.
void Limits::refresh(int device) {
  if (device < 0 || device >= memory::kMaxDevices || published_.page() == nullptr) return;
  const protocol::MemoryMode mode = memory_.mode(device);
  const bool moves = protocol::is_unified(mode) || mode == protocol::MemoryMode::kSwap;
  const bool has_limit = published_.limited() || memory_.settings().limit_bytes != memory::kNoLimit ||
                         std::ranges::any_of(sessions_, [](const protocol::SessionEntry& session) {
                           return session.device_bytes != protocol::kUnlimited;
                         });
  budget_.wait_until_known(device, moves || has_limit);
}

// A program may ask how large a GPU is before it makes a context. rotad is asked once, over a connection that ends with
// its answer: no thread is started in a program that may never use a GPU.
std::uint64_t Limits::before_contexts() {
  const HeldSignals held;  // until the lock is free again
  const std::lock_guard lock(mutex_);
  if (early_) return *early_;
  early_ = protocol::kUnlimited;
  const client::Connection::Attempt attempt = client::Connection::open();
  silent_.store(attempt.unanswered != nullptr);
  if (attempt.connection) {
    // Sessions may have limits of their own, which are in the page once rotad has heard of them.
    const std::atomic<std::uint32_t>& event = attempt.connection->event();
    const std::uint32_t before = event.load();
    for (const protocol::SessionEntry& session : sessions_)
      attempt.connection->send(client::Conversation::message_of(session));
    const auto until = std::chrono::steady_clock::now() + kSessionsHeard;
    while (event.load() - before < sessions_.size() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kLooks);
    }
    early_ = attempt.connection->page()->limit_bytes.load(std::memory_order_relaxed);
  }
  return *early_;
}

}  // namespace rota::monitor
