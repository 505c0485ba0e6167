// The driver's tracers as typed functions: tracers::cuCtxSynchronize().
#pragma once

#include "generated/driver_functions.h"
#include "runtime/trace/driver_tracers.h"

namespace rota::tracers {

template <std::size_t kNumber, class Signature>
struct Typed;

template <std::size_t kNumber, class Result, class... Parameters>
struct Typed<kNumber, Result(Parameters...)> {
  Result operator()(Parameters... parameters) const {
    return reinterpret_cast<Result (*)(Parameters...)>(table[kNumber])(parameters...);
  }
};

#define ROTA_TRACED(number, name, ...) inline constexpr Typed<number, api::name##_fn> name;
#define ROTA_UNTRACED(number, name)
#include "generated/driver_trace_functions.inc"
#undef ROTA_TRACED
#undef ROTA_UNTRACED

}  // namespace rota::tracers
