// See tables.h: which member of a union counts.
#include "tools/rota/trace/tables.h"

#include <algorithm>

namespace rota::tool {
namespace {

constexpr UnionCase kLaunchAttribute[] = {
    {"CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW", "accessPolicyWindow"},
    {"CU_LAUNCH_ATTRIBUTE_COOPERATIVE", "cooperative"},
    {"CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY", "syncPolicy"},
    {"CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", "clusterDim"},
    {"CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE", "clusterSchedulingPolicyPreference"},
    {"CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION", "programmaticStreamSerializationAllowed"},
    {"CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT", "programmaticEvent"},
    {"CU_LAUNCH_ATTRIBUTE_PRIORITY", "priority"},
    {"CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP", "memSyncDomainMap"},
    {"CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN", "memSyncDomain"},
    {"CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION", "preferredClusterDim"},
    {"CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT", "launchCompletionEvent"},
    {"CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE", "deviceUpdatableKernelNode"},
    {"CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT", "sharedMemCarveout"},
    {"CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING", "nvlinkUtilCentricScheduling"},
    {"CU_LAUNCH_ATTRIBUTE_PORTABLE_CLUSTER_SIZE_MODE", "portableClusterSizeMode"},
    {"CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE", "sharedMemoryMode"},
    {"cudaLaunchAttributeAccessPolicyWindow", "accessPolicyWindow"},
    {"cudaLaunchAttributeCooperative", "cooperative"},
    {"cudaLaunchAttributeSynchronizationPolicy", "syncPolicy"},
    {"cudaLaunchAttributeClusterDimension", "clusterDim"},
    {"cudaLaunchAttributeClusterSchedulingPolicyPreference", "clusterSchedulingPolicyPreference"},
    {"cudaLaunchAttributeProgrammaticStreamSerialization", "programmaticStreamSerializationAllowed"},
    {"cudaLaunchAttributeProgrammaticEvent", "programmaticEvent"},
    {"cudaLaunchAttributePriority", "priority"},
    {"cudaLaunchAttributeMemSyncDomainMap", "memSyncDomainMap"},
    {"cudaLaunchAttributeMemSyncDomain", "memSyncDomain"},
    {"cudaLaunchAttributePreferredClusterDimension", "preferredClusterDim"},
    {"cudaLaunchAttributeLaunchCompletionEvent", "launchCompletionEvent"},
    {"cudaLaunchAttributeDeviceUpdatableKernelNode", "deviceUpdatableKernelNode"},
    {"cudaLaunchAttributePreferredSharedMemoryCarveout", "sharedMemCarveout"},
    {"cudaLaunchAttributeNvlinkUtilCentricScheduling", "nvlinkUtilCentricScheduling"},
    {"cudaLaunchAttributePortableClusterSizeMode", "portableClusterSizeMode"},
    {"cudaLaunchAttributeSharedMemoryMode", "sharedMemoryMode"},
};

constexpr UnionCase kGraphNode[] = {
    {"CU_GRAPH_NODE_TYPE_KERNEL", "kernel"},
    {"CU_GRAPH_NODE_TYPE_MEMCPY", "memcpy"},
    {"CU_GRAPH_NODE_TYPE_MEMSET", "memset"},
    {"CU_GRAPH_NODE_TYPE_HOST", "host"},
    {"CU_GRAPH_NODE_TYPE_GRAPH", "graph"},
    {"CU_GRAPH_NODE_TYPE_WAIT_EVENT", "eventWait"},
    {"CU_GRAPH_NODE_TYPE_EVENT_RECORD", "eventRecord"},
    {"CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL", "extSemSignal"},
    {"CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT", "extSemWait"},
    {"CU_GRAPH_NODE_TYPE_MEM_ALLOC", "alloc"},
    {"CU_GRAPH_NODE_TYPE_MEM_FREE", "free"},
    {"CU_GRAPH_NODE_TYPE_BATCH_MEM_OP", "memOp"},
    {"CU_GRAPH_NODE_TYPE_CONDITIONAL", "conditional"},
    {"CU_GRAPH_NODE_TYPE_MEMCPY_BATCH", "memcpyBatch"},
    {"CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH", "fabricCpyBatch"},
    {"cudaGraphNodeTypeKernel", "kernel"},
    {"cudaGraphNodeTypeMemcpy", "memcpy"},
    {"cudaGraphNodeTypeMemset", "memset"},
    {"cudaGraphNodeTypeHost", "host"},
    {"cudaGraphNodeTypeGraph", "graph"},
    {"cudaGraphNodeTypeWaitEvent", "eventWait"},
    {"cudaGraphNodeTypeEventRecord", "eventRecord"},
    {"cudaGraphNodeTypeExtSemaphoreSignal", "extSemSignal"},
    {"cudaGraphNodeTypeExtSemaphoreWait", "extSemWait"},
    {"cudaGraphNodeTypeMemAlloc", "alloc"},
    {"cudaGraphNodeTypeMemFree", "free"},
    {"cudaGraphNodeTypeConditional", "conditional"},
    {"cudaGraphNodeTypeMemcpyBatch", "memcpyBatch"},
};

constexpr UnionCase kResource[] = {
    {"CU_RESOURCE_TYPE_ARRAY", "array"},   {"CU_RESOURCE_TYPE_MIPMAPPED_ARRAY", "mipmap"},
    {"CU_RESOURCE_TYPE_LINEAR", "linear"}, {"CU_RESOURCE_TYPE_PITCH2D", "pitch2D"},
    {"cudaResourceTypeArray", "array"},    {"cudaResourceTypeMipmappedArray", "mipmap"},
    {"cudaResourceTypeLinear", "linear"},  {"cudaResourceTypePitch2D", "pitch2D"},
};

constexpr UnionCase kMapResource[] = {
    {"CU_RESOURCE_TYPE_ARRAY", "array"},
    {"CU_RESOURCE_TYPE_MIPMAPPED_ARRAY", "mipmap"},
};

constexpr UnionCase kSubresource[] = {
    {"CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL", "sparseLevel"},
    {"CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL", "miptail"},
};

constexpr UnionCase kLocation[] = {
    {"CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN", "localized"},
    {"cudaMemLocationTypeDeviceLocalityDomain", "localized"},
};

// The many kinds of Windows are the rest.
constexpr UnionCase kExternalMemory[] = {
    {"CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD", "fd"},
    {"CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD", "fd"},
    {"CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF", "nvSciBufObject"},
    {"cudaExternalMemoryHandleTypeOpaqueFd", "fd"},
    {"cudaExternalMemoryHandleTypeNvSciBuf", "nvSciBufObject"},
};

constexpr UnionCase kExternalSemaphore[] = {
    {"CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD", "fd"},
    {"CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD", "fd"},
    {"CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_NVSCISYNC", "nvSciSyncObj"},
    {"cudaExternalSemaphoreHandleTypeOpaqueFd", "fd"},
    {"cudaExternalSemaphoreHandleTypeTimelineSemaphoreFd", "fd"},
    {"cudaExternalSemaphoreHandleTypeNvSciSync", "nvSciSyncObj"},
};

constexpr UnionCase kOperand[] = {
    {"CU_MEMCPY_OPERAND_TYPE_POINTER", "ptr"},
    {"CU_MEMCPY_OPERAND_TYPE_ARRAY", "array"},
    {"cudaMemcpyOperandTypePointer", "ptr"},
    {"cudaMemcpyOperandTypeArray", "array"},
};

constexpr UnionCase kDeviceResource[] = {
    {"CU_DEV_RESOURCE_TYPE_SM", "sm"},
    {"CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG", "wqConfig"},
    {"CU_DEV_RESOURCE_TYPE_WORKQUEUE", "wq"},
    {"cudaDevResourceTypeSm", "sm"},
    {"cudaDevResourceTypeWorkqueueConfig", "wqConfig"},
    {"cudaDevResourceTypeWorkqueue", "wq"},
};

constexpr UnionCase kStreamOperation[] = {
    {"CU_STREAM_MEM_OP_WAIT_VALUE_32", "waitValue"},
    {"CU_STREAM_MEM_OP_WAIT_VALUE_64", "waitValue"},
    {"CU_STREAM_MEM_OP_WRITE_VALUE_32", "writeValue"},
    {"CU_STREAM_MEM_OP_WRITE_VALUE_64", "writeValue"},
    {"CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES", "flushRemoteWrites"},
    {"CU_STREAM_MEM_OP_BARRIER", "memoryBarrier"},
    {"CU_STREAM_MEM_OP_ATOMIC_REDUCTION", "atomicReduction"},
};

constexpr UnionCase kStreamValue[] = {
    {"CU_STREAM_MEM_OP_WAIT_VALUE_32", "value"},
    {"CU_STREAM_MEM_OP_WRITE_VALUE_32", "value"},
    {"CU_STREAM_MEM_OP_WAIT_VALUE_64", "value64"},
    {"CU_STREAM_MEM_OP_WRITE_VALUE_64", "value64"},
};

constexpr UnionCase kFrame[] = {
    {"CU_EGL_FRAME_TYPE_ARRAY", "pArray"},
    {"CU_EGL_FRAME_TYPE_PITCH", "pPitch"},
    {"cudaEglFrameTypeArray", "pArray"},
    {"cudaEglFrameTypePitch", "pPitch"},
};

constexpr UnionCase kNotification[] = {
    {"CU_ASYNC_NOTIFICATION_TYPE_OVER_BUDGET", "overBudget"},
    {"cudaAsyncNotificationTypeOverBudget", "overBudget"},
};

constexpr UnionCase kAffinity[] = {{"CU_EXEC_AFFINITY_TYPE_SM_COUNT", "smCount"}};

constexpr UnionCase kEndpoint[] = {
    {"CU_LOGICAL_ENDPOINT_TYPE_UNICAST", "unicast"},
    {"CU_LOGICAL_ENDPOINT_TYPE_MULTICAST", "multicast"},
};

constexpr UnionCase kFabricOperand[] = {
    {"CU_FABRIC_COPY_OPERAND_TYPE_POINTER", "ptr"},
    {"CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT", "le"},
};

constexpr UnionCase kKernelKind[] = {
    {"cudaKernelFunctionTypeKernel", "kern"},
    {"cudaKernelFunctionTypeFunction", "cuFunc"},
};

constexpr UnionCase kNodeField[] = {
    {"cudaGraphKernelNodeFieldGridDim", "gridDim"},
    {"cudaGraphKernelNodeFieldParam", "param"},
    {"cudaGraphKernelNodeFieldEnabled", "isEnabled"},
};

constexpr UnionRule kRules[] = {
    {"CUlaunchAttribute_st", "value", "id", kLaunchAttribute},
    {"cudaLaunchAttribute_st", "val", "id", kLaunchAttribute},
    // The value alone, as cuStreamSetAttribute and its like take it: the parameter `attr` says which.
    {"CUlaunchAttributeValue_union", "", "attr", kLaunchAttribute},
    {"cudaLaunchAttributeValue", "", "attr", kLaunchAttribute},
    {"CUgraphNodeParams_st", "", "type", kGraphNode},
    {"cudaGraphNodeParams", "", "type", kGraphNode},
    {"CUDA_RESOURCE_DESC_st", "res", "resType", kResource},
    {"cudaResourceDesc", "res", "resType", kResource},
    {"CUarrayMapInfo_st", "resource", "resourceType", kMapResource},
    {"CUarrayMapInfo_st", "subresource", "subresourceType", kSubresource},
    {"CUarrayMapInfo_st", "memHandle", "", {}, "memHandle"},
    {"CUmemLocation_st", "", "type", kLocation, "id"},
    {"cudaMemLocation", "", "type", kLocation, "id"},
    {"CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st", "handle", "type", kExternalMemory, "win32"},
    {"CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st", "handle", "type", kExternalSemaphore, "win32"},
    {"cudaExternalMemoryHandleDesc", "handle", "type", kExternalMemory, "win32"},
    {"cudaExternalSemaphoreHandleDesc", "handle", "type", kExternalSemaphore, "win32"},
    // On Linux the fence is an object of NvSciSync.
    {"CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_st.params", "nvSciSync", "", {}, "fence"},
    {"CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_st.params", "nvSciSync", "", {}, "fence"},
    {"cudaExternalSemaphoreSignalParams.params", "nvSciSync", "", {}, "fence"},
    {"cudaExternalSemaphoreSignalParams_v1.params", "nvSciSync", "", {}, "fence"},
    {"cudaExternalSemaphoreWaitParams_v1.params", "nvSciSync", "", {}, "fence"},
    {"cudaExternalSemaphoreWaitParams.params", "nvSciSync", "", {}, "fence"},
    {"CUmemcpy3DOperand_st", "op", "type", kOperand},
    {"cudaMemcpy3DOperand", "op", "type", kOperand},
    {"CUdevResource_st", "", "type", kDeviceResource},
    {"cudaDevResource_st", "", "type", kDeviceResource},
    {"CUstreamBatchMemOpParams_union", "", "operation", kStreamOperation},
    {"CUstreamMemOpWaitValueParams_st", "", "operation", kStreamValue, "value64"},
    {"CUstreamMemOpWriteValueParams_st", "", "operation", kStreamValue, "value64"},
    {"CUstreamBatchMemOpParams_union.waitValue", "", "operation", kStreamValue, "value64"},
    {"CUstreamBatchMemOpParams_union.writeValue", "", "operation", kStreamValue, "value64"},
    {"CUeglFrame_st", "frame", "frameType", kFrame},
    {"cudaEglFrame_st", "frame", "frameType", kFrame},
    {"CUasyncNotificationInfo_st", "info", "type", kNotification},
    {"cudaAsyncNotificationInfo", "info", "type", kNotification},
    {"CUexecAffinityParam_st", "param", "type", kAffinity},
    {"CUlogicalEndpointProp_struct", "", "type", kEndpoint},
    {"CUfabricCpyOperand_st", "op", "type", kFabricOperand},
    {"cudaKernelNodeParamsV2", "", "functionType", kKernelKind, "func"},
    {"cudaGraphKernelNodeUpdate", "updateData", "field", kNodeField},
    // A context or a green context: the same address to a reader.
    {"CUDA_HOST_NODE_PARAMS_v2_st", "", "", {}, "ctx"},
    {"CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2_st", "", "", {}, "ctx"},
    {"CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2_st", "", "", {}, "ctx"},
    {"CUDA_EVENT_RECORD_NODE_PARAMS_st", "", "", {}, "ctx"},
    {"CUDA_MEMCPY_BATCH_NODE_PARAMS_V1_st", "", "", {}, "ctx"},
    {"CUDA_FABRIC_CPY_BATCH_NODE_PARAMS_V1_st", "", "", {}, "ctx"},
    {"cudaPointerAttributes", "", "", {}, "localityDomainOrdinal"},
};

}  // namespace

const UnionRule* union_rule(std::string_view record, std::string_view member) {
  const auto* const found = std::find_if(std::begin(kRules), std::end(kRules), [&](const UnionRule& rule) {
    return rule.record == record && rule.member == member;
  });
  return found == std::end(kRules) ? nullptr : found;
}

}  // namespace rota::tool
