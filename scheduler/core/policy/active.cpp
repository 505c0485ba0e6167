#include "scheduler/core/policy/active.h"

#include <algorithm>
#include <utility>

namespace rota::scheduler {

Active::Active(const Settings& settings, const Bookkeeping& books)
    : settings_(settings), books_(books), gpus_(protocol::kMaxGpus) {
  for (GpuIndex gpu = 0; gpu < gpus_.size(); ++gpu) gpus_[gpu].reach = gpus_[gpu].group = bit(gpu);
}

void Active::mark_stale(GpuMask gpus) {
  for_each_gpu(gpus, [&](GpuIndex gpu) { gpus_[gpu].stale = true; });
}

GpuMask Active::renew(GpuMask gpus, GpuMask apart, Time now) {
  GpuMask others = 0;
  bool regroups = std::exchange(apart_, apart) != apart;
  for_each_gpu(gpus, [&](GpuIndex index) {
    OnGpu& here = gpus_[index];
    if (!here.stale && now < here.until) return;
    const GpuMask reached = here.reach;
    const std::vector<ClientId> before = std::exchange(here.clients, {});
    look(index, now);
    if (here.clients != before) others |= bit(index);
    regroups |= here.reach != reached;
  });
  return regroups ? others | regroup() : others;
}

std::vector<ClientId> Active::on_any(GpuMask gpus) const {
  std::vector<ClientId> all;
  for_each_gpu(gpus, [&](GpuIndex gpu) { all.insert(all.end(), on(gpu).begin(), on(gpu).end()); });
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  return all;
}

// For clients that have made calls lately, or wait.
void Active::look(GpuIndex index, Time now) {
  OnGpu& here = gpus_[index];
  here.stale = false;
  here.until = Time::max();
  here.reach = bit(index);
  const Gpu& gpu = books_.gpu(index);
  if (gpu.all.size() < 2 || !settings_.measured_turns) return;
  for (const Client* client : gpu.all) {
    if (client->evidence.last.shares) continue;
    const Time called_at = client->evidence.called_at;
    const bool waits = (client->state.wanted & bit(index)) != 0;
    if (!waits && (called_at == Time{} || now - called_at >= kActive)) continue;
    // A client that waits is checked again later, since it may have stopped waiting.
    here.until = std::min(here.until, std::max(called_at + kActive, now + kActive / 10));
    here.clients.push_back(client->id);
    here.reach |= client->state.touched;
  }
  std::ranges::sort(here.clients);
}

// A GPU with only one program may be reached from another GPU, so this relation is followed both ways.
GpuMask Active::regroup() {
  GpuMask changed = 0;
  for (GpuMask left = ~GpuMask{0}; left != 0;) {
    GpuMask group = left & -left;
    for (GpuMask before = 0; before != group && (group & apart_) == 0;) {
      before = group;
      for_each_gpu(left & ~apart_, [&](GpuIndex gpu) {
        if ((gpus_[gpu].reach & group) != 0) group |= gpus_[gpu].reach & ~apart_;
      });
    }
    for_each_gpu(group, [&](GpuIndex gpu) {
      if (std::exchange(gpus_[gpu].group, group) != group) changed |= bit(gpu);
    });
    left &= ~group;
  }
  return changed;
}

}  // namespace rota::scheduler
