// Arrays whose pointer and count are both fields of one struct. The headers do not say which field counts which array,
// so this list is written by hand. For a struct that is missing here, a trace shows such a pointer as an address.
#include <fmt/format.h>

#include "codegen/emit_trace.h"

namespace rota::codegen {
namespace {

struct List {
  std::string_view record;  // tag
  std::string_view pointer;
  std::string_view count;
  // The size of an element in bytes, the same in every known release. If releases differed, a tracer could not tell
  // which layout its program uses.
  std::uint64_t element;
};

constexpr List kLists[] = {
    {"CUlaunchConfig_st", "attrs", "numAttrs", 72},
    {"cudaLaunchConfig_st", "attrs", "numAttrs", 72},
    {"CUctxCreateParams_st", "execAffinityParams", "numExecAffinityParams", 8},
    {"CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st", "paramArray", "count", 48},
    {"CUDA_BATCH_MEM_OP_NODE_PARAMS_v2_st", "paramArray", "count", 48},
    {"CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_st", "extSemArray", "numExtSems", 8},
    {"CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_st", "paramsArray", "numExtSems", 144},
    {"CUDA_EXT_SEM_WAIT_NODE_PARAMS_st", "extSemArray", "numExtSems", 8},
    {"CUDA_EXT_SEM_WAIT_NODE_PARAMS_st", "paramsArray", "numExtSems", 144},
    {"cudaExternalSemaphoreSignalNodeParams", "extSemArray", "numExtSems", 8},
    {"cudaExternalSemaphoreSignalNodeParams", "paramsArray", "numExtSems", 144},
    {"cudaExternalSemaphoreWaitNodeParams", "extSemArray", "numExtSems", 8},
    {"cudaExternalSemaphoreWaitNodeParams", "paramsArray", "numExtSems", 144},
    {"CUDA_MEM_ALLOC_NODE_PARAMS_v1_st", "accessDescs", "accessDescCount", 12},
    {"CUDA_MEM_ALLOC_NODE_PARAMS_v2_st", "accessDescs", "accessDescCount", 12},
    {"cudaMemAllocNodeParams", "accessDescs", "accessDescCount", 12},
};

}  // namespace

Result<std::vector<TraceCapture>> lists_behind(const Api& api, const TraceCapture& record) {
  std::vector<TraceCapture> lists;
  const auto type = api.resolve(record.type);
  if (!type) return type.error();
  if (type->kind != TypeKind::kRecord || record.list) return lists;
  for (const List& list : kLists) {
    if (list.record != type->record->name) continue;
    const Field* const pointer = type->record->find_field(list.pointer);
    const Field* const count = type->record->find_field(list.count);
    if (pointer == nullptr || count == nullptr) {
      return Error{fmt::format("{} has no fields {} and {} (codegen/emit_trace_lists.cpp)", list.record, list.pointer,
                               list.count)};
    }
    const auto address = api.resolve(pointer->type);
    const auto number = api.resolve(count->type);
    if (!address) return address.error();
    if (!number) return number.error();
    const auto element = api.resolve(address->pointee);
    if (!element) return element.error();
    if (element->size != list.element) {
      return Error{
          fmt::format("an element of {}.{} has {} bytes, not {}: if its size differs between releases, remove the "
                      "entry from codegen/emit_trace_lists.cpp, otherwise correct the size there",
                      list.record, list.pointer, element->size, list.element)};
    }
    // In an older release the struct may end before these fields.
    if (pointer->offset + 8 > record.bytes || count->offset + number->size > record.bytes) continue;
    TraceCapture capture;
    capture.parameter = record.parameter;
    capture.list = true;
    capture.type = address->pointee;
    capture.bytes = element->size;
    capture.behind = {.field = std::string(list.pointer),
                      .pointer = pointer->offset,
                      .count = count->offset,
                      .count_bytes = number->size};
    lists.push_back(capture);
  }
  return lists;
}

}  // namespace rota::codegen
