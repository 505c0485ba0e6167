// Creates and destroys arrays.
#include <sys/mman.h>

#include "tools/simgpu/driver/array/array.h"
#include "tools/simgpu/driver/driver.h"

namespace rota::sim {

Array::~Array() {
  release();
}

void Array::release() {
  uint64_t held = charged.exchange(0);
  if (held != 0) driver().state().give_back(gpu, held);
}

void release_arrays(CUcontext context) {
  driver().arrays.remove_if([context](const Array& array) { return array.context == context; });
  driver().mipmapped_arrays.remove_if([context](const MipmappedArray& array) { return array.context == context; });
}

}  // namespace rota::sim
