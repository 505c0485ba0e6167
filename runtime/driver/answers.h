// What an answer of the driver says about the driver itself.
#pragma once

#include "generated/driver_types.h"

namespace rota::driver {

// What a driver answers that does not have a function (or a part of one), and what our table of real functions answers
// in the place of a function that is missing.
constexpr bool lacks_function(api::CUresult result) {
  return result == api::CUDA_ERROR_NOT_SUPPORTED || result == api::CUDA_ERROR_NOT_FOUND;
}

}  // namespace rota::driver
