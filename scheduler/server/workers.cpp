#include "scheduler/server/workers.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "scheduler/protocol/packet.h"
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
  for (const int end : started->ends) {
    places_.push_back(std::make_unique<Place>(Place{asio::posix::stream_descriptor(io_, end), std::nullopt}));
    read(*places_.back());
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

void Workers::close(Descriptor socket, const std::string& sender, Done done) {
  add({{.what = Job::Do::kClose}, sender, std::move(socket), {}, std::move(done)});
}

void Workers::take(const protocol::Message& message, const std::string& sender, Sockets sockets, Done done) {
  add({{.what = Job::Do::kDiscard, .message = message}, sender, {}, std::move(sockets), std::move(done)});
}

void Workers::add(Task task) {
  task.job.number = ++last_number_;
  waiting_.push_back(std::move(task));
  dispatch();
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
      start();
      dispatch();
    });
    return;
  }
  for (const auto& place : places_) {
    while (!place->task) {
      const auto next =
          std::find_if(waiting_.begin(), waiting_.end(), [this](const Task& task) { return may_begin(task); });
      if (next == waiting_.end()) return;
      Task task = std::move(*next);
      waiting_.erase(next);
      int sockets[2] = {task.owned.get(), -1};
      // Whoever has closed them meanwhile has seen to what was in their queues.
      if (task.sockets && !task.sockets(sockets[0], sockets[1])) continue;
      if (!send(*place, task, sockets)) {
        waiting_.push_back(std::move(task));
        return;
      }
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
  place.task = std::move(task);
  return true;
}

void Workers::read(Place& place) {
  place.end.async_wait(asio::posix::stream_descriptor::wait_read, [this, &place](std::error_code error) {
    if (error) return;
    JobDone done;
    const ssize_t length = recv(place.end.native_handle(), &done, sizeof done, MSG_DONTWAIT);
    if (length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR)) {
      // The keeper has been killed, and the workers with it.
      log::warn("the processes that handle descriptors have ended, and are started again");
      std::vector<std::unique_ptr<Place>> ended = std::move(places_);
      places_.clear();
      end_processes();
      for (const auto& each : ended) {
        if (each->task) finish(*each, JobOutcome::kKilled);
      }
      dispatch();
      return;
    }
    const bool current = place.task && (done.number == 0 || done.number == place.task->job.number);
    if (length == sizeof done && current) finish(place, done.outcome);
    read(place);
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
