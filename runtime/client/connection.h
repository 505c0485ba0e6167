// One connection to rotad: the socket and the two shared pages (scheduler/protocol/protocol.h). Nothing here blocks
// longer than rotad is given for its welcome; a rotad that is slow or stopped welcomes the process later.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/driver/memory_descriptor.h"
#include "runtime/turn/machine.h"
#include "scheduler/address/socket_path.h"
#include "scheduler/address/unresponsive.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/protocol/pages.h"
#include "scheduler/protocol/protocol.h"

namespace rota::client {

class Connection {
 public:
  struct Attempt {
    std::unique_ptr<Connection> connection;  // null: not served
    // A rotad is there and has been greeted, but has not answered yet: only welcome() may be called.
    std::unique_ptr<Connection> unanswered;
    // Why not, for the user; empty if there is simply no rotad.
    std::string reason;
  };
  // How long a program waits for rotad's welcome, which takes far less than a millisecond unless the machine is busy. A
  // judgment.
  static constexpr std::chrono::milliseconds kPatience{1000};
  // Why a process has no connection that may have no more descriptors.
  static constexpr const char* kNoDescriptor =
      "no descriptor is left to reach rotad: raise the program's limit (`ulimit -n`), or let it close some";
  // Finds rotad, says hello and waits for the welcome; shorter if rotad is seen to be stopped. `returns`: this process
  // has lost a rotad.
  static Attempt open(std::chrono::milliseconds patience = kPatience, bool returns = false,
                      const protocol::SocketCandidates& places = protocol::socket_candidates());
  // Whether the welcome has come that open() did not wait for. kNo: it never will, for that reason.
  enum class Welcome { kYes, kNotYet, kNo };
  Welcome welcome(std::string& reason);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False: rotad has ended. While rotad does not read, because the machine is busy or rotad is stopped, messages are
  // queued until flush() can send them; one with a descriptor, which the caller keeps in any case, is not sent then.
  bool send(protocol::Message message, int descriptor = -1);
  // Sends what was queued, as far as rotad reads it. False: rotad has ended, or has not read for too many messages.
  bool flush();
  bool has_unsent() const { return !unsent_.empty(); }
  // For how long rotad has read nothing of what was sent to it; 0: it reads. To be asked at least every few seconds.
  std::chrono::nanoseconds unread_for(turn::Time now);
  // The process that listens at the other end, and where.
  protocol::Listener rotad() const { return protocol::listener_of(descriptor_.get()); }
  const std::string& socket() const { return socket_; }
  // A message of a kind that this client knows; other messages of a newer rotad are skipped.
  enum class Received { kMessage, kNothing, kGone };
  Received receive(protocol::Message& message);
  // Returns when a message is there, rotad has ended, or the time is over.
  void wait_for_message(int milliseconds) const;
  // Memory that another process has handed over. This searches the messages that have arrived; receive() returns the
  // others. drop_extents() gives memory that was not taken back to the driver.
  std::optional<driver::Handed> take_extent(int index);
  void drop_extents() { extents_.clear(); }
  // The socket that came with the message of kIntroduced that receive() has returned last; empty: none.
  Descriptor take_socket() { return std::move(socket_received_); }

  static constexpr turn::GpuMask kAll = ~turn::GpuMask{0};
  // A consistent snapshot of what the lease page says of a task, which has these GPUs by rotad's indices.
  turn::Lease lease(turn::GpuMask task = kAll) const;
  // What rotad says of a GPU, by its index of it.
  const protocol::GpuLease& gpu(int index) const { return lease_->gpus[index]; }
  // How much of this process's memory has to be evicted from a GPU, by rotad's index: before the lease is given back,
  // or at once where this process swaps and does not hold the GPU. Memory that was evicted since rotad wrote that,
  // according to the usage page, counts.
  std::uint64_t to_clear(int index) const;
  // Whether memory that is evicted from this GPU may be handed over (protocol::Kind::kHandOver).
  bool hands_over(int index) const { return gpu(index).hands_over.load() != 0; }
  // What rotad wants to know about this process's activity on any of these GPUs (protocol::kWatch...).
  std::uint32_t watch(turn::GpuMask gpus = kAll) const;
  // Until when this process has one of its GPUs to itself, because it asked for that; 0: others may run there.
  turn::Time alone_until() const { return latest(&protocol::GpuLease::alone_until_ns, kAll); }
  // Until when the memory of a task that holds these GPUs must be evicted; 0: no time is set.
  turn::Time give_back_by(turn::GpuMask task) const { return latest(&protocol::GpuLease::give_back_by_ns, task); }
  // If the task that has these GPUs has the next turn: when the present holders begin to drain; 0: it is not next, or
  // that is not known.
  turn::Time next_turn(turn::GpuMask task) const { return latest(&protocol::GpuLease::next_turn_ns, task); }
  std::atomic<std::uint32_t>& event() const { return lease_->event; }
  const protocol::LeasePage* page() const { return lease_; }
  protocol::UsagePage* usage() const { return usage_; }
  const protocol::Welcome& welcome() const { return welcome_; }

  // Gives up the descriptors that are kept for the next connection.
  static void expect_no_other();
  // In the child of a fork: closes the parent's socket, if one was open, and its spare descriptors. The pages were not
  // inherited. The fork may have interrupted any thread in this class, so this touches no object: at worst the child
  // keeps a descriptor, which is harmless.
  static void close_inherited();

 private:
  Connection(int descriptor, std::string socket, bool returns);
  bool say_hello();
  // Whether something arrives within that time.
  bool hears_within(std::chrono::milliseconds patience) const;
  // Returns the reason for a failure; empty: success.
  std::string read_welcome();
  // One packet.
  enum class Sent { kYes, kNotNow, kGone };
  Sent write(const protocol::Message& message, int descriptor);
  // The latest of what rotad says of the GPUs that it serves.
  turn::Time latest(std::atomic<std::uint64_t> protocol::GpuLease::* time, turn::GpuMask gpus) const;
  // Receives the next message on the socket; stores memory that came with it.
  Received receive_new(protocol::Message& message);

  Descriptor descriptor_;
  const std::string socket_;
  // The event word is waited on, which needs a pointer that is not const; the mapping itself is read-only. The pages
  // are never unmapped: a thread of the program may be writing its usage while the monitor reconnects.
  protocol::LeasePage* lease_ = nullptr;
  protocol::UsagePage* usage_ = nullptr;
  protocol::Welcome welcome_{};
  std::uint16_t version_ = protocol::kOldestVersion;  // the version in use; chosen by the welcome
  turn::GpuMask served_ = 0;                          // GPUs that rotad has given an index
  std::deque<protocol::Message> unread_;              // arrived before memory that was searched for
  std::deque<protocol::Message> unsent_;
  int unread_bytes_ = 0;  // of what was sent, at the last check
  bool written_ = false;  // since then
  const bool returns_;    // this process has lost a rotad
  turn::Time unread_since_{0};
  turn::Time checked_at_{0};
  struct Extent {
    int index;  // rotad's index of the GPU
    driver::Handed handed;
  };
  std::deque<Extent> extents_;
  std::deque<Descriptor> sockets_;  // of introductions that receive() has not returned
  Descriptor socket_received_;      // of the one that it has
};

}  // namespace rota::client
