// Initialisation, versions and devices.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tools/simgpu/driver/context/peer.h"
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

// The PCI bus number of the machine's first GPU; the others follow.
constexpr int kFirstBus = 0x40;

int pci_bus(CUdevice device) {
  return kFirstBus + driver().state().physical(device);
}

CUresult attribute(CUdevice_attribute which, CUdevice device, int* value) {
  *value = mutated(Mutation::attributes_are_zero) ? 0 : driver().device_figures().attribute(which);
  if (which == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = pci_bus(device);
  // A driver without pools must not report them.
  if (which == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED && driver().options.driver_version < 11020) *value = 0;
  return CUDA_SUCCESS;
}

}  // namespace

ROTA_SIM_EXPORT(cuInit)(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return driver().initialise();
}

ROTA_SIM_EXPORT(cuDriverGetVersion)(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = driver().options.driver_version;  // needs no cuInit
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetCount)(int* count) {
  ROTA_SIM_READY();
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = driver().state().gpus();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGet)(CUdevice* device, int ordinal) {
  ROTA_SIM_READY();
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetName)(char* name, int length, CUdevice device) {
  ROTA_SIM_READY();
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  // Copies as much as fits.
  const std::string& whole = driver().device_figures().name;
  auto room = static_cast<size_t>(length);
  if (mutated(Mutation::device_names_are_not_cut)) room = std::max(room, whole.size() + 1);
  std::snprintf(name, room, "%s", whole.c_str());
  return CUDA_SUCCESS;
}

namespace {
CUresult device_uuid(CUuuid* uuid, CUdevice device, bool of_card) {
  ROTA_SIM_READY();
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  unsigned char bytes[16];
  driver().state().uuid(device, bytes);
  if (of_card && driver().device_figures().mig) bytes[0] ^= 0xff;  // the card's differs from its slice's
  if (mutated(Mutation::uuids_differ_by_process)) bytes[15] ^= static_cast<unsigned char>(getpid());
  if (mutated(Mutation::uuids_are_alike)) std::memset(bytes, 0, sizeof bytes);
  std::memcpy(uuid, bytes, sizeof bytes);
  return CUDA_SUCCESS;
}
}  // namespace

ROTA_SIM_EXPORT(cuDeviceGetUuid)(CUuuid* uuid, CUdevice device) {
  return device_uuid(uuid, device, true);
}
ROTA_SIM_EXPORT(cuDeviceGetUuid_v2)(CUuuid* uuid, CUdevice device) {
  return device_uuid(uuid, device, false);
}

ROTA_SIM_EXPORT(cuDeviceTotalMem_v2)(size_t* bytes, CUdevice device) {
  ROTA_SIM_READY();
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = driver().state().capacity();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetAttribute)(int* value, CUdevice_attribute which, CUdevice device) {
  ROTA_SIM_READY();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  auto number = static_cast<int>(which);
  int known = mutated(Mutation::attributes_end_early) ? 100 : known_attributes(driver().options.driver_version);
  if (number <= 0 || number >= known) return CUDA_ERROR_INVALID_VALUE;
  return attribute(which, device, value);
}

ROTA_SIM_EXPORT(cuDeviceComputeCapability)(int* major, int* minor, CUdevice device) {
  ROTA_SIM_READY();
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *major = driver().device_figures().attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  *minor = driver().device_figures().attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetProperties)(CUdevprop* properties, CUdevice device) {
  ROTA_SIM_READY();
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const DeviceFigures& figures = driver().device_figures();
  *properties = {
      .maxThreadsPerBlock = figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
      .maxThreadsDim = {figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                        figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                        figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)},
      .maxGridSize = {figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                      figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                      figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)},
      .sharedMemPerBlock = figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
      .totalConstantMemory = figures.attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
      .SIMDWidth = figures.attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
      .memPitch = figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
      .regsPerBlock = figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
      .clockRate = figures.attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
      .textureAlign = figures.attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
  };
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetPCIBusId)(char* text, int length, CUdevice device) {
  ROTA_SIM_READY();
  if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const char* format = mutated(Mutation::bus_ids_are_decimal) ? "0000:%02d:00.0" : "0000:%02X:00.0";
  int needed = std::snprintf(text, static_cast<size_t>(length), format, pci_bus(device));
  return needed < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ROTA_SIM_EXPORT(cuDeviceGetByPCIBusId)(CUdevice* device, const char* text) {
  ROTA_SIM_READY();
  if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
  unsigned function = 0;
  bool full = std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) >= 3;  // NOLINT(cert-err34-c)
  if (!full) {
    domain = 0;
    if (std::sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return CUDA_ERROR_INVALID_VALUE;  // NOLINT
  }
  for (CUdevice candidate = 0; candidate < driver().state().gpus(); ++candidate) {
    if (domain != 0 || slot != 0 || function != 0 || static_cast<int>(bus) != pci_bus(candidate)) continue;
    *device = candidate;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

ROTA_SIM_EXPORT(cuDeviceCanAccessPeer)(int* can, CUdevice device, CUdevice peer) {
  ROTA_SIM_READY();
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device) || !is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = peers_possible(device, peer) || mutated(Mutation::devices_are_their_own_peers) ? 1 : 0;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetP2PAttribute)(int* value, CUdevice_P2PAttribute which, CUdevice device, CUdevice peer) {
  ROTA_SIM_READY();
  if (!is_device(device) || !is_device(peer) || device == peer) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (which) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
      *value = 0;  // all links are alike, and support every operation
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = peers_possible(device, peer) ? 1 : 0;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

namespace {
// The same value for every operation: over NVLink all are native, over PCI Express none.
CUresult atomic_capabilities(unsigned* capabilities, const CUatomicOperation* operations, unsigned count,
                             unsigned answer) {
  if (capabilities == nullptr || operations == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  bool valid = std::all_of(operations, operations + count,
                           [](CUatomicOperation operation) { return operation < CU_ATOMIC_OPERATION_MAX; });
  if (!valid) return CUDA_ERROR_INVALID_VALUE;
  std::fill(capabilities, capabilities + count, answer);
  return CUDA_SUCCESS;
}
}  // namespace

ROTA_SIM_EXPORT(cuDeviceGetP2PAtomicCapabilities)
(unsigned* capabilities, const CUatomicOperation* operations, unsigned count, CUdevice device, CUdevice peer) {
  ROTA_SIM_READY();
  if (!is_device(device) || !is_device(peer) || device == peer) return CUDA_ERROR_INVALID_DEVICE;
  return atomic_capabilities(capabilities, operations, count,
                             CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED |
                                 CU_ATOMIC_CAPABILITY_REDUCTION | CU_ATOMIC_CAPABILITY_SCALAR_32 |
                                 CU_ATOMIC_CAPABILITY_SCALAR_64);
}
ROTA_SIM_EXPORT(cuDeviceGetHostAtomicCapabilities)
(unsigned* capabilities, const CUatomicOperation* operations, unsigned count, CUdevice device) {
  ROTA_SIM_READY();
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return atomic_capabilities(capabilities, operations, count, 0);
}

// A device has one only on Windows.
ROTA_SIM_EXPORT(cuDeviceGetLuid)(char* luid, unsigned* node_mask, CUdevice device) {
  ROTA_SIM_READY();
  if (luid == nullptr || node_mask == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return is_device(device) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_DEVICE;
}

ROTA_SIM_EXPORT(cuDeviceGetExecAffinitySupport)(int* supported, CUexecAffinityType, CUdevice device) {
  ROTA_SIM_READY();
  if (supported == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *supported = 0;  // only under MPS; 0 also for unknown types, as on driver 580.159
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuDeviceGetTexture1DLinearMaxWidth)
(size_t* elements, CUarray_format format, unsigned channels, CUdevice device) {
  ROTA_SIM_READY();
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (elements == nullptr || (channels != 1 && channels != 2 && channels != 4)) return CUDA_ERROR_INVALID_VALUE;
  if (format < CU_AD_FORMAT_UNSIGNED_INT8 || format > CU_AD_FORMAT_FLOAT) return CUDA_ERROR_INVALID_VALUE;
  *elements =
      static_cast<size_t>(driver().device_figures().attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH));
  return CUDA_SUCCESS;
}

// Nothing here makes checkpoints, so this process is running. Other processes are not checked.
ROTA_SIM_EXPORT(cuCheckpointProcessGetState)(int pid, CUprocessState* state) {
  ROTA_SIM_READY();
  if (state == nullptr || pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (pid != getpid()) return CUDA_ERROR_NOT_SUPPORTED;
  *state = CU_PROCESS_STATE_RUNNING;
  return CUDA_SUCCESS;
}
