// The free ranges of a file, allocated first fit.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace rota::sim {

class FreeRanges {
 public:
  // The offset of a range of this many bytes; none: no range is that long.
  std::optional<uint64_t> take(uint64_t bytes) {
    for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
      auto [offset, length] = *range;
      if (length < bytes) continue;
      ranges_.erase(range);
      if (length > bytes) ranges_[offset + bytes] = length - bytes;
      return offset;
    }
    return std::nullopt;
  }
  // Adjacent ranges are merged; otherwise larger requests would never fit.
  void give(uint64_t offset, uint64_t bytes) {
    auto next = ranges_.lower_bound(offset);
    if (next != ranges_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    ranges_[offset] = bytes;
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // offset -> length
};

}  // namespace rota::sim
