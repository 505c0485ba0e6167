// Kernel launches in all their forms.
#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

struct Shape {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
};
using Attributes = std::map<CUlaunchAttributeID, CUlaunchAttributeValue>;

// The stream, and the function as its context knows it.
struct Target {
  StreamPointer stream;
  FunctionPointer function;
};

CUresult find_target(CUfunction function, CUstream stream, Form form, Target* target) {
  ROTA_SIM_CONTEXT_FOR(stream, current);
  ROTA_SIM_CHECK(driver().stream_of(stream, form, current, &target->stream));
  ContextPointer owner = driver().owner_of(*target->stream);
  if (!owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return function_for_launch(function, owner, &target->function);
}

// Checks an event given to a launch.
CUresult check_event(CUevent handle, int flags) {
  EventPointer event = driver().events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  bool interprocess = (event->flags & CU_EVENT_INTERPROCESS) != 0;
  if (flags != CU_EVENT_RECORD_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  return event->timed() || interprocess ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

// The events of a launch, which are recorded once it is queued. They refer to the whole kernel: that all its blocks
// have started, or triggered the event, becomes visible only at its end, which the documentation allows.
std::vector<CUevent> events_of(const Attributes& attributes) {
  std::vector<CUevent> events;
  for (const auto& [id, value] : attributes) {
    if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) events.push_back(value.programmaticEvent.event);
    if (id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) events.push_back(value.launchCompletionEvent.event);
  }
  return events;
}

CUresult check_events(const Attributes& attributes) {
  for (const auto& [id, value] : attributes) {
    if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
      ROTA_SIM_CHECK(check_event(value.programmaticEvent.event, value.programmaticEvent.flags));
    } else if (id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      ROTA_SIM_CHECK(check_event(value.launchCompletionEvent.event, value.launchCompletionEvent.flags));
    }
  }
  return CUDA_SUCCESS;
}

CUresult submit(const Target& target, const KernelParameters& parameters, void** arguments) {
  ROTA_SIM_CHECK(check_events(parameters.attributes));
  Operation operation;
  ROTA_SIM_CHECK(make_launch(parameters, &operation));
  if (arguments != nullptr && mutated(Mutation::arguments_are_read_when_the_kernel_runs)) {
    operation.run = [late = KernelParameters(parameters), arguments](Context& context) mutable {
      Operation launched;
      pack_arguments(arguments, nullptr, &late);
      if (make_launch(late, &launched) == CUDA_SUCCESS) launched.run(context);
    };
  }
  TaskPointer task;
  ROTA_SIM_CHECK(driver().submit(target.stream, std::move(operation), &task));
  if (task && mutated(Mutation::launches_wait)) task->wait();
  if (mutated(Mutation::launches_record_no_events)) return CUDA_SUCCESS;
  for (CUevent event : events_of(parameters.attributes)) {
    ROTA_SIM_CHECK(record_in_stream(event, target.stream, false));
  }
  return CUDA_SUCCESS;
}

CUresult launch(CUfunction handle, const Shape& shape, CUstream stream, void** arguments, void** extra,
                Attributes attributes, Form form) {
  Target target;
  ROTA_SIM_CHECK(find_target(handle, stream, form, &target));
  KernelParameters parameters;
  parameters.function = target.function;
  std::copy(shape.grid, shape.grid + 3, parameters.grid);
  std::copy(shape.block, shape.block + 3, parameters.block);
  parameters.shared_bytes = shape.shared;
  parameters.attributes = std::move(attributes);
  ROTA_SIM_CHECK(pack_arguments(arguments, extra, &parameters));
  return submit(target, parameters, arguments);
}

CUresult launch_configured(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra,
                           Form form) {
  ROTA_SIM_READY();
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  Attributes attributes;
  for (unsigned index = 0; index < config->numAttrs; ++index) {
    const CUlaunchAttribute& attribute = config->attrs[index];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_IGNORE) attributes[attribute.id] = attribute.value;
  }
  Shape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
              {config->blockDimX, config->blockDimY, config->blockDimZ},
              config->sharedMemBytes};
  return launch(function, shape, config->hStream, arguments, extra, std::move(attributes), form);
}

CUresult launch_cooperative(CUfunction function, const Shape& shape, CUstream stream, void** arguments, Form form) {
  CUlaunchAttributeValue on{};
  on.cooperative = 1;
  return launch(function, shape, stream, arguments, nullptr, {{CU_LAUNCH_ATTRIBUTE_COOPERATIVE, on}}, form);
}

}  // namespace

#define LAUNCH_PARAMETERS                                                                                     \
  CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
      unsigned block_z, unsigned shared, CUstream stream, void **parameters
#define LAUNCH_SHAPE                                              \
  Shape {                                                         \
    {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared \
  }

ROTA_SIM_EXPORT(cuLaunchKernel)(LAUNCH_PARAMETERS, void** extra) {
  return launch(function, LAUNCH_SHAPE, stream, parameters, extra, {}, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuLaunchKernel_ptsz)(LAUNCH_PARAMETERS, void** extra) {
  return launch(function, LAUNCH_SHAPE, stream, parameters, extra, {}, Form::kPerThread);
}
ROTA_SIM_EXPORT_FORMS(cuLaunchCooperativeKernel, _ptsz, (LAUNCH_PARAMETERS),
                      launch_cooperative(function, LAUNCH_SHAPE, stream, parameters, form))
ROTA_SIM_EXPORT_FORMS(cuLaunchKernelEx, _ptsz,
                      (const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra),
                      launch_configured(config, function, parameters, extra, form))
