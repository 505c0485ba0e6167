// What some results of the driver mean.
#pragma once

#include "generated/driver_types.h"

namespace rota::driver {

// Takes the place of an answer where the driver was not asked, and is never passed on: no error of the driver's has
// this number.
inline constexpr auto kNotAsked = static_cast<api::CUresult>(-1);

// The result of a driver that does not have a function (or part of one), and the result that rota's table of real
// functions returns for a missing function.
constexpr bool lacks_function(api::CUresult result) {
  return result == api::CUDA_ERROR_NOT_SUPPORTED || result == api::CUDA_ERROR_NOT_FOUND;
}

// The results by which a driver says that a GPU has no memory for what a call needs. CUDA_ERROR_DEVICE_UNAVAILABLE,
// which a full GPU sometimes answers to the first call of a process there (seen on an H200, driver 580.159), says that
// only in the default compute mode: lacks_room().
constexpr bool may_lack_room(api::CUresult result) {
  return result == api::CUDA_ERROR_OUT_OF_MEMORY || result == api::CUDA_ERROR_DEVICE_UNAVAILABLE;
}

// Whether memory on the GPU would help a call that got this result. In the exclusive mode another process has the GPU,
// and in the prohibited mode nobody may.
bool lacks_room(api::CUresult result, int device);
// The same for the GPU of the current context.
bool lacks_room(api::CUresult result);

}  // namespace rota::driver
