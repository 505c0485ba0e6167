#include "runtime/memory/swap/mover.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/memory/swap/eviction.h"
#include "runtime/memory/swap/restoration.h"

namespace rota::memory {

using namespace std::chrono_literals;

namespace {

// How long the others may give nothing back before a move ends for now. A judgment: unpinning and unmapping an extent
// takes some milliseconds.
constexpr auto kNoneComes = 20ms;
constexpr auto kPollShare = 100us;

}  // namespace

Moved Mover::evict(int device, std::uint64_t bytes, const Move& move) {
  using Clock = std::chrono::steady_clock;
  HostPool& host = what_.host;
  Moved all = Eviction(what_, device, move).run(bytes);
  const auto missing = [&] { return bytes - std::min(bytes, all.bytes + all.without_copy); };
  // Others have what this process's share is short of, and give it back as they can.
  Clock::time_point last = Clock::now();
  while (all.lacks_host && !all.failed && missing() != 0 && host.limited()) {
    what_.copies.count();
    host.set_deficit(std::min(missing(), what_.mapper.resident_bytes(device)));
    while (!host.may_grow() && Clock::now() - last < kNoneComes && !move.stopping()) {
      std::this_thread::sleep_for(kPollShare);
    }
    if (!host.may_grow()) break;
    const Moved more = Eviction(what_, device, move).run(missing());
    all.bytes += more.bytes;
    all.without_copy += more.without_copy;
    all.spared += more.spared;
    all.lacks_host = more.lacks_host;
    all.failed = more.failed;
    all.error = more.error;
    if (more.bytes + more.without_copy != 0) last = Clock::now();
    if (move.stopping() || Clock::now() - last >= kNoneComes) break;
  }
  if (!all.lacks_host) host.set_deficit(0);
  what_.copies.count();
  return all;
}

Moved Mover::restore(int device, const Move& move) {
  const Moved all = Restoration(what_, device, move).run();
  what_.copies.count();
  return all;
}

}  // namespace rota::memory
