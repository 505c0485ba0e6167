#include "scheduler/server/workers.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <asio/error.hpp>
#include <utility>

#include "scheduler/protocol/packet.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"

namespace rota::server {
namespace {

// Until the processes are started again.
constexpr std::chrono::seconds kStartAgain{1};
// Users whose jobs were killed; further ones are not remembered, which costs others only time.
constexpr std::size_t kMostSuspects = 4096;

}  // namespace

Workers::Workers(asio::io_context& io) : io_(io), again_(io) {
  start();
}

Workers::~Workers() {
  for (Task& task : waiting_) task.owned.release();
  end_processes();
}

void Workers::start() {
  const auto started = start_workers();
  if (!started) {
    if (!std::exchange(start_failed_, true)) {
      log::warn("{}; until that is possible, memory is not handed over and some connections stay open",
                started.error().text);
    }
    return;
  }
  keeper_ = started->keeper;
  std::array<Descriptor, kWorkers> ends;
  std::transform(started->ends.begin(), started->ends.end(), ends.begin(), [](int end) { return Descriptor(end); });
  try {
    for (Descriptor& end : ends) {
      places_.push_back(std::make_unique<Place>(asio::posix::stream_descriptor(io_, end.get()), std::nullopt));
      end.release();
      read(*places_.back());
    }
  } catch (...) {
    end_processes();
    throw;
  }
}

// The workers have the last descriptors of what they were given, so nothing that could block is closed here.
void Workers::end_processes() {
  for (const auto& place : places_) {
    if (place->task) place->task->owned.release();
  }
  places_.clear();
  if (keeper_ <= 0) return;
  kill(keeper_, SIGKILL);
  waitpid(keeper_, nullptr, 0);
  keeper_ = 0;
}

void Workers::close(Descriptor&& socket, const std::string& sender, Done done) {
  add(Job::Do::kClose, sender, std::move(done)).owned = std::move(socket);
  guarded("start a worker process", [this] { dispatch(); });
}

void Workers::take(const protocol::Message& message, const std::string& sender, Sockets sockets, Done done) {
  Task& task = add(Job::Do::kDiscard, sender, std::move(done));
  task.job.message = message;
  task.sockets = std::move(sockets);
  dispatch();
}

Workers::Task& Workers::add(Job::Do what, const std::string& sender, Done done) {
  Task task;
  task.job.what = what;
  task.job.number = ++last_number_;
  task.sender = sender;
  task.done = std::move(done);
  waiting_.push_back(std::move(task));
  return waiting_.back();
}

bool Workers::may_begin(const Task& task) const {
  const bool suspect = is_suspect(task.sender);
  return std::none_of(places_.begin(), places_.end(), [&](const auto& place) {
    return place->task && (place->task->sender == task.sender || (suspect && is_suspect(place->task->sender)));
  });
}

void Workers::dispatch() {
  if (waiting_.empty()) return;
  if (places_.empty()) {
    again_.expires_after(kStartAgain);
    again_.async_wait([this](std::error_code error) {
      if (error) return;
      guarded("start worker processes", [this] {
        start();
        dispatch();
      });
    });
    return;
  }
  for (const auto& place : places_) {
    while (!place->task) {
      const auto next =
          std::find_if(waiting_.begin(), waiting_.end(), [this](const Task& task) { return may_begin(task); });
      if (next == waiting_.end()) return;
      int sockets[2] = {next->owned.get(), -1};
      // If they were closed meanwhile, what was in their queues was handled then.
      if (!next->sockets || next->sockets(sockets[0], sockets[1])) {
        if (!send(*place, *next, sockets)) return;
        place->task = std::move(*next);
      }
      waiting_.erase(next);
    }
  }
}

// False: the worker takes none.
bool Workers::send(Place& place, Task& task, const int (&sockets)[2]) {
  if (task.job.what != Job::Do::kClose) task.job.what = sockets[1] >= 0 ? Job::Do::kPassOn : Job::Do::kDiscard;
  const int worker = place.end.native_handle();
  const std::span<const int> sent(sockets, sockets[1] >= 0 ? 2 : 1);
  if (protocol::write_packet(worker, &task.job, sizeof task.job, sent, MSG_DONTWAIT) < 0) return false;
  if (task.owned) {
    task.owned = Descriptor();  // not the last: the worker has one until it is told to close it
    const Job now{.number = task.job.number, .what = Job::Do::kCloseNow, .message = {}};
    protocol::write_packet(worker, &now, sizeof now, {}, MSG_DONTWAIT);
  }
  return true;
}

void Workers::read(Place& place) {
  place.end.async_wait(asio::posix::stream_descriptor::wait_read, [this, &place](std::error_code error) {
    if (error == asio::error::operation_aborted) return;
    JobDone done;
    const ssize_t length = error ? 0 : recv(place.end.native_handle(), &done, sizeof done, MSG_DONTWAIT);
    // The keeper has been killed, and the workers with it; or the kernel has no memory.
    bool lost = length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR);
    lost = lost || !guarded("read from a worker process", [&] {
             const bool current = place.task && (done.number == 0 || done.number == place.task->job.number);
             if (length == sizeof done && current) finish(place, done.outcome);
             read(place);
           });
    if (lost) return start_again();
    guarded("start a worker process", [this] { dispatch(); });
  });
}

void Workers::start_again() {
  const std::vector<std::unique_ptr<Place>> ended = std::move(places_);
  places_.clear();
  end_processes();
  guarded("start worker processes", [&] {
    log::warn("the processes that handle descriptors have ended, and are started again");
    for (const auto& place : ended) {
      if (place->task) finish(*place, JobOutcome::kKilled);
    }
    dispatch();
  });
}

void Workers::finish(Place& place, JobOutcome outcome) {
  const Task task = std::move(*std::exchange(place.task, std::nullopt));
  if (outcome == JobOutcome::kKilled || outcome == JobOutcome::kNoMemory) {
    if (suspects_.size() < kMostSuspects) suspects_.insert(task.sender);
  }
  task.done(outcome);
}

}  // namespace rota::server
