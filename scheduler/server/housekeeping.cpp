// What rotad polls: pages, orphans, its place and locks, whether it is idle.
#include <asio/post.hpp>
#include <vector>

#include "scheduler/server/client.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"
#include "scheduler/server/processor_time.h"

namespace rota::server {

using namespace std::chrono_literals;
using scheduler::ClientId;

namespace {

// How often usage pages are read unasked, and orphans and idleness checked.
constexpr auto kHousekeeping = 200ms;

}  // namespace

void Server::housekeeping() {
  guarded("look after clients", [this] { look_after_clients(); });
  if (stopped_) return;
  if (!accepting_) accept();
  housekeeping_.expires_after(kHousekeeping);
  housekeeping_.async_wait([this](std::error_code error) {
    keeping_house_ = false;
    if (!error && !stopped_) guarded("look after clients again", [this] { housekeeping(); });
  });
  keeping_house_ = true;
}

void Server::look_after_clients() {
  keep_place();
  if (!place_lost_) gpus_.keep_locks();
  look_for_machine();
  take_all_gpus();
  remove_lost();
  while (!gone_.empty()) forget_client(gone_.begin()->first);
  if (next_looked_after_ == 0) read_pages();
  schedule_deadline();
  schedule_gang_check();
  measure();
  follow_outside();
  host_pass_.run();
  share_host();
  event_log_.flush();
  if (options_.idle_exit && idle() && now() - idle_since_ >= *options_.idle_exit) {
    log::info("no client for {} ms: exiting", options_.idle_exit->count());
    stop();
    io_.stop();
  }
}

// Removes as many as there is time for, and the others later, after other work.
void Server::remove_lost() {
  const std::chrono::nanoseconds until = processor_time() + kAtOnce;
  std::vector<ClientId> lost;
  for (const ClientId id : orphans_) {
    if (now() - clients_.at(id)->orphaned_at >= options_.reconnect_time) lost.push_back(id);
  }
  for (const ClientId id : lost) {
    if (processor_time() >= until) {
      return asio::post(io_, [this] {
        if (!stopped_) guarded("look after clients", [this] { remove_lost(); });
      });
    }
    remove_client(id, "its connection ended and did not come back");
  }
}

// Reads a few clients' pages at a time, so that other work does not wait for it.
void Server::read_pages() {
  constexpr int kMost = 64;
  auto next = clients_.lower_bound(next_looked_after_);
  const std::chrono::nanoseconds until = processor_time() + kAtOnce;
  for (int i = 0; i < kMost && processor_time() < until && next != clients_.end(); ++i, ++next) {
    read_usage(*next->second);
    note_moves(*next->second);
  }
  next_looked_after_ = next == clients_.end() ? 0 : next->first;
  if (next_looked_after_ == 0) return;
  asio::post(io_, [this] {
    if (!stopped_ && !guarded("look after clients", [this] { read_pages(); })) next_looked_after_ = 0;
  });
}

bool Server::idle() const {
  return clients_.empty() && stayers_.empty() && connections_.empty();
}

}  // namespace rota::server
