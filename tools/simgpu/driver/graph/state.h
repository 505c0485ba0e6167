// What graphs share in a process: their lock and the handles of their parts.
#pragma once

#include <mutex>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/graph/memory.h"
#include "tools/simgpu/driver/graph/user_object.h"

namespace rota::sim {

struct GraphState {
  // Guards all graphs, executable graphs' copies and nodes. After the captures' mutex, before registries' and the
  // graph memory's; nothing is waited for under it.
  std::mutex mutex;
  Registry<CUgraphNode, GraphNode> nodes;
  Registry<CUuserObject, UserObject> user_objects;
  GraphMemory memory;
};

// Made by the first call and never destroyed, as the driver.
GraphState& graph_state();

}  // namespace rota::sim
