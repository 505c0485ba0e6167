// Which streams have unfinished work, to find out what hangs.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/account/account.h"
#include "runtime/account/ended.h"

namespace rota::account {

using std::memory_order_acquire;
using std::memory_order_relaxed;

std::optional<std::uint32_t> streams_asked() noexcept {
  // A process that has no account yet has launched nothing.
  Header* const known = wanted() ? header() : nullptr;
  if (known == nullptr) return std::nullopt;
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  known->alive_monotonic_ns.store(static_cast<std::uint64_t>(now.count()), memory_order_relaxed);
  const std::uint32_t asked = known->streams_asked.load(memory_order_acquire);
  if (asked == known->streams_answered.load(memory_order_relaxed)) return std::nullopt;
  return asked;
}

std::vector<Launched> launched() {
  std::vector<Launched> all;
  const Header* const known = header();
  if (known == nullptr) return all;
  const auto* const pages = reinterpret_cast<const std::byte*>(known) + kHeaderBytes;
  for (std::uint32_t index = 0; index < known->thread_pages.load(memory_order_acquire); ++index) {
    const auto& page = *reinterpret_cast<const ThreadPage*>(pages + index * kThreadPageBytes);
    for (const ThreadPage::Launch& launch : page.launches) {
      if (launch.number.load(memory_order_acquire) == 0) continue;
      const std::uint64_t stream = launch.stream.load(memory_order_relaxed);
      if (ended::holds(stream)) continue;
      // Of two threads' launches on one stream either may be the later one: the thread that runs is named.
      const Launched last{stream, launch.function.load(memory_order_relaxed), page.tid.load(memory_order_relaxed)};
      const auto same = std::ranges::find(all, stream, &Launched::stream);
      if (same == all.end()) {
        all.push_back(last);
      } else if (same->tid == 0) {
        *same = last;
      }
    }
  }
  if (all.size() > kStreams) all.resize(kStreams);
  return all;
}

void answer_streams(std::uint32_t asked, const std::vector<Unfinished>& streams) noexcept {
  Header* const known = header();
  if (known == nullptr) return;
  known->stream_count = static_cast<std::uint32_t>(std::min(streams.size(), kStreams));
  for (std::uint32_t index = 0; index < known->stream_count; ++index) {
    const Unfinished& from = streams[index];
    Stream& to = known->streams[index];
    to.handle = from.last.stream;
    to.state = static_cast<std::uint32_t>(from.state);
    to.tid = from.last.tid;
    std::memset(to.last_launch, 0, sizeof to.last_launch);
    std::memcpy(to.last_launch, from.name.data(), std::min(from.name.size(), sizeof to.last_launch - 1));
  }
  known->streams_answered.store(asked, std::memory_order_release);
}

}  // namespace rota::account
