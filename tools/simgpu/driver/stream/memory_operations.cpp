// Checks and runs stream memory operations.
#include "tools/simgpu/driver/stream/memory_operations.h"

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

namespace rota::sim {
namespace {

// The driver refuses more, as documented for cuStreamBatchMemOp.
constexpr unsigned kOperationsAtMost = 255;

CUresult check_address(uint64_t address, uint64_t bytes) {
  bool aligned = address % bytes == 0 || mutated(Mutation::memory_operations_take_any_alignment);
  auto allocation = driver().memory.find(address);
  if (!aligned || !allocation || driver().memory.storage(address, bytes) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool managed = allocation->kind == MemoryKind::kManaged;
  if (managed && !mutated(Mutation::memory_operations_take_managed_memory)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult check_wait(const CUstreamBatchMemOpParams& operation, uint64_t bytes) {
  unsigned flags = operation.waitValue.flags;
  // This needs a platform whose devices can flush remote writes.
  if ((flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
  return check_address(operation.waitValue.address, bytes);
}

CUresult check_write(const CUstreamBatchMemOpParams& operation, uint64_t bytes) {
  // The other flag exists only in the first version of these functions.
  if (operation.writeValue.flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  return check_address(operation.writeValue.address, bytes);
}

CUresult check(const CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return check_wait(operation, sizeof(uint32_t));
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return check_wait(operation, sizeof(uint64_t));
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return check_write(operation, sizeof(uint32_t));
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return check_write(operation, sizeof(uint64_t));
    case CU_STREAM_MEM_OP_BARRIER:
      return operation.memoryBarrier.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_ERROR_INVALID_VALUE
                                                                               : CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_ATOMIC_REDUCTION:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// The value may be written by a plain copy on another thread: these operations are used that way.
template <class Value>
__attribute__((no_sanitize("thread"))) Value look(const void* memory) {
  return *static_cast<const volatile Value*>(memory);
}

template <class Value>
__attribute__((no_sanitize("thread"))) void put(void* memory, Value value) {
  // Whoever sees the value also sees the stream's earlier work. (ThreadSanitizer does not support fences.)
  __atomic_store_n(static_cast<Value*>(memory), value, __ATOMIC_SEQ_CST);
}

template <class Value>
bool holds(Value now, Value value, unsigned flags) {
  if (mutated(Mutation::value_waits_compare_for_equality)) return now == value;
  if (mutated(Mutation::value_waits_compare_for_order)) flags = CU_STREAM_WAIT_VALUE_GEQ;
  switch (flags) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return static_cast<Value>(~(now | value)) != 0;
    default: {  // cyclic: the difference, as a signed number, is not negative
      bool plain = mutated(Mutation::value_waits_are_not_cyclic);
      return plain ? now >= value : static_cast<std::make_signed_t<Value>>(now - value) >= 0;
    }
  }
}

template <class Value>
void wait_for_value(Context& context, uint64_t address, Value value, unsigned flags) {
  if (mutated(Mutation::value_waits_are_ignored)) return;
  bool lost = false;
  const Context* running = running_context();  // not in the predicate, which other threads run too
  // Host code may write it without notice, so it is polled.
  process_clock().wait([&] {
    // A captured wait belongs to the context that it was captured in, and runs for that of the stream it is launched
    // in.
    if (is_destroyed(&context) || is_destroyed(running)) return true;
    // Held while it is read: the memory may be freed meanwhile.
    auto held = driver().memory.find(address);
    void* memory = driver().memory.storage(address, sizeof(Value));
    lost = memory == nullptr;
    return lost || holds(look<Value>(memory), value, flags);
  });
  if (lost) context.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
}

template <class Value>
void write_value(Context& context, uint64_t address, Value value) {
  if (mutated(Mutation::value_writes_are_lost)) return;
  auto held = driver().memory.find(address);
  void* memory = driver().memory.storage(address, sizeof(Value));
  if (memory == nullptr) return context.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  put(memory, value);
}

void run_memory_operations(Context& context, const std::vector<CUstreamBatchMemOpParams>& operations) {
  for (const CUstreamBatchMemOpParams& each : operations) {
    if (context.sticky.load(std::memory_order_acquire) != 0) return;
    switch (each.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        wait_for_value<uint32_t>(context, each.waitValue.address, each.waitValue.value, each.waitValue.flags);
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        wait_for_value<uint64_t>(context, each.waitValue.address, each.waitValue.value64, each.waitValue.flags);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        write_value<uint32_t>(context, each.writeValue.address, each.writeValue.value);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        write_value<uint64_t>(context, each.writeValue.address, each.writeValue.value64);
        break;
      default:
        break;  // barriers: a stream's work is ordered anyway
    }
  }
}

}  // namespace

CUresult make_memory_operations(const CUstreamBatchMemOpParams* list, unsigned count, unsigned flags,
                                const ContextPointer& context, Operation* operation) {
  if (flags != 0 || list == nullptr || count == 0 || count > kOperationsAtMost) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned index = 0; index < count; ++index) {
    if (CUresult result = check(list[index]); result != CUDA_SUCCESS) return result;
  }
  std::vector<CUstreamBatchMemOpParams> all(list, list + count);
  operation->type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  operation->parameters = MemoryOperationParameters{all, flags};
  operation->home = context;
  operation->run = [all = std::move(all)](Context& running) { run_memory_operations(running, all); };
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
