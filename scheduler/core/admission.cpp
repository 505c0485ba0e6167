// Modes and memory.
#include "scheduler/core/admission.h"

#include <algorithm>

namespace rota::scheduler {
namespace {

// Room for the memory of those who run, if those whose fixed bytes sum to `running_fixed` do; a GPU on which it did not
// fit keeps an eighth free before it goes back to running everybody: otherwise it would flap at the edge.
Bytes room(const Gpu& gpu, Bytes running_fixed) {
  const Bytes taken = gpu.contexts + (gpu.fixed - running_fixed);
  const Bytes free = gpu.total > taken ? gpu.total - taken : 0;
  return gpu.crowded ? free - free / 8 : free;
}

}  // namespace

bool Admission::conflicts(const Client& client, GpuIndex index) {
  Gpu& gpu = books_.gpu(index);
  const bool holds = (client.state.held & bit(index)) != 0;
  if (gpu.holders.size() <= (holds ? 1U : 0U)) return false;
  switch (settings_.mode) {
    case Mode::kConcurrent:
      return false;
    case Mode::kExclusive:
      return true;
    case Mode::kAutomatic:
      break;
  }
  const Share& share = *client.share(index);
  const Bytes together = gpu.held + (holds ? 0 : share.peak);
  if (together <= room(gpu, gpu.held_fixed + (holds ? 0 : share.fixed))) return false;
  gpu.crowded = true;
  return true;
}

// Holders whose memory has grown beyond the GPU, or who claimed it from a daemon that died: those granted last yield,
// until the rest fits. One holder always may stay, however large.
void Admission::find_excess(GpuIndex index) {
  Gpu& gpu = books_.gpu(index);
  if ((excess_ & bit(index)) != 0) {
    for (Client* holder : gpu.holders) holder->yields &= ~bit(index);
    excess_ &= ~bit(index);
  }
  if (gpu.crowded && (settings_.mode != Mode::kAutomatic || gpu.interested <= room(gpu, gpu.fixed))) {
    gpu.crowded = false;
  }
  if (settings_.mode == Mode::kConcurrent || gpu.holders.size() < 2) return;
  // Without the margin of a crowded GPU: the margin is for letting somebody in, not for sending somebody away.
  const Bytes others = gpu.contexts + gpu.fixed - gpu.held_fixed;
  Bytes room = gpu.total > others ? gpu.total - others : 0;
  Bytes staying = gpu.held;
  for (std::size_t i = gpu.holders.size(); i > 1; --i) {
    Client& last = *gpu.holders[i - 1];
    if (settings_.mode == Mode::kAutomatic && staying <= room) return;
    const Share& share = *last.share(index);
    staying -= share.peak;
    room -= std::min(room, share.fixed);
    last.yields |= bit(index);
    excess_ |= bit(index);
    if (settings_.mode == Mode::kAutomatic) gpu.crowded = true;
  }
}

}  // namespace rota::scheduler
