// For functions that add nodes to graphs: nodes that copy or set memory are recorded, so that it is known on which GPUs
// graphs work (runtime/gate/graph_reach.h).
#pragma once

#include "generated/driver_types.h"

namespace rota::overrides {

api::CUgraphNodeParams node_of(const api::CUDA_MEMCPY3D& copy, api::CUcontext context);
api::CUgraphNodeParams node_of(const api::CUDA_MEMSET_NODE_PARAMS& set, api::CUcontext context);
// Such a node has been added.
void node_added(const api::CUgraphNodeParams& node);

}  // namespace rota::overrides
