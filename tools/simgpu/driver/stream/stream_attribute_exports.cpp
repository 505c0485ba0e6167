// Stream attributes: stored and returned; except for the priority, none affects simgpu.
#include <algorithm>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

// The number of memory synchronization domains of a device (CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT of compute 9.0).
constexpr unsigned kSyncDomains = 4;

bool valid(const CUaccessPolicyWindow& window) {
  bool ratio = window.hitRatio >= 0 && window.hitRatio <= 1;
  bool hit = window.hitProp <= CU_ACCESS_PROPERTY_PERSISTING;
  return ratio && hit && window.missProp <= CU_ACCESS_PROPERTY_STREAMING;  // what misses cannot persist
}

CUresult get(Stream& stream, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const StreamAttributes& attributes = stream.attributes;
  switch (static_cast<unsigned>(attribute)) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      value->accessPolicyWindow = attributes.window;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      value->syncPolicy = attributes.policy;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      value->priority = stream.priority.load();
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      value->memSyncDomainMap = attributes.domain_map;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      value->memSyncDomain = attributes.domain;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult set(Stream& stream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamAttributes& attributes = stream.attributes;
  switch (static_cast<unsigned>(attribute)) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      if (!valid(value->accessPolicyWindow)) return CUDA_ERROR_INVALID_VALUE;
      attributes.window = value->accessPolicyWindow;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      if (value->syncPolicy < CU_SYNC_POLICY_AUTO || value->syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      attributes.policy = value->syncPolicy;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      if (value->priority < kGreatestStreamPriority || value->priority > kLeastStreamPriority) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      stream.priority = value->priority;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      if (value->memSyncDomainMap.default_ >= kSyncDomains || value->memSyncDomainMap.remote >= kSyncDomains) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      attributes.domain_map = value->memSyncDomainMap;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      if (value->memSyncDomain > CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE) return CUDA_ERROR_INVALID_VALUE;
      attributes.domain = value->memSyncDomain;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

template <class Use>
CUresult with_stream_locked(CUstream handle, Form form, Use use) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  ContextPointer owner = driver().owner_of(*stream);
  if (!owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  std::lock_guard lock(owner->mutex);
  return use(*stream);
}

CUresult copy(CUstream to, CUstream from, Form form) {
  ROTA_SIM_CONTEXT_FOR(to, context);
  StreamPointer target;
  StreamPointer source;
  ROTA_SIM_CHECK(driver().stream_of(to, form, context, &target));
  ROTA_SIM_CHECK(driver().stream_of(from, form, context, &source));
  if (target->context != source->context) return CUDA_ERROR_INVALID_VALUE;
  return with_stream_locked(to, form, [&source](Stream& stream) {
    if (!mutated(Mutation::copying_stream_attributes_does_nothing)) stream.attributes = source->attributes;
    return CUDA_SUCCESS;
  });
}

}  // namespace

ROTA_SIM_EXPORT(cuStreamGetAttribute)(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  return with_stream_locked(stream, Form::kLegacy, [=](Stream& of) { return get(of, attribute, value); });
}
ROTA_SIM_EXPORT(cuStreamGetAttribute_ptsz)(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  return with_stream_locked(stream, Form::kPerThread, [=](Stream& of) { return get(of, attribute, value); });
}
ROTA_SIM_EXPORT(cuStreamSetAttribute)(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  return with_stream_locked(stream, Form::kLegacy, [=](Stream& of) { return set(of, attribute, value); });
}
ROTA_SIM_EXPORT(cuStreamSetAttribute_ptsz)(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  return with_stream_locked(stream, Form::kPerThread, [=](Stream& of) { return set(of, attribute, value); });
}
ROTA_SIM_EXPORT_FORMS(cuStreamCopyAttributes, _ptsz, (CUstream to, CUstream from), copy(to, from, form))
