// Sets. A synchronous set of device memory returns before it completes; one of host or managed memory, or of memory
// with SYNC_MEMOPS, waits until it completes.
#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/context/peer.h"
#include "tools/simgpu/driver/copy/copies.h"
#include "tools/simgpu/driver/entry/mutations.h"

namespace rota::sim {
namespace {

struct Target {
  char* bytes = nullptr;
  size_t row = 0;   // bytes
  size_t span = 0;  // bytes from the first to one past the last
  uint64_t managed = 0;
  uint64_t memory_on = 0;  // as Operation's
  bool waits = false;
  std::shared_ptr<void> mapping;  // keeps managed and pinned memory while its bytes are used
};

bool empty(const CUDA_MEMSET_NODE_PARAMS& p) {
  return p.width == 0 || p.height == 0;
}

CUresult plan_set(Context& context, const CUDA_MEMSET_NODE_PARAMS& p, Target* target) {
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
  if (p.dst % p.elementSize != 0) return CUDA_ERROR_INVALID_VALUE;
  bool overflow = __builtin_mul_overflow(p.width, p.elementSize, &target->row);
  target->span = target->row;
  if (p.height > 1) {
    if (p.pitch % p.elementSize != 0 || p.pitch < target->row) return CUDA_ERROR_INVALID_VALUE;
    overflow |= __builtin_mul_overflow(p.height - 1, p.pitch, &target->span);
    overflow |= __builtin_add_overflow(target->span, target->row, &target->span);
  }
  if (overflow) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = driver().memory.find_for_work(p.dst);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->gpu != context.gpu && !accessible(context, *allocation)) return CUDA_ERROR_INVALID_VALUE;
  int gpu = allocation->physical ? context.gpu : -1;
  target->bytes = static_cast<char*>(driver().memory.storage(p.dst, target->span, gpu, true));
  target->mapping = allocation->mapping;
  if (target->bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->kind == MemoryKind::kManaged) target->managed = p.dst;
  if (allocation->kind == MemoryKind::kDevice) target->memory_on = uint64_t{1} << allocation->gpu;
  target->waits = allocation->kind != MemoryKind::kDevice || (driver().synchronous_memory.has(allocation->buffer_id) &&
                                                              !mutated(Mutation::synchronous_memory_does_not_wait));
  return CUDA_SUCCESS;
}

void fill_row(char* row, size_t bytes, unsigned value, unsigned element) {
  if (element == 1 || mutated(Mutation::set_takes_bytes)) {
    std::memset(row, static_cast<int>(value & 0xff), bytes);
    return;
  }
  // Doubles the filled part each time: filling element by element would take seconds per GiB.
  std::memcpy(row, &value, element);
  for (size_t filled = element; filled < bytes; filled *= 2) {
    std::memcpy(row + filled, row, std::min(filled, bytes - filled));
  }
}

// `judged`: the context whose access counts, wherever the set runs.
void run_set(Context& context, CUcontext judged, const CUDA_MEMSET_NODE_PARAMS& p) {
  Target target;
  if (empty(p)) return;
  const ContextPointer alive = driver().contexts.find(judged);
  if (plan_set(alive ? *alive : context, p, &target) != CUDA_SUCCESS) {
    context.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  const CostFigures& cost = driver().profile().cost;
  int64_t nanoseconds = cost.launch + nanoseconds_at(target.row * p.height, cost.device_bandwidth);
  if (target.managed != 0)
    driver().make_resident(target.managed, target.span, Access::kKernel, &nanoseconds, context.gpu);
  size_t pitch = mutated(Mutation::set_ignores_pitch) ? target.row : p.pitch;
  for (size_t row = 0; row < p.height; ++row) {
    fill_row(target.bytes + row * pitch, target.row, p.value, p.elementSize);
  }
  driver().occupy(context, EngineKind::kCompute, nanoseconds);
}

}  // namespace

CUresult make_set(Context& context, const CUDA_MEMSET_NODE_PARAMS& parameters, Operation* operation) {
  Target target;
  if (!empty(parameters)) ROTA_SIM_CHECK(plan_set(context, parameters, &target));
  operation->type = CU_GRAPH_NODE_TYPE_MEMSET;
  operation->parameters = SetParameters{parameters};
  operation->memory_on = target.memory_on;
  operation->run = [parameters, judged = context.handle()](Context& running) { run_set(running, judged, parameters); };
  return CUDA_SUCCESS;
}

CUresult set(const CUDA_MEMSET_NODE_PARAMS& parameters, bool asynchronous, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  if (empty(parameters)) return CUDA_SUCCESS;
  // The stream's GPU sets, whichever context is current (measured on two H200s, 580.159.04).
  const ContextPointer setter = driver().owner_of(*stream);
  if (!setter) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Context& setting = *setter;
  Target target;
  ROTA_SIM_CHECK(plan_set(setting, parameters, &target));
  Operation operation;
  ROTA_SIM_CHECK(make_set(setting, parameters, &operation));
  TaskPointer finished;
  ROTA_SIM_CHECK(driver().submit(stream, std::move(operation), &finished));
  bool wait = asynchronous ? mutated(Mutation::set_waits) : target.waits || mutated(Mutation::set_waits);
  if (!asynchronous && mutated(Mutation::set_of_host_memory_does_not_wait)) wait = false;
  if (!wait || !finished) return CUDA_SUCCESS;
  finished->wait();
  return static_cast<CUresult>(context->sticky.load());
}

CUDA_MEMSET_NODE_PARAMS plain_set(uint64_t to, unsigned value, unsigned element, size_t count) {
  CUDA_MEMSET_NODE_PARAMS parameters{};
  parameters.dst = to;
  parameters.value = value;
  parameters.elementSize = element;
  parameters.width = count;
  parameters.height = 1;
  return parameters;
}

}  // namespace rota::sim
