// Allocations and contexts that the driver or Quota has refused because of memory that cannot be evicted, or Quota
// because of any memory of others: which of them wait for it to be freed, which one is tried next, and which are
// refused. A pure state machine that Quota drives and logs.
//
// A *unit* is a gang, or a client that belongs to none; it is as old as its oldest client. Nobody waits while requests
// fit. From the first request on that does not fit:
//
//   - The oldest unit that waits tries again whenever memory was freed, and now and then. A younger one does not try
//     while an older one waits there, so that the older one can finish.
//   - A request is refused `patience` after it was made, but for one last try.
//   - It is refused at once if nobody else has memory there in its way, if it is for more than the unit can ever have,
//     or if a wait of the unit was futile before it was made, and no other has freed any since (allocators that try
//     ever smaller sizes).
//   - If units can get what they wait for only from each other, directly or through others, they are in a deadlock. The
//     youngest of them that has memory for which another waits is refused: when it ends, that is free for the rest.
//     That is certain, and done at once, if all clients of these units block, with each thread that has used a GPU, and
//     their other threads sleep. Otherwise one that does not wait may yet free memory: it is done late, when the first
//     of them has waited nine tenths of its `patience`.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/core/event.h"
#include "scheduler/protocol/protocol.h"
#include "scheduler/protocol/types.h"

namespace rota::scheduler {

class RoomQueue {
 public:
  // Between two tries although nothing is known to have been freed: programs without rota say nothing. A judgment.
  static constexpr Time kLooks = std::chrono::seconds(1);
  // How long the driver may take to get back what was freed, or what a client had that has left; and the time between
  // two tries meanwhile. Judgments.
  static constexpr Time kComesBack = std::chrono::seconds(1);
  static constexpr Time kTries = std::chrono::milliseconds(50);
  // How long a client's page may still say that all of its threads wait after one was answered, unless that one is
  // known to wait again. A judgment.
  static constexpr Time kAnswerTakes = std::chrono::milliseconds(200);
  static constexpr Time kPatience = std::chrono::seconds(60);  // by default. A judgment.
  static constexpr std::size_t kMostOfClient = 64;             // requests that wait at a time; further ones are refused

  using What = protocol::AwaitRoom::What;
  struct Request {
    ClientId client;
    GpuIndex gpu;
    std::uint32_t number;
    Bytes bytes;
    Time since{};             // when it was made
    Time tried{};             // when the driver was asked last
    Bytes most = UINT64_MAX;  // that the client can have there
    // Others may have more there than has() says: it was granted to them, and they may have taken it without having
    // said so yet.
    bool others = false;
    bool movable_too = false;  // memory of others that can be evicted is in its way, too: Quota would refuse it
    What what = What::kStays;
  };
  struct Answer {
    ClientId client;
    GpuIndex gpu;
    std::uint32_t number;
    bool again;  // the driver may be asked again; otherwise the request is refused
    Bytes bytes = 0;
    Time waited{};
  };

  void set_patience(Time patience) { patience_ = patience; }
  // What the client has there that cannot be evicted, without what it requests. `gang` 0: none. Called for all clients
  // of the GPU when a request comes, and as long as it is awaited(); and for all members of gangs.
  void has(ClientId client, GpuIndex gpu, std::uint32_t gang, Bytes stays, Time now);
  // Whether each thread of the client's that has used a GPU waits in such a request, and all others sleep: as has(),
  // and again after each answer to the client. It is taken not to for a moment after an answer, which it may not have
  // read. `began`: its age. Clients of which none is said count by their numbers.
  void blocks(ClientId client, bool blocks, Time began);
  // What of its memory there can leave: as has().
  void moves(ClientId client, GpuIndex gpu, Bytes bytes, Time now);
  void await(const Request& request);
  // `ended`: its process has. Then the driver has its memory back (H200, 580.159.04: 24 processes with 1 to 110 GiB,
  // ended or killed) unless children have it still, which may be about to end, too: requests that were made before wait
  // for that, as if it had not ended. Later ones do not, unless such requests wait.
  void leave(ClientId client, Time now, bool ended = false);
  std::vector<Answer> decide(Time now);
  bool awaited(GpuIndex gpu) const { return waiting_on_[gpu] != 0; }
  // The oldest request of the client there that waits, or may be tried again; null: there is none. `tries`: the client
  // says that there is one.
  const Request* waits(ClientId client, GpuIndex gpu, bool tries) const;
  // When decide() is due at the latest.
  std::optional<Time> next_deadline() const;

 private:
  // A gang's number, or 0 and a client's.
  using Unit = std::pair<std::uint32_t, ClientId>;
  // An answer that the client may not have read yet.
  struct Answered {
    GpuIndex gpu;
    bool again;
    Time at;
  };
  struct Client {
    std::uint32_t gang = 0;
    bool blocks = false;
    Time began{};
    std::vector<Answered> answered;
    bool may_not_have_read(Time now) const {
      return std::ranges::any_of(answered, [&](const Answered& each) { return now < each.at + kAnswerTakes; });
    }
    std::map<GpuIndex, Bytes> stays;
    std::map<GpuIndex, Bytes> moves;
  };
  // When memory on a GPU decreased last, in which unit, and when it last decreased in any other unit.
  struct Decrease {
    Time latest{};
    Unit by{};
    Time by_others{};
    void at(Time now, const Unit& unit);
    Time except(const Unit& unit) const { return unit == by ? by_others : latest; }
  };
  struct Freed {
    Decrease any;
    Decrease staying;  // memory that stays
  };
  using FreedOnGpus = std::array<Freed, protocol::kMaxGpus>;

  using Age = std::pair<Time, ClientId>;
  static constexpr Age kYoungest{Time::max(), UINT32_MAX};

  // What a decision depends on, computed once for all requests.
  struct View {
    std::map<Unit, Age> ages;
    struct Gpu {
      std::map<Unit, Bytes> stays;
      std::map<Unit, Bytes> has;  // that stays, and that moves
      Age first = kYoungest;      // that waits there or tries,
      Time since = Time::max();   // and when the first of these requests was made
    };
    std::map<GpuIndex, Gpu> gpus;  // on which somebody waits
    // What each unit has that may be in the request's way.
    const std::map<Unit, Bytes>& in_way(const Request& request) const;
    // Whether anybody but the unit has any.
    bool has_others(const Request& request, const Unit& unit) const;
  };
  enum class Verdict { kWait, kAgain, kRefuse, kRefuseFutile };

  Unit unit_of(ClientId client) const;
  // When memory was freed last that may be in the request's way. Not for extents by its own unit, which takes what
  // rotad grants it for each attempt, and gives it back.
  Time freed(const FreedOnGpus& freed, const Request& request) const;
  Time freed_by_others(const FreedOnGpus& freed, const Request& request) const;
  // `stayed`: it is memory that could not be evicted. `ended`: of a process that has ended.
  void note_freed(GpuIndex gpu, const Unit& unit, bool stayed, bool ended, Time now);
  // When the first request was made that waits there or tries.
  Time first_request(GpuIndex gpu, Time now) const;
  // Whether that may still be on its way back to the driver. `first`: as first_request().
  bool comes_back(const Request& request, Time first, Time now) const;
  // Forgets when the unit was refused, unless some client is still of it.
  void forget_refusals_unless_of(const Unit& unit);
  View view(Time now) const;
  // What has to be on the GPU together with the request: the unit's own memory that may be in the way, and for extents
  // all of the client's.
  Bytes own(const View& view, const Request& request) const;
  Verdict verdict(const View& view, const Request& request, Time now) const;
  bool is_blocked(const View& view, const Request& request, const std::set<Unit>& deadlock, Time now) const;
  std::set<Unit> deadlock(const View& view, bool certain, Time now) const;
  std::optional<Unit> to_refuse(const View& view, Time now) const;
  // From when on a deadlock that is not certain counts.
  Time late(const Request& request) const { return request.since + patience_ / 10 * 9; }
  void answer(const Request& request, Verdict verdict, Time now);

  Time patience_ = kPatience;
  std::map<ClientId, Client> clients_;
  std::vector<Request> requests_;  // in the order in which they came
  struct Trying {
    Request request;
    Time begun{};
  };
  std::map<std::pair<ClientId, GpuIndex>, Trying> trying_;
  std::array<std::uint32_t, protocol::kMaxGpus> waiting_on_{};
  FreedOnGpus freed_{};
  FreedOnGpus returning_{};                               // without what processes had that have ended
  std::map<std::pair<Unit, GpuIndex>, Time> refused_at_;  // when a unit was refused last
  Time decided_{};
};

}  // namespace rota::scheduler
