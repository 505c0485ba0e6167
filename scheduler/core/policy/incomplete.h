// Which clients are passed over in the queue because a turn would be futile: not all of their memory would be on the
// GPU, and without all of it a client that swaps cannot run.
//
// That happens to a client when memory comes to the GPU that stays there: another's memory that can no longer leave,
// programs without rota, memory that does not leave when it is asked for. Each of its turns would bring in what fits,
// push out what others have there, and end. So a client is passed over if all of this holds:
//
//   - its last turn was futile: the driver refused it memory, and it gave back before all of it was there;
//   - the books explain that: contexts + what is outside + what of others' stays or is stuck + all that it has > the
//   GPU;
//   - others can use the GPU: some client waits for it that is not in the same position, or holds it and has not been
//     refused memory for which the books have no room.
//
// It stays in the queue, takes nobody's turn, and sends nobody away. It is granted as soon as the sum allows. Figures
// may be wrong for as long as nobody tries (what is inferred from refusals, what stopped programs have, what clients
// claim), so a futile turn counts for ten seconds, or ten times as long as it took: then one more is tried.
#pragma once

#include <optional>

#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

class Incomplete {
 public:
  // Judgement: as long as other verdicts (clearing.h), and at most a tenth of the time goes to turns in vain.
  static constexpr Time kVerdict = std::chrono::seconds(10);
  static constexpr int kRest = 10;

  // The books must outlive this object.
  explicit Incomplete(Bookkeeping& books) : books_(books) {}

  // A holder has reported its memory there. What it lacks counts only once the driver has refused it.
  static void heard(const Client& holder, Share& share);
  // Called before its grant ends.
  void ending(Client& client, Time now);
  // Called before the queue is served: sets Client::passed_over of the clients that wait. Calls `told` for each for
  // which that has changed, with by how much its memory does not fit on the GPU, or 0.
  template <typename Told>
  void judge(Time now, Told told) {
    for_each_gpu(gpus_, [&](GpuIndex index) { expire(index, now); });
    if ((gpus_ | passes_) == 0) return;
    const GpuMask looked = gpus_ | passes_;
    passes_ = 0;
    for_each_gpu(looked, [&](GpuIndex index) {
      for (Client* client : books_.gpu(index).all) {
        Share& share = *client->share(index);
        const Bytes lacks = in_vain(*client, index) ? beyond(*client, share) : 0;
        if (lacks != 0) passes_ |= bit(index);
        if ((lacks != 0) != (share.lacks != 0)) told(*client, index, lacks);
        share.lacks = lacks;
      }
    });
    for_each_gpu(looked, [&](GpuIndex index) {
      for (Client* client : books_.gpu(index).all) {
        const auto lacks = [](const Share& share) { return share.lacks != 0; };
        client->passed_over = std::any_of(client->shares.begin(), client->shares.end(), lacks);
      }
    });
  }

  // By how much the memory of a client does not fit that is passed over, or that holds the GPU and cannot run for want
  // of it; 0: neither. And by how much it would still not fit if memory of others that is fixed only for now had left.
  Bytes lacks(const Client& client, const Share& share) const;
  Bytes lacks_for_good(const Client& client, const Share& share) const;

  // When a turn in vain no longer counts, and on which GPUs none does now.
  std::optional<Time> next_deadline() const;
  GpuMask due(Time now) const;

 private:
  // By how much the client's memory does not fit beside what stays there, and what of that stays for good.
  Bytes beyond(const Client& client, const Share& share) const;
  Bytes beyond_what_is_fixed_for_good(const Client& client, const Share& share) const;
  // Its next turn would be in vain, or the one that it has is, as things stand.
  bool cannot_run(const Client& client, const Share& share) const;
  bool in_vain(const Client& client, GpuIndex index) const;
  void expire(GpuIndex index, Time now);

  Bookkeeping& books_;
  GpuMask gpus_ = 0;    // where some client's last turn was in vain
  GpuMask passes_ = 0;  // where some client is passed over
};

}  // namespace rota::scheduler
