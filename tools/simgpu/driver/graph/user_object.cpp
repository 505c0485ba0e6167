// User objects and the thread that calls their destructors.
#include "tools/simgpu/driver/graph/user_object.h"

#include <climits>

#include "tools/simgpu/driver/graph/state.h"
#include "tools/simgpu/driver/launch/host_function.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace rota::sim {
namespace {

// Destructors run on a separate thread, which never ends: a stream's thread, or a caller that holds locks, may release
// a graph and with it the last reference.
Stream& destructor_thread() {
  static auto* stream = new Stream(nullptr, CU_STREAM_NON_BLOCKING, 0);
  return *stream;
}

}  // namespace

bool UserObject::retain(unsigned count) {
  std::lock_guard lock(mutex);
  if (references == 0 || references > UINT64_MAX - count) return false;
  references += count;
  return true;
}

bool UserObject::release(unsigned count) {
  {
    std::lock_guard lock(mutex);
    if (count > references) return false;
    references -= count;
    if (references != 0) return true;
  }
  graph_state().user_objects.remove(handle());
  if (mutated(Mutation::user_objects_are_never_destroyed)) return true;
  auto task = std::make_shared<Task>();
  task->context = nullptr;  // no context: this thread's may have ended by then
  task->work = [function = destroy, argument = data] { run_host_function(function, argument); };
  destructor_thread().push(std::move(task));
  return true;
}

}  // namespace rota::sim

namespace {

bool countable(unsigned count) {
  return count != 0 && count <= INT_MAX;
}

CUresult graph_and_object(CUgraph graph_handle, CUuserObject handle, unsigned count, GraphPointer* graph,
                          std::shared_ptr<UserObject>* object) {
  ROTA_SIM_CHECK(find_graph(graph_handle, graph));
  *object = graph_state().user_objects.find(handle);
  return *object && countable(count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

ROTA_SIM_EXPORT(cuUserObjectCreate)
(CUuserObject* out, void* data, CUhostFn destroy, unsigned references, unsigned flags) {
  ROTA_SIM_READY();
  if (out == nullptr || destroy == nullptr || !countable(references)) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  *out = graph_state().user_objects.add(std::make_shared<UserObject>(data, destroy, references));
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuUserObjectRetain)(CUuserObject handle, unsigned count) {
  ROTA_SIM_READY();
  auto object = graph_state().user_objects.find(handle);
  return object && countable(count) && object->retain(count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ROTA_SIM_EXPORT(cuUserObjectRelease)(CUuserObject handle, unsigned count) {
  ROTA_SIM_READY();
  auto object = graph_state().user_objects.find(handle);
  return object && countable(count) && object->release(count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ROTA_SIM_EXPORT(cuGraphRetainUserObject)
(CUgraph graph_handle, CUuserObject handle, unsigned count, unsigned flags) {
  ROTA_SIM_READY();
  GraphPointer graph;
  std::shared_ptr<UserObject> object;
  ROTA_SIM_CHECK(graph_and_object(graph_handle, handle, count, &graph, &object));
  bool moved = flags == CU_GRAPH_USER_OBJECT_MOVE;
  if ((flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_state().mutex);
  unsigned& held = graph->user_objects[object];
  bool fits = held <= INT_MAX - count;
  if (fits && (moved || object->retain(count))) {
    held += count;
    return CUDA_SUCCESS;
  }
  if (held == 0) graph->user_objects.erase(object);
  return CUDA_ERROR_INVALID_VALUE;
}
ROTA_SIM_EXPORT(cuGraphReleaseUserObject)(CUgraph graph_handle, CUuserObject handle, unsigned count) {
  ROTA_SIM_READY();
  GraphPointer graph;
  std::shared_ptr<UserObject> object;
  ROTA_SIM_CHECK(graph_and_object(graph_handle, handle, count, &graph, &object));
  {
    std::lock_guard lock(graph_state().mutex);
    auto held = graph->user_objects.find(object);
    if (held == graph->user_objects.end() || held->second < count) return CUDA_ERROR_INVALID_VALUE;
    held->second -= count;
    if (held->second == 0) graph->user_objects.erase(held);
  }
  object->release(count);
  return CUDA_SUCCESS;
}
