// Modes and memory.
#include "scheduler/core/policy/admission.h"

#include <algorithm>

namespace rota::scheduler {
namespace {

// Memory that is taken whichever client has its turn: contexts, unmanaged memory, and what clients were asked to evict
// and did not.
Bytes taken_for_good(const Gpu& gpu) {
  return gpu.contexts + gpu.taken_outside() + gpu.stuck;
}

// Capacity for the memory of the clients that run, if `running_fixed` bytes of it cannot be evicted. A GPU on which
// they did not fit keeps an eighth free before it goes back to running all of them: otherwise it would flap at the
// edge. `own_stuck`: what one of the clients that run did not evict while it was not running.
Bytes room(const Gpu& gpu, Bytes running_fixed, Bytes own_stuck = 0) {
  const Bytes taken = taken_for_good(gpu) - own_stuck + (gpu.fixed - running_fixed);
  const Bytes free = gpu.total > taken ? gpu.total - taken : 0;
  return gpu.crowded ? free - free / 8 : free;
}

// The same for the current holders, without the margin of an overcommitted GPU: the margin applies to letting a client
// in, not to sending one away.
Bytes room_of_holders(const Gpu& gpu) {
  const Bytes others = taken_for_good(gpu) + gpu.fixed - gpu.held_fixed;
  return gpu.total > others ? gpu.total - others : 0;
}

// What a holder has to have there: more than what counts for it if the driver has refused its last extent (extents are
// larger than what is allocated in them).
Bytes needed(const Client& holder, const Share& share) {
  return std::max(holder.counted(share), share.shortage != 0 ? share.resident + share.shortage : 0);
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
  if (sharing_.conflicts(client, index)) return true;
  const Client* measures = alone_.on(index);
  if (measures != nullptr && measures != &client && !Alone::may_stay(client)) return true;
  const Share& share = *client.share(index);
  const Bytes own = holds ? 0 : share.peak;
  const Bytes own_stuck = share.stuck ? client.movable(share) : 0;
  const Bytes most = room(gpu, gpu.held_fixed + (holds ? 0 : share.fixed), own_stuck);
  if (gpu.held + gpu.asked + own <= most) return false;
  gpu.lacks_room = true;
  // Promises are rounded up. If what they all use would fit, the next grants are smaller.
  if (gpu.held_used + own > most) gpu.crowded = true;
  return true;
}

// Holders whose memory has together grown beyond the GPU, or that claimed the GPU from a daemon that died: those
// granted last yield until the rest fits. One holder may always keep its grant, however large.
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
  // The first holder keeps its grant; of the others, those that are to take turns with it yield.
  const bool turns = settings_.mode == Mode::kAutomatic && sharing_.candidate(index) != Candidate::kTogether;
  for (std::size_t i = gpu.holders.size(); turns && i > 1; --i) {
    Client& last = *gpu.holders[i - 1];
    if (sharing_.conflicts(last, index)) yield(last, index);
  }
  Bytes room = room_of_holders(gpu);
  Bytes staying = gpu.held;
  if (gpu.lacking != 0) {
    staying = 0;
    for (const Client* holder : gpu.holders) staying += needed(*holder, *holder->share(index));
  }
  for (std::size_t i = gpu.holders.size(); i > 1; --i) {
    Client& last = *gpu.holders[i - 1];
    if (settings_.mode == Mode::kAutomatic && staying <= room) return;
    const Share& share = *last.share(index);
    staying -= needed(last, share);
    room -= std::min(room, share.fixed);
    yield(last, index);
    if (settings_.mode == Mode::kAutomatic) gpu.crowded = true;
  }
}

bool Admission::serve_asks(GpuIndex index, const std::function<void(Client&, Bytes)>& promised) {
  Gpu& gpu = books_.gpu(index);
  bool answered = false;
  while (!gpu.askers.empty()) {
    const auto older = [](const Client* one, const Client* other) { return one->ask_number < other->ask_number; };
    Client& asker = **std::min_element(gpu.askers.begin(), gpu.askers.end(), older);
    const Share& share = *asker.share(index);
    const Bytes room = room_of_holders(gpu);
    const Bytes together = gpu.held + share.asked - share.promised;
    if (together > room && gpu.holders.size() > 1 && settings_.mode != Mode::kConcurrent) {
      press_others(index, asker);
      break;
    }
    // A little more than it asks for, if that is free, so that it need not ask for each small step.
    const Bytes rounded = up_to_step(share.asked, gpu.total);
    const Bytes free = room > together ? room - together : 0;
    const Bytes bytes = share.asked + std::min(rounded - share.asked, free);
    books_.promise(asker, index, bytes);
    promised(asker, bytes);
    answered = true;
  }
  return answered;
}

void Admission::press_others(GpuIndex index, const Client& asker) {
  Gpu& gpu = books_.gpu(index);
  const Share& share = *asker.share(index);
  Bytes room = room_of_holders(gpu);
  Bytes staying = gpu.held + share.asked - share.promised;
  if (settings_.mode == Mode::kAutomatic) gpu.crowded = true;
  const auto goes = [&](const Client& holder) {
    const Share& gone = *holder.share(index);
    staying -= holder.counted(gone);
    room -= std::min(room, gone.fixed);
  };
  for (const Client* holder : gpu.holders) {
    if (holder != &asker && (holder->yields & bit(index)) != 0) goes(*holder);
  }
  for (std::size_t i = gpu.holders.size(); i > 0 && staying > room; --i) {
    Client& last = *gpu.holders[i - 1];
    if (&last == &asker || (last.yields & bit(index)) != 0) continue;
    if (last.ask_number != 0 && last.ask_number < asker.ask_number) continue;
    goes(last);
    yield(last, index);
  }
}

void Admission::yield(Client& holder, GpuIndex index) {
  holder.yields |= bit(index);
  excess_ |= bit(index);
}

}  // namespace rota::scheduler
