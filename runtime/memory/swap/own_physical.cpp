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

// Whether [address, address + bytes) lies within one of them.
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

// A file descriptor of such memory is created on demand, which pins the memory. Fabric handles, compressed memory, tile
// pools and memory for decompression are not supported.
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
  all_[handle] = {.range = range, .bytes = bytes, .block_id = ++last_id_, .wanted = wanted, .handles = 1};
  return handle;
}

// The memory of a handle that the program holds; null: it holds none.
const OwnPhysical::OwnMemory* OwnPhysical::live(Handle handle) const {
  const auto found = all_.find(handle);
  return found != all_.end() && found->second.handles > 0 ? &found->second : nullptr;
}

std::optional<OwnPhysical::OwnMemory> OwnPhysical::drop(Handle number) {
  const auto found = all_.find(number);
  if (found == all_.end() || found->second.handles > 0 || found->second.mappings > 0) return std::nullopt;
  const OwnMemory memory = found->second;
  all_.erase(found);
  ledger_.release(memory.device(), memory.bytes, Kind::kMovingPhysical);
  return memory;
}

api::CUresult OwnPhysical::release(Handle handle, int* freed) {
  *freed = kNobody;
  std::optional<OwnMemory> gone;
  {
    const std::lock_guard lock(mutex_);
    OwnMemory* const memory = live(handle);
    if (memory == nullptr) return api::CUDA_ERROR_INVALID_VALUE;
    --memory->handles;
    gone = drop(handle);
  }
  if (gone) {
    *freed = gone->device();
    swap_.free(gone->range);
  }
  return api::CUDA_SUCCESS;
}

// Whether the driver would certainly map it. Memory has to lie at multiples of `granule`.
bool OwnPhysical::would_map(const OwnMemory& memory, std::uint64_t granule, std::uint64_t address, std::uint64_t bytes,
                            std::uint64_t offset, unsigned long long flags) const {
  return flags == 0 && offset == 0 && bytes == memory.bytes && address % granule == 0 &&
         lies_in(reservations_, address, bytes) && !touches(others_, address, bytes) &&
         !overlaps_locked(address, bytes);
}

std::optional<api::CUresult> OwnPhysical::map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset,
                                              Handle handle, unsigned long long flags) {
  const std::lock_guard lock(mutex_);
  OwnMemory* const memory = live(handle);
  if (memory == nullptr) return api::CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t granule = swap_.granularity(memory->device());
  bool certain = true;
  const api::CUresult result = swap_.own_mappings().map(
      {.range = memory->range, .address = address},
      [&](Handle real) { return real::cuMemMap(address, bytes, offset, real, flags); },
      [&] {
        certain = would_map(*memory, granule, address, bytes, offset, flags);
        return certain ? api::CUDA_SUCCESS : driver::kNotAsked;
      });
  if (!certain) return std::nullopt;
  if (result != api::CUDA_SUCCESS) return result;
  ++memory->mappings;
  mappings_[address] = {.memory = handle, .bytes = bytes, .buffer_id = ++last_id_};
  Allocation mapping{.address = address, .bytes = bytes, .device = memory->device(), .kind = Kind::kMovingMapping};
  mapping.owner = {Owner::Kind::kPhysical, handle};
  mapping.charged = false;
  ledger_.add(mapping);
  return result;
}

api::CUresult OwnPhysical::properties(api::CUmemAllocationProp* into, Handle handle) const {
  const std::lock_guard lock(mutex_);
  const OwnMemory* const memory = live(handle);
  if (into == nullptr || memory == nullptr) return api::CUDA_ERROR_INVALID_VALUE;
  *into = memory->wanted;
  return api::CUDA_SUCCESS;
}

OwnPhysical::Handle OwnPhysical::driver_handle(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const OwnMemory* const memory = live(handle);
  return memory != nullptr ? swap_.own_mappings().handle_of(memory->range) : 0;
}

OwnPhysical::Handle OwnPhysical::pin(Handle handle, protocol::Pin why) {
  std::uint64_t range = 0;
  Handle drivers = 0;
  {
    const std::lock_guard lock(mutex_);
    const OwnMemory* const memory = live(handle);
    if (memory == nullptr) return 0;
    range = memory->range;
    drivers = swap_.own_mappings().handle_of(range);
  }
  swap_.pin(range, why);
  return drivers;
}

void OwnPhysical::pin(std::uint64_t address, std::uint64_t bytes, protocol::Pin why) {
  std::vector<std::uint64_t> ranges;
  {
    const std::lock_guard lock(mutex_);
    for (const Handle each : overlapping(address, bytes).memories) ranges.push_back(all_.at(each).range);
  }
  for (const std::uint64_t range : ranges) swap_.pin(range, why);
}

bool OwnPhysical::exportable(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const OwnMemory* const memory = live(handle);
  return memory != nullptr && memory->wanted.requestedHandleTypes != api::CU_MEM_HANDLE_TYPE_NONE;
}

// The mapping that contains the address, or the end.
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
    overlap.all.push_back({.range = all_.at(mapping.memory).range, .address = start});
    overlap.memories.push_back(mapping.memory);
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
  const OwnMemory& memory = all_.at(found->second.memory);
  return Found{.buffer_id = found->second.buffer_id, .block_id = memory.block_id, .device = memory.device()};
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
  std::vector<OwnMemory> gone;
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
      OwnMemory& memory = all_.at(overlap.memories[index]);
      --memory.mappings;
      const std::optional<OwnMemory> last = drop(overlap.memories[index]);
      if (!last) continue;
      gone.push_back(*last);
      freed->push_back(last->device());
    }
  }
  for (const OwnMemory& each : gone) swap_.free(each.range);
  return api::CUDA_SUCCESS;
}

// Whether the access is certainly valid: each GPU to its own memory.
bool OwnPhysical::known_by_records(const std::vector<OwnMappings::Mapped>& all, const api::CUmemAccessDesc* accesses,
                                   std::size_t count) const {
  if (accesses == nullptr || count == 0) return false;
  return std::all_of(all.begin(), all.end(), [&](const OwnMappings::Mapped& each) {
    const int owner = all_.at(mappings_.at(each.address).memory).device();
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
    unknown = !overlap.between.empty() || !known_by_records(overlap.all, accesses, count);
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
  const std::uint64_t range = all_.at(found->second.memory).range;
  *flags = swap_.own_mappings().access({.range = range, .address = found->first}, location->id);
  return api::CUDA_SUCCESS;
}

std::optional<OwnPhysical::Handle> OwnPhysical::retain(std::uint64_t address) {
  if (!any()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = mapping_at(address);
  if (found == mappings_.end()) return std::nullopt;
  ++all_.at(found->second.memory).handles;
  return found->second.memory;
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
