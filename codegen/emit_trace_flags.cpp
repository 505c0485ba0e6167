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
      {{"cuDevicePrimaryCtxGetState", "flags"}, "CUctx_flags_enum"},
      {{"cuDevicePrimaryCtxSetFlags", "flags"}, "CUctx_flags_enum"},
      {{"cuEventCreate", "Flags"}, "CUevent_flags_enum"},
      {{"cuEventRecordWithFlags", "flags"}, "CUevent_record_flags_enum"},
      {{"cuGLSetBufferObjectMapFlags", "Flags"}, "CUGLmap_flags_enum"},
      {{"cuGetProcAddress", "flags"}, "CUdriverProcAddress_flags_enum"},
      {{"cuGraphDebugDotPrint", "flags"}, "CUgraphDebugDot_flags_enum"},
      {{"cuGraphInstantiateWithFlags", "flags"}, "CUgraphInstantiate_flags_enum"},
      {{"cuGraphRetainUserObject", "flags"}, "CUuserObjectRetain_flags_enum"},
      {{"cuGraphicsEGLRegisterImage", "flags"}, "CUgraphicsRegisterFlags_enum"},
      {{"cuGraphicsGLRegisterBuffer", "Flags"}, "CUgraphicsRegisterFlags_enum"},
      {{"cuGraphicsGLRegisterImage", "Flags"}, "CUgraphicsRegisterFlags_enum"},
      {{"cuGraphicsResourceSetMapFlags", "flags"}, "CUgraphicsMapResourceFlags_enum"},
      {{"cuGreenCtxCreate", "flags"}, "CUgreenCtxCreate_flags"},
      {{"cuIpcOpenMemHandle", "Flags"}, "CUipcMem_flags_enum"},
      {{"cuMemAllocManaged", "flags"}, "CUmemAttach_flags_enum"},
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
      {{"cudaGraphDebugDotPrint", "flags"}, "cudaGraphDebugDotFlags"},
      {{"cudaGraphInstantiate", "flags"}, "cudaGraphInstantiateFlags"},
      {{"cudaGraphInstantiateWithFlags", "flags"}, "cudaGraphInstantiateFlags"},
      {{"cudaGraphRetainUserObject", "flags"}, "cudaUserObjectRetainFlags"},
      {{"cudaGraphicsGLRegisterBuffer", "flags"}, "cudaGraphicsRegisterFlags"},
      {{"cudaGraphicsGLRegisterImage", "flags"}, "cudaGraphicsRegisterFlags"},
      {{"cudaGraphicsResourceSetMapFlags", "flags"}, "cudaGraphicsMapFlags"},
      {{"cudaStreamUpdateCaptureDependencies", "flags"}, "cudaStreamUpdateCaptureDependenciesFlags"},
      {{"cudaUserObjectCreate", "flags"}, "cudaUserObjectFlags"},
  };
  const auto found = enums.find({base, parameter});
  return found == enums.end() ? std::string() : found->second;
}

}  // namespace rota::codegen
