// Descriptors that clients send are handled by one of a few worker processes, never by the event loop. What a client
// sends may take as long as the client likes to close, and a process can be killed while it waits, which a thread
// cannot. Only rotad's own thread calls this.
//
// Each user occupies one worker at most, and all users together whose jobs had to be killed, or who sent something
// other than memory, share one. Jobs beyond that wait; what they are about stays open, and counts as its sender's.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "scheduler/server/worker_process.h"

namespace rota::server {

class Workers {
 public:
  using Done = std::function<void(JobOutcome)>;
  // The sockets of a job when its turn has come: the one to read from, and the one to send to or -1. False: they are no
  // longer there, so there is nothing to do.
  using Sockets = std::function<bool(int& from, int& to)>;

  // Starts the processes: rotad should have no thread yet. If that fails it is tried again when there is a job.
  explicit Workers(asio::io_context& io);
  // Does not close what is left; the end of the process does.
  ~Workers();

  // `sender`: whose job it is. `done` is called once the socket has been closed, or its worker killed. If this throws,
  // the socket is still the caller's.
  void close(Descriptor&& socket, const std::string& sender, Done done);
  // Takes the next packet out of a socket, and what came with it. With a second socket, memory that came with it is
  // sent there with `message`.
  void take(const protocol::Message& message, const std::string& sender, Sockets sockets, Done done);

  // Whether this one has sent something other than memory, or something that could not be closed.
  bool is_suspect(const std::string& sender) const { return suspects_.count(sender) != 0; }

 private:
  struct Task {
    Job job;
    std::string sender;
    Descriptor owned;  // what is to be closed
    Sockets sockets;
    Done done;
  };
  struct Place {
    asio::posix::stream_descriptor end;
    std::optional<Task> task;
  };

  void start();
  void start_again();
  void end_processes();
  Task& add(Job::Do what, const std::string& sender, Done done);
  void dispatch();
  bool may_begin(const Task& task) const;
  bool send(Place& place, Task& task, const int (&sockets)[2]);
  void read(Place& place);
  void finish(Place& place, JobOutcome outcome);

  asio::io_context& io_;
  asio::steady_timer again_;
  int keeper_ = 0;
  std::vector<std::unique_ptr<Place>> places_;  // empty: the processes do not run
  std::deque<Task> waiting_;
  std::set<std::string> suspects_;
  std::uint32_t last_number_ = 0;
  bool start_failed_ = false;  // and the log says so
};

}  // namespace rota::server
