// See trace_tables.h; unions are in trace_unions.cpp.
#include "tools/rota/trace/tables.h"

#include <algorithm>
#include <array>

namespace rota::tool {
namespace {

struct HandleType {
  std::string_view type;
  std::string_view shown;
};

constexpr HandleType kHandleTypes[] = {
    {"CUarray", "array"},
    {"cudaArray_t", "array"},
    {"cudaArray_const_t", "array"},
    {"CUasyncCallbackHandle", "callback"},
    {"cudaAsyncCallbackHandle_t", "callback"},
    {"CUcheckpointOperationHandle", "checkpoint"},
    {"CUcontext", "context"},
    {"CUcoredumpCallbackHandle", "callback"},
    {"CUdevResourceDesc", "resource"},
    {"cudaDevResourceDesc_t", "resource"},
    {"CUeglStreamConnection", "eglstream"},
    {"cudaEglStreamConnection", "eglstream"},
    {"CUevent", "event"},
    {"cudaEvent_t", "event"},
    {"CUexternalMemory", "extmem"},
    {"cudaExternalMemory_t", "extmem"},
    {"CUexternalSemaphore", "extsem"},
    {"cudaExternalSemaphore_t", "extsem"},
    {"CUfunction", "function"},
    {"cudaFunction_t", "function"},
    {"CUgraph", "graph"},
    {"cudaGraph_t", "graph"},
    {"CUgraphConditionalHandle", "condition"},
    {"cudaGraphConditionalHandle", "condition"},
    {"CUgraphDeviceNode", "devicenode"},
    {"cudaGraphDeviceNode_t", "devicenode"},
    {"CUgraphExec", "graphexec"},
    {"cudaGraphExec_t", "graphexec"},
    {"CUgraphNode", "node"},
    {"cudaGraphNode_t", "node"},
    {"CUgraphicsResource", "graphics"},
    {"cudaGraphicsResource_t", "graphics"},
    {"cudaGraphicsResource*", "graphics"},
    {"CUgreenCtx", "greencontext"},
    {"cudaExecutionContext_t", "execution"},
    {"CUkernel", "kernel"},
    {"cudaKernel_t", "kernel"},
    {"CUlibrary", "library"},
    {"cudaLibrary_t", "library"},
    {"CUlinkState", "link"},
    {"CUlogsCallbackHandle", "callback"},
    {"cudaLogsCallbackHandle", "callback"},
    {"CUmemGenericAllocationHandle", "memory"},
    {"CUmemGenericAllocationHandle_v1", "memory"},
    {"CUmemoryPool", "pool"},
    {"cudaMemPool_t", "pool"},
    {"CUmipmappedArray", "mipmap"},
    {"cudaMipmappedArray_t", "mipmap"},
    {"cudaMipmappedArray_const_t", "mipmap"},
    {"CUmodule", "module"},
    {"CUstream", "stream"},
    {"CUstream_st*", "stream"},
    {"cudaStream_t", "stream"},
    {"CUsurfObject", "surface"},
    {"CUsurfObject_v1", "surface"},
    {"cudaSurfaceObject_t", "surface"},
    {"CUsurfref", "surfref"},
    {"CUtexObject", "texture"},
    {"CUtexObject_v1", "texture"},
    {"cudaTextureObject_t", "texture"},
    {"CUtexref", "texref"},
    {"CUuserObject", "userobject"},
    {"cudaUserObject_t", "userobject"},
    {"EGLImageKHR", "eglimage"},
    {"EGLStreamKHR", "eglimage"},
    {"EGLSyncKHR", "eglsync"},
};

// Parts of names: cuGraphAdd…Node, cuModuleLoadDataEx, cudaMemPoolImportFromShareableHandle, cuStreamEndCapture.
// cuDevicePrimaryCtxRetain and everything with Get or Enumerate hand out what exists.
constexpr std::string_view kMaking[] = {"Create",  "Alloc",    "Malloc", "Load",     "Instantiate", "Clone",  "Import",
                                        "IpcOpen", "Register", "Add",    "Generate", "EndCapture",  "Connect"};
constexpr std::string_view kEnding[] = {"Destroy",   "Unload", "Unregister", "cudaFreeArray", "cudaFreeMipmappedArray",
                                        "Disconnect"};

constexpr Allocation kAllocations[] = {
    {.function = "cuMemAlloc", .address = "*dptr", .bytes = "bytesize"},
    {.function = "cuMemAllocManaged", .address = "*dptr", .bytes = "bytesize"},
    {.function = "cuMemAllocPitch", .address = "*dptr", .bytes = "*pPitch", .rows = "Height"},
    {.function = "cuMemAllocAsync", .address = "*dptr", .bytes = "bytesize"},
    {.function = "cuMemAllocFromPoolAsync", .address = "*dptr", .bytes = "bytesize"},
    {.function = "cuMemAddressReserve", .address = "*ptr", .bytes = "size"},
    {.function = "cuMemPoolImportPointer", .address = "*ptr_out", .bytes = ""},
    {.function = "cuIpcOpenMemHandle", .address = "*pdptr", .bytes = ""},
    {.function = "cuExternalMemoryGetMappedBuffer", .address = "*devPtr", .bytes = "bufferDesc.size"},
    {.function = "cuGraphAddMemAllocNode", .address = "*nodeParams.dptr", .bytes = "*nodeParams.bytesize"},
    {.function = "cuGraphAddNode", .address = "*nodeParams.alloc.dptr", .bytes = "*nodeParams.alloc.bytesize"},
    {.function = "cuMemHostAlloc", .address = "*pp", .bytes = "bytesize", .host = true},
    {.function = "cuMemAllocHost", .address = "*pp", .bytes = "bytesize", .host = true},
    {.function = "cuMemHostRegister", .address = "p", .bytes = "bytesize", .host = true},
    {.function = "cuModuleGetGlobal", .address = "*dptr", .bytes = "*bytes", .fresh = false},
    {.function = "cuLibraryGetGlobal", .address = "*dptr", .bytes = "*bytes", .fresh = false},
    {.function = "cuLibraryGetManaged", .address = "*dptr", .bytes = "*bytes", .fresh = false},
    {.function = "cuGraphicsResourceGetMappedPointer", .address = "*pDevPtr", .bytes = "*pSize", .fresh = false},
    {.function = "cuGLMapBufferObject", .address = "*dptr", .bytes = "*size", .fresh = false},
    {.function = "cuMemGetAddressRange", .address = "*pbase", .bytes = "*psize", .fresh = false},
    {.function = "cudaMalloc", .address = "*devPtr", .bytes = "size"},
    {.function = "cudaMallocManaged", .address = "*devPtr", .bytes = "size"},
    {.function = "cudaMallocPitch", .address = "*devPtr", .bytes = "*pitch", .rows = "height"},
    {.function = "cudaMalloc3D", .address = "*pitchedDevPtr.ptr", .bytes = ""},
    {.function = "cudaMallocAsync", .address = "*devPtr", .bytes = "size"},
    {.function = "cudaMallocFromPoolAsync", .address = "*ptr", .bytes = "size"},
    {.function = "cudaMemPoolImportPointer", .address = "*ptr", .bytes = ""},
    {.function = "cudaIpcOpenMemHandle", .address = "*devPtr", .bytes = ""},
    {.function = "cudaExternalMemoryGetMappedBuffer", .address = "*devPtr", .bytes = "bufferDesc.size"},
    {.function = "cudaGraphAddMemAllocNode", .address = "*nodeParams.dptr", .bytes = "*nodeParams.bytesize"},
    {.function = "cudaGraphAddNode", .address = "*nodeParams.alloc.dptr", .bytes = "*nodeParams.alloc.bytesize"},
    {.function = "cudaHostAlloc", .address = "*pHost", .bytes = "size", .host = true},
    {.function = "cudaMallocHost", .address = "*ptr", .bytes = "size", .host = true},
    {.function = "cudaHostRegister", .address = "ptr", .bytes = "size", .host = true},
    {.function = "cudaGetSymbolAddress", .address = "*devPtr", .bytes = "", .fresh = false},
    {.function = "cudaLibraryGetGlobal", .address = "*dptr", .bytes = "*bytes", .fresh = false},
    {.function = "cudaLibraryGetManaged", .address = "*dptr", .bytes = "*bytes", .fresh = false},
    {.function = "cudaGraphicsResourceGetMappedPointer", .address = "*devPtr", .bytes = "*size", .fresh = false},
};

struct Free {
  std::string_view function;
  std::string_view parameter;
};
constexpr Free kFrees[] = {
    {"cuMemFree", "dptr"},         {"cuMemFreeAsync", "dptr"},          {"cuMemFreeHost", "p"},
    {"cuMemHostUnregister", "p"},  {"cuMemAddressFree", "ptr"},         {"cuIpcCloseMemHandle", "dptr"},
    {"cudaFree", "devPtr"},        {"cudaFreeAsync", "devPtr"},         {"cudaFreeHost", "ptr"},
    {"cudaHostUnregister", "ptr"}, {"cudaIpcCloseMemHandle", "devPtr"},
};

// What the runtime's headers leave unnamed is arg0, arg1.
constexpr Naming kNamings[] = {
    {"cuModuleGetFunction", "*hfunc", "name"},
    {"cuLibraryGetKernel", "*pKernel", "name"},
    {"cuKernelGetFunction", "*pFunc", "kernel"},
    {"cuFuncGetName", "hfunc", "*name"},
    {"cuKernelGetName", "hfunc", "*name"},
    {"cudaLibraryGetKernel", "*pKernel", "name"},
    {"cudaGetKernel", "*kernelPtr", "entryFuncAddr"},
    {"__cudaGetKernel", "*arg0", "arg1"},
    {"cudaGetFuncBySymbol", "*functionPtr", "symbolPtr"},
    {"cudaFuncGetName", "func", "*name"},
    {"__cudaRegisterFunction", "hostFun", "deviceName"},
    {"__cudaRegisterVar", "hostVar", "deviceName"},
    {"__cudaRegisterManagedVar", "hostVarPtrAddress", "deviceName"},
};

// __cudaPushCallConfiguration has a geometry too, but no kernel yet.
constexpr std::string_view kLaunches[] = {
    "cuLaunch",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuGraphAddKernelNode",
    "cuGraphKernelNodeSetParams",
    "cuGraphExecKernelNodeSetParams",
    "cuGraphAddNode",
    "cuGraphNodeSetParams",
    "cuGraphExecNodeSetParams",
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaLaunchCooperativeKernel",
    "__cudaLaunchKernel",
    "cudaGraphAddKernelNode",
    "cudaGraphKernelNodeSetParams",
    "cudaGraphExecKernelNodeSetParams",
    "cudaGraphAddNode",
    "cudaGraphNodeSetParams",
    "cudaGraphExecNodeSetParams",
};

template <class List>
bool has_part(std::string_view text, const List& parts) {
  return std::any_of(std::begin(parts), std::end(parts),
                     [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

template <class Row, std::size_t count>
const Row* find_row(const Row (&rows)[count], std::string_view function) {
  const Row* const found =
      std::find_if(std::begin(rows), std::end(rows), [&](const Row& row) { return row.function == function; });
  return found == std::end(rows) ? nullptr : found;
}

}  // namespace

std::string_view handle_class(std::string_view type) {
  if (type.starts_with("const ")) type.remove_prefix(6);
  for (const HandleType& known : kHandleTypes) {
    if (known.type == type) return known.shown;
  }
  return {};
}

std::string_view special_handle(std::string_view handle_class, std::uint64_t value, bool runtime_api) {
  if (handle_class != "stream") return {};
  if (value == 1) return runtime_api ? "cudaStreamLegacy" : "CU_STREAM_LEGACY";
  if (value == 2) return runtime_api ? "cudaStreamPerThread" : "CU_STREAM_PER_THREAD";
  return {};
}

bool is_device_pointer(std::string_view type) {
  if (type.starts_with("const ")) type.remove_prefix(6);
  return type == "CUdeviceptr" || type == "CUdeviceptr_v2" || type == "CUdeviceptr_v1";
}

std::string_view base_name(std::string_view function) {
  if (function.ends_with("_ptsz") || function.ends_with("_ptds")) function.remove_suffix(5);
  const std::size_t version = function.rfind("_v");
  if (version != std::string_view::npos && version + 2 < function.size() &&
      function.find_first_not_of("0123456789", version + 2) == std::string_view::npos) {
    function.remove_suffix(function.size() - version);
  }
  return function;
}

bool makes_objects(std::string_view base) {
  return has_part(base, kMaking) && base.find("Unregister") == std::string_view::npos &&
         base.find("Disconnect") == std::string_view::npos;
}

bool ends_object(std::string_view base) {
  return has_part(base, kEnding);
}

const Allocation* allocation_of(std::string_view base) {
  return find_row(kAllocations, base);
}

Place freed_memory(std::string_view base) {
  const Free* const found = find_row(kFrees, base);
  return found == nullptr ? Place{} : found->parameter;
}

std::span<const Naming> namings() {
  return kNamings;
}

bool is_launch(std::string_view base) {
  return std::find(std::begin(kLaunches), std::end(kLaunches), base) != std::end(kLaunches);
}

bool is_measurement(std::string_view base, std::string_view parameter) {
  return (base == "cuEventElapsedTime" && parameter == "pMilliseconds") ||
         (base == "cudaEventElapsedTime" && parameter == "ms");
}

}  // namespace rota::tool
