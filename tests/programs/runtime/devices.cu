// Devices: count, properties against attributes, limits, flags, PCI addresses, peers, reset.
#include "tests/programs/runtime/runtime_program.h"

namespace {

int attribute(cudaDeviceAttr which) {
  int value = -1;
  CHECK(cudaDeviceGetAttribute(&value, which, 0));
  return value;
}

void properties_are_the_attributes() {
  cudaDeviceProp has;
  CHECK(cudaGetDeviceProperties(&has, 0));
  REQUIRE(std::strlen(has.name) > 0);
  REQUIRE(has.totalGlobalMem > 0);
  REQUIRE(has.warpSize == 32);
  REQUIRE(has.warpSize == attribute(cudaDevAttrWarpSize));
  REQUIRE(has.major == attribute(cudaDevAttrComputeCapabilityMajor));
  REQUIRE(has.minor == attribute(cudaDevAttrComputeCapabilityMinor));
  REQUIRE(has.multiProcessorCount == attribute(cudaDevAttrMultiProcessorCount));
  REQUIRE(has.maxThreadsPerBlock == attribute(cudaDevAttrMaxThreadsPerBlock));
  REQUIRE(has.maxThreadsPerMultiProcessor == attribute(cudaDevAttrMaxThreadsPerMultiProcessor));
  REQUIRE(has.maxThreadsDim[0] == attribute(cudaDevAttrMaxBlockDimX));
  REQUIRE(has.maxThreadsDim[2] == attribute(cudaDevAttrMaxBlockDimZ));
  REQUIRE(has.maxGridSize[0] == attribute(cudaDevAttrMaxGridDimX));
  REQUIRE(has.maxGridSize[1] == attribute(cudaDevAttrMaxGridDimY));
  REQUIRE(has.sharedMemPerBlock == static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlock)));
  REQUIRE(has.sharedMemPerBlockOptin == static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)));
  REQUIRE(has.sharedMemPerMultiprocessor ==
          static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)));
  REQUIRE(has.regsPerBlock == attribute(cudaDevAttrMaxRegistersPerBlock));
  REQUIRE(has.regsPerMultiprocessor == attribute(cudaDevAttrMaxRegistersPerMultiprocessor));
  REQUIRE(has.totalConstMem == static_cast<size_t>(attribute(cudaDevAttrTotalConstantMemory)));
  REQUIRE(has.l2CacheSize == attribute(cudaDevAttrL2CacheSize));
  REQUIRE(has.asyncEngineCount == attribute(cudaDevAttrAsyncEngineCount));
  REQUIRE(has.unifiedAddressing == attribute(cudaDevAttrUnifiedAddressing));
  REQUIRE(has.managedMemory == attribute(cudaDevAttrManagedMemory));
  REQUIRE(has.concurrentManagedAccess == attribute(cudaDevAttrConcurrentManagedAccess));
  REQUIRE(has.memoryPoolsSupported == attribute(cudaDevAttrMemoryPoolsSupported));
  REQUIRE(has.maxTexture1D == attribute(cudaDevAttrMaxTexture1DWidth));
  REQUIRE(has.maxTexture2D[1] == attribute(cudaDevAttrMaxTexture2DHeight));
  REQUIRE(has.maxTexture3D[2] == attribute(cudaDevAttrMaxTexture3DDepth));
  REQUIRE(has.pciBusID == attribute(cudaDevAttrPciBusId));
  REQUIRE(has.pciDeviceID == attribute(cudaDevAttrPciDeviceId));
  REQUIRE(has.pciDomainID == attribute(cudaDevAttrPciDomainId));
  REQUIRE(has.cooperativeLaunch == attribute(cudaDevAttrCooperativeLaunch));
  REQUIRE(has.hostRegisterSupported == attribute(cudaDevAttrHostRegisterSupported));

  char address[32] = "";
  int found = -1;
  CHECK(cudaDeviceGetPCIBusId(address, sizeof address, 0));
  CHECK(cudaDeviceGetByPCIBusId(&found, address));
  REQUIRE(found == 0);
  int chosen = -1;
  CHECK(cudaChooseDevice(&chosen, &has));
  REQUIRE(chosen >= 0);
}

void limits_are_kept() {
  size_t stack = 0;
  CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
  REQUIRE(stack > 0);
  CHECK(cudaDeviceSetLimit(cudaLimitStackSize, stack * 2));
  size_t now = 0;
  CHECK(cudaDeviceGetLimit(&now, cudaLimitStackSize));
  REQUIRE(now >= stack * 2);
  CHECK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 4 << 20));
  CHECK(cudaDeviceGetLimit(&now, cudaLimitPrintfFifoSize));
  REQUIRE(now >= size_t{4} << 20);
  REQUIRE(cudaDeviceSetLimit(static_cast<cudaLimit>(99), 1) != cudaSuccess);
  cudaGetLastError();
  cudaFuncCache config;
  CHECK(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
  CHECK(cudaDeviceGetCacheConfig(&config));
}

void flags_are_kept() {
  unsigned flags = 0;
  CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  CHECK(cudaGetDeviceFlags(&flags));
  REQUIRE((flags & cudaDeviceScheduleMask) == cudaDeviceScheduleBlockingSync);
  CHECK(cudaInitDevice(0, cudaDeviceScheduleYield, cudaInitDeviceFlagsAreValid));
  CHECK(cudaGetDeviceFlags(&flags));
  REQUIRE((flags & cudaDeviceScheduleMask) == cudaDeviceScheduleYield);
  EXPECT(cudaSetDeviceFlags(0x4000), cudaErrorInvalidValue);
}

void wrong_devices_are_refused() {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  REQUIRE(count >= 1);
  int value = 0;
  cudaDeviceProp properties;
  EXPECT(cudaSetDevice(count), cudaErrorInvalidDevice);
  EXPECT(cudaSetDevice(-1), cudaErrorInvalidDevice);
  EXPECT(cudaGetDeviceProperties(&properties, count), cudaErrorInvalidDevice);
  EXPECT(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, count), cudaErrorInvalidDevice);
  EXPECT(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(0x7000), 0), cudaErrorInvalidValue);
  CHECK(cudaGetDevice(&value));
  REQUIRE(value == 0);
  int can = 0;
  if (count < 2) return;
  CHECK(cudaSetDevice(1));
  CHECK(cudaGetDevice(&value));
  REQUIRE(value == 1);
  CHECK(cudaDeviceCanAccessPeer(&can, 1, 0));
  if (can != 0) {
    CHECK(cudaDeviceEnablePeerAccess(0, 0));
    EXPECT(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
    CHECK(cudaDeviceDisablePeerAccess(0));
    EXPECT(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled);
  }
  CHECK(cudaSetDevice(0));
}

void a_reset_begins_anew() {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 1 << 20));
  CHECK(cudaDeviceReset());
  unsigned* words = nullptr;
  CHECK(cudaMalloc(&words, 4096));
  LAUNCH(fill, 1, 32, 0, nullptr, words, 1024UL, 9U);
  REQUIRE_LAUNCHED();
  unsigned last = 0;
  CHECK(cudaMemcpy(&last, words + 1023, sizeof last, cudaMemcpyDeviceToHost));
  REQUIRE(last == 9);
  CHECK(cudaFree(words));
}

}  // namespace

int main() {
  int driver = 0;
  int runtime = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  REQUIRE(driver >= 13000 && runtime / 1000 == 13);
  properties_are_the_attributes();
  limits_are_kept();
  flags_are_kept();
  wrong_devices_are_refused();
  int least = 0;
  int greatest = 0;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  REQUIRE(least == 0 && greatest <= least);
  CHECK(cudaProfilerStop());
  a_reset_begins_anew();
  return succeed();
}
