// Computes the sums, the order in which clients are asked, and the verdicts.
#include "scheduler/core/policy/clearing.h"

#include <algorithm>
#include <tuple>

namespace rota::scheduler {
namespace {

// By how much the memory of the holders and of the others together exceeds the GPU.
Bytes excess(const Gpu& gpu) {
  const Bytes taken = gpu.contexts + gpu.taken_outside() + (gpu.fixed - gpu.held_fixed) + gpu.movable + gpu.held;
  return taken > gpu.total ? taken - gpu.total : 0;
}

// What all clients have there now, contexts aside. Unified Memory of clients that do not hold the GPU does not count:
// the driver evicts it before it refuses anybody.
Bytes present(const Gpu& gpu, GpuIndex index) {
  Bytes sum = gpu.fixed - gpu.held_fixed + gpu.movable;
  for (const Client* holder : gpu.holders) {
    const Share& share = *holder->share(index);
    sum += share.swaps ? share.resident : share.used;
  }
  return sum;
}

}  // namespace

Bytes margin(const Gpu& gpu) {
  constexpr Bytes kPage = Bytes{2} << 20;
  return gpu.total / 1024 / kPage * kPage;
}

void Clearing::refused(const Client& holder, GpuIndex index, Time now) {
  const Share& share = *holder.share(index);
  Gpu& gpu = books_.gpu(index);
  const Bytes known = gpu.contexts + present(gpu, index) + share.free;
  const Bytes outside = gpu.total > known ? gpu.total - known : 0;
  // The figures of a client that evicts are slightly old or new: an approximate match confirms what is known.
  if (gpu.outside != 0 && outside >= gpu.outside - gpu.outside / 4) gpu.outside_seen = now;
  if (outside == 0 || excess(gpu) != 0) return;
  if (gpu.fits_since == Time{}) {
    gpu.fits_since = now;
    gpu.least_outside = outside;
  }
  gpu.least_outside = std::min(gpu.least_outside, outside);
  if (now - gpu.fits_since < kSettled) return;
  gpu.outside_seen = now;
  gpu.fits_since = {};
  gpu.outside = gpu.least_outside;
  books_.mark_changed(bit(index));
}

void Clearing::revoked(Client& client, Time now) {
  if (!client.swaps) return;
  for (Share& share : client.shares) {
    if (client.movable(share) == 0) continue;
    books_.set_stuck(client, share, true);
    share.unresponsive_until = now + kVerdict;
  }
}

void Clearing::judge(GpuIndex index, Time now) {
  Gpu& gpu = books_.gpu(index);
  if (gpu.look_at == Time{} || now < gpu.look_at) return;
  if (gpu.outside != 0 && now - gpu.outside_seen >= kOutside) gpu.outside = 0;
  for (Client* client : gpu.swappers) {
    Share& share = *client->share(index);
    if (share.unresponsive_until <= now)
      share.unresponsive_until = {};  // asked again; its memory is stuck until evicted
    if (share.to_clear == 0 || now - share.progress_at < kProgress) continue;
    books_.set_stuck(*client, share, true);
    share.unresponsive_until = now + kVerdict;
  }
}

Bytes Clearing::missing(const Gpu& gpu, GpuIndex index) {
  Bytes refused = 0;
  for (const Client* holder : gpu.holders) {
    const Share& share = *holder->share(index);
    // What was evicted since the refusal may now be available to it.
    const Bytes gone = gpu.gone - share.gone_then;
    if (share.shortage > gone) refused += share.shortage - gone;
  }
  const Bytes known = excess(gpu);
  return std::max(known != 0 ? known + margin(gpu) : 0, refused);
}

void Clearing::ask(GpuIndex index, Time now, const std::function<void(Client&, Bytes)>& told) {
  Gpu& gpu = books_.gpu(index);
  if (gpu.swappers.empty() && gpu.outside == 0) {
    gpu.clearing = 0;
    under_way_ &= ~bit(index);
    set_deadline(index, false);
    return;
  }
  const auto lacks = [&](const Client* holder) { return holder->share(index)->shortage != 0; };
  const bool short_of = std::any_of(gpu.holders.begin(), gpu.holders.end(), lacks);
  if (!short_of || excess(gpu) != 0) gpu.fits_since = {};
  const Bytes wanted = missing(gpu, index);
  if (wanted == 0 && gpu.clearing == 0) {
    set_deadline(index, false);
    return;
  }
  distribute(index, wanted);
  gpu.clearing = 0;
  Bytes asked = 0;
  for (Client* client : gpu.swappers) {
    Share& share = *client->share(index);
    const Bytes bytes = share.asked_now;
    // The time without progress accumulates over turns, since they may be shorter than a verdict takes.
    if (bytes != 0 && share.to_clear == 0) share.progress_at = now - share.asked_without_progress;
    if (bytes == 0 && share.to_clear != 0) {
      share.asked_without_progress = share.unresponsive_until == Time{} ? now - share.progress_at : Time{};
    }
    share.to_clear = bytes;
    asked += bytes;
    if (bytes != 0) ++gpu.clearing;
    if (bytes == share.told && (bytes == 0 || share.resident == share.told_of)) continue;
    share.told = bytes;
    share.told_of = share.resident;
    told(*client, bytes);
  }
  under_way_ = gpu.clearing != 0 ? under_way_ | bit(index) : under_way_ & ~bit(index);
  set_deadline(index, asked < wanted);
}

// Sets Share::asked_now of all clients that swap.
void Clearing::distribute(GpuIndex index, Bytes missing) {
  candidates_.clear();
  for (Client* client : books_.gpu(index).swappers) {
    Share& share = *client->share(index);
    share.asked_now = 0;
    const bool can = client->state.held == 0 && share.unresponsive_until == Time{} && client->movable(share) != 0;
    if (can && missing != 0) candidates_.push_back({client, &share});
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& one, const Candidate& other) {
    const auto place = [](const Candidate& candidate) {
      const Client& client = *candidate.client;
      const bool waits = client.state.wanted != 0;
      const Rank& rank = candidate.share->rank;
      const auto at = waits ? std::pair(-rank.domain, -rank.group) : std::pair(client.last_held, Time{});
      return std::tuple(waits, client.urgent, at, waits ? ~client.queue_number : 0, client.id);
    };
    return place(one) < place(other);
  });
  const auto take = [&missing](const Candidate& candidate, Bytes most) {
    Share& share = *candidate.share;
    const Bytes bytes = std::min({most, candidate.client->movable(share) - share.asked_now, missing});
    share.asked_now += bytes;
    missing -= bytes;
  };
  for (const Candidate& candidate : candidates_) take(candidate, candidate.share->to_clear);
  for (const Candidate& candidate : candidates_) take(candidate, missing);
}

void Clearing::set_deadline(GpuIndex index, bool lacks) {
  Gpu& gpu = books_.gpu(index);
  std::optional<Time> next;
  const auto at = [&next](Time time) { next = next ? std::min(*next, time) : time; };
  if (gpu.outside != 0) at(gpu.outside_seen + kOutside);
  if (gpu.clearing != 0 || lacks) {
    for (const Client* client : gpu.swappers) {
      const Share& share = *client->share(index);
      if (share.to_clear != 0) at(share.progress_at + kProgress);
      if (lacks && share.unresponsive_until != Time{}) at(share.unresponsive_until);
    }
  }
  gpu.look_at = next.value_or(Time{});
  timed_ = next ? timed_ | bit(index) : timed_ & ~bit(index);
}

std::optional<Time> Clearing::next_deadline() const {
  std::optional<Time> next;
  for_each_gpu(timed_, [&](GpuIndex index) {
    const Time at = books_.gpu(index).look_at;
    next = next ? std::min(*next, at) : at;
  });
  return next;
}

GpuMask Clearing::due(Time now) const {
  GpuMask due = 0;
  for_each_gpu(timed_, [&](GpuIndex index) {
    if (books_.gpu(index).look_at <= now) due |= bit(index);
  });
  return due;
}

}  // namespace rota::scheduler
