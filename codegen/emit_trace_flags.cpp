// Which enum an integer parameter (or a struct's field) takes. The headers say so only in prose, so this list is
// written by hand from the functions' documentation; a parameter that is not in it is shown as a number. Where the
// values are macros, which no model holds, they are listed here too.
#include <map>
#include <utility>

#include "codegen/emit_trace.h"

namespace rota::codegen {

std::string enumeration_of_parameter(const std::string& base, const std::string& parameter) {
  static const std::map<std::pair<std::string, std::string>, std::string> enums = {
      {{"CUDA_ARRAY3D_DESCRIPTOR_st", "Flags"}, "CUDA_ARRAY3D flags"},
      {{"CUDA_ARRAY3D_DESCRIPTOR_v1_st", "Flags"}, "CUDA_ARRAY3D flags"},
      {{"CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st", "flags"}, "CUDA_EXTERNAL_MEMORY flags"},
      {{"CUDA_TEXTURE_DESC_st", "flags"}, "CU_TRSF flags"},
      {{"cuCtxCreate", "flags"}, "CUctx_flags_enum"},
      {{"cuCtxGetFlags", "flags"}, "CUctx_flags_enum"},
      {{"cuCtxSetFlags", "flags"}, "CUctx_flags_enum"},
      {{"cuDevSmResourceSplitByCount", "flags"}, "CUdevSmResourceSplitByCount_flags"},
      {{"cuDeviceGetHostAtomicCapabilities", "capabilities"}, "CUatomicOperationCapability_enum"},
      {{"cuDeviceGetP2PAtomicCapabilities", "capabilities"}, "CUatomicOperationCapability_enum"},
      {{"cuDeviceGetNvSciSyncAttributes", "flags"}, "CUDA_NVSCISYNC_ATTR flags"},
      {{"cuDevicePrimaryCtxGetState", "flags"}, "CUctx_flags_enum"},
      {{"cuDevicePrimaryCtxSetFlags", "flags"}, "CUctx_flags_enum"},
      {{"cuEGLStreamConsumerConnectWithFlags", "flags"}, "CUeglResourceLocationFlags_enum"},
      {{"cuEventCreate", "Flags"}, "CUevent_flags_enum"},
      {{"cuEventCreateFromEGLSync", "flags"}, "CUevent_flags_enum"},
      {{"cuEventRecordWithFlags", "flags"}, "CUevent_record_flags_enum"},
      {{"cuGLCtxCreate", "Flags"}, "CUctx_flags_enum"},
      {{"cuGLSetBufferObjectMapFlags", "Flags"}, "CUGLmap_flags_enum"},
      {{"cuGetProcAddress", "flags"}, "CUdriverProcAddress_flags_enum"},
      {{"cuGraphDebugDotPrint", "flags"}, "CUgraphDebugDot_flags_enum"},
      {{"cuGraphExecGetFlags", "flags"}, "CUgraphInstantiate_flags_enum"},
      {{"cuGraphInstantiateWithFlags", "flags"}, "CUgraphInstantiate_flags_enum"},
      {{"cuGraphRetainUserObject", "flags"}, "CUuserObjectRetain_flags_enum"},
      {{"cuGraphicsEGLRegisterImage", "flags"}, "CUgraphicsMapResourceFlags_enum"},
      {{"cuGraphicsGLRegisterBuffer", "Flags"}, "CUgraphicsRegisterFlags_enum"},
      {{"cuGraphicsGLRegisterImage", "Flags"}, "CUgraphicsRegisterFlags_enum"},
      {{"cuGraphicsResourceSetMapFlags", "flags"}, "CUgraphicsMapResourceFlags_enum"},
      {{"cuGraphicsVDPAURegisterOutputSurface", "flags"}, "CUgraphicsMapResourceFlags_enum"},
      {{"cuGraphicsVDPAURegisterVideoSurface", "flags"}, "CUgraphicsMapResourceFlags_enum"},
      {{"cuGreenCtxCreate", "flags"}, "CUgreenCtxCreate_flags"},
      {{"cuGreenCtxStreamCreate", "flags"}, "CUstream_flags_enum"},
      {{"cuIpcOpenMemHandle", "Flags"}, "CUipcMem_flags_enum"},
      {{"cuLaunchCooperativeKernelMultiDevice", "flags"}, "CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE flags"},
      {{"cuLaunchHostFunc", "syncMode"}, "CUhostTaskSyncMode_enum"},
      {{"cuMemAllocManaged", "flags"}, "CUmemAttach_flags_enum"},
      {{"cuMemGetAccess", "flags"}, "CUmemAccess_flags_enum"},
      {{"cuMemGetHandleForAddressRange", "flags"}, "CUmemRangeFlags_enum"},
      {{"cuMemHostAlloc", "Flags"}, "CU_MEMHOSTALLOC flags"},
      {{"cuMemHostGetFlags", "pFlags"}, "CU_MEMHOSTALLOC flags"},
      {{"cuMemHostRegister", "Flags"}, "CU_MEMHOSTREGISTER flags"},
      {{"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "flags"}, "CUoccupancy_flags_enum"},
      {{"cuOccupancyMaxPotentialBlockSizeWithFlags", "flags"}, "CUoccupancy_flags_enum"},
      {{"cuStreamAttachMemAsync", "flags"}, "CUmemAttach_flags_enum"},
      {{"cuStreamCreate", "Flags"}, "CUstream_flags_enum"},
      {{"cuStreamCreateWithPriority", "flags"}, "CUstream_flags_enum"},
      {{"cuStreamGetFlags", "flags"}, "CUstream_flags_enum"},
      {{"cuStreamUpdateCaptureDependencies", "flags"}, "CUstreamUpdateCaptureDependencies_flags_enum"},
      {{"cuStreamWaitEvent", "Flags"}, "CUevent_wait_flags_enum"},
      {{"cuStreamWaitValue32", "flags"}, "CUstreamWaitValue_flags_enum"},
      {{"cuStreamWaitValue64", "flags"}, "CUstreamWaitValue_flags_enum"},
      {{"cuStreamWriteValue32", "flags"}, "CUstreamWriteValue_flags_enum"},
      {{"cuStreamWriteValue64", "flags"}, "CUstreamWriteValue_flags_enum"},
      {{"cuTexRefGetFlags", "pFlags"}, "CU_TRSF flags"},
      {{"cuTexRefSetArray", "Flags"}, "CU_TRSA flags"},
      {{"cuTexRefSetFlags", "Flags"}, "CU_TRSF flags"},
      {{"cuTexRefSetMipmappedArray", "Flags"}, "CU_TRSA flags"},
      {{"cuUserObjectCreate", "flags"}, "CUuserObject_flags_enum"},
      {{"cuVDPAUCtxCreate", "flags"}, "CUctx_flags_enum"},
      {{"cudaArrayGetInfo", "flags"}, "cudaArray flags"},
      {{"cudaDevSmResourceSplitByCount", "flags"}, "cudaDevSmResourceSplitByCount_flags"},
      {{"cudaDeviceGetHostAtomicCapabilities", "capabilities"}, "cudaAtomicOperationCapability"},
      {{"cudaDeviceGetNvSciSyncAttributes", "flags"}, "cudaNvSciSyncAttr flags"},
      {{"cudaDeviceGetP2PAtomicCapabilities", "capabilities"}, "cudaAtomicOperationCapability"},
      {{"cudaEGLStreamConsumerConnectWithFlags", "flags"}, "cudaEglResourceLocationFlags_enum"},
      {{"cudaEventCreateFromEGLSync", "flags"}, "cudaEvent flags"},
      {{"cudaEventCreateWithFlags", "flags"}, "cudaEvent flags"},
      {{"cudaEventRecordWithFlags", "flags"}, "cudaEventRecord flags"},
      {{"cudaExecutionCtxStreamCreate", "flags"}, "cudaStream flags"},
      {{"cudaExternalMemoryHandleDesc", "flags"}, "cudaExternalMemory flags"},
      {{"cudaGLSetBufferObjectMapFlags", "flags"}, "cudaGLMapFlags"},
      {{"cudaGetDeviceFlags", "flags"}, "cudaDevice flags"},
      {{"cudaGetDriverEntryPoint", "flags"}, "cudaGetDriverEntryPointFlags"},
      {{"cudaGetDriverEntryPointByVersion", "flags"}, "cudaGetDriverEntryPointFlags"},
      {{"cudaGraphConditionalHandleCreate", "flags"}, "cudaGraphConditionalHandleFlags"},
      {{"cudaGraphDebugDotPrint", "flags"}, "cudaGraphDebugDotFlags"},
      {{"cudaGraphExecGetFlags", "flags"}, "cudaGraphInstantiateFlags"},
      {{"cudaGraphInstantiate", "flags"}, "cudaGraphInstantiateFlags"},
      {{"cudaGraphInstantiateWithFlags", "flags"}, "cudaGraphInstantiateFlags"},
      {{"cudaGraphRetainUserObject", "flags"}, "cudaUserObjectRetainFlags"},
      {{"cudaGraphicsEGLRegisterImage", "flags"}, "cudaGraphicsRegisterFlags"},
      {{"cudaGraphicsGLRegisterBuffer", "flags"}, "cudaGraphicsRegisterFlags"},
      {{"cudaGraphicsGLRegisterImage", "flags"}, "cudaGraphicsRegisterFlags"},
      {{"cudaGraphicsResourceSetMapFlags", "flags"}, "cudaGraphicsMapFlags"},
      {{"cudaGraphicsVDPAURegisterOutputSurface", "flags"}, "cudaGraphicsMapFlags"},
      {{"cudaGraphicsVDPAURegisterVideoSurface", "flags"}, "cudaGraphicsMapFlags"},
      {{"cudaHostAlloc", "flags"}, "cudaHostAlloc flags"},
      {{"cudaHostGetFlags", "pFlags"}, "cudaHostAlloc flags"},
      {{"cudaHostRegister", "flags"}, "cudaHostRegister flags"},
      {{"cudaInitDevice", "deviceFlags"}, "cudaDevice flags"},
      {{"cudaInitDevice", "flags"}, "cudaInitDevice flags"},
      {{"cudaIpcOpenMemHandle", "flags"}, "cudaIpcMem flags"},
      {{"cudaLaunchCooperativeKernelMultiDevice", "flags"}, "cudaCooperativeLaunchMultiDevice flags"},
      {{"cudaLaunchHostFunc", "syncMode"}, "cudaHostTaskSyncMode"},
      {{"cudaMalloc3DArray", "flags"}, "cudaArray flags"},
      {{"cudaMallocArray", "flags"}, "cudaArray flags"},
      {{"cudaMallocManaged", "flags"}, "cudaMemAttach flags"},
      {{"cudaMallocMipmappedArray", "flags"}, "cudaArray flags"},
      {{"cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "flags"}, "cudaOccupancy flags"},
      {{"cudaSetDeviceFlags", "flags"}, "cudaDevice flags"},
      {{"cudaStreamAttachMemAsync", "flags"}, "cudaMemAttach flags"},
      {{"cudaStreamCreateWithFlags", "flags"}, "cudaStream flags"},
      {{"cudaStreamCreateWithPriority", "flags"}, "cudaStream flags"},
      {{"cudaStreamGetFlags", "flags"}, "cudaStream flags"},
      {{"cudaStreamUpdateCaptureDependencies", "flags"}, "cudaStreamUpdateCaptureDependenciesFlags"},
      {{"cudaStreamWaitEvent", "flags"}, "cudaEventWait flags"},
      {{"cudaUserObjectCreate", "flags"}, "cudaUserObjectFlags"},
  };
  const auto found = enums.find({base, parameter});
  return found == enums.end() ? std::string() : found->second;
}

namespace {

Enum macros(const std::string& name, std::vector<Enumerator> values) {
  Enum known;
  known.name = name;
  known.enumerators = std::move(values);
  return known;
}

const std::vector<Enum>& macro_enums() {
  static const std::vector<Enum> enums = {
      macros("CU_MEMHOSTALLOC flags",
             {{"CU_MEMHOSTALLOC_PORTABLE", 1}, {"CU_MEMHOSTALLOC_DEVICEMAP", 2}, {"CU_MEMHOSTALLOC_WRITECOMBINED", 4}}),
      macros("CU_MEMHOSTREGISTER flags", {{"CU_MEMHOSTREGISTER_PORTABLE", 1},
                                          {"CU_MEMHOSTREGISTER_DEVICEMAP", 2},
                                          {"CU_MEMHOSTREGISTER_IOMEMORY", 4},
                                          {"CU_MEMHOSTREGISTER_READ_ONLY", 8}}),
      macros("CU_TRSA flags", {{"CU_TRSA_OVERRIDE_FORMAT", 1}}),
      macros("CU_TRSF flags", {{"CU_TRSF_READ_AS_INTEGER", 1},
                               {"CU_TRSF_NORMALIZED_COORDINATES", 2},
                               {"CU_TRSF_SRGB", 0x10},
                               {"CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION", 0x20},
                               {"CU_TRSF_SEAMLESS_CUBEMAP", 0x40}}),
      macros("CUDA_ARRAY3D flags", {{"CUDA_ARRAY3D_LAYERED", 1},
                                    {"CUDA_ARRAY3D_SURFACE_LDST", 2},
                                    {"CUDA_ARRAY3D_CUBEMAP", 4},
                                    {"CUDA_ARRAY3D_TEXTURE_GATHER", 8},
                                    {"CUDA_ARRAY3D_DEPTH_TEXTURE", 0x10},
                                    {"CUDA_ARRAY3D_COLOR_ATTACHMENT", 0x20},
                                    {"CUDA_ARRAY3D_SPARSE", 0x40},
                                    {"CUDA_ARRAY3D_DEFERRED_MAPPING", 0x80},
                                    {"CUDA_ARRAY3D_VIDEO_ENCODE_DECODE", 0x100}}),
      macros("CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE flags",
             {{"CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC", 1},
              {"CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC", 2}}),
      macros("CUDA_EXTERNAL_MEMORY flags", {{"CUDA_EXTERNAL_MEMORY_DEDICATED", 1}}),
      macros("CUDA_NVSCISYNC_ATTR flags", {{"CUDA_NVSCISYNC_ATTR_SIGNAL", 1}, {"CUDA_NVSCISYNC_ATTR_WAIT", 2}}),
      macros("cudaArray flags", {{"cudaArrayDefault", 0},
                                 {"cudaArrayLayered", 1},
                                 {"cudaArraySurfaceLoadStore", 2},
                                 {"cudaArrayCubemap", 4},
                                 {"cudaArrayTextureGather", 8},
                                 {"cudaArrayColorAttachment", 0x20},
                                 {"cudaArraySparse", 0x40},
                                 {"cudaArrayDeferredMapping", 0x80}}),
      macros("cudaCooperativeLaunchMultiDevice flags",
             {{"cudaCooperativeLaunchMultiDeviceNoPreSync", 1}, {"cudaCooperativeLaunchMultiDeviceNoPostSync", 2}}),
      macros("cudaDevice flags", {{"cudaDeviceScheduleAuto", 0},
                                  {"cudaDeviceScheduleSpin", 1},
                                  {"cudaDeviceScheduleYield", 2},
                                  {"cudaDeviceScheduleBlockingSync", 4},
                                  {"cudaDeviceMapHost", 8},
                                  {"cudaDeviceLmemResizeToMax", 0x10},
                                  {"cudaDeviceSyncMemops", 0x80}}),
      macros("cudaEvent flags", {{"cudaEventDefault", 0},
                                 {"cudaEventBlockingSync", 1},
                                 {"cudaEventDisableTiming", 2},
                                 {"cudaEventInterprocess", 4}}),
      macros("cudaEventRecord flags", {{"cudaEventRecordDefault", 0}, {"cudaEventRecordExternal", 1}}),
      macros("cudaEventWait flags", {{"cudaEventWaitDefault", 0}, {"cudaEventWaitExternal", 1}}),
      macros("cudaExternalMemory flags", {{"cudaExternalMemoryDedicated", 1}}),
      macros("cudaHostAlloc flags", {{"cudaHostAllocDefault", 0},
                                     {"cudaHostAllocPortable", 1},
                                     {"cudaHostAllocMapped", 2},
                                     {"cudaHostAllocWriteCombined", 4}}),
      macros("cudaHostRegister flags", {{"cudaHostRegisterDefault", 0},
                                        {"cudaHostRegisterPortable", 1},
                                        {"cudaHostRegisterMapped", 2},
                                        {"cudaHostRegisterIoMemory", 4},
                                        {"cudaHostRegisterReadOnly", 8}}),
      macros("cudaInitDevice flags", {{"cudaInitDeviceFlagsAreValid", 1}}),
      macros("cudaIpcMem flags", {{"cudaIpcMemLazyEnablePeerAccess", 1}}),
      macros("cudaMemAttach flags", {{"cudaMemAttachGlobal", 1}, {"cudaMemAttachHost", 2}, {"cudaMemAttachSingle", 4}}),
      macros("cudaNvSciSyncAttr flags", {{"cudaNvSciSyncAttrSignal", 1}, {"cudaNvSciSyncAttrWait", 2}}),
      macros("cudaOccupancy flags", {{"cudaOccupancyDefault", 0}, {"cudaOccupancyDisableCachingOverride", 1}}),
      macros("cudaStream flags", {{"cudaStreamDefault", 0}, {"cudaStreamNonBlocking", 1}}),
  };
  return enums;
}

}  // namespace

const Enum* enumeration_meant(const Api& api, const std::string& owner, const std::string& name) {
  const std::string meant = enumeration_of_parameter(owner, name);
  if (meant.empty()) return nullptr;
  for (const Enum& known : macro_enums()) {
    if (known.name == meant) return &known;
  }
  return api.find_enum(meant);
}

}  // namespace rota::codegen
