// A graph as text in Graphviz's language.
#include "tools/simgpu/driver/graph/dot.h"

#include <cstdio>

#include "tools/simgpu/driver/driver.h"

namespace rota::sim {
namespace {

const char* type_name(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "BATCH_MEM_OP";
    default:
      return "OTHER";
  }
}

std::string hexadecimal(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string by(const unsigned (&sizes)[3]) {
  return std::to_string(sizes[0]) + "x" + std::to_string(sizes[1]) + "x" + std::to_string(sizes[2]);
}

std::string name_of(const Graph& graph, const GraphNode& node) {
  return "\"graph_" + std::to_string(graph.id) + "_node_" + std::to_string(node.id) + "\"";
}

std::string label(const GraphNode& node, unsigned flags) {
  auto asked = [flags](unsigned flag) { return (flags & (CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE | flag)) != 0; };
  std::string text = std::to_string(node.id) + "\\n" + type_name(node.type());
  if (const auto* kernel = node.get<KernelParameters>()) {
    text += std::string("\\n") + kernel->function->kernel->name;
    if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS)) {
      text += "\\ngrid " + by(kernel->grid) + "\\nblock " + by(kernel->block) + "\\nshared " +
              std::to_string(kernel->shared_bytes);
    }
  } else if (const auto* copied = node.get<CopyParameters>()) {
    const CUDA_MEMCPY3D& copy = copied->copy;
    const char* const places[] = {"?", "host", "device", "array", "unified"};
    auto place = [&places](unsigned type) { return std::string(places[type <= 4 ? type : 0]); };
    text += "\\n" + place(copy.srcMemoryType) + " to " + place(copy.dstMemoryType);
    if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS)) {
      text += "\\n" + std::to_string(copy.WidthInBytes) + " x " + std::to_string(copy.Height) + " x " +
              std::to_string(copy.Depth);
    }
  } else if (const auto* set = node.get<SetParameters>()) {
    if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS)) {
      text += "\\n" + hexadecimal(set->set.dst) + "\\nvalue " + std::to_string(set->set.value);
    }
  } else if (const auto* allocation = node.get<AllocationParameters>()) {
    if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS)) {
      text += "\\n" + hexadecimal(allocation->allocation.dptr) + "\\nbytes " +
              std::to_string(allocation->allocation.bytesize);
    }
  } else if (const auto* freed = node.get<FreeParameters>()) {
    if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS)) text += "\\n" + hexadecimal(freed->address);
  }
  if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES)) {
    text += "\\nnode " + hexadecimal(reinterpret_cast<uint64_t>(node.handle()));
  }
  return text;
}

void describe(const Graph& graph, unsigned flags, std::string* text) {
  *text += "subgraph cluster_" + std::to_string(graph.id) + " {\nlabel=\"graph_" + std::to_string(graph.id) + "\";\n";
  for (const GraphNodePointer& node : graph.nodes) {
    *text += name_of(graph, *node) + " [shape=record, label=\"" + label(*node, flags) + "\"];\n";
    for (const GraphNode* earlier : node->after) {
      *text += name_of(graph, *earlier) + " -> " + name_of(graph, *node) + ";\n";
    }
  }
  *text += "}\n";
  for (const GraphNodePointer& node : graph.nodes) {
    if (const auto* child = node->get<ChildParameters>()) describe(*child->graph, flags, text);
  }
}

}  // namespace

std::string dot_text(const Graph& graph, unsigned flags) {
  std::string text = "digraph dot {\n";
  describe(graph, flags, &text);
  return text + "}\n";
}

bool write_dot(const std::string& text, const char* path) {
  std::FILE* file = std::fopen(path, "we");
  if (file == nullptr) return false;
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written;
}

}  // namespace rota::sim
