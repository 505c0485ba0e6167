// Which memory is evicted for the holders of a GPU: swap memory, which stays there until its owner evicts it.
//
// Nothing moves when a lease goes back. When the holders of a GPU have too little memory, rotad asks clients that hold
// nothing for the deficit:
//
//   deficit = what counts for the holders + what others have there - (total - contexts - unmanaged memory)
//
// and a little more, or what the driver has refused a holder, if that is more. Clients that want nothing are asked
// first, those that have been idle longest before the others; then those that wait, from the back of the queue, because
// with turns the least recently used is the next to run. What one client has been asked for is not asked of another
// even if the order changes: it is already on its way.
//
// A client may be stopped, or unable to move its memory. If none of it is evicted for two seconds, the client is
// *unresponsive* and others are asked, until its memory changes, it has held the GPU again, or ten seconds have passed.
// Until it has proved that it evicts memory, its memory is *stuck*: it counts as taken in deciding which clients may
// run concurrently.
//
// Unmanaged memory (*outside*) is in use by processes that rotad does not know: programs without rota, other uses of
// the GPU. It is measured (outside.h). What the driver does not report is inferred when a holder is refused memory that
// should fit according to the accounting, and has been refused again and again for a while: the least that these
// refusals show, since figures of different clients are of different moments. It is forgotten ten seconds after a
// holder was last refused because of it; then two clients that do not fit next to it run together once, until the
// second is refused. At a hand-over the next holder is refused for a moment, before the others have evicted, so the
// figure is kept while turns change.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

// What is asked for beyond the excess, and kept free where several clients have contexts: the accounting does not know
// to the byte what contexts take and what the driver keeps for itself. If a few MiB are missing for the last extent,
// the switch takes another round, some 25 ms (measured on an H100, where half of this was 20 MiB too little), or never
// succeeds. Whole pages, so nothing on a GPU of less than 2 GiB.
Bytes margin(const Gpu& gpu);

class Clearing {
 public:
  // All three are judgement. Memory moves extent by extent, in milliseconds each, and rotad hears of it every 200 ms;
  // but on a loaded machine, or while host memory is being pinned, one extent can take most of a second. If the verdict
  // comes too early, a program that only had to wait gets an out-of-memory error.
  static constexpr Time kProgress = std::chrono::seconds(2);
  static constexpr Time kVerdict = std::chrono::seconds(10);
  static constexpr Time kOutside = std::chrono::seconds(10);
  // How long a holder must have been refused memory that should be free. It retries every few milliseconds.
  static constexpr Time kSettled = std::chrono::milliseconds(100);

  // The accounting must outlive this object.
  explicit Clearing(Bookkeeping& books) : books_(books) {}

  // A holder reports that the driver has refused it memory on this GPU (Share::shortage) once more.
  void refused(const Client& holder, GpuIndex gpu, Time now);
  // The client's grant was revoked: it will not evict memory either.
  void revoked(Client& client, Time now);
  // Called before it is decided which clients may run: applies what the passage of time has changed.
  void judge(GpuIndex gpu, Time now);
  // Called after that: decides which clients are to evict how much. Calls `told` for each whose amount, or the total
  // that it is part of, has changed.
  void ask(GpuIndex gpu, Time now, const std::function<void(Client&, Bytes to_clear)>& told);

  // GPUs on which some client has been asked to evict memory.
  GpuMask under_way() const { return under_way_; }

  // When judge() is next due for some GPU, and for which GPUs it is due now.
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
  std::vector<Candidate> candidates_;  // on the GPU being examined
};

}  // namespace rota::scheduler
