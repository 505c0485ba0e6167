// Which clients are passed over in the queue because a turn would be futile: not all of their memory would be on the
// GPU, and without all of it a client that swaps cannot run.
//
// That happens to a client when memory comes to the GPU that stays there: another client's memory that can no longer be
// evicted, unmanaged memory, memory of an unresponsive client. Each of its turns would restore what fits, evict what
// others have there, and end. So a client is passed over if all of this holds:
//
//   - its last turn was futile: the driver refused it memory, and it gave back before all of it was there;
//   - the accounting explains that: contexts + unmanaged memory + what of others' stays or is stuck + all that it has >
//     the GPU;
//   - others can use the GPU: some client waits for it that is not in the same position, or holds it and has not been
//     refused memory for which the accounting shows no capacity.
//
// It stays in the queue, takes nobody's turn, and no holder yields to it. It is granted as soon as the sum allows.
// Figures may be wrong for as long as nobody tries (what is inferred from refusals, what stopped programs have, what
// clients claim), so a futile turn counts for ten seconds, or ten times as long as it took: then one more is tried.
#pragma once

#include <optional>

#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

class Incomplete {
 public:
  // Judgement: as long as other verdicts (clearing.h), and at most a tenth of the time goes to futile turns.
  static constexpr Time kVerdict = std::chrono::seconds(10);
  static constexpr int kRest = 10;

  // The accounting must outlive this object.
  explicit Incomplete(Bookkeeping& books) : books_(books) {}

  // A holder has reported its memory there. Its deficit counts only once the driver has refused that memory.
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
        const Bytes lacks = futile(*client, index) ? beyond(*client, share) : 0;
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

  // By how much the memory does not fit of a client that is passed over, or that holds the GPU and cannot run without
  // it; 0: neither. And by how much it would not fit even without memory of others that is only pinned temporarily.
  Bytes lacks(const Client& client, const Share& share) const;
  Bytes lacks_for_good(const Client& client, const Share& share) const;

  // When a futile turn no longer counts, and on which GPUs none does now.
  std::optional<Time> next_deadline() const;
  GpuMask due(Time now) const;

 private:
  // By how much the client's memory does not fit together with what stays there, and the part of that which stays for
  // good.
  Bytes beyond(const Client& client, const Share& share) const;
  Bytes beyond_what_is_fixed_for_good(const Client& client, const Share& share) const;
  // Its next turn would be futile, or its present one is, as things are.
  bool cannot_run(const Client& client, const Share& share) const;
  bool futile(const Client& client, GpuIndex index) const;
  void expire(GpuIndex index, Time now);

  Bookkeeping& books_;
  GpuMask gpus_ = 0;    // where some client's last turn was futile
  GpuMask passes_ = 0;  // where some client is passed over
};

}  // namespace rota::scheduler
