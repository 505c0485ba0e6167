// This process as a client of rotad: asks for the lease, opens the gate while it holds it, drains and gives it back
// when somebody else waits.
//
// One monitor thread does all of this; it is started at the first context, with all signals blocked. The program's
// threads only ring its bell. It sleeps on two futex words at once, its bell and the event word of the lease page.
//
//   kIdle ──(a thread stands at the gate)──► kWaiting ──(grant)──► kHolding ──(idle or drained)──► kIdle
//   kAlone: rotad has gone; the gate is open; tries to connect again, and says then that its work is running
//   kBeside: this process could not be drained; it runs beside the others and asks for nothing any more
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/memory/memory.h"
#include "runtime/turn/bell.h"
#include "runtime/turn/connection.h"
#include "runtime/turn/contexts.h"
#include "runtime/turn/gate.h"

namespace rota::client {

class Client final : public gate::Attendant {
 public:
  using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, as rotad's times are

  // Closes the gate: the first submitting call starts the client. Touches neither socket nor thread.
  Client(gate::Gate& gate, gate::Contexts& contexts, memory::Memory& memory);
  ~Client() override;  // tests; the program's own is never destroyed

  // --- program's threads
  // A context was made (or first seen). Connects at the first one; where there is no rotad, opens the gate for good.
  void context_made(api::CUcontext context, int device, bool primary);
  void arrived() override;
  bool submits_nothing(const gate::Call& call) override;
  void usage_changed(int device);

  // The process is exiting: no driver call of ours from now on, and nobody waits any more.
  void at_exit();
  void after_fork_in_child();

  bool served() const { return served_.load(std::memory_order_acquire); }

 private:
  enum class Phase { kIdle, kWaiting, kHolding, kAlone, kBeside };

  struct Gpu {
    int device = -1;
    protocol::AddGpu description{};
    int index = -1;        // rotad's; -1 until it answered
    bool told = false;     // add_gpu sent on this connection
    bool refused = false;  // runs without turns there
  };
  // What a GPU's usage is written to, reachable for the program's threads.
  struct UsageSlot {
    std::atomic<int> index{-1};
    std::atomic<std::uint64_t> last_told{0};
    std::atomic<std::uint64_t> worth_telling{UINT64_MAX};
  };

  void start();
  bool connect_first();
  void start_monitor();

  // --- the monitor
  void run();
  std::chrono::nanoseconds step();
  std::chrono::nanoseconds step_alone();
  std::chrono::nanoseconds step_holding(const Lease& lease);
  void read_messages();
  void announce_gpus();
  void lost_rotad();
  void send(const protocol::Message& message);
  void want(bool running);
  void give_back(std::uint32_t grant);
  void take(const Lease& lease);
  void bring_memory_back();
  void lease_revoked();
  // Closes, drains and gives back (unless rotad does not count on it); on failure the gate is open again.
  void yield(bool idle);
  enum class Drained {
    kYes,
    kHeldBack,  // the GPU waits for something that our own closed gate holds back, it seems
    kGone,      // rotad took the lease or has gone, or the process exits
  };
  Drained drain();
  void drain_failed();
  void collect();
  void collect_if_idle();
  std::uint64_t mask() const;
  bool all_answered() const;
  void write_submissions();
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  void nap(std::chrono::nanoseconds time) const;

  gate::Gate& gate_;
  gate::Contexts& contexts_;
  memory::Memory& memory_;

  // Shared with the program's threads.
  std::mutex start_mutex_;
  std::atomic<bool> started_{false};
  std::atomic<bool> served_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> devices_seen_{0};
  Bell bell_;
  std::mutex new_gpus_mutex_;
  std::vector<Gpu> new_gpus_;
  std::array<UsageSlot, memory::kMaxDevices> usage_;
  std::atomic<protocol::UsagePage*> usage_page_{nullptr};
  std::atomic<bool> usage_news_{false};

  pthread_t monitor_{};
  bool monitor_runs_ = false;

  // The monitor's own.
  std::unique_ptr<Connection> connection_;
  std::vector<Gpu> gpus_;
  Phase phase_ = Phase::kIdle;
  std::uint32_t grant_ = 0;
  std::uint32_t given_back_ = 0;
  std::uint64_t wanted_ = 0;
  Clock::time_point lost_at_;
  Clock::time_point next_attempt_;
  std::optional<Clock::time_point> running_want_until_;  // after a reconnect: how long to wait for rotad's yes

  // Idle detection and draining (client_yield.cpp).
  std::uint64_t calls_seen_ = 0;
  bool mark_due_ = false;
  std::optional<Clock::time_point> idle_since_;
  std::chrono::nanoseconds idle_grace_ = std::chrono::milliseconds(2);
  std::optional<Clock::time_point> gave_back_idle_at_;
  Clock::time_point taken_at_;
  Clock::time_point earliest_yield_;
  Clock::time_point retry_at_;
  std::chrono::nanoseconds patience_ = std::chrono::seconds(1);
  int failed_drains_ = 0;
};

}  // namespace rota::client
