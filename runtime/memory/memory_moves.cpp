// Where converted memory is placed: for peers, at the beginning of a turn and at its end.
#include <algorithm>
#include <utility>

#include "runtime/driver/context.h"
#include "runtime/memory/memory.h"
#include "runtime/memory/move_order.h"

namespace rota::memory {

api::CUresult Memory::enable_peer_access(api::CUcontext peer, const RealCall& call) {
  const api::CUresult result = call();
  Place accessing;
  Place owner;
  if (result != api::CUDA_SUCCESS || !here(accessing)) return result;
  const driver::PushedContext pushed(peer);
  if (!pushed || !here(owner)) return result;
  peers_.enabled(accessing, owner);
  return result;
}

api::CUresult Memory::disable_peer_access(api::CUcontext peer, const RealCall& call) {
  const api::CUresult result = call();
  Place accessing;
  if (result == api::CUDA_SUCCESS && here(accessing)) peers_.disabled(accessing, peer);
  return result;
}

std::vector<Allocation> Memory::movable(int ordinal) const {
  using Placed = Allocation::Placed;
  std::vector<Allocation> all;
  const auto add = [&](Kind kind, auto&& moves) {
    for (const Allocation& range : ledger_.list(ordinal, kind)) {
      if (moves(range.placed)) all.push_back(range);
    }
  };
  const auto ours = [](Placed placed) { return placed != Placed::kElsewhere; };
  add(Kind::kConverted, ours);
  add(Kind::kServed, ours);
  add(Kind::kShared, ours);
  return all;
}

std::vector<Allocation> Memory::to_bring(int ordinal, std::uint64_t most) {
  std::vector<Allocation> all = movable(ordinal);
  // The program's own managed memory only if the program has put it there.
  for (const Allocation& range : ledger_.list(ordinal, Kind::kManaged)) {
    if (range.placed == Allocation::Placed::kHere) all.push_back(range);
  }
  Device& entry = device(ordinal);
  if (entry.total_bytes != 0) most = std::min(most, entry.total_bytes);
  // If more came than fits, the last ranges would evict the first: contexts take memory, too.
  if (ledger_.live_bytes(ordinal) > most) most -= most / 16;
  const std::uint64_t fixed = ledger_.fixed_bytes(ordinal);
  const std::uint64_t since = std::exchange(entry.turn_began, ledger_.clock(ordinal));
  return memory::to_bring(std::move(all), since, most - std::min(most, fixed));
}

std::uint64_t Memory::bring(int ordinal, api::CUstream stream, const std::vector<Allocation>& ranges) {
  return managed_.restore(ordinal, {.stream = stream, .ranges = ranges}).bytes;
}

std::uint64_t Memory::move_out(int ordinal, api::CUstream stream, std::uint64_t bytes) {
  const std::uint64_t since = device(ordinal).turn_began;
  return managed_.evict(ordinal, bytes, {.stream = stream, .ranges = to_move_out(movable(ordinal), since, bytes)})
      .bytes;
}

}  // namespace rota::memory
