// Copies.
//
// When a call returns, by the kinds of memory on both sides (the driver's documented rules):
//   synchronous:  device to device does not wait, unless one side is managed (measured on driver 580.159) or has
//                 SYNC_MEMOPS; all others wait for their end.
//   asynchronous: host to host waits for the end; device to pageable host too; pageable host to device returns when the
//                 source has been read, at once, into a staging buffer; all others do not wait.
#include "tools/simgpu/driver/copy/copies.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tools/simgpu/driver/array/array.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/memory/host_pages.h"

namespace rota::sim {
namespace {

constexpr uint64_t kMaxPitch = 0x7fffffff;  // CU_DEVICE_ATTRIBUTE_MAX_PITCH

// Arithmetic that records an overflow.
struct Checked {
  uint64_t value = 0;
  bool ok = true;
  Checked(uint64_t value) : value(value) {}  // NOLINT(google-explicit-constructor): mixes with plain numbers
  Checked(uint64_t value, bool ok) : value(value), ok(ok) {}
};
Checked operator+(Checked a, Checked b) {
  uint64_t sum = 0;
  bool overflow = __builtin_add_overflow(a.value, b.value, &sum);
  return {sum, a.ok && b.ok && !overflow};
}
Checked operator*(Checked a, Checked b) {
  uint64_t product = 0;
  bool overflow = __builtin_mul_overflow(a.value, b.value, &product);
  return {product, a.ok && b.ok && !overflow};
}

struct Extent {
  size_t width = 0;  // bytes
  size_t height = 0;
  size_t depth = 0;
  size_t bytes() const { return width * height * depth; }
};

// One side of a copy as given by the parameters …
struct Side {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  uint64_t base = 0;  // of linear memory
  CUarray array = nullptr;
  size_t x = 0;  // bytes
  size_t y = 0;
  size_t z = 0;
  size_t pitch = 0;
  size_t height = 0;
  void* context = nullptr;  // that the call names; null: none
};

// … and as resolved in this process.
struct Place {
  char* bytes = nullptr;  // the first byte to copy
  size_t pitch = 0;       // bytes between rows
  size_t slice = 0;       // bytes between slices
  size_t span = 0;        // bytes from the first to one past the last
  bool device = false;    // on a GPU, or managed
  bool pageable = true;
  bool synchronous = false;  // SYNC_MEMOPS, or managed
  int gpu = 0;
  uint64_t managed = 0;           // address, if managed
  std::shared_ptr<Array> array;   // kept alive while its bytes are used …
  std::shared_ptr<void> mapping;  // … as is managed and pinned memory
};

struct Plan {
  Extent extent;
  Place to;
  Place from;
};

CUresult locate_array(const Side& side, const Extent& extent, Place* place) {
  std::shared_ptr<Array> array = driver().arrays.find(side.array);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (!array->bytes) return CUDA_ERROR_INVALID_VALUE;  // nothing is mapped to it
  Checked right = Checked(side.x) + extent.width;
  Checked bottom = Checked(side.y) + extent.height;
  Checked back = Checked(side.z) + extent.depth;
  bool inside = right.ok && bottom.ok && back.ok && right.value <= array->row_bytes && bottom.value <= array->rows &&
                back.value <= array->slices;
  if (!inside) return CUDA_ERROR_INVALID_VALUE;
  place->pitch = array->row_bytes;
  place->slice = array->row_bytes * array->rows;
  place->bytes = array->bytes.get() + side.z * place->slice + side.y * place->pitch + side.x;
  place->device = true;
  place->pageable = false;
  place->gpu = array->gpu;
  place->array = std::move(array);
  return CUDA_SUCCESS;
}

CUresult locate_linear(const Context& context, const Side& side, const Extent& extent, bool write, Place* place) {
  if (side.base == 0) return CUDA_ERROR_INVALID_VALUE;
  Checked right = Checked(side.x) + extent.width;
  Checked bottom = Checked(side.y) + extent.height;
  if (!right.ok || !bottom.ok) return CUDA_ERROR_INVALID_VALUE;
  // Zero means rows and slices without gaps. The height matters only if there are several slices.
  uint64_t pitch = side.pitch != 0 ? side.pitch : right.value;
  uint64_t height = side.height != 0 ? side.height : bottom.value;
  bool many_rows = extent.height > 1 || extent.depth > 1;
  if (many_rows && (pitch < right.value || side.pitch > kMaxPitch)) return CUDA_ERROR_INVALID_VALUE;
  if (extent.depth > 1 && height < bottom.value) return CUDA_ERROR_INVALID_VALUE;
  Checked slice = Checked(pitch) * height;
  Checked start = Checked(side.base) + (Checked(side.z) * height + side.y) * pitch + side.x;
  Checked span = (Checked(extent.depth - 1) * height + (extent.height - 1)) * pitch + extent.width;
  Checked end = start + span;
  if (!end.ok || (extent.depth > 1 && !slice.ok)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = start.value;
  place->pitch = pitch;
  place->slice = slice.value;
  place->span = span.value;
  place->gpu = context.gpu;
  auto allocation = driver().memory.find_for_work(address);
  if (!allocation) {
    // A device pointer outside every allocation must not be read as host memory.
    if (side.type == CU_MEMORYTYPE_DEVICE || driver().memory.in_device_window(address)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (side.type == CU_MEMORYTYPE_UNIFIED && !host_pages_exist(address, span.value)) return CUDA_ERROR_INVALID_VALUE;
    place->bytes = reinterpret_cast<char*>(address);
    return CUDA_SUCCESS;
  }
  if (allocation->kind == MemoryKind::kDevice && side.type == CU_MEMORYTYPE_HOST) return CUDA_ERROR_INVALID_VALUE;
  // Mappings of physical memory have access rights: of the current context, or of the one that the call names. A copy
  // may reach any other memory from every GPU (both measured on driver 580.159).
  const ContextPointer named =
      side.context != nullptr ? driver().contexts.find(static_cast<CUcontext>(side.context)) : nullptr;
  int gpu = allocation->physical ? (named ? named->gpu : context.gpu) : -1;
  place->bytes = static_cast<char*>(driver().memory.storage(address, span.value, gpu, write));
  if (place->bytes == nullptr) {
    // Host memory may extend beyond what was registered; simgpu's own memory may not.
    if (allocation->kind != MemoryKind::kRegistered) return CUDA_ERROR_INVALID_VALUE;
    place->bytes = reinterpret_cast<char*>(address);
    return CUDA_SUCCESS;
  }
  place->pageable = false;
  place->mapping = allocation->mapping;
  bool managed = allocation->kind == MemoryKind::kManaged;
  place->device = allocation->kind == MemoryKind::kDevice || (managed && side.type != CU_MEMORYTYPE_HOST);
  // Managed memory migrates to the GPU that copies it.
  if (allocation->kind == MemoryKind::kDevice) place->gpu = allocation->gpu;
  if (managed && place->device) place->managed = address;
  place->synchronous = (managed && !mutated(Mutation::managed_copies_do_not_wait)) ||
                       driver().synchronous_memory.has(allocation->buffer_id);
  return CUDA_SUCCESS;
}

CUresult locate(const Context& context, const Side& side, const Extent& extent, bool write, Place* place) {
  switch (side.type) {
    case CU_MEMORYTYPE_ARRAY:
      return locate_array(side, extent, place);
    case CU_MEMORYTYPE_HOST:
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      return locate_linear(context, side, extent, write, place);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult plan_copy(const Context& context, const CUDA_MEMCPY3D& p, Plan* plan) {
  plan->extent = {p.WidthInBytes, p.Height, p.Depth};
  Checked bytes = Checked(p.WidthInBytes) * p.Height * p.Depth;
  if (!bytes.ok) return CUDA_ERROR_INVALID_VALUE;
  auto linear = [](CUmemorytype type, const void* host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
  };
  Side to{p.dstMemoryType, linear(p.dstMemoryType, p.dstHost, p.dstDevice),
          p.dstArray,      p.dstXInBytes,
          p.dstY,          p.dstZ,
          p.dstPitch,      p.dstHeight,
          p.reserved1};
  Side from{p.srcMemoryType, linear(p.srcMemoryType, p.srcHost, p.srcDevice),
            p.srcArray,      p.srcXInBytes,
            p.srcY,          p.srcZ,
            p.srcPitch,      p.srcHeight,
            p.reserved0};
  if (mutated(Mutation::copy_ignores_offsets)) to.x = to.y = to.z = from.x = from.y = from.z = 0;
  ROTA_SIM_CHECK(locate(context, to, plan->extent, true, &plan->to));
  ROTA_SIM_CHECK(locate(context, from, plan->extent, false, &plan->from));
  if (plan->to.array && plan->from.array && plan->to.array->element != plan->from.array->element) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

bool empty(const CUDA_MEMCPY3D& p) {
  return p.WidthInBytes == 0 || p.Height == 0 || p.Depth == 0;
}

// Has Linux make the pages that a large copy writes in one call: a fault for each page takes longer than the copy.
void make_pages(char* to, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  constexpr size_t kPage = 4096;
  constexpr size_t kLarge = 64 * kPage;
  if (bytes < kLarge) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(to) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(to) + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);  // if it fails, each page has its fault
#endif
}

void move_bytes(const Extent& extent, const Place& to, const Place& from) {
  size_t to_pitch = mutated(Mutation::copy_ignores_pitch) ? extent.width : to.pitch;
  size_t slices = mutated(Mutation::copy_forgets_slices) ? 1 : extent.depth;
  for (size_t slice = 0; slice < slices; ++slice) {
    for (size_t row = 0; row < extent.height; ++row) {
      char* const into = to.bytes + slice * to.slice + row * to_pitch;
      make_pages(into, extent.width);
      std::memmove(into, from.bytes + slice * from.slice + row * from.pitch, extent.width);
    }
  }
}

void perform(Context& context, const Plan& plan) {
  const auto& [extent, to, from] = plan;
  size_t bytes = extent.bytes();
  int64_t migration = 0;
  const CostFigures& cost = driver().profile().cost;
  if (to.managed != 0) driver().make_resident(to.managed, to.span, Access::kCopy, &migration, context.gpu);
  if (from.managed != 0) driver().make_resident(from.managed, from.span, Access::kCopy, &migration, context.gpu);
  move_bytes(extent, to, from);
  if (to.device && from.device && to.gpu != from.gpu) {
    driver().occupy(context, EngineKind::kPeer, migration + nanoseconds_at(bytes, cost.peer));
  } else if (to.device && from.device) {
    driver().occupy(context, EngineKind::kCompute, migration + nanoseconds_at(2 * bytes, cost.device_bandwidth));
  } else if (to.device) {
    driver().state().count_copy(context.gpu, EngineKind::kHostToDevice, bytes);
    double rate = from.pageable ? cost.pageable_host_to_device : cost.pinned_host_to_device;
    driver().occupy(context, EngineKind::kHostToDevice, migration + nanoseconds_at(bytes, rate),
                    from.pageable ? Link::kStaged : Link::kFull);
  } else if (from.device) {
    driver().state().count_copy(context.gpu, EngineKind::kDeviceToHost, bytes);
    double rate = to.pageable ? cost.pageable_device_to_host : cost.pinned_device_to_host;
    driver().occupy(context, EngineKind::kDeviceToHost, migration + nanoseconds_at(bytes, rate),
                    to.pageable ? Link::kStaged : Link::kFull);
  }
}

// The copy with the contexts by which access is checked wherever it runs: those that the call names, or else the
// current one. The stream's context does not count, nor that of the stream in which a graph is launched (measured on
// two H200s, 580.159.04).
CUDA_MEMCPY3D as_judged(Context& current, CUDA_MEMCPY3D parameters) {
  if (parameters.reserved0 == nullptr) parameters.reserved0 = current.handle();
  if (parameters.reserved1 == nullptr) parameters.reserved1 = current.handle();
  return parameters;
}

void run_copy(Context& context, const CUDA_MEMCPY3D& parameters) {
  Plan plan;
  if (plan_copy(context, parameters, &plan) != CUDA_SUCCESS) {
    context.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  perform(context, plan);
}

// No stream captures a copy between contexts of two GPUs (measured on two H200s, 580.159.04).
bool names_two_gpus(const CUDA_MEMCPY3D& parameters) {
  const ContextPointer from = driver().contexts.find(static_cast<CUcontext>(parameters.reserved0));
  const ContextPointer to = driver().contexts.find(static_cast<CUcontext>(parameters.reserved1));
  return from && to && from->gpu != to->gpu;
}

// A copy of the source's bytes, made now. Null if out of memory.
std::shared_ptr<char> read_now(const Plan& plan) {
  std::shared_ptr<char> staged(static_cast<char*>(std::malloc(std::max<size_t>(plan.extent.bytes(), 1))), std::free);
  if (!staged) return nullptr;
  Place packed;
  packed.bytes = staged.get();
  packed.pitch = plan.extent.width;
  packed.slice = plan.extent.width * plan.extent.height;
  Extent extent = plan.extent;
  for (size_t slice = 0; slice < extent.depth; ++slice) {
    for (size_t row = 0; row < extent.height; ++row) {
      std::memcpy(packed.bytes + slice * packed.slice + row * packed.pitch,
                  plan.from.bytes + slice * plan.from.slice + row * plan.from.pitch, extent.width);
    }
  }
  return staged;
}

// The copy from a staging buffer: its destination is as in the parameters.
CUDA_MEMCPY3D from_staging(CUDA_MEMCPY3D parameters, const std::shared_ptr<char>& staged) {
  parameters.srcMemoryType = CU_MEMORYTYPE_HOST;
  parameters.srcHost = staged.get();
  parameters.srcXInBytes = parameters.srcY = parameters.srcZ = 0;
  parameters.srcPitch = parameters.srcHeight = 0;
  return parameters;
}

// Whether the call must wait until the copy has completed.
bool waits(const Plan& plan, bool asynchronous) {
  if (plan.to.device && plan.from.device) {
    if (asynchronous) return false;
    if (mutated(Mutation::device_copy_waits)) return true;
    bool synchronous = plan.to.synchronous || plan.from.synchronous;
    return synchronous && !mutated(Mutation::synchronous_memory_does_not_wait);
  }
  if (!asynchronous) return !mutated(Mutation::synchronous_copy_returns_early);
  if (!plan.to.device && !plan.from.device) return !mutated(Mutation::host_copy_returns_early);
  if (mutated(Mutation::pinned_copy_waits)) return true;
  return !plan.to.device && plan.to.pageable && !mutated(Mutation::pageable_copy_returns_early);
}

uint64_t memory_of(const Plan& plan) {
  uint64_t gpus = 0;
  for (const Place* place : {&plan.to, &plan.from}) {
    if (place->device && place->managed == 0) gpus |= uint64_t{1} << place->gpu;
  }
  return gpus;
}

CUresult submit_copy(const ContextPointer& context, const StreamPointer& stream, const CUDA_MEMCPY3D& parameters,
                     const Plan& plan, const CapturePointer& capture, bool staged, bool wait) {
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  operation.parameters = CopyParameters{parameters};
  operation.memory_on = memory_of(plan);
  if (staged && !mutated(Mutation::pageable_source_read_late)) {
    std::shared_ptr<char> bytes = read_now(plan);
    if (!bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    operation.run = [copy = from_staging(as_judged(*context, parameters), bytes), bytes](Context& running) {
      run_copy(running, copy);
    };
  } else {
    operation.run = [copy = as_judged(*context, parameters)](Context& running) { run_copy(running, copy); };
  }
  TaskPointer finished;
  ROTA_SIM_CHECK(driver().submit(stream, std::move(operation), &finished, capture));
  if (!wait || !finished) return CUDA_SUCCESS;
  finished->wait();
  return static_cast<CUresult>(context->sticky.load());
}

}  // namespace

CUresult make_copy(Context& context, const CUDA_MEMCPY3D& parameters, Operation* operation) {
  Plan plan;
  if (!empty(parameters)) ROTA_SIM_CHECK(plan_copy(context, parameters, &plan));
  operation->type = CU_GRAPH_NODE_TYPE_MEMCPY;
  operation->parameters = CopyParameters{parameters};
  operation->memory_on = memory_of(plan);
  operation->run = [copy = as_judged(context, parameters)](Context& running) {
    if (!empty(copy)) run_copy(running, copy);
  };
  return CUDA_SUCCESS;
}

CUresult copy(const CUDA_MEMCPY3D& parameters, bool asynchronous, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  // Measured on driver 580.159: not one of the calls that are unsafe while capturing; the default stream has its own
  // rules.
  if (!asynchronous && mutated(Mutation::copies_are_unsafe_while_capturing)) {
    ROTA_SIM_CHECK(driver().check_unsafe_call());
  }
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  if (empty(parameters)) return CUDA_SUCCESS;
  Plan plan;
  ROTA_SIM_CHECK(plan_copy(*context, parameters, &plan));
  CapturePointer capture = driver().captures.of(*stream);
  if (capture && names_two_gpus(parameters)) {
    const std::lock_guard lock(driver().captures.mutex);
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  bool staged = asynchronous && !capture && plan.from.pageable && !plan.from.device && plan.to.device;
  return submit_copy(context, stream, parameters, plan, capture, staged, !capture && waits(plan, asynchronous));
}

CUresult queue_copy(const ContextPointer& context, const StreamPointer& stream, const CUDA_MEMCPY3D& parameters,
                    SourceOrder order) {
  if (empty(parameters)) return CUDA_SUCCESS;
  Plan plan;
  ROTA_SIM_CHECK(plan_copy(*context, parameters, &plan));
  CapturePointer capture = driver().captures.of(*stream);
  bool staged = order == SourceOrder::kDuringCall && !capture && !plan.from.device;
  bool wait = !capture && order == SourceOrder::kDuringCall && plan.from.device;
  return submit_copy(context, stream, parameters, plan, capture, staged, wait);
}

CUDA_MEMCPY3D plain_copy(CUmemorytype to_type, uint64_t to, CUmemorytype from_type, uint64_t from, size_t bytes) {
  CUDA_MEMCPY3D parameters{};
  parameters.dstMemoryType = to_type;
  parameters.srcMemoryType = from_type;
  if (to_type == CU_MEMORYTYPE_HOST) {
    parameters.dstHost = reinterpret_cast<void*>(to);
  } else {
    parameters.dstDevice = to;
  }
  if (from_type == CU_MEMORYTYPE_HOST) {
    parameters.srcHost = reinterpret_cast<const void*>(from);
  } else {
    parameters.srcDevice = from;
  }
  parameters.WidthInBytes = bytes;
  parameters.Height = 1;
  parameters.Depth = 1;
  return parameters;
}

}  // namespace rota::sim
