// Runtime functions whose parameters match those of a driver function one by one, in the same layout. One line each.
#pragma once

#include <tuple>

#include "tools/simgpu/cudart/runtime.h"

namespace rota::sim::cudart {

template <class Function>
struct Signature;
template <class... Types>
struct Signature<CUresult(Types...)> {
  static constexpr size_t kCount = sizeof...(Types);
  template <size_t index>
  using At = std::tuple_element_t<index, std::tuple<Types...>>;
};

}  // namespace rota::sim::cudart

// The types come from the driver function; where the runtime's differ, a register holds the same (void* for
// CUdeviceptr, an int for an enumeration).
#define ROTA_AT(target, index) ::rota::sim::cudart::Signature<::rota::api::target##_fn>::At<index>
#define ROTA_PARAMETERS_0(t)
#define ROTA_PARAMETERS_1(t) ROTA_AT(t, 0) a
#define ROTA_PARAMETERS_2(t) ROTA_PARAMETERS_1(t), ROTA_AT(t, 1) b
#define ROTA_PARAMETERS_3(t) ROTA_PARAMETERS_2(t), ROTA_AT(t, 2) c
#define ROTA_PARAMETERS_4(t) ROTA_PARAMETERS_3(t), ROTA_AT(t, 3) d
#define ROTA_PARAMETERS_5(t) ROTA_PARAMETERS_4(t), ROTA_AT(t, 4) e
#define ROTA_PARAMETERS_6(t) ROTA_PARAMETERS_5(t), ROTA_AT(t, 5) f
#define ROTA_PARAMETERS_7(t) ROTA_PARAMETERS_6(t), ROTA_AT(t, 6) g
#define ROTA_PARAMETERS_8(t) ROTA_PARAMETERS_7(t), ROTA_AT(t, 7) h
#define ROTA_ARGUMENTS_0
#define ROTA_ARGUMENTS_1 , a
#define ROTA_ARGUMENTS_2 ROTA_ARGUMENTS_1, b
#define ROTA_ARGUMENTS_3 ROTA_ARGUMENTS_2, c
#define ROTA_ARGUMENTS_4 ROTA_ARGUMENTS_3, d
#define ROTA_ARGUMENTS_5 ROTA_ARGUMENTS_4, e
#define ROTA_ARGUMENTS_6 ROTA_ARGUMENTS_5, f
#define ROTA_ARGUMENTS_7 ROTA_ARGUMENTS_6, g
#define ROTA_ARGUMENTS_8 ROTA_ARGUMENTS_7, h

#define ROTA_FORWARD_BY(how, count, name, target)                                                      \
  ROTA_CUDART_EXPORT int name(ROTA_PARAMETERS_##count(target)) {                                       \
    static_assert(::rota::sim::cudart::Signature<::rota::api::target##_fn>::kCount == (count), #name); \
    return ::rota::sim::cudart::how(&::rota::sim::cudart::Driver::target ROTA_ARGUMENTS_##count);      \
  }

// ROTA_FORWARD(number of parameters, runtime function, driver's export)
#define ROTA_FORWARD(count, name, target) ROTA_FORWARD_BY(call, count, name, target)
// For functions that neither need nor create a context.
#define ROTA_FORWARD_BARE(count, name, target) ROTA_FORWARD_BY(call_without_context, count, name, target)
// The function and its form for programs with per-thread default streams.
#define ROTA_FORWARD_FORMS(count, name, target) \
  ROTA_FORWARD(count, name, target)             \
  ROTA_FORWARD(count, name##_ptsz, target##_ptsz)
