// The processes that handle descriptors which clients send (workers.h says why). A keeper, forked from rotad while that
// is small, starts a worker for each end of a socket pair at which there is a job, and another when one has ended. None
// of them has any of rotad's files open. They end with rotad.
#pragma once

#include <array>
#include <cstdint>

#include "scheduler/base/result.h"
#include "scheduler/protocol/protocol.h"

namespace rota::server {

inline constexpr std::size_t kWorkers = 8;

// What rotad sends to a worker.
struct Job {
  enum class Do : std::uint32_t {
    kClose,  // comes with a socket; kCloseNow follows once rotad has closed its own descriptor of it
    kCloseNow,
    kDiscard,  // comes with a socket: take one packet out of it, and drop what came with it
    kPassOn,   // comes with two sockets: the same, but send the memory that came with it to the second, with `message`
  };
  std::uint32_t number = 0;
  Do what = Do::kClose;
  protocol::Message message{};
};

enum class JobOutcome : std::uint32_t {
  kDone,      // closed, discarded, or passed on
  kNotSent,   // there was memory, but the receiver does not read
  kNoMemory,  // something other than one descriptor of memory came with the packet
  kKilled,    // it took too long: the worker was ended
};

// What a worker sends to rotad, or the keeper for one that has died.
struct JobDone {
  std::uint32_t number = 0;  // 0: the worker's current one
  JobOutcome outcome = JobOutcome::kDone;
};

struct WorkerProcesses {
  int keeper = 0;                       // process
  std::array<int, kWorkers> ends = {};  // rotad's ends of the socket pairs, non-blocking
};

Result<WorkerProcesses> start_workers();

}  // namespace rota::server
