// State shared by a process's graphs: their lock and the handles of their parts.
#pragma once

#include <mutex>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/graph/memory.h"
#include "tools/simgpu/driver/graph/user_object.h"

namespace rota::sim {

struct GraphState {
  // Guards all graphs, executable graphs' copies and nodes. Lock order: after the captures' mutex, before those of
  // registries and graph memory. Never wait for anything under it.
  std::mutex mutex;
  Registry<CUgraphNode, GraphNode> nodes;
  Registry<CUuserObject, UserObject> user_objects;
  GraphMemory memory;
};

// Created by the first call and never destroyed, like the driver.
GraphState& graph_state();

}  // namespace rota::sim
