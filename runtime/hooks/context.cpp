// Contexts begin and end: which GPUs this process uses, what can be drained, which memory ends.
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/account/account.h"
#include "runtime/core/runtime.h"
#include "runtime/driver/answers.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUcontext;
using api::CUdevice;
using api::CUresult;

namespace {

CUresult made(CUresult result, const CUcontext* context, CUdevice device, bool primary) {
  if (result == api::CUDA_SUCCESS && context != nullptr) runtime().monitor.context_made(*context, device, primary);
  return result;
}

// A context takes memory; if the driver has none, others evict theirs and the call is retried.
template <typename Call>
CUresult with_room(CUdevice device, Call&& call) {
  CUresult result = call();
  if (!driver::lacks_room(result, device)) return result;
  runtime().monitor.make_room_for_context(device, [&] {
    result = call();
    return !driver::may_lack_room(result);
  });
  return result;
}
template <typename Call>
CUresult make(const CUcontext* context, CUdevice device, bool primary, Call&& call) {
  runtime().admission.enter(device);
  return made(with_room(device, call), context, device, primary);
}

// What a call has done to a context: nothing, ended everything in it, although its handle is that of a context, or
// ended it.
enum class Fate : std::uint8_t { kStays, kBeginsAnew, kEnded };

// Runs a call that may end `context`, and removes what has ended from rota's records, as `judge` says of the result,
// before another thread can use the same handle, which the driver may have reused.
template <typename Call, typename Judge>
CUresult end(CUcontext context, Call&& call, Judge&& judge) {
  Runtime& parts = runtime();
  memory::Memory::ContextEnd its_memory(parts.memory, context);
  return parts.contexts.end_context(context, call, [&](CUresult answer) {
    const Fate fate = judge(answer);
    if (fate == Fate::kStays) return false;
    its_memory.gone();
    parts.monitor.context_ended(context);
    account::context_ended(context);
    if (fate == Fate::kBeginsAnew) parts.contexts.begin_anew(context);
    return fate == Fate::kEnded;
  });
}

template <typename Call>
CUresult destroy(CUcontext context, Call&& call) {
  return end(context, call, [](CUresult answer) { return answer == api::CUDA_SUCCESS ? Fate::kEnded : Fate::kStays; });
}

// A primary context ends when its last user releases it; the driver counts the users, so the driver is asked. A reset
// destroys its contents even while it has users. By the time that the driver answers, another thread may have retained
// the next one, by the same handle or by another.
enum class End : std::uint8_t { kRelease, kReset };
template <typename Call>
CUresult end_primary(CUdevice device, End how, Call&& call) {
  const CUcontext context = runtime().contexts.primary(device);
  return end(context, call, [&](CUresult answer) {
    if (answer != api::CUDA_SUCCESS) return Fate::kStays;
    unsigned int flags = 0;
    int active = 1;
    const bool known = real::cuDevicePrimaryCtxGetState(device, &flags, &active) == api::CUDA_SUCCESS;
    if (known && active == 0) return Fate::kEnded;
    using Handle = driver::Contexts::Handle;
    const Handle now = runtime().contexts.handle_now(context);
    if (now == Handle::kNobodys) return Fate::kEnded;
    return how == End::kReset || (known && now == Handle::kOthers) ? Fate::kBeginsAnew : Fate::kStays;
  });
}

// Which GPU a green context belongs to, and the context that stands for it. False if the driver does not say.
struct GreenContext {
  CUcontext context = nullptr;
  CUdevice device = 0;
};
bool look_up(api::CUgreenCtx green, GreenContext& into) {
  if (real::cuCtxFromGreenCtx(&into.context, green) != api::CUDA_SUCCESS) return false;
  if (real::cuCtxPushCurrent_v2(into.context) != api::CUDA_SUCCESS) return false;
  const bool known = real::cuCtxGetDevice(&into.device) == api::CUDA_SUCCESS;
  CUcontext popped = nullptr;
  real::cuCtxPopCurrent_v2(&popped);
  return known;
}

}  // namespace

CUresult cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return make(pctx, dev, false, [&] { return real::cuCtxCreate(pctx, flags, dev); });
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return make(pctx, dev, false, [&] { return real::cuCtxCreate_v2(pctx, flags, dev); });
}

CUresult cuCtxCreate_v3(CUcontext* pctx, api::CUexecAffinityParam* paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) {
  return make(pctx, dev, false, [&] { return real::cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev); });
}

CUresult cuCtxCreate_v4(CUcontext* pctx, api::CUctxCreateParams* ctxCreateParams, unsigned int flags, CUdevice dev) {
  return make(pctx, dev, false, [&] { return real::cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev); });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  return make(pctx, dev, true, [&] { return real::cuDevicePrimaryCtxRetain(pctx, dev); });
}

// Adds the current context, which may have been created without rota seeing it.
CUresult cuCtxAttach(CUcontext* pctx, unsigned int flags) {
  const CUresult result = real::cuCtxAttach(pctx, flags);
  CUdevice device = 0;
  if (result != api::CUDA_SUCCESS || real::cuCtxGetDevice(&device) != api::CUDA_SUCCESS) return result;
  return made(result, pctx, device, false);
}

CUresult cuGLCtxCreate(CUcontext* pCtx, unsigned int Flags, CUdevice device) {
  return make(pCtx, device, false, [&] { return real::cuGLCtxCreate(pCtx, Flags, device); });
}

CUresult cuGLCtxCreate_v2(CUcontext* pCtx, unsigned int Flags, CUdevice device) {
  return make(pCtx, device, false, [&] { return real::cuGLCtxCreate_v2(pCtx, Flags, device); });
}

CUresult cuVDPAUCtxCreate(CUcontext* pCtx, unsigned int flags, CUdevice device, api::VdpDevice vdpDevice,
                          api::VdpGetProcAddress* vdpGetProcAddress) {
  return make(pCtx, device, false,
              [&] { return real::cuVDPAUCtxCreate(pCtx, flags, device, vdpDevice, vdpGetProcAddress); });
}

CUresult cuVDPAUCtxCreate_v2(CUcontext* pCtx, unsigned int flags, CUdevice device, api::VdpDevice vdpDevice,
                             api::VdpGetProcAddress* vdpGetProcAddress) {
  return make(pCtx, device, false,
              [&] { return real::cuVDPAUCtxCreate_v2(pCtx, flags, device, vdpDevice, vdpGetProcAddress); });
}

// A green context is part of its device's primary context, which it retains: an event behind all work of that context
// is also behind the green contexts' work (cuCtxRecordEvent), so that is the context to track. It is retained here only
// to get its handle, while the green context holds it.
CUresult cuGreenCtxCreate(api::CUgreenCtx* phCtx, api::CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  const CUresult result = with_room(dev, [&] { return real::cuGreenCtxCreate(phCtx, desc, dev, flags); });
  CUcontext primary = nullptr;
  if (result != api::CUDA_SUCCESS || real::cuDevicePrimaryCtxRetain(&primary, dev) != api::CUDA_SUCCESS) return result;
  made(result, &primary, dev, true);
  real::cuDevicePrimaryCtxRelease_v2(dev);
  return result;
}

// It may have been the last user of the primary context.
CUresult cuGreenCtxDestroy(api::CUgreenCtx hCtx) {
  GreenContext green;
  runtime().memory.green_context_ending();
  if (!look_up(hCtx, green)) return real::cuGreenCtxDestroy(hCtx);
  return end_primary(green.device, End::kRelease, [&] { return real::cuGreenCtxDestroy(hCtx); });
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return destroy(ctx, [&] { return real::cuCtxDestroy_v2(ctx); });
}

CUresult cuCtxDestroy(CUcontext ctx) {
  return destroy(ctx, [&] { return real::cuCtxDestroy(ctx); });
}

// The driver counts its users as for a primary context; at zero it no longer exists.
CUresult cuCtxDetach(CUcontext ctx) {
  return end(
      ctx, [&] { return real::cuCtxDetach(ctx); },
      [&](CUresult answer) {
        unsigned int version = 0;
        const bool gone = answer == api::CUDA_SUCCESS && real::cuCtxGetApiVersion(ctx, &version) != api::CUDA_SUCCESS;
        return gone ? Fate::kEnded : Fate::kStays;
      });
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
