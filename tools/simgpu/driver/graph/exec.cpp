// Instantiating graphs and launching the result.
//
// A launch is one task of the stream. Its steps are spread over lanes: the first is the stream's own thread, the others
// are streams of the executable graph, so that branches which do not depend on each other book their engines at the
// same time. A step that depends on one in another lane waits for that step's task. Steps wait only for earlier steps
// in one total order, so there can be no cycle.
#include "tools/simgpu/driver/graph/exec.h"

#include <algorithm>
#include <set>

#include "tools/simgpu/driver/graph/state.h"

namespace rota::sim {
namespace {

// More branches than this share lanes: each lane is a thread.
constexpr uint32_t kLanes = 8;

// What one launch runs. Later changes to the executable graph do not affect it.
struct GraphLaunch {
  GraphExecPointer executable;
  std::vector<std::shared_ptr<const Operation>> operations;  // by step; null: nothing to do
  std::vector<Record> records;  // by step: for event records, the record that completes there
  std::vector<Record> waits;    // by step: for event waits, what they wait for

  // A launch whose context has failed never runs, but no thread may wait for its records forever.
  ~GraphLaunch() {
    for (const Record& record : records) {
      if (record.task && !record.task->done()) finish(record);
    }
  }

  void run_step(size_t index, Context& running) const;
  void run(Context& running, const std::shared_ptr<GraphLaunch>& self) const;
};

void GraphLaunch::run_step(size_t index, Context& running) const {
  if (waits[index].task || waits[index].shared) waits[index].wait();
  std::shared_ptr<const Operation> operation = operations[index];
  if (operation && mutated(Mutation::launches_see_later_parameters)) {
    std::lock_guard lock(graph_state().mutex);
    operation = executable->steps[index].node->operation;
  }
  if (operation != nullptr && operation->run && running.sticky.load(std::memory_order_acquire) == 0) {
    ContextPointer home = operation->home.lock();
    Context& at = home ? *home : running;
    if (at.sticky.load(std::memory_order_acquire) == 0) operation->run(at);
  }
  if (records[index].task) finish(records[index]);
}

void GraphLaunch::run(Context& running, const std::shared_ptr<GraphLaunch>& self) const {
  const std::vector<GraphStep>& steps = executable->steps;
  if (executable->destroyed.load() && mutated(Mutation::destroyed_executables_are_cut_off)) return;
  if (executable->lanes == 1) {
    for (size_t index = 0; index < steps.size(); ++index) run_step(index, running);
    return;
  }
  std::vector<TaskPointer> tasks(steps.size());
  for (TaskPointer& task : tasks) task = std::make_shared<Task>();
  std::vector<TaskPointer> last(executable->lanes);
  size_t pushed = 0;  // the other lanes have the steps before this one
  size_t over = 0;    // lane 0 has finished the steps before this one
  // Also if the machine has no memory for the rest: other lanes' threads wait for these steps.
  auto finish_all = [&] {
    for (size_t index = 0; index < steps.size(); ++index) {
      if (index >= (steps[index].lane == 0 ? over : pushed)) tasks[index]->finish();
    }
    for (const TaskPointer& task : last) {
      if (task) task->wait();
    }
  };
  try {
    for (; pushed < steps.size(); ++pushed) {
      const GraphStep& step = steps[pushed];
      if (step.lane == 0) continue;
      for (uint32_t earlier : step.after) {
        if (steps[earlier].lane != step.lane) tasks[pushed]->after.push_back(tasks[earlier]);
      }
      tasks[pushed]->work = [self, index = pushed, &running] { self->run_step(index, running); };
      executable->lane_streams[step.lane - 1]->push(tasks[pushed]);
      last[step.lane] = tasks[pushed];
    }
    for (; over < steps.size(); ++over) {
      if (steps[over].lane != 0) continue;
      for (uint32_t earlier : steps[over].after) {
        if (steps[earlier].lane != 0) tasks[earlier]->wait();
      }
      run_step(over, running);
      tasks[over]->finish();
    }
  } catch (...) {
    finish_all();
    throw;
  }
  finish_all();
}

}  // namespace

GraphExec::GraphExec(GraphPointer copy, unsigned long long flags)
    : graph(std::move(copy)), flags(flags), id(new_graph_id()) {
  std::vector<uint32_t> leaves;
  flatten(*graph, {}, &leaves);
  assign_lanes();
  for (const auto& memory : allocations) graph_state().memory.set_instantiated(*memory, true);
}

GraphExec::~GraphExec() {
  for (const auto& memory : allocations) graph_state().memory.set_instantiated(*memory, false);
}

void GraphExec::flatten(const Graph& from, const std::vector<uint32_t>& after, std::vector<uint32_t>* leaves) {
  std::unordered_map<const GraphNode*, uint32_t> ends;
  std::set<uint32_t> open;
  std::vector<GraphNode*> order = from.ordered();
  if (mutated(Mutation::graph_ignores_edges)) std::reverse(order.begin(), order.end());
  for (GraphNode* node : order) {
    by_original_[node->cloned_from] = node;
    GraphStep step;
    step.node = node;
    for (const GraphNode* earlier : node->after) {
      if (mutated(Mutation::graph_ignores_edges)) break;
      step.after.push_back(ends[earlier]);
      open.erase(ends[earlier]);
    }
    if (node->after.empty()) step.after = after;
    if (mutated(Mutation::graph_ignores_edges)) step.after.clear();
    auto index = static_cast<uint32_t>(steps.size());
    steps.push_back(std::move(step));
    if (const auto* child = node->get<ChildParameters>()) {
      std::vector<uint32_t> ending;
      flatten(*child->graph, {index}, &ending);
      ending.push_back(index);
      index = static_cast<uint32_t>(steps.size());
      GraphStep end;
      end.after = std::move(ending);
      steps.push_back(std::move(end));
    } else if (const auto* allocated = node->get<AllocationParameters>()) {
      allocations.push_back(allocated->memory);
    } else if (const auto* freed = node->get<FreeParameters>()) {
      frees.push_back(freed->memory);
    }
    ends[node] = index;
    open.insert(index);
  }
  leaves->assign(open.begin(), open.end());
}

void GraphExec::assign_lanes() {
  if (mutated(Mutation::graph_ignores_edges)) return;
  std::vector<uint32_t> tails;  // the last step of each lane
  uint32_t turn = 0;
  for (uint32_t index = 0; index < steps.size(); ++index) {
    uint32_t lane = UINT32_MAX;
    for (uint32_t earlier : steps[index].after) {
      if (tails[steps[earlier].lane] == earlier) lane = std::min(lane, steps[earlier].lane);
    }
    if (lane == UINT32_MAX) {
      lane = tails.size() < kLanes ? static_cast<uint32_t>(tails.size()) : turn++ % kLanes;
    }
    steps[index].lane = lane;
    if (lane == tails.size()) tails.push_back(0);
    tails[lane] = index;
  }
  lanes = std::max<uint32_t>(1, static_cast<uint32_t>(tails.size()));
}

GraphNode* GraphExec::find(const GraphNode& original) const {
  auto found = by_original_.find(original.serial);
  return found == by_original_.end() ? nullptr : found->second;
}

CUresult instantiate(const GraphPointer& graph, unsigned long long flags, CUgraphExec* out,
                     InstantiateFailure* failure) {
  failure->result = CUDA_GRAPH_INSTANTIATE_ERROR;
  constexpr unsigned long long kKnown = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                        CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                                        CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (out == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
    bool both = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    return both ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  }
  std::lock_guard lock(graph_state().mutex);
  if (graph->owned || graph->captures.load() != 0) return CUDA_ERROR_INVALID_VALUE;
  bool memory = graph->has_memory_nodes();
  if (memory) {
    GraphExecPointer other = graph->executable.lock();
    if (other && !other->destroyed) return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (const GraphNode* node = graph->in_a_cycle(); node != nullptr && !mutated(Mutation::cycles_are_let_in)) {
    failure->result = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
    failure->node = node->handle();
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto executable = std::make_shared<GraphExec>(
      graph->clone(false), mutated(Mutation::upload_flag_is_kept)
                               ? flags
                               : flags & ~static_cast<unsigned long long>(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
  if (memory) graph->executable = executable;
  *out = driver().graph_execs.add(std::move(executable));
  failure->result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return CUDA_SUCCESS;
}

namespace {

// Applies the launch's effect on graph memory, in the order of the program's calls. A failure changes nothing.
CUresult prepare_memory(const GraphExec& executable) {
  GraphMemory& memory = graph_state().memory;
  if (!executable.frees_on_launch()) {
    for (const auto& each : executable.allocations) {
      if (memory.live(*each)) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (const auto& each : executable.frees) {
    if (!executable.allocates(*each) && !memory.live(*each)) return CUDA_ERROR_INVALID_VALUE;
  }
  return memory.map(executable.allocations) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void note_memory(const GraphExec& executable, const TaskPointer& task) {
  GraphMemory& memory = graph_state().memory;
  for (const auto& each : executable.allocations) {
    memory.used_by(*each, task);
    memory.allocate(each);
  }
  for (const auto& each : executable.frees) {
    memory.used_by(*each, task);
    memory.free(each);
  }
}

// Measured on driver 580.159: an executable graph cannot be launched into a capturing stream, not even in relaxed mode.
CUresult refuse_while_capturing(const StreamPointer& stream) {
  if (!driver().captures.any() || mutated(Mutation::graph_launches_are_captured)) return CUDA_SUCCESS;
  std::lock_guard lock(driver().captures.mutex);
  if (!stream->capture) return CUDA_SUCCESS;
  stream->capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace

bool GraphExec::frees_on_launch() const {
  return (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0 && !mutated(Mutation::auto_free_is_forgotten);
}

bool GraphExec::allocates(const GraphAllocation& memory) const {
  return std::any_of(allocations.begin(), allocations.end(), [&](const auto& each) { return each.get() == &memory; });
}

CUresult upload_graph(const GraphExecPointer& executable, const StreamPointer& stream) {
  ROTA_SIM_CHECK(refuse_while_capturing(stream));
  std::lock_guard lock(executable->launching);
  if (!graph_state().memory.map(executable->allocations)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::vector<TaskPointer> after;
  if (executable->last_launch) after.push_back(executable->last_launch);
  return driver().submit_after(stream, std::move(after), nullptr);
}

CUresult launch_graph(const GraphExecPointer& executable, const StreamPointer& stream) {
  ROTA_SIM_CHECK(refuse_while_capturing(stream));
  std::lock_guard lock(executable->launching);
  ROTA_SIM_CHECK(prepare_memory(*executable));
  while (executable->lane_streams.size() + 1 < executable->lanes) {
    auto lane = std::make_shared<Stream>(stream->context, CU_STREAM_NON_BLOCKING, 0);
    lane->start();  // here it may fail
    executable->lane_streams.push_back(std::move(lane));
  }
  size_t count = executable->steps.size();
  auto launch = std::make_shared<GraphLaunch>();
  launch->executable = executable;
  launch->operations.resize(count);
  launch->records.resize(count);
  launch->waits.resize(count);
  std::vector<size_t> recording;
  uint64_t reached = 0;  // a bit for each GPU
  {
    std::lock_guard lock_graphs(graph_state().mutex);
    for (size_t index = 0; index < count; ++index) {
      const GraphNode* node = executable->steps[index].node;
      bool runs = node != nullptr && (node->enabled || mutated(Mutation::disabled_nodes_run));
      if (!runs) continue;
      launch->operations[index] = node->operation;
      reached |= node->operation->memory_on;
      if (const ContextPointer home = node->operation->home.lock()) reached |= uint64_t{1} << home->gpu;
    }
  }
  if (reached != 0) driver().tell_reach(reached);
  // Event waits refer to records made before this launch, whatever the launch itself records.
  for (size_t index = 0; index < count; ++index) {
    const Operation* operation = launch->operations[index].get();
    const auto* event = operation == nullptr ? nullptr : std::get_if<EventParameters>(&operation->parameters);
    if (event == nullptr || !event->event) continue;
    if (operation->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && !mutated(Mutation::graph_event_waits_are_ignored)) {
      launch->waits[index] = current_record(*event->event);
    } else if (operation->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
      recording.push_back(index);
    }
  }
  if (mutated(Mutation::launches_of_all_graphs_are_serial)) {
    static TaskPointer latest;
    if (latest) ROTA_SIM_CHECK(driver().submit_after(stream, {latest}, nullptr));
    ROTA_SIM_CHECK(driver().submit(stream, Operation{}, &latest));
  }
  if (executable->last_launch && !mutated(Mutation::graph_launches_overlap)) {
    ROTA_SIM_CHECK(driver().submit_after(stream, {executable->last_launch}, nullptr));
  }
  if (!mutated(Mutation::graph_event_records_are_ignored)) {
    for (size_t index : recording) {
      launch->records[index] = begin_record(*std::get<EventParameters>(launch->operations[index]->parameters).event);
    }
  }
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_GRAPH;
  operation.run = [launch](Context& running) { launch->run(running, launch); };
  launch.reset();
  TaskPointer task;
  const StreamPointer& to = mutated(Mutation::graph_launches_ignore_the_stream) ? stream->context->markers : stream;
  std::optional<CapturePointer> found(Driver::kNoCapture);
  if (mutated(Mutation::graph_launches_are_captured)) found.reset();
  ROTA_SIM_CHECK(driver().submit(to, std::move(operation), &task, found));
  if (task) {
    note_memory(*executable, task);
    executable->last_launch = std::move(task);
  }
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
