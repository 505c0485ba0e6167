// The conversation with rotad: finds it, says which GPUs this process has touched and what it needs there, and hears
// what it may have. Only the monitor's thread uses it, and before that the thread that starts the monitor.
//
// The Listener decides what the start and end of a rotad mean for the rest of the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/client/budget.h"
#include "runtime/client/connection.h"
#include "runtime/client/gang_evidence.h"
#include "runtime/client/introductions.h"
#include "runtime/client/published.h"
#include "runtime/client/room_requests.h"
#include "runtime/client/service.h"
#include "runtime/client/usage.h"
#include "scheduler/protocol/session_list.h"

namespace rota::client {

class Conversation {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // A rotad has welcomed this process, and nothing has been sent to it yet.
    virtual void rotad_came(Connection& connection) = 0;
    virtual void rotad_went() = 0;
    // An attempt to find a rotad after one was lost has succeeded, or not.
    virtual void rotad_is_back(bool is) = 0;
    // rotad serves this process on the GPU, or does not for now.
    virtual void serves(int device, bool is) = 0;
    // Counts memory as free whose frees the streams have passed.
    virtual void count_freed() = 0;
    // Another process, of the same trust domain, asks for what this one has exported.
    virtual void introduced(Descriptor&& socket) = 0;
  };
  struct Gpu {
    int device = -1;
    protocol::AddGpu description{};
    int index = -1;         // rotad's; -1 until it answered
    bool told = false;      // add_gpu was sent on this connection
    bool refused = false;   // rotad does not serve it for now: the process runs there without turns
    std::string said_why;   // the reason, as the user was last told
    bool unusable = false;  // rotad is not asked: its size is not known
    // What rotad was last told that this process needs, and under which grant.
    std::uint64_t asked = 0;
    std::uint32_t asked_grant = 0;
  };
  // What the process has of each, which both sides read.
  struct Parts {
    Usage& usage;
    Budget& budget;
    Service& service;
    GangEvidence& gang;
    Introductions& introductions;
    RoomRequests& rooms;
    Published& published;
    const std::atomic<std::uint32_t>& shares;  // UsagePage::shares
  };

  Conversation(Parts parts, const std::vector<protocol::SessionEntry>& sessions, Listener& listener)
      : parts_(parts), sessions_(sessions), listener_(listener) {}

  // Null: there is none now.
  Connection* operator->() const { return connection_.get(); }
  explicit operator bool() const { return connection_ != nullptr; }
  // A rotad is there that has not answered yet.
  bool asks() const { return unanswered_ != nullptr; }
  // The user knows that rotad does not answer.
  bool said_silent() const { return said_silent_; }
  static protocol::Message message_of(const protocol::SessionEntry& session);

  // The first attempt, or another one while the program waits for a rotad. `silent`: the process has already waited for
  // one that did not answer, and does not wait as long again.
  enum class First {
    kServed,
    kSilent,  // a rotad is there and serves the process once it answers
    kNone,
    kWait,  // ask again after a while
  };
  First find_first(bool silent);
  void give_up();
  // Searches for a rotad after one was lost.
  void connect();
  // A rotad that had not answered may have done so, or may have ended.
  void look_for_welcome();
  // The process runs without turns rather than wait for a rotad that does not answer. rotad is asked again at once, and
  // may answer later.
  void hang_up();
  // The same if rotad does not read what is said to it, while the process `waits` for its turn: one that runs loses
  // nothing by a rotad that does not read for a while.
  void hang_up_if_unread(turn::Time now, bool waits);
  void read_messages();
  void send(const protocol::Message& message);

  std::vector<Gpu>& gpus() { return gpus_; }
  const std::vector<Gpu>& gpus() const { return gpus_; }
  const Gpu* gpu(int device) const;
  void add(Gpu gpu) { gpus_.push_back(std::move(gpu)); }
  void announce_gpus();
  // Tells rotad to read the usage page, and what this process no longer needs.
  void send_news();
  void send_asks();
  void send_introductions();
  void send_room_requests();
  // Tells rotad what the process needs on these GPUs for its turn with this grant.
  void ask_room(turn::GpuMask gpus, std::uint32_t grant);
  // The GPUs of those in `has` for which that has changed since rotad was told.
  turn::GpuMask unasked(Devices has, std::uint32_t grant) const;
  // The GPUs of these on which the process has more than it is promised.
  turn::GpuMask lacking(Devices has) const;
  // While a lease of these GPUs lasts, the process may have what rotad has promised.
  void publish_promises(turn::GpuMask held);

 private:
  void came();
  void went();
  void is_back();
  void is_not_back(const std::string& why);
  void tell_gang();
  void tell_shares();
  void is_served(Gpu& gpu);
  void is_refused(Gpu& gpu, const std::string& why);
  void heard(const protocol::Message& message);
  void added(const protocol::GpuAdded& added);
  // Keeps only the part of the grant that is in use.
  void say_state(const Gpu& gpu);

  Parts parts_;
  const std::vector<protocol::SessionEntry>& sessions_;
  Listener& listener_;
  std::unique_ptr<Connection> connection_;
  // Where the first rotad was searched for: the program may change its environment later.
  protocol::SocketCandidates places_{};
  std::unique_ptr<Connection> unanswered_;  // to a rotad that has not answered yet
  bool said_silent_ = false;
  bool told_no_rotad_ = false;  // the user
  bool told_no_descriptor_ = false;
  std::vector<Gpu> gpus_;
  std::uint32_t round_ = 0;  // of tightening, on this connection
};

}  // namespace rota::client
