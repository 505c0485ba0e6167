// Launches, and graphs: the addresses in nodes are examined when the nodes are added or changed.
#include "tests/unit/runtime/memory/on_simgpu/out_of_place/program.h"

namespace rota::test {
namespace {

constexpr unsigned kThreads = 64;
constexpr std::uint64_t kWords = 16;
constexpr unsigned kValue = 0x77777777;

// What `fill` takes, for an address that is put where the place says.
void** kernel_arguments(Setting& setting) {
  void** all = setting.arguments.more<void*>();
  auto* address = setting.arguments.more<CUdeviceptr>();
  auto* count = setting.arguments.more<std::uint64_t>();
  auto* value = setting.arguments.more<unsigned>();
  *address = setting.resident;
  *count = kWords;
  *value = kValue;
  all[0] = address;
  all[1] = count;
  all[2] = value;
  return all;
}

struct Buffer {
  CUdeviceptr address;
  std::uint64_t count;
  std::uint64_t value;
};

void** argument_buffer(Setting& setting) {
  void** all = setting.arguments.more<void*>();
  auto* buffer = setting.arguments.more<Buffer>();
  auto* size = setting.arguments.more<std::size_t>();
  *buffer = {.address = setting.resident, .count = kWords, .value = kValue};
  *size = sizeof *buffer;
  const auto word = [](std::uintptr_t name) { return reinterpret_cast<void*>(name); };
  all[0] = word(1);  // CU_LAUNCH_PARAM_BUFFER_POINTER
  all[1] = buffer;
  all[2] = word(2);  // CU_LAUNCH_PARAM_BUFFER_SIZE
  all[3] = size;
  return all;
}

bool in_buffer(const Setting& setting) {
  return setting.names("extra");
}

// Of structures with the fields of CUDA_KERNEL_NODE_PARAMS.
template <typename Kernel>
void shape_grid(Kernel& kernel) {
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = kThreads;
  kernel.blockDimY = kernel.blockDimZ = 1;
}

template <typename Kernel>
void shape_kernel(Setting& setting, Kernel& kernel) {
  shape_grid(kernel);
  kernel.func = setting.fixtures.fill;
  if (in_buffer(setting)) {
    kernel.extra = argument_buffer(setting);
  } else {
    kernel.kernelParams = kernel_arguments(setting);
  }
}

void shape_copy(const Setting& setting, CUDA_MEMCPY3D& copy) {
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = copy.dstDevice = setting.resident;
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = kWords;
  copy.srcHeight = copy.dstHeight = copy.Height = copy.Depth = 1;
}

template <typename Set>
void shape_set(const Setting& setting, Set& set) {
  set.dst = setting.resident;
  set.value = kValue;
  set.elementSize = 4;
  set.width = kWords;
  set.height = 1;
}

template <typename Values>
void shape_values(Setting& setting, Values& values) {
  values.ctx = setting.fixtures.context;
  values.count = 1;
  values.paramArray = setting.arguments.more<CUstreamBatchMemOpParams>();
  CUstreamBatchMemOpParams& operation = *values.paramArray;
  operation.operation = setting.names("waitValue") ? CU_STREAM_MEM_OP_WAIT_VALUE_32 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = setting.resident;
}

// By what the place is a part of.
void shape_node(Setting& setting, CUgraphNodeParams& node) {
  if (setting.names("->kernel.")) {
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    shape_kernel(setting, node.kernel);
    node.kernel.ctx = setting.fixtures.context;
  } else if (setting.names("->memcpy.")) {
    node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    node.memcpy.copyCtx = setting.fixtures.context;
    shape_copy(setting, node.memcpy.copyParams);
  } else if (setting.names("->memset.")) {
    node.type = CU_GRAPH_NODE_TYPE_MEMSET;
    shape_set(setting, node.memset);
    node.memset.ctx = setting.fixtures.context;
  } else if (setting.names("->memOp.")) {
    node.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    shape_values(setting, node.memOp);
  } else if (setting.names("->free.")) {
    node.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  } else if (setting.names("->memcpyBatch.")) {
    node.type = CU_GRAPH_NODE_TYPE_MEMCPY_BATCH;
  } else {
    node.type = CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH;
  }
}

CUgraphNode node_at(const Setting& setting) {
  return setting.names("->kernel.") ? setting.kernel : setting.names("->memcpy.") ? setting.copy : setting.set;
}

void add_to_graph(Setting& setting) {
  setting.make_graph();
  setting.arguments.value<CUgraph>(1) = setting.graph;
}

// cuGraphAdd…Node, whose fifth parameter says what the node is; where it has a sixth, that is the context.
template <typename Node, void (*shape)(Setting&, Node&)>
void add_node(Setting& setting) {
  add_to_graph(setting);
  shape(setting, setting.arguments.behind<Node>(4));
  setting.arguments.value<CUcontext>(5) = setting.fixtures.context;
}

// cuGraph…NodeSetParams, and cuGraphExec…NodeSetParams with one parameter more at the front.
template <typename Node, void (*shape)(Setting&, Node&), CUgraphNode Setting::* node>
void change_node(Setting& setting) {
  setting.make_graph();
  setting.arguments.value<CUgraphNode>(0) = setting.*node;
  shape(setting, setting.arguments.behind<Node>(1));
}
template <typename Node, void (*shape)(Setting&, Node&), CUgraphNode Setting::* node>
void change_node_of_executable(Setting& setting) {
  setting.make_graph();
  setting.arguments.value<CUgraphExec>(0) = setting.executable;
  setting.arguments.value<CUgraphNode>(1) = setting.*node;
  shape(setting, setting.arguments.behind<Node>(2));
  setting.arguments.value<CUcontext>(3) = setting.fixtures.context;
}

using Kernel1 = CUDA_KERNEL_NODE_PARAMS_v1;
using Kernel2 = CUDA_KERNEL_NODE_PARAMS_v2;
using Set = CUDA_MEMSET_NODE_PARAMS;
using Values = CUDA_BATCH_MEM_OP_NODE_PARAMS;
void copy_node(Setting& setting, CUDA_MEMCPY3D& copy) {
  shape_copy(setting, copy);
}
void set_node(Setting& setting, Set& set) {
  shape_set(setting, set);
}

void launch(Setting& setting) {
  setting.arguments.value<CUfunction>(0) = setting.fixtures.fill;
  for (std::size_t parameter = 1; parameter <= 6; ++parameter) setting.arguments.value<unsigned>(parameter) = 1;
  setting.arguments.value<unsigned>(4) = kThreads;
  setting.arguments.value<CUstream>(8) = setting.stream;
  setting.arguments.value<void**>(9) = in_buffer(setting) ? nullptr : kernel_arguments(setting);
}

}  // namespace

void Setting::make_graph() {
  CUDA_MEMCPY3D copying{};
  Set setting_words{};
  Values writing{};
  Kernel2 launching{};
  shape_copy(*this, copying);
  shape_set(*this, setting_words);
  shape_values(*this, writing);
  shape_grid(launching);
  launching.func = fixtures.fill;
  launching.kernelParams = kernel_arguments(*this);
  EXPECT_OK(cu.cuGraphCreate(&graph, 0));
  EXPECT_OK(cu.cuGraphAddKernelNode_v2(&kernel, graph, nullptr, 0, &launching));
  EXPECT_OK(cu.cuGraphAddMemcpyNode(&copy, graph, nullptr, 0, &copying, fixtures.context));
  EXPECT_OK(cu.cuGraphAddMemsetNode(&set, graph, nullptr, 0, &setting_words, fixtures.context));
  EXPECT_OK(cu.cuGraphAddBatchMemOpNode(&values, graph, nullptr, 0, &writing));
  EXPECT_OK(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
}

const std::vector<Row>& graph_rows() {
  using S = Setting;
  static const std::vector<Row> kRows = {
      {{"cuLaunchKernel"},
       Then::kWaits,
       Effect::kSet,
       [](S& s) {
         launch(s);
         s.arguments.value<void**>(10) = in_buffer(s) ? argument_buffer(s) : nullptr;
       }},
      {{"cuLaunchCooperativeKernel"}, Then::kWaits, Effect::kSet, launch},
      {{"cuLaunchKernelEx"},
       Then::kWaits,
       Effect::kSucceeds,
       [](S& s) {
         auto& config = s.arguments.behind<CUlaunchConfig>(0);
         shape_grid(config);
         config.hStream = s.stream;
         if (s.names("attrs")) {
           config.attrs = s.arguments.more<CUlaunchAttribute>();
           config.attrs->id = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
           config.numAttrs = 1;
         }
         s.arguments.value<CUfunction>(1) = s.fixtures.fill;
         s.arguments.value<void**>(2) = in_buffer(s) ? nullptr : kernel_arguments(s);
         s.arguments.value<void**>(3) = in_buffer(s) ? argument_buffer(s) : nullptr;
       }},
      {{"cuLaunchCooperativeKernelMultiDevice"},
       Then::kWaits,
       Effect::kAny,
       [](S& s) {
         auto& one = s.arguments.behind<CUDA_LAUNCH_PARAMS>(0);
         shape_grid(one);
         one.function = s.fixtures.fill;
         one.hStream = s.stream;
         one.kernelParams = kernel_arguments(s);
         s.arguments.value<unsigned>(1) = 1;
       }},

      // --- nodes that are added
      {{"cuGraphAddKernelNode"}, Then::kWaits, Effect::kSucceeds, add_node<Kernel1, shape_kernel<Kernel1>>},
      {{"cuGraphAddKernelNode_v2"}, Then::kWaits, Effect::kSucceeds, add_node<Kernel2, shape_kernel<Kernel2>>},
      {{"cuGraphAddMemcpyNode"}, Then::kWaits, Effect::kSucceeds, add_node<CUDA_MEMCPY3D, copy_node>},
      {{"cuGraphAddMemsetNode"}, Then::kWaits, Effect::kSucceeds, add_node<Set, set_node>},
      {{"cuGraphAddBatchMemOpNode"}, Then::kWaits, Effect::kAny, add_node<Values, shape_values<Values>>},
      // Refused for memory that no graph has allocated.
      {{"cuGraphAddMemFreeNode"}, Then::kWaits, Effect::kAny, add_to_graph},
      {{"cuGraphAddNode"}, Then::kWaits, Effect::kAny, add_node<CUgraphNodeParams, shape_node>},
      {{"cuGraphAddNode_v2", "cuGraphAddNode_v3"},
       Then::kWaits,
       Effect::kAny,
       [](S& s) {
         add_to_graph(s);
         shape_node(s, s.arguments.behind<CUgraphNodeParams>(5));
       }},
      {{"cuGraphAddChildGraphNode"},
       Then::kWaits,
       Effect::kSucceeds,
       [](S& s) {
         add_to_graph(s);
         EXPECT_OK(cu.cuGraphClone(&s.arguments.value<CUgraph>(4), s.graph));
       }},

      // --- nodes that are changed
      {{"cuGraphKernelNodeSetParams"},
       Then::kWaits,
       Effect::kSucceeds,
       change_node<Kernel1, shape_kernel<Kernel1>, &S::kernel>},
      {{"cuGraphKernelNodeSetParams_v2"},
       Then::kWaits,
       Effect::kSucceeds,
       change_node<Kernel2, shape_kernel<Kernel2>, &S::kernel>},
      {{"cuGraphMemcpyNodeSetParams"},
       Then::kWaits,
       Effect::kSucceeds,
       change_node<CUDA_MEMCPY3D, copy_node, &S::copy>},
      {{"cuGraphMemsetNodeSetParams"}, Then::kWaits, Effect::kSucceeds, change_node<Set, set_node, &S::set>},
      {{"cuGraphBatchMemOpNodeSetParams"},
       Then::kWaits,
       Effect::kAny,
       change_node<Values, shape_values<Values>, &S::values>},
      {{"cuGraphNodeSetParams", "cuGraphNodeSetParams_v2"},
       Then::kWaits,
       Effect::kAny,
       [](S& s) {
         s.make_graph();
         s.arguments.value<CUgraphNode>(0) = s.names("->memOp.") ? s.values : node_at(s);
         shape_node(s, s.arguments.behind<CUgraphNodeParams>(1));
       }},
      {{"cuGraphKernelNodeSetAttribute"},
       Then::kWaits,
       Effect::kSucceeds,
       [](S& s) {
         s.make_graph();
         s.arguments.value<CUgraphNode>(0) = s.kernel;
         s.arguments.value<unsigned>(1) = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
       }},
      {{"cuGraphExecKernelNodeSetParams"},
       Then::kWaits,
       Effect::kSucceeds,
       change_node_of_executable<Kernel1, shape_kernel<Kernel1>, &S::kernel>},
      {{"cuGraphExecKernelNodeSetParams_v2"},
       Then::kWaits,
       Effect::kSucceeds,
       change_node_of_executable<Kernel2, shape_kernel<Kernel2>, &S::kernel>},
      {{"cuGraphExecMemcpyNodeSetParams"},
       Then::kWaits,
       Effect::kSucceeds,
       change_node_of_executable<CUDA_MEMCPY3D, copy_node, &S::copy>},
      {{"cuGraphExecMemsetNodeSetParams"},
       Then::kWaits,
       Effect::kSucceeds,
       change_node_of_executable<Set, set_node, &S::set>},
      {{"cuGraphExecBatchMemOpNodeSetParams"},
       Then::kWaits,
       Effect::kAny,
       change_node_of_executable<Values, shape_values<Values>, &S::values>},
      {{"cuGraphExecNodeSetParams"},
       Then::kWaits,
       Effect::kAny,
       [](S& s) {
         s.make_graph();
         s.arguments.value<CUgraphExec>(0) = s.executable;
         s.arguments.value<CUgraphNode>(1) = s.names("->memOp.") ? s.values : node_at(s);
         shape_node(s, s.arguments.behind<CUgraphNodeParams>(2));
       }},
      {{"cuGraphExecChildGraphNodeSetParams"},
       Then::kWaits,
       Effect::kAny,
       [](S& s) {
         s.make_graph();
         s.arguments.value<CUgraphExec>(0) = s.executable;
         s.arguments.value<CUgraphNode>(1) = s.kernel;
         s.arguments.value<CUgraph>(2) = s.graph;
       }},

      // --- graphs, which hold what their nodes hold
      {{"cuGraphInstantiate", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags"},
       Then::kWaits,
       Effect::kSucceeds,
       [](S& s) {
         s.make_graph();
         s.arguments.value<CUgraph>(1) = s.graph;
       }},
      {{"cuGraphExecUpdate", "cuGraphExecUpdate_v2"},
       Then::kWaits,
       Effect::kSucceeds,
       [](S& s) {
         s.make_graph();
         s.arguments.value<CUgraphExec>(0) = s.executable;
         s.arguments.value<CUgraph>(1) = s.graph;
       }},
  };
  return kRows;
}

}  // namespace rota::test
