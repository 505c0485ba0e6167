// Which enum an integer parameter takes. The headers say it in prose only, so this list is written by hand from the
// functions' documentation; a parameter that is not in it is shown as a number.
#include <map>
#include <utility>

#include "codegen/emit_trace.h"

namespace rota::codegen {

std::string enumeration_of_parameter(const std::string& base, const std::string& parameter) {
  static const std::map<std::pair<std::string, std::string>, std::string> enums = {
      {{"cuCtxCreate", "flags"}, "CUctx_flags_enum"},
      {{"cuCtxGetFlags", "flags"}, "CUctx_flags_enum"},
      {{"cuCtxSetFlags", "flags"}, "CUctx_flags_enum"},
      {{"cuDevSmResourceSplitByCount", "flags"}, "CUdevSmResourceSplitByCount_flags"},
      {{"cuDeviceGetHostAtomicCapabilities", "capabilities"}, "CUatomicOperationCapability_enum"},
      {{"cuDeviceGetP2PAtomicCapabilities", "capabilities"}, "CUatomicOperationCapability_enum"},
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
      {{"cuLaunchHostFunc", "syncMode"}, "CUhostTaskSyncMode_enum"},
      {{"cuMemAllocManaged", "flags"}, "CUmemAttach_flags_enum"},
      {{"cuMemGetAccess", "flags"}, "CUmemAccess_flags_enum"},
      {{"cuMemGetHandleForAddressRange", "flags"}, "CUmemRangeFlags_enum"},
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
      {{"cuUserObjectCreate", "flags"}, "CUuserObject_flags_enum"},
      {{"cuVDPAUCtxCreate", "flags"}, "CUctx_flags_enum"},
      {{"cudaDevSmResourceSplitByCount", "flags"}, "cudaDevSmResourceSplitByCount_flags"},
      {{"cudaDeviceGetHostAtomicCapabilities", "capabilities"}, "cudaAtomicOperationCapability"},
      {{"cudaDeviceGetP2PAtomicCapabilities", "capabilities"}, "cudaAtomicOperationCapability"},
      {{"cudaEGLStreamConsumerConnectWithFlags", "flags"}, "cudaEglResourceLocationFlags_enum"},
      {{"cudaGLSetBufferObjectMapFlags", "flags"}, "cudaGLMapFlags"},
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
      {{"cudaLaunchHostFunc", "syncMode"}, "cudaHostTaskSyncMode"},
      {{"cudaStreamUpdateCaptureDependencies", "flags"}, "cudaStreamUpdateCaptureDependenciesFlags"},
      {{"cudaUserObjectCreate", "flags"}, "cudaUserObjectFlags"},
  };
  const auto found = enums.find({base, parameter});
  return found == enums.end() ? std::string() : found->second;
}

}  // namespace rota::codegen
