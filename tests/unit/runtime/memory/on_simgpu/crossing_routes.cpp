#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/unit/runtime/memory/on_simgpu/crossing.h"

namespace rota::test {
namespace {

CUresult error = CUDA_SUCCESS;

template <typename Call>
CUdeviceptr given_by(const Call& call) {
  CUdeviceptr address = 0;
  return ANSWERED(call(&address)) == CUDA_SUCCESS ? address : 0;
}

CUdeviceptr from_pool(Scene& scene, CUmemLocationType where, int id, bool managed = false) {
  CUmemPoolProps what{};
  what.allocType = managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {.type = where, .id = id};
  ANSWERED(cu.cuMemPoolCreate(&scene.pool, &what));
  return given_by([&](CUdeviceptr* address) {
    return cu.cuMemAllocFromPoolAsync(address, kCrossedBytes, scene.pool, scene.stream);
  });
}

// The program's own pool is the current one of its GPU for the duration of this function.
CUdeviceptr from_current_pool(Scene& scene) {
  CUmemPoolProps what{};
  what.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemoryPool before = nullptr;
  ANSWERED(cu.cuDeviceGetMemPool(&before, 0));
  ANSWERED(cu.cuMemPoolCreate(&scene.pool, &what));
  ANSWERED(cu.cuDeviceSetMemPool(0, scene.pool));
  const CUdeviceptr address =
      given_by([&](CUdeviceptr* to) { return cu.cuMemAllocAsync(to, kCrossedBytes, scene.stream); });
  ANSWERED(cu.cuDeviceSetMemPool(0, before));
  return address;
}

// Memory of a pool of this process, opened by descriptor. The exporter frees its allocation at once.
CUdeviceptr imported_pointer(Scene& scene) {
  CUmemPoolProps what{};
  what.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemoryPool own = nullptr;
  ANSWERED(cu.cuMemPoolCreate(&own, &what));
  int file = -1;
  ANSWERED(cu.cuMemPoolExportToShareableHandle(&file, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ANSWERED(cu.cuMemPoolImportFromShareableHandle(&scene.pool, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(file);
  const CUdeviceptr exported =
      given_by([&](CUdeviceptr* to) { return cu.cuMemAllocFromPoolAsync(to, kCrossedBytes, own, scene.stream); });
  // Nothing can be allocated from a pool that is imported.
  given_by([&](CUdeviceptr* to) { return cu.cuMemAllocFromPoolAsync(to, kCrossedBytes, scene.pool, scene.stream); });
  ANSWERED(cu.cuStreamSynchronize(scene.stream));
  CUmemPoolPtrExportData data{};
  ANSWERED(cu.cuMemPoolExportPointer(&data, exported));
  const CUdeviceptr address =
      given_by([&](CUdeviceptr* to) { return cu.cuMemPoolImportPointer(to, scene.pool, &data); });
  ANSWERED(cu.cuMemFreeAsync(exported, scene.stream));
  ANSWERED(cu.cuMemPoolDestroy(own));
  return address;
}

void run(Scene& scene, CUgraph graph) {
  CUgraphExec executable = nullptr;
  if (ANSWERED(cu.cuGraphInstantiateWithFlags(&executable, graph, 0)) != CUDA_SUCCESS) return;
  scene.executables.push_back(executable);
  ANSWERED(cu.cuGraphLaunch(executable, scene.stream));
}

CUdeviceptr allocated_in_capture(Scene& scene) {
  ANSWERED(cu.cuStreamBeginCapture_v2(scene.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  const CUdeviceptr address =
      given_by([&](CUdeviceptr* to) { return cu.cuMemAllocAsync(to, kCrossedBytes, scene.stream); });
  CUgraph graph = nullptr;
  if (ANSWERED(cu.cuStreamEndCapture(scene.stream, &graph)) != CUDA_SUCCESS) return 0;
  scene.graphs.push_back(graph);
  run(scene, graph);
  return address;
}

CUdeviceptr allocated_by_node(Scene& scene) {
  CUgraph graph = nullptr;
  ANSWERED(cu.cuGraphCreate(&graph, 0));
  scene.graphs.push_back(graph);
  CUDA_MEM_ALLOC_NODE_PARAMS what{};
  what.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  what.bytesize = kCrossedBytes;
  CUgraphNode node = nullptr;
  ANSWERED(cu.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &what));
  run(scene, graph);
  return what.dptr;
}

CUdeviceptr mapped(Scene&) {
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemGenericAllocationHandle handle = 0;
  ANSWERED(cu.cuMemCreate(&handle, kCrossedBytes, &what, 0));
  CUdeviceptr address = 0;
  ANSWERED(cu.cuMemAddressReserve(&address, kCrossedBytes, 0, 0, 0));
  ANSWERED(cu.cuMemMap(address, kCrossedBytes, 0, handle, 0));
  ANSWERED(cu.cuMemRelease(handle));
  return address;
}

CUdeviceptr pinned(Scene&) {
  void* address = nullptr;
  ANSWERED(cu.cuMemHostAlloc(&address, kCrossedBytes, 0));
  return reinterpret_cast<std::uintptr_t>(address);
}

// The same pages each time.
CUdeviceptr registered(Scene&) {
  static void* const pages = std::aligned_alloc(4096, kCrossedBytes);
  ANSWERED(cu.cuMemHostRegister_v2(pages, kCrossedBytes, 0));
  return reinterpret_cast<std::uintptr_t>(pages);
}

CUdeviceptr opened(Scene&) {
  CUipcMemHandle handle{};
  std::memcpy(&handle, from_neighbour.data(), std::min(sizeof handle, from_neighbour.size()));
  return given_by(
      [&](CUdeviceptr* to) { return cu.cuIpcOpenMemHandle_v2(to, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS); });
}

void free_in_capture(Scene& scene, CUdeviceptr address) {
  ANSWERED(cu.cuStreamBeginCapture_v2(scene.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ANSWERED(cu.cuMemFreeAsync(address, scene.stream));
  CUgraph graph = nullptr;
  if (ANSWERED(cu.cuStreamEndCapture(scene.stream, &graph)) != CUDA_SUCCESS) return;
  scene.graphs.push_back(graph);
  run(scene, graph);
}

void free_by_node(Scene& scene, CUdeviceptr address) {
  CUgraph graph = nullptr;
  ANSWERED(cu.cuGraphCreate(&graph, 0));
  scene.graphs.push_back(graph);
  CUgraphNode node = nullptr;
  if (ANSWERED(cu.cuGraphAddMemFreeNode(&node, graph, nullptr, 0, address)) == CUDA_SUCCESS) run(scene, graph);
}

}  // namespace

CUresult answered(const char* call, CUresult result) {
  if (error == CUDA_SUCCESS) error = result;
  note(fmt::format("  {} -> {}", call, static_cast<int>(result)));
  return result;
}

CUresult first_error() {
  return std::exchange(error, CUDA_SUCCESS);
}

// clang-format off
const std::vector<Route>& routes() {
  static const std::vector<Route> all = {
      {"plain", [](Scene&) { return given_by([](CUdeviceptr* to) { return cu.cuMemAlloc_v2(to, kCrossedBytes); }); }},
      {"small", [](Scene&) { return given_by([](CUdeviceptr* to) { return cu.cuMemAlloc_v2(to, 1); }); }},
      {"pitched", [](Scene&) { std::size_t pitch = 0; return given_by([&](CUdeviceptr* to) { return cu.cuMemAllocPitch_v2(to, &pitch, 1000, 1000, 4); }); }},
      {"managed", [](Scene&) { return given_by([](CUdeviceptr* to) { return cu.cuMemAllocManaged(to, kCrossedBytes, CU_MEM_ATTACH_GLOBAL); }); }},
      {"default pool", [](Scene& scene) { return given_by([&](CUdeviceptr* to) { return cu.cuMemAllocAsync(to, kCrossedBytes, scene.stream); }); }},
      {"default pool, null stream", [](Scene&) { return given_by([](CUdeviceptr* to) { return cu.cuMemAllocAsync(to, kCrossedBytes, nullptr); }); }},
      {"default pool, thread's stream", [](Scene&) { return given_by([](CUdeviceptr* to) { return cu.cuMemAllocAsync_ptsz(to, kCrossedBytes, nullptr); }); }},
      {"default pool, stream of the other GPU", [](Scene& scene) { return given_by([&](CUdeviceptr* to) { return cu.cuMemAllocAsync(to, kCrossedBytes, scene.stream_of_other); }); }},
      {"current pool", from_current_pool},
      {"own pool", [](Scene& scene) { return from_pool(scene, CU_MEM_LOCATION_TYPE_DEVICE, 0); }},
      {"pool of the other GPU", [](Scene& scene) { return from_pool(scene, CU_MEM_LOCATION_TYPE_DEVICE, 1); }},
      {"host pool", [](Scene& scene) { return from_pool(scene, CU_MEM_LOCATION_TYPE_HOST, 0); }},
      {"NUMA pool", [](Scene& scene) { return from_pool(scene, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0); }},
      {"managed pool", [](Scene& scene) { return from_pool(scene, CU_MEM_LOCATION_TYPE_DEVICE, 0, true); }},
      {"imported pool", imported_pointer},
      {"captured", allocated_in_capture},
      {"graph node", allocated_by_node},
      {"mapped", mapped},
      {"pinned", pinned},
      {"registered", registered},
      {"another process's", opened},
      {"none", [](Scene&) { return CUdeviceptr{0}; }},
  };
  return all;
}

const std::vector<Free>& frees() {
  static const std::vector<Free> all = {
      {"not freed", [](Scene&, CUdeviceptr) {}},
      {"cuMemFree", [](Scene&, CUdeviceptr address) { ANSWERED(cu.cuMemFree_v2(address)); }},
      {"cuMemFree of its middle", [](Scene&, CUdeviceptr address) { ANSWERED(cu.cuMemFree_v2(address + 512)); }},
      {"cuMemFreeAsync", [](Scene& scene, CUdeviceptr address) { ANSWERED(cu.cuMemFreeAsync(address, scene.stream)); }},
      {"cuMemFreeAsync of its middle", [](Scene& scene, CUdeviceptr address) { ANSWERED(cu.cuMemFreeAsync(address + 512, scene.stream)); }},
      {"cuMemFreeAsync in the null stream", [](Scene&, CUdeviceptr address) { ANSWERED(cu.cuMemFreeAsync(address, nullptr)); }},
      {"cuMemFreeAsync in the thread's stream", [](Scene&, CUdeviceptr address) { ANSWERED(cu.cuMemFreeAsync_ptsz(address, nullptr)); }},
      {"cuMemFreeAsync in a stream of the other GPU", [](Scene& scene, CUdeviceptr address) { ANSWERED(cu.cuMemFreeAsync(address, scene.stream_of_other)); }},
      {"cuMemFreeAsync, captured", free_in_capture},
      {"free node", free_by_node},
      {"cuMemFreeHost", [](Scene&, CUdeviceptr address) { ANSWERED(cu.cuMemFreeHost(reinterpret_cast<void*>(address))); }},
      {"cuMemHostUnregister", [](Scene&, CUdeviceptr address) { ANSWERED(cu.cuMemHostUnregister(reinterpret_cast<void*>(address))); }},
      {"cuMemUnmap", [](Scene&, CUdeviceptr address) { ANSWERED(cu.cuMemUnmap(address, kCrossedBytes)); }},
      {"cuMemAddressFree", [](Scene&, CUdeviceptr address) { ANSWERED(cu.cuMemAddressFree(address, kCrossedBytes)); }},
      {"cuIpcCloseMemHandle", [](Scene&, CUdeviceptr address) { ANSWERED(cu.cuIpcCloseMemHandle(address)); }},
  };
  return all;
}
// clang-format on

}  // namespace rota::test
