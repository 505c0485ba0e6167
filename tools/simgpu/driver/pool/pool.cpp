// Segments and allocations of a pool.
#include "tools/simgpu/driver/pool/pool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iterator>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/memory/physical.h"

namespace rota::sim {
namespace {

// Read by the importer of the pool: GPU (-1: on the host).
constexpr const char* kPoolFileName = "simgpu-pool-%d";
// Address space of a pool's file; only used parts take memory.
constexpr uint64_t kFileBytes = uint64_t{1} << 42;
// A pool on a large GPU takes memory in larger steps.
constexpr uint64_t kLargeSegment = uint64_t{32} << 20;
constexpr uint64_t kLargeGpu = uint64_t{8} << 30;

}  // namespace

Pool::Pool(const CUmemPoolProps& properties, int gpu) : properties(properties), gpu(gpu) {
  if (!managed() && !on_gpu()) {
    set_access(gpu, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  } else {
    set_access(gpu, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  if (mutated(Mutation::pools_start_with_a_threshold)) threshold_ = UINT64_MAX;
  if (mutated(Mutation::reuse_flags_start_off)) opportunistic_ = follow_events_ = internal_dependencies_ = 0;
}

bool Pool::on_gpu() const {
  bool plain = !managed() || mutated(Mutation::managed_pools_give_plain_memory);
  return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && plain;
}

Pool::~Pool() {
  while (!segments_.empty()) give_back(segments_.begin());
}

CUresult Pool::check(const CUmemPoolProps& properties) {
  bool pinned = properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED;
  bool is_managed = properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if ((!pinned && !is_managed) || properties.win32SecurityAttributes != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((properties.handleTypes & ~0xf) != 0 || (properties.usage & ~2U) != 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned char byte : properties.reserved) {
    if (byte != 0) return CUDA_ERROR_INVALID_VALUE;
  }
  bool private_only = properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE;
  if (is_managed && (!private_only || properties.maxSize != 0)) return CUDA_ERROR_INVALID_VALUE;
  switch (properties.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (properties.location.id < 0 || properties.location.id >= driver().state().gpus()) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      if (!private_only) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (properties.location.id != 0) return CUDA_ERROR_INVALID_VALUE;
      if (!private_only) return CUDA_ERROR_NOT_SUPPORTED;
      break;
    case CU_MEM_LOCATION_TYPE_NONE:
      if (!is_managed) return CUDA_ERROR_INVALID_VALUE;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  bool only_files = (properties.handleTypes & ~int{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) == 0;
  return only_files ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

PoolPointer Pool::create(const CUmemPoolProps& properties) {
  bool device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  auto pool = std::make_shared<Pool>(properties, device ? properties.location.id : 0);
  if (properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE) return pool;
  char name[64];
  std::snprintf(name, sizeof name, kPoolFileName, driver().state().physical(pool->gpu));
  pool->file_ = Descriptor(make_named_file(name, kFileBytes));
  pool->file_free_.give(0, kFileBytes);
  return pool->file_ ? pool : nullptr;
}

PoolPointer Pool::import_file(int file) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  if (std::sscanf(file_name(file).c_str(), kPoolFileName, &properties.location.id) != 1) return nullptr;
  properties.location.id = driver().state().visible(properties.location.id);
  if (properties.location.id < 0) return nullptr;
  auto pool = std::make_shared<Pool>(properties, properties.location.id);
  pool->file_ = Descriptor(fcntl(file, F_DUPFD_CLOEXEC, 0));
  pool->imported = true;
  return pool->file_ ? pool : nullptr;
}

CUresult Pool::export_file(int* file) {
  if (properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
  int copy = fcntl(file_.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  exported_.store(true);
  *file = copy;
  return CUDA_SUCCESS;
}

void Pool::set_access(int accessing_gpu, CUmemAccess_flags flags) {
  uint32_t bit = 1U << accessing_gpu;
  auto put = [bit](std::atomic<uint32_t>& mask, bool on) { on ? mask.fetch_or(bit) : mask.fetch_and(~bit); };
  put(readable_, (flags & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0);
  put(writable_, flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

CUmemAccess_flags Pool::access(int accessing_gpu) const {
  uint32_t bit = 1U << accessing_gpu;
  if ((writable_.load() & bit) != 0) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return (readable_.load() & bit) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

// Under the mutex.
void Pool::count_used(uint64_t bytes) {
  used_ += bytes;
  used_high_ = std::max(used_high_, used_);
}

void Pool::count_reserved(uint64_t bytes) {
  reserved_ += bytes;
  reserved_high_ = std::max(reserved_high_, reserved_);
}

// Checks whether the stream has reached the piece's free.
void Pool::settle(Piece& piece) {
  if (!piece.pending) return;
  const TaskPointer& task = piece.pending->task;
  if (piece.pending->over.load() || (task && task->done())) piece.pending = nullptr;
}

// Merges adjacent pieces that any stream may use.
void Pool::merge(Segment& segment) {
  auto free_for_all = [](Piece& piece) {
    settle(piece);
    return !piece.used && !piece.pending && piece.stream == 0;
  };
  for (auto address = segment.unused.begin(); address != segment.unused.end(); ++address) {
    auto piece = segment.pieces.find(*address);
    if (!free_for_all(piece->second)) continue;
    auto next = std::next(piece);
    while (next != segment.pieces.end() && free_for_all(next->second)) {
      piece->second.bytes += next->second.bytes;
      segment.unused.erase(next->first);
      next = segment.pieces.erase(next);
    }
  }
}

uint64_t Pool::use(Segment& segment, std::map<uint64_t, Piece>::iterator piece, uint64_t bytes) {
  uint64_t address = piece->first;
  Piece rest = piece->second;
  piece->second = Piece{bytes, true, 0, nullptr};
  segment.unused.erase(address);
  if (rest.bytes > bytes) {
    rest.bytes -= bytes;
    segment.pieces.emplace(address + bytes, std::move(rest));
    segment.unused.insert(address + bytes);
  }
  count_used(bytes);
  return address;
}

// The smallest piece that fits, preferring one that the same stream freed. `wait_for_others`: also a piece that another
// stream has yet to free; *after is then that stream's task. Under the mutex.
bool Pool::take_piece(uint64_t stream, uint64_t bytes, bool wait_for_others, uint64_t* address, TaskPointer* after) {
  Segment* best_segment = nullptr;
  std::map<uint64_t, Piece>::iterator best;
  auto better = [&](const Piece& piece) {
    if (best_segment == nullptr) return true;
    bool own = piece.stream == stream;
    bool best_own = best->second.stream == stream;
    return own != best_own ? own : piece.bytes < best->second.bytes;
  };
  for (auto& [start, segment] : segments_) {
    merge(segment);
    for (uint64_t start_of_piece : segment.unused) {
      auto piece = segment.pieces.find(start_of_piece);
      Piece& candidate = piece->second;
      settle(candidate);
      if (candidate.bytes < bytes) continue;
      bool own = candidate.stream == stream && !(candidate.pending && mutated(Mutation::pool_reuse_needs_the_host));
      bool over = !candidate.pending && (candidate.stream == 0 || opportunistic_ != 0);
      bool pending = candidate.pending && wait_for_others;
      if (!own && !over && !pending && !mutated(Mutation::pool_reuses_too_early)) continue;
      if (!better(candidate)) continue;
      best_segment = &segment;
      best = piece;
    }
  }
  if (best_segment == nullptr) return false;
  if (best->second.stream != stream && best->second.pending && best->second.pending->task)
    *after = best->second.pending->task;
  *address = use(*best_segment, best, bytes);
  return true;
}

// A new segment, whose first piece is used. Not under the mutex: an eviction may trim this very pool.
CUresult Pool::grow(uint64_t bytes, uint64_t* address) {
  if (bytes > driver().state().capacity()) return CUDA_ERROR_OUT_OF_MEMORY;
  bool large = driver().state().capacity() >= kLargeGpu;
  Segment segment;
  segment.bytes = round_up(bytes, large ? kLargeSegment : AddressSpace::kLargePage);
  uint64_t most = properties.maxSize == 0 ? UINT64_MAX : round_up(properties.maxSize, AddressSpace::kLargePage);
  {
    std::lock_guard lock(mutex_);
    if (reserved_ > most || bytes > most - reserved_) return CUDA_ERROR_OUT_OF_MEMORY;
    if (segment.bytes > most - reserved_) segment.bytes = round_up(bytes, AddressSpace::kLargePage);
    if (segment.bytes > most - reserved_) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Migration migration;
  auto take = [&] {
    if (file_) {
      segment.shared_id =
          driver().with_room([&] { return driver().state().share(gpu, segment.bytes, false, &migration); });
      return segment.shared_id != 0;
    }
    if (mutated(Mutation::pools_take_no_memory)) return true;
    segment.charged = driver().take_device_bytes(gpu, segment.bytes, &migration) ? segment.bytes : 0;
    return segment.charged != 0;
  };
  if (!take()) {
    segment.bytes = round_up(bytes, AddressSpace::kLargePage);
    if (!take()) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Pages pages;
  bool has_pages = !file_;
  if (!has_pages) {
    std::lock_guard lock(mutex_);
    std::optional<uint64_t> offset = file_free_.take(segment.bytes);
    has_pages = offset.has_value();
    segment.file_offset = offset.value_or(0);
    pages = {file_.get(), segment.file_offset};
  }
  uint64_t start = has_pages ? driver().memory.add_segment(segment.bytes, gpu, pages) : 0;
  if (start == 0) {
    if (file_ && has_pages) {
      std::lock_guard lock(mutex_);
      file_free_.give(segment.file_offset, segment.bytes);
    }
    if (segment.charged != 0) driver().state().give_back(gpu, segment.charged);
    if (segment.shared_id != 0) driver().state().let_go(segment.shared_id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::lock_guard lock(mutex_);
  Segment& added = segments_[start];
  added = std::move(segment);
  added.pieces[start] = Piece{added.bytes, false, 0, nullptr};
  added.unused.insert(start);
  count_reserved(added.bytes);
  *address = use(added, added.pieces.begin(), bytes);
  return CUDA_SUCCESS;
}

CUresult Pool::allocate_by_itself(Allocation* allocation) {
  if (managed()) {
    allocation->kind = MemoryKind::kManaged;
    allocation->flags = CU_MEM_ATTACH_GLOBAL;
    allocation->managed_id = driver().state().add_managed(gpu, allocation->bytes);
    if (allocation->managed_id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    allocation->kind = MemoryKind::kHost;
  }
  uint64_t most = properties.maxSize == 0 ? UINT64_MAX : properties.maxSize;
  {
    std::lock_guard lock(mutex_);
    if (reserved_ > most || allocation->bytes > most - reserved_) return CUDA_ERROR_OUT_OF_MEMORY;
    count_reserved(allocation->bytes);
    count_used(allocation->bytes);
  }
  if (driver().memory.add_mapped(allocation)) return CUDA_SUCCESS;
  if (allocation->managed_id != 0) driver().state().remove_managed(allocation->managed_id);
  std::lock_guard lock(mutex_);
  reserved_ -= allocation->bytes;
  used_ -= allocation->bytes;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult Pool::allocate(const StreamPointer& stream, uint64_t bytes, uint64_t* address) {
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.gpu = gpu;
  allocation.context = stream->context->handle();
  allocation.pool = shared_from_this();
  if (!on_gpu()) {
    ROTA_SIM_CHECK(allocate_by_itself(&allocation));
    *address = allocation.address;
    return CUDA_SUCCESS;
  }
  uint64_t length = round_up(bytes, AddressSpace::kGranularity);
  if (length < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  TaskPointer after;
  bool found = false;
  bool dependencies = false;
  {
    std::lock_guard lock(mutex_);
    dependencies = internal_dependencies_ != 0;
    found = take_piece(stream->id, length, false, &allocation.address, &after);
  }
  if (!found) {
    CUresult grown = grow(length, &allocation.address);
    if (grown != CUDA_SUCCESS) {
      if (!dependencies) return grown;
      std::lock_guard lock(mutex_);
      if (!take_piece(stream->id, length, true, &allocation.address, &after)) return grown;
    }
  }
  CUresult result = CUDA_SUCCESS;
  if (after && !mutated(Mutation::pool_reuses_too_early)) {
    result = driver().submit_after(stream, {std::move(after)}, nullptr);
  }
  if (result == CUDA_SUCCESS && !driver().memory.add_in_segment(&allocation)) result = CUDA_ERROR_UNKNOWN;
  if (result != CUDA_SUCCESS) {
    released(allocation);
    return result;
  }
  *address = allocation.address;
  return CUDA_SUCCESS;
}

// Under the mutex. If there is no such piece, *found is null and the iterator is singular.
std::map<uint64_t, Pool::Piece>::iterator Pool::piece_at(uint64_t address, Segment** found) {
  *found = nullptr;
  auto next = segments_.upper_bound(address);
  if (next == segments_.begin()) return {};
  Segment& segment = std::prev(next)->second;
  auto piece = segment.pieces.find(address);
  if (piece == segment.pieces.end()) return {};
  *found = &segment;
  return piece;
}

void Pool::freed(uint64_t address, uint64_t stream, std::shared_ptr<Free> free) {
  {
    std::lock_guard lock(mutex_);
    Segment* segment = nullptr;
    auto piece = piece_at(address, &segment);
    if (segment == nullptr || !piece->second.used) return;
    used_ -= piece->second.bytes;
    piece->second.used = false;
    piece->second.stream = stream;
    piece->second.pending = std::move(free);
    segment->unused.insert(address);
  }
  reached();
}

void Pool::reached() {
  {
    std::lock_guard lock(mutex_);
    if (!destroyed_) return;
  }
  trim(0);
}

void Pool::released(const Allocation& allocation) {
  std::unique_lock lock(mutex_);
  if (!on_gpu()) {
    reserved_ -= allocation.bytes;
    used_ -= allocation.bytes;
    return;
  }
  Segment* segment = nullptr;
  auto piece = piece_at(allocation.address, &segment);
  if (segment == nullptr || !piece->second.used) return;
  used_ -= piece->second.bytes;
  piece->second = Piece{piece->second.bytes, false, 0, nullptr};
  segment->unused.insert(allocation.address);
  lock.unlock();
  reached();
}

// Under the mutex, or in the destructor.
void Pool::give_back(Segments::iterator segment) {
  driver().memory.remove_segment(segment->first);
  if (segment->second.charged != 0) driver().state().give_back(gpu, segment->second.charged);
  // A range of the file that another process still has open is never reused.
  if (segment->second.shared_id != 0 && driver().state().let_go(segment->second.shared_id)) {
    file_free_.give(segment->second.file_offset, segment->second.bytes);
  }
  reserved_ -= segment->second.bytes;
  segments_.erase(segment);
}

void Pool::trim(uint64_t keep) {
  std::lock_guard lock(mutex_);
  for (auto segment = segments_.begin(); segment != segments_.end() && reserved_ > keep;) {
    auto next = std::next(segment);
    bool unused =
        segment->second.unused.size() == segment->second.pieces.size() || mutated(Mutation::pool_trims_memory_in_use);
    for (uint64_t address : segment->second.unused) {
      if (!unused) break;
      Piece& piece = segment->second.pieces.at(address);
      settle(piece);
      if (piece.pending) unused = false;
    }
    if (unused && reserved_ - segment->second.bytes >= keep) give_back(segment);
    segment = next;
  }
}

void Pool::synchronised() {
  uint64_t keep = 0;
  {
    std::lock_guard lock(mutex_);
    for (auto& [start, segment] : segments_) {
      for (uint64_t address : segment.unused) {
        Piece& piece = segment.pieces.at(address);
        settle(piece);
        if (!piece.pending) piece.stream = 0;
      }
      merge(segment);
    }
    keep = mutated(Mutation::pool_ignores_threshold) ? 0 : threshold_;
    if (reserved_ <= keep) return;
  }
  if (!mutated(Mutation::pool_keeps_everything)) trim(keep);
}

void Pool::destroy() {
  {
    std::lock_guard lock(mutex_);
    destroyed_ = true;
    threshold_ = 0;
  }
  trim(0);
}

bool Pool::find_shared(uint64_t address, Shared* shared) {
  std::lock_guard lock(mutex_);
  Segment* segment = nullptr;
  auto next = segments_.upper_bound(address);
  if (!exported_.load() || next == segments_.begin()) return false;
  --next;
  segment = &next->second;
  if (address - next->first >= segment->bytes) return false;
  shared->id = segment->shared_id;
  shared->pages = {file_.get(), segment->file_offset + (address - next->first)};
  shared->segment_bytes = segment->bytes;
  return true;
}

CUresult Pool::import_pointer(Context& context, const Shared& shared, uint64_t bytes, uint64_t* address) {
  struct stat status{};
  bool inside = fstat(file_.get(), &status) == 0 && shared.pages.offset <= static_cast<uint64_t>(status.st_size) &&
                bytes <= static_cast<uint64_t>(status.st_size) - shared.pages.offset;
  if (!inside || shared.id == 0) return CUDA_ERROR_INVALID_VALUE;
  Migration migration;
  // Without `revive`: once the exporter has released the segment, its range of the file may hold other allocations.
  if (!driver().state().hold(shared.id, gpu, shared.segment_bytes, false, &migration)) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.gpu = gpu;
  allocation.context = context.handle();
  allocation.shared_id = shared.id;
  allocation.imported = true;
  allocation.pool = shared_from_this();
  if (!driver().memory.add_foreign(&allocation, {file_.get(), shared.pages.offset})) {
    driver().state().let_go(shared.id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = allocation.address;
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
