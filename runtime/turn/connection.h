// One connection to rotad: the socket and the two shared pages (scheduler/protocol/protocol.h). Nothing here blocks
// longer than the two seconds that rotad has for its welcome.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "runtime/driver/memory_descriptor.h"
#include "runtime/turn/machine.h"
#include "scheduler/protocol/descriptor.h"
#include "scheduler/protocol/pages.h"

namespace rota::turn {

class Connection {
 public:
  struct Attempt {
    std::unique_ptr<Connection> connection;  // null: not served
    // Why not, for the user; empty where there simply is no rotad.
    std::string reason;
  };
  // Finds rotad, says hello and waits for the welcome.
  static Attempt open();
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False: rotad has gone, or reads no more. A descriptor that is sent along stays the caller's.
  bool send(protocol::Message message, int descriptor = -1);
  // A message of a kind that this client knows; what a newer rotad says beyond that is passed over.
  enum class Received { kMessage, kNothing, kGone };
  Received receive(protocol::Message& message);
  // Returns when a message is there, rotad has gone, or the time is over.
  void wait_for_message(int milliseconds) const;
  // Memory that another process has handed over. What arrives is looked through for it; receive() has the rest. What
  // nobody takes is given back to the driver by drop_extents().
  std::optional<driver::Handed> take_extent(int index);
  void drop_extents() { extents_.clear(); }

  // What the lease page says, read as one.
  Lease lease() const;
  // Whether this rotad promises room, and so has to be asked for more; and how much it promises, by its index.
  bool promises_room() const { return version_ >= protocol::kRoomVersion; }
  // Whether it keeps limits that processes share.
  bool keeps_limits() const { return version_ >= protocol::kLimitVersion; }
  // Whether it asks clients that do not hold a GPU for the room that others lack there.
  bool asks_for_room() const { return version_ >= protocol::kSwapVersion; }
  // Whether it refuses what would leave some client without room for its swap memory, and so is told what that takes.
  bool keeps_room_for_all() const { return version_ >= protocol::kFitVersion; }
  std::uint64_t promised(int index) const { return lease_->promised_bytes[index].load(); }
  // How much of this process's memory rotad wants off a GPU, by its index: before the lease is given back, or at once
  // where this process swaps and does not hold the GPU. What has gone since rotad wrote that, by the usage page,
  // counts.
  std::uint64_t to_clear(int index) const;
  // Whether what is cleared there may be handed over (protocol::Kind::kHandOver).
  bool hands_over(int index) const;
  // What rotad wants to know of this process's activity (protocol::kWatch...).
  std::uint32_t watch() const { return lease_->watch.load(std::memory_order_relaxed); }
  // Until when this process has what it holds to itself, since it has asked for that; 0: others may be there.
  Time alone_until() const { return Time(static_cast<std::int64_t>(lease_->alone_until_ns.load())); }
  // Until when a holder's has to have gone; 0: no time is set.
  Time give_back_by() const;
  // Of a process that is next to have a turn: when those in its way begin to drain; 0: it is not, or that is not known.
  Time next_turn() const { return Time(static_cast<std::int64_t>(lease_->next_turn_ns.load())); }
  std::atomic<std::uint32_t>& event() const { return lease_->event; }
  const protocol::LeasePage* page() const { return lease_; }
  protocol::UsagePage* usage() const { return usage_; }
  const protocol::Welcome& welcome() const { return welcome_; }

  // In the child of a fork: closes the parent's socket, if one was open. The pages were not inherited. Any thread may
  // have been anywhere in here when the fork came, so it touches no object: at worst the child keeps a descriptor,
  // which does it no harm.
  static void close_inherited();

 private:
  explicit Connection(int descriptor);
  // The reason why not; empty: done.
  std::string greet();
  // The next message on the socket; memory that came with it is put aside.
  Received receive_new(protocol::Message& message);

  Descriptor descriptor_;
  // The event word is waited on, which needs a pointer that is not const; the mapping itself is read-only. The pages
  // are never unmapped: a thread of the program may be writing its usage while the monitor reconnects.
  protocol::LeasePage* lease_ = nullptr;
  protocol::UsagePage* usage_ = nullptr;
  protocol::Welcome welcome_{};
  std::uint16_t version_ = protocol::kOldestVersion;  // what is spoken; settled by the welcome
  std::deque<protocol::Message> unread_;              // came before memory that was looked for
  struct Extent {
    int index;  // of the GPU, rotad's
    driver::Handed handed;
  };
  std::deque<Extent> extents_;
};

}  // namespace rota::turn
