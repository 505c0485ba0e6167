#include "runtime/memory/physical.h"

#include <new>

namespace rota::memory {

void Physical::created(std::uint64_t handle, int device, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  handles_[handle] = std::make_shared<Piece>(Piece{device, bytes});
}

void Physical::retained(std::uint64_t handle, std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) return;
  --mapping;
  handles_[handle] = mapping->second;  // perhaps released before, and so no longer in the table
  ++mapping->second->handles;
}

std::optional<PhysicalBytes> Physical::released(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return std::nullopt;  // imported: its owner is charged for it
  const std::shared_ptr<Piece> piece = found->second;
  if (--piece->handles > 0) return std::nullopt;
  handles_.erase(found);
  if (piece->mappings > 0) return std::nullopt;
  return PhysicalBytes{piece->device, piece->bytes};
}

void Physical::mapped(std::uint64_t address, std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return;
  ++found->second->mappings;
  mappings_[address] = found->second;
}

std::map<int, std::uint64_t> Physical::unmapped(std::uint64_t address, std::uint64_t size) {
  std::map<int, std::uint64_t> gone;
  const std::lock_guard lock(mutex_);
  for (auto mapping = mappings_.lower_bound(address); mapping != mappings_.end() && mapping->first - address < size;) {
    Piece& piece = *mapping->second;
    if (--piece.mappings == 0 && piece.handles == 0) gone[piece.device] += piece.bytes;
    mapping = mappings_.erase(mapping);
  }
  return gone;
}

void Physical::after_fork_in_child() {
  new (&mutex_) std::mutex;  // its holder may be a thread that is no more
  handles_.clear();
  mappings_.clear();
}

}  // namespace rota::memory
