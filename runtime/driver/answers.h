// What a result of the driver says about the driver itself.
#pragma once

#include "generated/driver_types.h"

namespace rota::driver {

// Stands in the place of an answer where the driver was not asked and nobody is to believe it: no error of the driver's
// has this number.
inline constexpr auto kNotAsked = static_cast<api::CUresult>(-1);

// The result of a driver that does not have a function (or part of one), and the result that rota's table of real
// functions returns for a missing function.
constexpr bool lacks_function(api::CUresult result) {
  return result == api::CUDA_ERROR_NOT_SUPPORTED || result == api::CUDA_ERROR_NOT_FOUND;
}

}  // namespace rota::driver
