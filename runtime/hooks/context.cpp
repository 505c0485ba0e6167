// Contexts come and go: which GPUs this process touches, what can be drained, whose memory ends.
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUcontext;
using api::CUdevice;
using api::CUresult;

namespace {

CUresult made(CUresult result, const CUcontext* context, CUdevice device, bool primary) {
  if (result == api::CUDA_SUCCESS && context != nullptr) runtime().client.context_made(*context, device, primary);
  return result;
}

template <typename Call>
CUresult destroy(CUcontext context, Call&& call) {
  Runtime& parts = runtime();
  bool gone = false;
  memory::Memory::ContextEnd its_memory(parts.memory, context);
  const CUresult result =
      parts.contexts.end_context(context, call, [&](CUresult answer) { return gone = answer == api::CUDA_SUCCESS; });
  if (gone) its_memory.gone();
  return result;
}

// A primary context ends when its last user lets it go; the driver counts, so the driver is asked. A reset empties it
// even if its users keep it.
enum class End { kRelease, kReset };
template <typename Call>
CUresult end_primary(CUdevice device, End how, Call&& call) {
  Runtime& parts = runtime();
  const CUcontext context = parts.contexts.primary(device);
  bool inactive = false;
  memory::Memory::ContextEnd its_memory(parts.memory, context);
  const CUresult result = parts.contexts.end_context(context, call, [&](CUresult answer) {
    unsigned int flags = 0;
    int active = 1;
    return inactive = answer == api::CUDA_SUCCESS &&
                      real::cuDevicePrimaryCtxGetState(device, &flags, &active) == api::CUDA_SUCCESS && active == 0;
  });
  const bool emptied = inactive || (how == End::kReset && result == api::CUDA_SUCCESS);
  if (emptied) its_memory.gone();
  return result;
}

}  // namespace

CUresult cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return made(real::cuCtxCreate(pctx, flags, dev), pctx, dev, false);
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return made(real::cuCtxCreate_v2(pctx, flags, dev), pctx, dev, false);
}

CUresult cuCtxCreate_v3(CUcontext* pctx, api::CUexecAffinityParam* paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) {
  return made(real::cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev), pctx, dev, false);
}

CUresult cuCtxCreate_v4(CUcontext* pctx, api::CUctxCreateParams* ctxCreateParams, unsigned int flags, CUdevice dev) {
  return made(real::cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev), pctx, dev, false);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  return made(real::cuDevicePrimaryCtxRetain(pctx, dev), pctx, dev, true);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return destroy(ctx, [&] { return real::cuCtxDestroy_v2(ctx); });
}

CUresult cuCtxDestroy(CUcontext ctx) {
  return destroy(ctx, [&] { return real::cuCtxDestroy(ctx); });
}

// Counted by the driver like a primary context; what counts down to nothing is no longer a context.
CUresult cuCtxDetach(CUcontext ctx) {
  Runtime& parts = runtime();
  bool gone = false;
  memory::Memory::ContextEnd its_memory(parts.memory, ctx);
  const CUresult result = parts.contexts.end_context(
      ctx, [&] { return real::cuCtxDetach(ctx); },
      [&](CUresult answer) {
        unsigned int version = 0;
        gone = answer == api::CUDA_SUCCESS && real::cuCtxGetApiVersion(ctx, &version) != api::CUDA_SUCCESS;
        return gone;
      });
  if (gone) its_memory.gone();
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  return end_primary(dev, End::kRelease, [&] { return real::cuDevicePrimaryCtxRelease(dev); });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return end_primary(dev, End::kRelease, [&] { return real::cuDevicePrimaryCtxRelease_v2(dev); });
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
  return end_primary(dev, End::kReset, [&] { return real::cuDevicePrimaryCtxReset(dev); });
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return end_primary(dev, End::kReset, [&] { return real::cuDevicePrimaryCtxReset_v2(dev); });
}

}  // namespace rota::overrides
