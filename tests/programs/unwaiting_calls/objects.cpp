// The objects behind the calls' arguments, and how each call is made.
#include "tests/programs/unwaiting_calls/calls.h"

namespace behind_kernel {
namespace {

void host_function(void*) {}

// `node` is what the call has written.
CUgraphNode added(CUresult result, const CUgraphNode& node) {
  CHECK_OK(result);
  return node;
}

void make_memory(Objects& o) {
  CHECK_OK(cu.cuMemAlloc_v2(&o.plain, kBytes));
  CHECK_OK(cu.cuMemAlloc_v2(&o.other_plain, kBytes));
  CHECK_OK(cu.cuMemAllocManaged(&o.managed, kBytes, CU_MEM_ATTACH_GLOBAL));
  CHECK_OK(cu.cuDeviceGetDefaultMemPool(&o.pool, o.device));
  o.in_order = allocate_from(o.pool, kBytes, nullptr);
  CUmemPoolProps shared = device_pool_properties(o.device);
  shared.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CHECK_OK(cu.cuMemPoolCreate(&o.shared_pool, &shared));
  o.of_shared_pool = allocate_from(o.shared_pool, kBytes, nullptr);
  o.extent = granularity(o.device);
  o.physical = physical_properties(o.device, true);
  CHECK_OK(cu.cuMemCreate(&o.handle, o.extent, &o.physical, 0));
  o.mapped = map_somewhere(create_physical(o.device, o.extent, true), o.extent, o.device);
  o.reserved = reserve(o.extent);
  o.here = o.physical.location;
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = shape.Height = 64;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  CHECK_OK(cu.cuArray3DCreate_v2(&o.array, &shape));
  CHECK_OK(cu.cuMipmappedArrayCreate(&o.mipmapped, &shape, 2));
  void* pinned = nullptr;
  CHECK_OK(cu.cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_DEVICEMAP));
  o.pinned = static_cast<unsigned*>(pinned);
  CHECK_OK(cu.cuMemHostGetDevicePointer_v2(&o.pinned_address, pinned, 0));
}

void make_graphs(Objects& o) {
  for (CUgraph* graph : {&o.graph, &o.child, &o.empty_graph}) CHECK_OK(cu.cuGraphCreate(graph, 0));
  o.set_parameters = ::set_parameters(o.plain, 0, 16);
  o.copy_parameters = ::copy_parameters(o.plain, o.other_plain, 64);
  o.kernel_parameters = ::kernel_parameters(o.function, 1, 32, o.arguments);
  o.host_parameters.fn = host_function;
  CUgraphNode node = nullptr;
  o.empty_node = added(cu.cuGraphAddEmptyNode(&node, o.graph, nullptr, 0), node);
  added(cu.cuGraphAddEmptyNode(&node, o.child, nullptr, 0), node);
  o.kernel_node = added(cu.cuGraphAddKernelNode_v2(&node, o.graph, nullptr, 0, &o.kernel_parameters), node);
  o.set_node = added(cu.cuGraphAddMemsetNode(&node, o.graph, nullptr, 0, &o.set_parameters, o.context), node);
  o.copy_node = added(cu.cuGraphAddMemcpyNode(&node, o.graph, nullptr, 0, &o.copy_parameters, o.context), node);
  o.host_node = added(cu.cuGraphAddHostNode(&node, o.graph, nullptr, 0, &o.host_parameters), node);
  o.child_node = added(cu.cuGraphAddChildGraphNode(&node, o.graph, nullptr, 0, o.child), node);
  o.record_node = added(cu.cuGraphAddEventRecordNode(&node, o.graph, nullptr, 0, o.event), node);
  o.wait_node = added(cu.cuGraphAddEventWaitNode(&node, o.graph, nullptr, 0, o.event), node);
  CHECK_OK(cu.cuGraphInstantiateWithFlags(&o.executable, o.graph, 0));
  CHECK_OK(cu.cuGraphUpload(o.executable, o.spare));
  CHECK_OK(cu.cuUserObjectCreate(&o.object, o.pinned, host_function, 4, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
}

}  // namespace

Objects::Objects(const Session& session) : device(session.device()), context(session.context()) {
  module = session.module();
  function = session.function("fill");
  CHECK_OK(cu.cuLibraryLoadData(&library, Session::image().c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK_OK(cu.cuLibraryGetKernel(&kernel, library, Session::mangled("fill").c_str()));
  CHECK_OK(cu.cuStreamCreate(&spare, CU_STREAM_NON_BLOCKING));
  CHECK_OK(cu.cuEventCreate(&event, CU_EVENT_DEFAULT));
  CHECK_OK(cu.cuEventCreate(&spare_event, CU_EVENT_DEFAULT));
  CHECK_OK(cu.cuEventCreate(&shared_event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  CHECK_OK(cu.cuEventRecord(event, spare));
  make_memory(*this);
  words = plain;
  arguments[0] = &words;
  arguments[1] = &count;
  arguments[2] = &value;
  make_graphs(*this);
  // What a function loads or starts at first use may have to wait.
  CHECK_OK(cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, spare, arguments, nullptr));
  CHECK_OK(cu.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, spare, arguments, nullptr));
  CHECK_OK(cu.cuMemsetD8_v2(plain, 0, 64));
  CHECK_OK(cu.cuMemsetD8_v2(managed, 0, 64));
  CHECK_OK(cu.cuMemcpyDtoD_v2(plain, other_plain, 64));
  CHECK_OK(cu.cuGraphLaunch(executable, spare));
  CHECK_OK(cu.cuCtxSynchronize());
}

void run(const char* symbol, CUresult (*call)(Objects&), bool succeeds) {
  Session session;
  Stream busy;
  Stream idle;
  struct {
    const char* where;
    CUstream of_kernel;
    CUstream of_call;
  } const places[] = {{"the kernel's own stream", busy, busy},
                      {"another stream", busy, idle},
                      {"the null stream, as the kernel", nullptr, nullptr}};
  for (const auto& [where, of_kernel, of_call] : places) {
    Objects objects(session);
    objects.stream = of_call;
    Blocker blocker(of_kernel);
    CUresult result = call(objects);
    // Says so itself if it had to give up.
    blocker.release();
    bool expected = !succeeds || of_call == nullptr || result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED;
    if (!expected) fail(symbol, 0, std::string("in ") + where + " it answers " + describe(result));
    CHECK_OK(cu.cuCtxSynchronize());
  }
}

}  // namespace behind_kernel
