// The host function of `__global__ void scale(float* data, float factor, int count)`; compile it, name it to rota sim:
//   g++ -std=c++17 -O2 -shared -fPIC -I PREFIX/include scale.cpp -o libscale.so
//   rota sim --kernels ./libscale.so -- ./program
#include <rota/simgpu/kernel.h>
void scale(rota::sim::Launch& launch, rota::sim::Pointer<float> data, float factor, int count) {
  if (float* values = data.range(launch, count))
    launch.for_each_thread([&](auto at) {
      if (at.global_x() < count) values[at.global_x()] *= factor;
    });
}
ROTA_SIM_KERNELS_BEGIN
ROTA_SIM_KERNEL("_Z5scalePffi", scale)
ROTA_SIM_KERNELS_END
