#include "runtime/driver/answers.h"

#include "generated/driver_real.h"

namespace rota::driver {

bool lacks_room(api::CUresult result, int device) {
  if (result != api::CUDA_ERROR_DEVICE_UNAVAILABLE) return result == api::CUDA_ERROR_OUT_OF_MEMORY;
  int mode = api::CU_COMPUTEMODE_DEFAULT;
  return real::cuDeviceGetAttribute(&mode, api::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device) == api::CUDA_SUCCESS &&
         mode == api::CU_COMPUTEMODE_DEFAULT;
}

bool lacks_room(api::CUresult result) {
  api::CUdevice device = 0;
  if (result != api::CUDA_ERROR_DEVICE_UNAVAILABLE) return result == api::CUDA_ERROR_OUT_OF_MEMORY;
  return real::cuCtxGetDevice(&device) == api::CUDA_SUCCESS && lacks_room(result, device);
}

}  // namespace rota::driver
