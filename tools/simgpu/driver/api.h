// The driver API's types as generated, and the macro by which an exported function is defined: the generated function
// type declares it first, so a definition whose signature differs from the real driver's does not compile.
#pragma once

#include <cstdint>

#include "generated/driver_functions.h"
#include "generated/driver_types.h"
#include "tools/simgpu/driver/entry/entry.h"

namespace rota::sim {
using namespace rota::api;  // NOLINT(google-build-using-namespace): the names are CUDA's own

// Which stream NULL means: the legacy one, or the calling thread's own (the _ptsz and _ptds forms).
enum class Form { kLegacy, kPerThread };

// The handles that cuda.h defines as casts of small numbers.
inline const CUstream kLegacyStream = reinterpret_cast<CUstream>(uintptr_t{1});
inline const CUstream kPerThreadStream = reinterpret_cast<CUstream>(uintptr_t{2});
}  // namespace rota::sim

// ROTA_SIM_EXPORT(cuX)(parameters) { body }. Inside this file the function is called cuX_simulated; simgpu's own code
// calls plain functions that exports share, never exports: an internal call must not count as a call of the program.
#define ROTA_SIM_EXPORT(name)                                                                \
  static ::rota::api::name##_fn name##_simulated;                                            \
  static const ::rota::sim::Entry<&name##_simulated, ::rota::Symbol::k_##name> name##_entry; \
  static ::rota::api::CUresult name##_simulated

// Defines a function that takes a stream, and its form (_ptsz or _ptds) for which NULL is the thread's own stream. Both
// return the value of the expression, in which `form` is the form called.
#define ROTA_SIM_EXPORT_FORMS(name, suffix, parameters, expression)   \
  ROTA_SIM_EXPORT(name) parameters {                                  \
    constexpr ::rota::sim::Form form = ::rota::sim::Form::kLegacy;    \
    return expression;                                                \
  }                                                                   \
  ROTA_SIM_EXPORT(name##suffix) parameters {                          \
    constexpr ::rota::sim::Form form = ::rota::sim::Form::kPerThread; \
    return expression;                                                \
  }
