// When rotad sleeps and when it spins.
#include <algorithm>
#include <thread>
#include <utility>

#include "scheduler/server/client.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"
#include "scheduler/server/processor_time.h"
#include "scheduler/server/server.h"

namespace rota::server {

namespace event = scheduler::event;

namespace {

// The pause after something has failed for want of memory.
constexpr std::chrono::milliseconds kBetweenTries{10};

}  // namespace

// How many handlers `next` has run; nullopt: something failed for want of memory.
template <typename Next>
std::optional<std::size_t> Server::go_on(const Next& next) {
  std::size_t handled = 0;
  const bool done = guarded("go on", [&] {
    if (!keeping_house_ && !stopped_) housekeeping();
    handled = next();
  });
  return done ? std::optional(handled) : std::nullopt;
}

void Server::run() {
  while (!io_.stopped()) {
    const std::chrono::nanoseconds before = processor_time();
    const bool done = go_on([this] {
                        if (std::chrono::steady_clock::now() >= awake_until_) return io_.run_one();
                        const std::size_t handled = io_.poll_one();
                        if (handled == 0) std::this_thread::yield();
                        return handled;
                      }).has_value();
    if (const auto took = processor_time() - before; took > longest_) {
      longest_ = took;
      longest_work_ = latest_work;
    }
    if (!done) std::this_thread::sleep_for(kBetweenTries);
  }
  log::info("the most processor time that one thing took: {} us ({})",
            std::chrono::duration_cast<std::chrono::microseconds>(longest_).count(), longest_work_);
}

void Server::poll() {
  while (go_on([this] { return io_.poll_one(); }).value_or(0) != 0) {
  }
}

// The next client is told when the holders in its way begin to drain.
void Server::tell_next(scheduler::Time time) {
  bool one_drains = false;
  scheduler::for_each_gpu(core_.waited_gpus(), [&](std::uint32_t gpu) {
    const auto first = core_.first_waiting(gpu);
    if (!first) return;
    const scheduler::Time at = core_.next_turn(*first);
    one_drains |= at != scheduler::Time{} && at <= time;
    bool news = false;
    for_each_task_of(*first, [&](const Program& client, Task& task) {
      if (std::exchange(task.next_turn, at) == at) return;
      news = true;
      changed_.insert(client.id);
    });
    if (!news) return;
    if (at != scheduler::Time{}) stay_awake(time_.real(at));
  });
  if (!one_drains) awake_until_ = {};
}

void Server::stay_awake(scheduler::Time from) {
  wake_.expires_at(asio::steady_timer::time_point(std::chrono::duration_cast<asio::steady_timer::duration>(from)));
  wake_.async_wait([this](std::error_code error) {
    if (!error) awake_until_ = std::chrono::steady_clock::now() + std::chrono::nanoseconds(protocol::kAwakeNs);
  });
}

void Server::schedule_gang_check() {
  gang_check_.set(next_check());
}

void Server::schedule_deadline() {
  std::optional<scheduler::Time> next = core_.next_deadline();
  if (next) next = time_.real(*next);
  if (const auto answer = quota_.next_deadline(); answer && (!next || *answer < *next)) next = answer;
  deadline_.set(next);
}

void Server::do_what_is_due() {
  read_rooms();
  carry_out(apply(limit::Tick{}).outcome);
  if (core_.shared_gpus() != 0) activity_pass_.try_now();
  step(event::Tick{});
}

}  // namespace rota::server
