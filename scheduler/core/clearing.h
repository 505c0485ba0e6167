// Whose memory leaves a GPU so that the holders' has room: swap memory, which lies there until its owner takes it away.
//
// Nothing moves when a lease goes back. When those who hold a GPU lack room, exactly what is missing is asked of
// clients that hold nothing:
//
//   missing = what the holders count with + what others have there - (all of it - contexts - what is outside)
//
// or what the driver has refused a holder, if that is more. First clients that want nothing, those that have rested
// longest; then those who wait, from the back of the queue: under turns the one used longest ago is the next to come.
// What somebody has been asked for is not asked of another, though the order has changed meanwhile: it is on its way.
//
// A client may be stopped, or unable to move its memory. If nothing of it goes for two seconds, it is *unwilling* and
// others are asked, until its memory changes, it has held the GPU again, or ten seconds have passed. Until it has shown
// that it clears, its memory is *stuck*: it counts as taken when it is decided who may run beside whom.
//
// What is *outside* is memory that nobody has whom rotad knows: other programs, other uses of the GPU. It is measured
// (outside.h). What the driver does not tell is learned of from a holder that is refused memory although by these books
// it fits, and has been so for a while: numbers of different clients are of different moments. It is forgotten ten
// seconds after a holder was last refused for it: then two that do not fit beside it run together once, until the
// second is refused. A hand-over refuses the next holder for a moment, before the others have cleared, so while turns
// change the memory stays known.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

class Clearing {
 public:
  // Each is judgement. Moving goes extent by extent, in milliseconds each, and rotad hears of it every 200 ms; but on a
  // loaded machine, or while memory of the host is pinned, an extent can take most of a second. A verdict that comes
  // too early is an out-of-memory error in a program that only had to wait.
  static constexpr Time kProgress = std::chrono::seconds(2);
  static constexpr Time kVerdict = std::chrono::seconds(10);
  static constexpr Time kOutside = std::chrono::seconds(10);
  // For how long a holder has to be refused what should be there. It tries again every few milliseconds.
  static constexpr Time kSettled = std::chrono::milliseconds(100);

  // It outlives this.
  explicit Clearing(Bookkeeping& books) : books_(books) {}

  // A holder says that the driver has refused it memory on this GPU (Share::shortage), perhaps again.
  void refused(const Client& holder, GpuIndex gpu, Time now);
  // Its grant was revoked: it does not clear either.
  void revoked(Client& client, Time now);
  // Before it is decided who may run: what time alone has changed.
  void judge(GpuIndex gpu, Time now);
  // After that: who is to clear how much. `told`: whose amount, or what it is a part of, has changed.
  void ask(GpuIndex gpu, Time now, const std::function<void(Client&, Bytes to_clear)>& told);

  // Where somebody is to clear.
  GpuMask under_way() const { return under_way_; }

  // When judge() is due for some GPU, and which are by now.
  std::optional<Time> next_deadline() const;
  GpuMask due(Time now) const;

 private:
  static Bytes missing(const Gpu& gpu, GpuIndex index);
  void distribute(GpuIndex gpu, Bytes missing);
  void set_deadline(GpuIndex gpu, bool lacks);

  struct Candidate {
    Client* client;
    Share* share;
  };
  Bookkeeping& books_;
  GpuMask timed_ = 0;  // GPUs with a deadline
  GpuMask under_way_ = 0;
  std::vector<Candidate> candidates_;  // on the GPU that is looked at
};

}  // namespace rota::scheduler
