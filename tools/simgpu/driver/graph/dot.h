// A graph as text in Graphviz's language.
#pragma once

#include <string>

#include "tools/simgpu/driver/graph/graph.h"

namespace rota::sim {

// Under the graphs' mutex. Writes the parameters of every node type selected by the CUgraphDebugDot_flags.
std::string dot_text(const Graph& graph, unsigned flags);
bool write_dot(const std::string& text, const char* path);

}  // namespace rota::sim
