#include "runtime/memory/swap/own_physical.h"

#include <algorithm>
#include <iterator>

#include "generated/driver_real.h"
#include "runtime/driver/answers.h"

namespace rota::memory {

namespace {

// Whether [address, address + bytes) touches any of them.
bool touches(const std::map<std::uint64_t, std::uint64_t>& all, std::uint64_t address, std::uint64_t bytes) {
  const auto next = all.lower_bound(address);
  if (next != all.end() && next->first - address < bytes) return true;
  return next != all.begin() && address - std::prev(next)->first < std::prev(next)->second;
}

// Whether it lies within one of them.
bool lies_in(const std::map<std::uint64_t, std::uint64_t>& all, std::uint64_t address, std::uint64_t bytes) {
  const auto next = all.upper_bound(address);
  if (next == all.begin()) return false;
  const auto& [start, length] = *std::prev(next);
  return address - start < length && bytes <= length - (address - start);
}

// The access that every driver grants a GPU to its own memory.
bool is_always_granted(api::CUmemAccess_flags flags) {
  return flags == api::CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

}  // namespace

// File descriptors of it are created on demand, which then pins it. Fabric handles, compressed memory, tile pools and
// memory for decompression are not supported.
std::optional<Making> OwnPhysical::can_move(const api::CUmemAllocationProp& wanted) {
  const auto& flags = wanted.allocFlags;
  const bool plain =
      wanted.type == api::CU_MEM_ALLOCATION_TYPE_PINNED && wanted.location.type == api::CU_MEM_LOCATION_TYPE_DEVICE &&
      wanted.win32HandleMetaData == nullptr && flags.compressionType == 0 && flags.usage == 0 &&
      flags.gpuDirectRDMACapable <= 1 &&
      std::all_of(std::begin(flags.reserved), std::end(flags.reserved), [](unsigned char each) { return each == 0; });
  const bool exportable = wanted.requestedHandleTypes == api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (!plain || (!exportable && wanted.requestedHandleTypes != api::CU_MEM_HANDLE_TYPE_NONE)) return std::nullopt;
  return Making{.exportable = exportable, .for_rdma = flags.gpuDirectRDMACapable != 0};
}

OwnPhysical::Handle OwnPhysical::created(std::uint64_t range, std::uint64_t bytes,
                                         const api::CUmemAllocationProp& wanted) {
  const std::lock_guard lock(mutex_);
  any_.store(true, std::memory_order_relaxed);
  const Handle handle = (Handle{1} << kBit) | ++last_;
  pieces_[handle] = {.range = range, .bytes = bytes, .block_id = ++last_id_, .wanted = wanted, .handles = 1};
  return handle;
}

// One that the program has a handle of.
const OwnPhysical::Piece* OwnPhysical::live(Handle handle) const {
  const auto found = pieces_.find(handle);
  return found != pieces_.end() && found->second.handles > 0 ? &found->second : nullptr;
}

std::optional<OwnPhysical::Piece> OwnPhysical::drop(Handle number) {
  const auto found = pieces_.find(number);
  if (found == pieces_.end() || found->second.handles > 0 || found->second.mappings > 0) return std::nullopt;
  const Piece piece = found->second;
  pieces_.erase(found);
  ledger_.release(piece.device(), piece.bytes, Kind::kMovingPhysical);
  return piece;
}

api::CUresult OwnPhysical::release(Handle handle, int* freed) {
  *freed = kNobody;
  std::optional<Piece> gone;
  {
    const std::lock_guard lock(mutex_);
    Piece* const piece = live(handle);
    if (piece == nullptr) return api::CUDA_ERROR_INVALID_VALUE;
    --piece->handles;
    gone = drop(handle);
  }
  if (gone) {
    *freed = gone->device();
    swap_.free(gone->range);
  }
  return api::CUDA_SUCCESS;
}

// Whether the driver would certainly do it, where pieces have to lie at multiples of `granule`.
bool OwnPhysical::would_map(const Piece& piece, std::uint64_t granule, std::uint64_t address, std::uint64_t bytes,
                            std::uint64_t offset, unsigned long long flags) const {
  return flags == 0 && offset == 0 && bytes == piece.bytes && address % granule == 0 &&
         lies_in(reservations_, address, bytes) && !touches(others_, address, bytes) &&
         !overlaps_locked(address, bytes);
}

std::optional<api::CUresult> OwnPhysical::map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset,
                                              Handle handle, unsigned long long flags) {
  const std::lock_guard lock(mutex_);
  Piece* const piece = live(handle);
  if (piece == nullptr) return api::CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t granule = swap_.granularity(piece->device());
  bool certain = true;
  const api::CUresult result = swap_.own_mappings().map(
      {.range = piece->range, .address = address},
      [&](Handle real) { return real::cuMemMap(address, bytes, offset, real, flags); },
      [&] {
        certain = would_map(*piece, granule, address, bytes, offset, flags);
        return certain ? api::CUDA_SUCCESS : driver::kNotAsked;
      });
  if (!certain) return std::nullopt;
  if (result != api::CUDA_SUCCESS) return result;
  ++piece->mappings;
  mappings_[address] = {.piece = handle, .bytes = bytes, .buffer_id = ++last_id_};
  Allocation mapping{.address = address, .bytes = bytes, .device = piece->device(), .kind = Kind::kMovingMapping};
  mapping.owner = {Owner::Kind::kPhysical, handle};
  mapping.charged = false;
  ledger_.add(mapping);
  return result;
}

api::CUresult OwnPhysical::properties(api::CUmemAllocationProp* into, Handle handle) const {
  const std::lock_guard lock(mutex_);
  const Piece* const piece = live(handle);
  if (into == nullptr || piece == nullptr) return api::CUDA_ERROR_INVALID_VALUE;
  *into = piece->wanted;
  return api::CUDA_SUCCESS;
}

OwnPhysical::Handle OwnPhysical::driver_handle(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const Piece* const piece = live(handle);
  return piece != nullptr ? swap_.own_mappings().handle_of(piece->range) : 0;
}

OwnPhysical::Handle OwnPhysical::pin(Handle handle, protocol::Pin why) {
  std::uint64_t range = 0;
  Handle drivers = 0;
  {
    const std::lock_guard lock(mutex_);
    const Piece* const piece = live(handle);
    if (piece == nullptr) return 0;
    range = piece->range;
    drivers = swap_.own_mappings().handle_of(range);
  }
  swap_.pin(range, why);
  return drivers;
}

void OwnPhysical::pin(std::uint64_t address, std::uint64_t bytes, protocol::Pin why) {
  std::vector<std::uint64_t> ranges;
  {
    const std::lock_guard lock(mutex_);
    for (const Handle each : overlapping(address, bytes).pieces) ranges.push_back(pieces_.at(each).range);
  }
  for (const std::uint64_t range : ranges) swap_.pin(range, why);
}

bool OwnPhysical::exportable(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const Piece* const piece = live(handle);
  return piece != nullptr && piece->wanted.requestedHandleTypes != api::CU_MEM_HANDLE_TYPE_NONE;
}

// The one that holds it, or none.
std::map<std::uint64_t, OwnPhysical::Mapping>::const_iterator OwnPhysical::mapping_at(std::uint64_t address) const {
  const auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return mappings_.end();
  const auto found = std::prev(next);
  return address - found->first < found->second.bytes ? found : mappings_.end();
}

OwnPhysical::Overlap OwnPhysical::overlapping(std::uint64_t address, std::uint64_t bytes) const {
  Overlap overlap;
  auto next = mapping_at(address);
  if (next == mappings_.end()) next = mappings_.lower_bound(address);
  std::uint64_t at = address;
  for (; next != mappings_.end() && (next->first < address || next->first - address < bytes); ++next) {
    const auto& [start, mapping] = *next;
    overlap.whole = overlap.whole && start >= address && mapping.bytes <= bytes - (start - address);
    if (start > at) overlap.between.emplace(at, start - at);
    at = start + mapping.bytes;
    overlap.all.push_back({.range = pieces_.at(mapping.piece).range, .address = start});
    overlap.pieces.push_back(mapping.piece);
  }
  if (overlap.whole && at - address < bytes) overlap.between.emplace(at, bytes - (at - address));
  return overlap;
}

bool OwnPhysical::overlaps(std::uint64_t address, std::uint64_t bytes) const {
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  return overlaps_locked(address, bytes);
}

bool OwnPhysical::overlaps_locked(std::uint64_t address, std::uint64_t bytes) const {
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first - address < std::max<std::uint64_t>(bytes, 1)) return true;
  return mapping_at(address) != mappings_.end();
}

std::optional<OwnPhysical::Found> OwnPhysical::find(std::uint64_t address) const {
  if (!any()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = mapping_at(address);
  if (found == mappings_.end()) return std::nullopt;
  const Piece& piece = pieces_.at(found->second.piece);
  return Found{.buffer_id = found->second.buffer_id, .block_id = piece.block_id, .device = piece.device()};
}

api::CUresult OwnPhysical::unmap(std::uint64_t address, std::uint64_t bytes, const UnmapPart& call,
                                 std::vector<int>* freed) {
  if (!overlaps(address, bytes)) {
    const api::CUresult result = call(address, bytes);
    if (result != api::CUDA_SUCCESS) return result;
    const std::lock_guard lock(mutex_);
    others_.erase(others_.lower_bound(address), others_.lower_bound(address + bytes));
    return result;
  }
  std::vector<Piece> gone;
  {
    const std::lock_guard lock(mutex_);
    const Overlap overlap = overlapping(address, bytes);
    const api::CUresult result = swap_.own_mappings().unmap(
        overlap.all, [&] { return call(address, bytes); },
        [&] {
          api::CUresult refused = overlap.whole ? api::CUDA_SUCCESS : api::CUDA_ERROR_INVALID_VALUE;
          for (auto part = overlap.between.begin(); refused == api::CUDA_SUCCESS && part != overlap.between.end();) {
            refused = call(part->first, part->second);
            ++part;
          }
          return refused;
        });
    if (result != api::CUDA_SUCCESS) return result;
    others_.erase(others_.lower_bound(address), others_.lower_bound(address + bytes));
    for (std::size_t index = 0; index < overlap.all.size(); ++index) {
      const std::uint64_t start = overlap.all[index].address;
      mappings_.erase(start);
      ledger_.take_at(start, Kind::kMovingMapping);  // another thread may just be refused to free it
      Piece& piece = pieces_.at(overlap.pieces[index]);
      --piece.mappings;
      const std::optional<Piece> last = drop(overlap.pieces[index]);
      if (!last) continue;
      gone.push_back(*last);
      freed->push_back(last->device());
    }
  }
  for (const Piece& each : gone) swap_.free(each.range);
  return api::CUDA_SUCCESS;
}

// Whether the access is certainly valid: each GPU to its own memory.
bool OwnPhysical::known_by_books(const std::vector<OwnMappings::Mapped>& all, const api::CUmemAccessDesc* accesses,
                                 std::size_t count) const {
  if (accesses == nullptr || count == 0) return false;
  return std::all_of(all.begin(), all.end(), [&](const OwnMappings::Mapped& each) {
    const int owner = pieces_.at(mappings_.at(each.address).piece).device();
    return std::all_of(accesses, accesses + count, [&](const api::CUmemAccessDesc& access) {
      return access.location.type == api::CU_MEM_LOCATION_TYPE_DEVICE && access.location.id == owner &&
             is_always_granted(access.flags);
    });
  });
}

std::optional<api::CUresult> OwnPhysical::set_access(std::uint64_t address, std::uint64_t bytes,
                                                     const api::CUmemAccessDesc* accesses, std::size_t count,
                                                     const RealCall& call) {
  const std::lock_guard lock(mutex_);
  const Overlap overlap = overlapping(address, bytes);
  bool unknown = false;
  std::vector<api::CUmemAccessDesc> wanted;
  if (accesses != nullptr) wanted.assign(accesses, accesses + count);
  const api::CUresult result = swap_.own_mappings().set_access(overlap.all, wanted, call, [&] {
    if (!overlap.whole) return api::CUDA_ERROR_INVALID_VALUE;
    unknown = !overlap.between.empty() || !known_by_books(overlap.all, accesses, count);
    return unknown ? driver::kNotAsked : api::CUDA_SUCCESS;
  });
  return unknown ? std::nullopt : std::optional(result);
}

std::optional<api::CUresult> OwnPhysical::access(unsigned long long* flags, const api::CUmemLocation* location,
                                                 std::uint64_t address) const {
  const bool on_gpu = location != nullptr && location->type == api::CU_MEM_LOCATION_TYPE_DEVICE;
  if (!any() || flags == nullptr || !on_gpu) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = mapping_at(address);
  if (found == mappings_.end()) return std::nullopt;
  int devices = 0;
  if (real::cuDeviceGetCount(&devices) != api::CUDA_SUCCESS) return std::nullopt;
  if (location->id < 0 || location->id >= devices) return api::CUDA_ERROR_INVALID_DEVICE;
  const std::uint64_t range = pieces_.at(found->second.piece).range;
  *flags = swap_.own_mappings().access({.range = range, .address = found->first}, location->id);
  return api::CUDA_SUCCESS;
}

std::optional<OwnPhysical::Handle> OwnPhysical::retain(std::uint64_t address) {
  if (!any()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = mapping_at(address);
  if (found == mappings_.end()) return std::nullopt;
  ++pieces_.at(found->second.piece).handles;
  return found->second.piece;
}

void OwnPhysical::reserved(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  reservations_[address] = bytes;
}

std::uint64_t OwnPhysical::unreserved(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto known = reservations_.extract(address);
  return known ? known.mapped() : 0;
}

void OwnPhysical::mapped_otherwise(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  others_[address] = bytes;
}

}  // namespace rota::memory
