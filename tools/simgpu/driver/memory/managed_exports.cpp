// Managed memory: advice, prefetching, discarding, range attributes, stream association.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

// A range of managed memory, which must lie in one allocation.
CUresult managed_range(CUdeviceptr address, size_t bytes, Allocation* allocation) {
  auto found = driver().memory.find(address);
  if (bytes == 0 || !found || found->kind != MemoryKind::kManaged) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > found->bytes - (address - found->address)) return CUDA_ERROR_INVALID_VALUE;
  *allocation = *found;
  return CUDA_SUCCESS;
}

bool numa_node_exists(int node) {
  if (node < 0) return false;
  return node == 0 || access(("/sys/devices/system/node/node" + std::to_string(node)).c_str(), F_OK) == 0;
}

CUresult location_of(CUmemLocation given, Location* location) {
  switch (given.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (given.id < 0 || given.id >= driver().state().gpus()) return CUDA_ERROR_INVALID_DEVICE;
      *location = {given.type, given.id};
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
      *location = {given.type, Location::kHost};
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (!numa_node_exists(given.id)) return CUDA_ERROR_INVALID_VALUE;
      *location = {given.type, given.id};
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: {
      unsigned node = 0;
      if (getcpu(nullptr, &node) != 0) node = 0;
      *location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, static_cast<int>(node)};
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The older form: a device's number, or -1 for the processor.
CUmemLocation location_of_device(CUdevice device) {
  CUmemLocation location{};
  location.type = device == Location::kHost ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

// The location in the shared state's terms: a GPU, the host, or nowhere.
void set_preferred(const Allocation& allocation, uint64_t address, uint64_t bytes, const Location& location) {
  int place = kNowhere;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    place = location.id;
  } else if (location.type != CU_MEM_LOCATION_TYPE_INVALID) {
    place = kOnHost;
  }
  driver().state().set_preferred(allocation.managed_id, address - allocation.address, bytes, place);
}

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation given) {
  ROTA_SIM_READY();
  Allocation allocation;
  ROTA_SIM_CHECK(managed_range(address, bytes, &allocation));
  Location location;
  bool on = advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
            advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      driver().managed_ranges.change(address, bytes, [on](ManagedAdvice& said) { said.read_mostly = on; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      ROTA_SIM_CHECK(location_of(given, &location));
      [[fallthrough]];
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      set_preferred(allocation, address, bytes, location);
      driver().managed_ranges.change(address, bytes, [&](ManagedAdvice& said) { said.preferred = location; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: {
      ROTA_SIM_CHECK(location_of(given, &location));
      if (given.type != CU_MEM_LOCATION_TYPE_DEVICE && given.type != CU_MEM_LOCATION_TYPE_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (location.id != Location::kHost) {
        driver().state().set_accessed_by(allocation.managed_id, address - allocation.address, bytes, location.id, on);
      }
      uint32_t bit = location.id == Location::kHost ? ManagedAdvice::kAccessedByHost : uint32_t{1} << location.id;
      driver().managed_ranges.change(address, bytes, [on, bit](ManagedAdvice& said) {
        said.accessed_by = on ? said.accessed_by | bit : said.accessed_by & ~bit;
      });
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

struct Move {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool discard = false;
  bool prefetch = false;
  Location to;
};

void run_moves(Context& context, const std::vector<Move>& moves) {
  for (const Move& move : moves) {
    Allocation allocation;
    if (managed_range(move.address, move.bytes, &allocation) != CUDA_SUCCESS) continue;  // freed meanwhile
    // The contents of a discarded range are unspecified: here they stay unchanged.
    if (move.discard) {
      driver().state().discard(allocation.managed_id, move.address - allocation.address, move.bytes);
    }
    if (!move.prefetch) continue;
    bool to_device = move.to.type == CU_MEM_LOCATION_TYPE_DEVICE;
    int64_t nanoseconds = 0;
    driver().make_resident(move.address, move.bytes, to_device ? Access::kPrefetchToDevice : Access::kPrefetchToHost,
                           &nanoseconds, to_device ? move.to.id : -1);
    if (mutated(Mutation::prefetch_loses_the_contents)) {
      std::memset(driver().memory.storage(move.address, move.bytes), 0, move.bytes);
    }
    driver().occupy(context, to_device ? EngineKind::kHostToDevice : EngineKind::kDeviceToHost, nanoseconds);
  }
}

CUresult submit_moves(const StreamPointer& stream, std::vector<Move> moves) {
  for (const Move& move : moves) {
    Allocation allocation;
    ROTA_SIM_CHECK(managed_range(move.address, move.bytes, &allocation));
  }
  if (driver().captures.any()) {
    std::lock_guard lock(driver().captures.mutex);
    if (stream->capture) {  // there is no graph node for a migration
      stream->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  std::vector<Move> said = moves;
  Operation operation;
  operation.run = [moves = std::move(moves)](Context& running) { run_moves(running, moves); };
  ROTA_SIM_CHECK(driver().submit(stream, std::move(operation), nullptr, Driver::kNoCapture));
  // The attribute reports the request, not whether it was carried out.
  for (const Move& move : said) {
    if (!move.prefetch || mutated(Mutation::prefetches_are_forgotten)) continue;
    driver().managed_ranges.change(move.address, move.bytes,
                                   [&](ManagedAdvice& advice) { advice.last_prefetch = move.to; });
  }
  return CUDA_SUCCESS;
}

CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation given, unsigned flags, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Location location;
  ROTA_SIM_CHECK(location_of(given, &location));
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  return submit_moves(stream, {Move{address, bytes, false, true, location}});
}

struct Batch {
  const CUdeviceptr* addresses = nullptr;
  const size_t* sizes = nullptr;
  size_t count = 0;
  const CUmemLocation* locations = nullptr;
  const size_t* first_of_location = nullptr;
  size_t location_count = 0;
  bool discard = false;
  bool prefetch = false;
};

CUresult submit_batch(const Batch& batch, unsigned long long flags, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  if (flags != 0 || batch.count == 0 || batch.addresses == nullptr || batch.sizes == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  if (stream == context->legacy) return CUDA_ERROR_INVALID_VALUE;
  if (batch.prefetch) {
    bool lists = batch.locations != nullptr && batch.first_of_location != nullptr;
    if (!lists || batch.location_count == 0 || batch.location_count > batch.count || batch.first_of_location[0] != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 1; index < batch.location_count; ++index) {
      size_t first = batch.first_of_location[index];
      if (first <= batch.first_of_location[index - 1] || first >= batch.count) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  std::vector<Move> moves;
  size_t which = 0;
  for (size_t index = 0; index < batch.count; ++index) {
    Move move{batch.addresses[index], batch.sizes[index], batch.discard, batch.prefetch, {}};
    if (batch.prefetch) {
      if (which + 1 < batch.location_count && batch.first_of_location[which + 1] == index) ++which;
      ROTA_SIM_CHECK(location_of(batch.locations[which], &move.to));
    }
    moves.push_back(move);
  }
  return submit_moves(stream, std::move(moves));
}

// ---- what is known about a range ------------------------------------------------------------------------------------

// The value of a field if it is uniform over the whole range.
template <class Field>
Location common_location(CUdeviceptr address, size_t bytes, Field field) {
  Location location;
  bool first = true;
  driver().managed_ranges.visit(address, bytes, [&](const ManagedAdvice& advice) {
    if (first) {
      location = field(advice);
    } else if (!(location == field(advice)) && !mutated(Mutation::range_attributes_look_at_the_start)) {
      location = Location{};
    }
    first = false;
  });
  return location;
}

// CU_DEVICE_CPU for all of the host.
int32_t device_number(const Location& location) {
  bool numa = location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  return numa ? Location::kHost : location.id;
}

CUresult range_attribute(void* data, size_t size, CUmem_range_attribute attribute, CUdeviceptr address, size_t bytes) {
  Allocation allocation;
  if (data == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(managed_range(address, bytes, &allocation));
  auto* out = static_cast<int32_t*>(data);
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    if (size % sizeof(int32_t) != 0) return CUDA_ERROR_INVALID_VALUE;
    uint32_t everywhere = ~uint32_t{0};
    driver().managed_ranges.visit(address, bytes,
                                  [&](const ManagedAdvice& advice) { everywhere &= advice.accessed_by; });
    size_t used = 0;
    size_t room = size / sizeof(int32_t);
    for (int gpu = 0; gpu < kMaxGpus && used < room; ++gpu) {
      if ((everywhere >> gpu & 1) != 0) out[used++] = gpu;
    }
    if ((everywhere & ManagedAdvice::kAccessedByHost) != 0 && used < room) out[used++] = Location::kHost;
    std::fill(out + used, out + room, Location::kNowhere);
    return CUDA_SUCCESS;
  }
  if (size != sizeof(int32_t)) return CUDA_ERROR_INVALID_VALUE;
  auto preferred = [&] {
    return common_location(address, bytes, [](const ManagedAdvice& advice) { return advice.preferred; });
  };
  auto last_prefetch = [&] {
    return common_location(address, bytes, [](const ManagedAdvice& advice) { return advice.last_prefetch; });
  };
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: {
      bool everywhere = true;
      bool somewhere = false;
      driver().managed_ranges.visit(address, bytes, [&](const ManagedAdvice& advice) {
        everywhere = everywhere && advice.read_mostly;
        somewhere = somewhere || advice.read_mostly;
      });
      *out = (mutated(Mutation::range_attributes_look_at_the_start) ? somewhere : everywhere) ? 1 : 0;
      return CUDA_SUCCESS;
    }
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *out = device_number(preferred());
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *out = device_number(last_prefetch());
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *out = static_cast<int32_t>(preferred().type);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *out = preferred().id;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *out = static_cast<int32_t>(last_prefetch().type);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *out = last_prefetch().id;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The location of most of a range's parts.
CUresult locations(CUdeviceptr address, size_t bytes, size_t summary, size_t sampling, CUmemLocation* out) {
  Allocation allocation;
  if (out == nullptr || summary == 0 || summary > bytes || sampling > summary) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(managed_range(address, bytes, &allocation));
  size_t step = std::max<size_t>(sampling, kManagedBlock);  // a block has one location
  uint64_t first = address - allocation.address;
  size_t region = 0;
  for (size_t start = 0; start < bytes; start += summary, ++region) {
    size_t end = start + std::min(summary, bytes - start);
    std::map<int, size_t> seen;
    for (size_t sample = start; sample < end; sample += step) {
      ++seen[driver().state().location(allocation.managed_id, first + sample)];
    }
    int most = std::max_element(seen.begin(), seen.end(), [](const auto& a, const auto& b) {
                 return a.second < b.second;
               })->first;
    CUmemLocationType on_host_or_not = most == kOnHost ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_NONE;
    out[region] = CUmemLocation{};
    out[region].type = most >= 0 ? CU_MEM_LOCATION_TYPE_DEVICE : on_host_or_not;
    out[region].id = most >= 0 ? most : 0;
    if (bytes - start <= summary) break;
  }
  return CUDA_SUCCESS;
}

CUresult attach(CUstream handle, CUdeviceptr address, size_t bytes, unsigned flags, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  bool single = flags == CU_MEM_ATTACH_SINGLE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && !single) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  // The default stream synchronizes with all streams, so no memory can belong to it exclusively.
  if (single && stream == context->legacy) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = driver().memory.find(address);
  if (!allocation || allocation->kind != MemoryKind::kManaged || allocation->address != address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes != 0 && bytes != allocation->bytes) return CUDA_ERROR_INVALID_VALUE;
  // Every simulated GPU has concurrent managed access, so the association has no effect; it keeps its order in the
  // stream.
  return driver().submit(stream, Operation{});
}

}  // namespace

ROTA_SIM_EXPORT(cuMemAdvise)(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return advise(address, bytes, advice, location_of_device(device));
}
ROTA_SIM_EXPORT(cuMemAdvise_v2)(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return advise(address, bytes, advice, location);
}
ROTA_SIM_EXPORT_FORMS(cuMemPrefetchAsync, _ptsz, (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
                      prefetch(address, bytes, location_of_device(device), 0, stream, form))
ROTA_SIM_EXPORT_FORMS(cuMemPrefetchAsync_v2, _ptsz,
                      (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream),
                      prefetch(address, bytes, location, flags, stream, form))

#define BATCHES(form, prefetch_name, discard_name, both_name)                                                    \
  ROTA_SIM_EXPORT(prefetch_name)                                                                                 \
  (CUdeviceptr * addresses, size_t* sizes, size_t count, CUmemLocation* locations, size_t* first, size_t number, \
   unsigned long long flags, CUstream stream) {                                                                  \
    return submit_batch({addresses, sizes, count, locations, first, number, false, true}, flags, stream, form);  \
  }                                                                                                              \
  ROTA_SIM_EXPORT(discard_name)                                                                                  \
  (CUdeviceptr * addresses, size_t* sizes, size_t count, unsigned long long flags, CUstream stream) {            \
    return submit_batch({addresses, sizes, count, nullptr, nullptr, 0, true, false}, flags, stream, form);       \
  }                                                                                                              \
  ROTA_SIM_EXPORT(both_name)                                                                                     \
  (CUdeviceptr * addresses, size_t* sizes, size_t count, CUmemLocation* locations, size_t* first, size_t number, \
   unsigned long long flags, CUstream stream) {                                                                  \
    return submit_batch({addresses, sizes, count, locations, first, number, true, true}, flags, stream, form);   \
  }
BATCHES(Form::kLegacy, cuMemPrefetchBatchAsync, cuMemDiscardBatchAsync, cuMemDiscardAndPrefetchBatchAsync)
BATCHES(Form::kPerThread, cuMemPrefetchBatchAsync_ptsz, cuMemDiscardBatchAsync_ptsz,
        cuMemDiscardAndPrefetchBatchAsync_ptsz)
#undef BATCHES

ROTA_SIM_EXPORT(cuMemRangeGetAttribute)
(void* data, size_t size, CUmem_range_attribute attribute, CUdeviceptr address, size_t bytes) {
  ROTA_SIM_READY();
  return range_attribute(data, size, attribute, address, bytes);
}
ROTA_SIM_EXPORT(cuMemRangeGetAttributes)
(void** data, size_t* sizes, CUmem_range_attribute* attributes, size_t count, CUdeviceptr address, size_t bytes) {
  ROTA_SIM_READY();
  if (data == nullptr || sizes == nullptr || attributes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t index = 0; index < count; ++index) {
    ROTA_SIM_CHECK(range_attribute(data[index], sizes[index], attributes[index], address, bytes));
  }
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuMemGetLocationInfo)
(CUdeviceptr address, size_t bytes, size_t summary, size_t sampling, CUmemLocation* out) {
  ROTA_SIM_READY();
  return locations(address, bytes, summary, sampling, out);
}

ROTA_SIM_EXPORT_FORMS(cuStreamAttachMemAsync, _ptsz,
                      (CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags),
                      attach(stream, address, bytes, flags, form))
