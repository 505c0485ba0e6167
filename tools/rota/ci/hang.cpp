#include "tools/rota/ci/hang.h"

#include <algorithm>
#include <string_view>

#include "generated/driver_symbols.h"

namespace rota::ci {

namespace {

// In the names of calls that only ask.
constexpr std::string_view kQueries[] = {"Query", "Get", "IsCapturing"};

}  // namespace

std::uint64_t progress_of(const report::ProcessAccount& process) {
  std::uint64_t sum = 0;
  for (std::size_t symbol = 0; symbol < process.calls.size(); ++symbol) {
    const std::string_view name = kSymbolNames[symbol];
    const bool is_query = std::ranges::any_of(kQueries, [&](auto verb) { return name.find(verb) != name.npos; });
    if (!is_query) sum += process.calls[symbol];
  }
  return sum;
}

std::optional<HangWatch::Stopped> HangWatch::look(const std::vector<Glimpse>& running, Time now) {
  std::set<std::string> here;
  std::set<std::string> moved;
  for (const Glimpse& process : running) {
    here.insert(process.id);
    const auto [seen, fresh] = seen_.try_emplace(process.id, Seen{process.progress, now});
    if (!fresh && seen->second.progress == process.progress && !process.waits) continue;
    seen->second.progress = process.progress;
    moved.insert(process.id);
    moved.insert(process.ancestors.begin(), process.ancestors.end());
  }
  std::erase_if(seen_, [&](const auto& entry) { return !here.contains(entry.first); });
  std::optional<Stopped> first;
  for (auto& [id, seen] : seen_) {
    if (moved.contains(id)) seen = {seen.progress, now};
    if (seen.told || now - seen.since < after_) continue;
    if (!first || seen.since < first->since) first = Stopped{id, seen.since};
  }
  if (first) seen_.at(first->id).told = true;
  return first;
}

}  // namespace rota::ci
