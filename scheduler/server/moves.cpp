#include "scheduler/server/moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace rota::server {
namespace {

auto fields(const protocol::Moves& moves) {
  return std::tuple(moves.out_bytes, moves.out_ns, moves.in_bytes, moves.in_ns, moves.spared_bytes);
}

// A client can write anything into its page.
std::uint64_t more(std::uint64_t now, std::uint64_t before) {
  return now - std::min(now, before);
}

std::string copied(std::uint64_t bytes, std::uint64_t ns) {
  const double rate = static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(ns, 1));
  return bytes == 0 ? "0 bytes" : fmt::format("{} bytes at {:.1f} GB/s", bytes, rate);
}

}  // namespace

std::optional<protocol::Moves> Burst::read(const protocol::Moves& sums, scheduler::Time now) {
  const bool moves = fields(std::exchange(last_, sums)) != fields(sums);
  if (moves && !since_) since_ = now;
  if (!since_ || (moves && now - *since_ < kLongest)) return std::nullopt;
  since_.reset();
  return tell(sums);
}

std::optional<protocol::Moves> Burst::end(const protocol::Moves& sums) {
  if (fields(told_) == fields(sums)) return std::nullopt;
  return tell(sums);
}

protocol::Moves Burst::tell(const protocol::Moves& sums) {
  const protocol::Moves before = std::exchange(told_, sums);
  return protocol::Moves{.out_bytes = more(sums.out_bytes, before.out_bytes),
                         .out_ns = more(sums.out_ns, before.out_ns),
                         .in_bytes = more(sums.in_bytes, before.in_bytes),
                         .in_ns = more(sums.in_ns, before.in_ns),
                         .spared_bytes = more(sums.spared_bytes, before.spared_bytes)};
}

protocol::Moves moves_of(const protocol::UsagePage& page) {
  return {.out_bytes = page.out_bytes.load(),
          .out_ns = page.out_ns.load(),
          .in_bytes = page.in_bytes.load(),
          .in_ns = page.in_ns.load(),
          .spared_bytes = page.spared_bytes.load()};
}

protocol::Moves moves_of(const protocol::GpuUsage& gpu) {
  return {.out_bytes = gpu.out_bytes.load(),
          .out_ns = gpu.out_ns.load(),
          .in_bytes = gpu.in_bytes.load(),
          .in_ns = gpu.in_ns.load(),
          .spared_bytes = 0};
}

std::string text_of(const protocol::Moves& moves) {
  return fmt::format("out {}, {} without a copy; back {}", copied(moves.out_bytes, moves.out_ns), moves.spared_bytes,
                     copied(moves.in_bytes, moves.in_ns));
}

}  // namespace rota::server
