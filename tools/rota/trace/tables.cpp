// See tables.h; unions are in unions.cpp.
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

struct FunctionParameter {
  std::string_view function;
  std::string_view parameter;
};

// What the policy says of each function, in the order of their names.
constexpr FunctionParameter kMakes[] = {
#define ROTA_TRACE_MAKES(function, parameter) {#function, parameter},
#define ROTA_TRACE_ENDS(function, parameter)
#define ROTA_TRACE_MEMORY(function, address, bytes, rows, host, fresh)
#include "generated/trace_objects.inc"
#undef ROTA_TRACE_MAKES
#undef ROTA_TRACE_ENDS
};

constexpr FunctionParameter kEnds[] = {
#define ROTA_TRACE_MAKES(function, parameter)
#define ROTA_TRACE_ENDS(function, parameter) {#function, parameter},
#include "generated/trace_objects.inc"
#undef ROTA_TRACE_ENDS
#undef ROTA_TRACE_MEMORY
};

constexpr Allocation kAllocations[] = {
#define ROTA_TRACE_ENDS(function, parameter)
#define ROTA_TRACE_MEMORY(function, address, bytes, rows, host, fresh) {#function, address, bytes, rows, host, fresh},
#include "generated/trace_objects.inc"
#undef ROTA_TRACE_MAKES
#undef ROTA_TRACE_ENDS
#undef ROTA_TRACE_MEMORY
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

template <std::size_t count>
bool has_row(const FunctionParameter (&rows)[count], std::string_view function, std::string_view parameter) {
  return std::any_of(std::begin(rows), std::end(rows), [&](const FunctionParameter& row) {
    return row.function == function && row.parameter == parameter;
  });
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

bool makes_object(std::string_view base, std::string_view parameter) {
  return has_row(kMakes, base, parameter);
}

bool ends_object(std::string_view base, std::string_view parameter) {
  return has_row(kEnds, base, parameter);
}

const Allocation* allocation_of(std::string_view base) {
  return find_row(kAllocations, base);
}

std::span<const Naming> namings() {
  return kNamings;
}

bool is_launch(std::string_view base) {
  return std::find(std::begin(kLaunches), std::end(kLaunches), base) != std::end(kLaunches);
}

bool is_direct_launch(std::string_view base) {
  return base.starts_with("cuLaunch") && is_launch(base);
}

bool is_lookup(std::string_view base) {
  static constexpr std::string_view kLookups[] = {"cuGetProcAddress", "cuGetExportTable", "cudaGetDriverEntryPoint",
                                                  "cudaGetDriverEntryPointByVersion", "cudaGetExportTable"};
  return std::find(std::begin(kLookups), std::end(kLookups), base) != std::end(kLookups);
}

bool gives_memory(std::string_view base) {
  return base.starts_with("cuMemAlloc") || base.starts_with("cudaMalloc") || base == "cuMemHostAlloc" ||
         base == "cudaHostAlloc";
}

bool is_measurement(std::string_view base, std::string_view parameter) {
  return (base == "cuEventElapsedTime" && parameter == "pMilliseconds") ||
         (base == "cudaEventElapsedTime" && parameter == "ms");
}

}  // namespace rota::tool
