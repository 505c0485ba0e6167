// Devices: how many, what they are called, and what they can do.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/simgpu/conformance/conformance.h"

namespace {

int attribute(CUdevice_attribute which, CUdevice device = 0) {
  int value = -1;
  CHECK_OK(cu.cuDeviceGetAttribute(&value, which, device));
  return value;
}

void start() {
  CHECK_OK(cu.cuInit(0));
}

int count() {
  int devices = 0;
  CHECK_OK(cu.cuDeviceGetCount(&devices));
  return devices;
}

std::string bus_id(CUdevice device) {
  char text[32] = {};
  CHECK_OK(cu.cuDeviceGetPCIBusId(text, sizeof text, device));
  return text;
}

}  // namespace

RULE(devices, count_is_positive, "idle:cuDeviceGetCount", "after a successful cuInit there is at least one device") {
  start();
  int devices = -1;
  CHECK_OK(cu.cuDeviceGetCount(&devices));
  CHECK(devices >= 1);
}

RULE(devices, count_needs_a_place, "lenient:cuDeviceGetCount",
     "cuDeviceGetCount without a place for the number answers CUDA_ERROR_INVALID_VALUE") {
  start();
  CHECK_EQ(cu.cuDeviceGetCount(nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(devices, get_by_ordinal, "refuse:cuDeviceGet", "cuDeviceGet gives a handle for every ordinal below the count") {
  start();
  for (int ordinal = 0; ordinal < count(); ++ordinal) {
    CUdevice device = -1;
    CHECK_OK(cu.cuDeviceGet(&device, ordinal));
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device) > 0);
  }
}

RULE(devices, get_refuses_ordinals, "lenient:cuDeviceGet",
     "cuDeviceGet of an ordinal that is negative or not below the count answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  CUdevice device = -1;
  CHECK_EQ(cu.cuDeviceGet(&device, count()), CUDA_ERROR_INVALID_DEVICE);
  CHECK_EQ(cu.cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
}

RULE(devices, names_end, "idle:cuDeviceGetName", "cuDeviceGetName gives a text that ends in a zero byte") {
  start();
  char name[256];
  std::memset(name, 'x', sizeof name);
  CHECK_OK(cu.cuDeviceGetName(name, sizeof name, 0));
  CHECK(std::memchr(name, 0, sizeof name) != nullptr);
  CHECK(std::strlen(name) > 0);
}

RULE(devices, short_names_are_cut, "device_names_are_not_cut",
     "cuDeviceGetName shortens the name to the room that there is, with its ending zero byte") {
  start();
  char whole[256];
  CHECK_OK(cu.cuDeviceGetName(whole, sizeof whole, 0));
  char name[16];
  std::memset(name, 'x', sizeof name);
  CHECK_OK(cu.cuDeviceGetName(name, 5, 0));
  CHECK_EQ(name[4], '\0');
  CHECK_EQ(std::string(name), std::string(whole).substr(0, 4));
  CHECK_EQ(name[5], 'x');
}

RULE(devices, names_need_a_device, "lenient:cuDeviceGetName",
     "cuDeviceGetName of a device that there is not answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  char name[64];
  CHECK_EQ(cu.cuDeviceGetName(name, sizeof name, count()), CUDA_ERROR_INVALID_DEVICE);
}

RULE(devices, memory_is_more_than_free, "idle:cuDeviceTotalMem_v2",
     "cuDeviceTotalMem tells at least as much as cuMemGetInfo, whose total it agrees with") {
  Session session;
  size_t bytes = 0;
  size_t free = 0;
  size_t total = 0;
  CHECK_OK(cu.cuDeviceTotalMem_v2(&bytes, session.device()));
  CHECK_OK(cu.cuMemGetInfo_v2(&free, &total));
  CHECK_EQ(total, bytes);
  CHECK(free < bytes);
}

RULE(devices, memory_needs_a_place, "lenient:cuDeviceTotalMem_v2",
     "cuDeviceTotalMem without a place for the number answers CUDA_ERROR_INVALID_VALUE") {
  start();
  CHECK_EQ(cu.cuDeviceTotalMem_v2(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(devices, memory_needs_a_device, "lenient:cuDeviceTotalMem_v2",
     "cuDeviceTotalMem of a device that there is not answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  size_t bytes = 0;
  CHECK_EQ(cu.cuDeviceTotalMem_v2(&bytes, count()), CUDA_ERROR_INVALID_DEVICE);
}

RULE(devices, attributes_refuse_zero, "lenient:cuDeviceGetAttribute",
     "cuDeviceGetAttribute of a number that is no attribute answers CUDA_ERROR_INVALID_VALUE") {
  start();
  int value = 0;
  CHECK_EQ(cu.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(0), 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(100000), 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(devices, attributes_need_a_device, "lenient:cuDeviceGetAttribute",
     "cuDeviceGetAttribute of a device that there is not answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  int value = 0;
  CHECK_EQ(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, count()), CUDA_ERROR_INVALID_DEVICE);
  CHECK_EQ(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, -1), CUDA_ERROR_INVALID_DEVICE);
}

RULE(devices, attributes_need_a_place, "lenient:cuDeviceGetAttribute",
     "cuDeviceGetAttribute without a place for the value answers CUDA_ERROR_INVALID_VALUE") {
  start();
  CHECK_EQ(cu.cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(devices, every_attribute_has_a_value, "attributes_end_early",
     "cuDeviceGetAttribute knows all attributes that CUDA 12.0 had") {
  start();
  for (int number = CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
       number <= int{CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS}; ++number) {
    int value = 0;
    CHECK_OK(cu.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(number), 0));
  }
}

RULE(devices, block_dimensions_fit, "attributes_are_zero",
     "a block may have at least 512 threads in all, as many along x and y, and no dimension of a block or grid is "
     "empty") {
  start();
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) >= 512);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X) >= 512);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y) >= 512);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z) >= 64);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) >= 65535);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z) >= 65535);
}

RULE(devices, warps_have_32_threads, "attributes_are_zero", "a warp has 32 threads, and a block is whole warps") {
  start();
  CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
  CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) % 32, 0);
  CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) % 32, 0);
}

RULE(devices, shared_memory_is_ordered, "attributes_are_zero",
     "a block's shared memory by default is at most what it may opt into, and that at most a multiprocessor's") {
  start();
  int plain = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  int optin = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  int whole = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  CHECK(plain >= 16384);
  CHECK(plain <= optin);
  CHECK(optin + attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK) <= whole);
}

RULE(devices, constant_memory_is_64_kib, "attributes_are_zero", "a device has 64 KiB of constant memory") {
  start();
  CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY), 65536);
}

RULE(devices, compute_capability_both_ways, "attributes_are_zero",
     "the deprecated cuDeviceComputeCapability tells what the attributes tell") {
  start();
  int major = 0;
  int minor = -1;
  CHECK_OK(cu.cuDeviceComputeCapability(&major, &minor, 0));
  CHECK(major >= 5);
  CHECK_EQ(major, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  CHECK_EQ(minor, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

RULE(devices, properties_agree_with_attributes, "idle:cuDeviceGetProperties",
     "the deprecated cuDeviceGetProperties tells what the attributes tell") {
  start();
  CUdevprop properties{};
  CHECK_OK(cu.cuDeviceGetProperties(&properties, 0));
  CHECK_EQ(properties.maxThreadsPerBlock, attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  CHECK_EQ(properties.maxThreadsDim[2], attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z));
  CHECK_EQ(properties.maxGridSize[1], attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y));
  CHECK_EQ(properties.sharedMemPerBlock, attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  CHECK_EQ(properties.SIMDWidth, attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
  CHECK_EQ(properties.regsPerBlock, attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK));
  CHECK_EQ(properties.textureAlign, attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
}

RULE(devices, uuids_are_not_zero, "uuids_are_alike", "a device's UUID is not all zeros and stays the same") {
  start();
  CUuuid first{};
  CUuuid second{};
  CUuuid zero{};
  CHECK_OK(cu.cuDeviceGetUuid_v2(&first, 0));
  CHECK_OK(cu.cuDeviceGetUuid_v2(&second, 0));
  CHECK(std::memcmp(&first, &zero, sizeof zero) != 0);
  CHECK(std::memcmp(&first, &second, sizeof zero) == 0);
}

RULE(devices, uuids_differ, "uuids_are_alike", "two devices have different UUIDs") {
  start();
  SKIP_UNLESS(count() >= 2, "needs two GPUs");
  CUuuid first{};
  CUuuid second{};
  CHECK_OK(cu.cuDeviceGetUuid_v2(&first, 0));
  CHECK_OK(cu.cuDeviceGetUuid_v2(&second, 1));
  CHECK(std::memcmp(&first, &second, sizeof first) != 0);
}

RULE(devices, uuid_needs_a_device, "lenient:cuDeviceGetUuid_v2",
     "cuDeviceGetUuid of a device that there is not answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  CUuuid id{};
  CHECK_EQ(cu.cuDeviceGetUuid_v2(&id, count()), CUDA_ERROR_INVALID_DEVICE);
}

CHILD(tells_uuid) {
  start();
  CUuuid id{};
  CHECK_OK(cu.cuDeviceGetUuid_v2(&id, 0));
  parent.send_value(id);
}

RULE(devices, uuids_are_the_same_everywhere, "uuids_differ_by_process", "two processes see the same UUID of a device") {
  start();
  CUuuid id{};
  CHECK_OK(cu.cuDeviceGetUuid_v2(&id, 0));
  Child child("tells_uuid");
  auto other = child.receive_value<CUuuid>();
  CHECK(std::memcmp(&id, &other, sizeof id) == 0);
  child.finish();
}

RULE(devices, bus_ids_lead_back, "idle:cuDeviceGetByPCIBusId",
     "cuDeviceGetByPCIBusId of what cuDeviceGetPCIBusId tells is the device") {
  start();
  for (CUdevice ordinal = 0; ordinal < count(); ++ordinal) {
    CUdevice device = -1;
    CHECK_OK(cu.cuDeviceGetByPCIBusId(&device, bus_id(ordinal).c_str()));
    CHECK_EQ(device, ordinal);
  }
}

RULE(devices, bus_ids_have_four_parts, "bus_ids_are_decimal",
     "cuDeviceGetPCIBusId writes domain:bus:device.function in hexadecimal, as the attributes say") {
  start();
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
  unsigned function = 0;
  std::string text = bus_id(0);
  CHECK_EQ(std::sscanf(text.c_str(), "%x:%x:%x.%x", &domain, &bus, &slot, &function), 4);  // NOLINT(cert-err34-c)
  CHECK_EQ(domain, static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)));
  CHECK_EQ(bus, static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)));
  CHECK_EQ(slot, static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)));
}

RULE(devices, bus_ids_without_a_function, "refuse:cuDeviceGetByPCIBusId",
     "cuDeviceGetByPCIBusId takes domain:bus:device without a function") {
  start();
  std::string text = bus_id(0);
  CUdevice device = -1;
  CHECK_OK(cu.cuDeviceGetByPCIBusId(&device, text.substr(0, text.rfind('.')).c_str()));
  CHECK_EQ(device, 0);
}

RULE(devices, unknown_bus_ids, "lenient:cuDeviceGetByPCIBusId",
     "cuDeviceGetByPCIBusId of an address where no device is answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  CUdevice device = -1;
  CHECK_EQ(cu.cuDeviceGetByPCIBusId(&device, "ffff:ff:1f.0"), CUDA_ERROR_INVALID_DEVICE);
}

RULE(devices, texts_that_are_no_bus_id, "lenient:cuDeviceGetByPCIBusId",
     "cuDeviceGetByPCIBusId of a text that is no address answers CUDA_ERROR_INVALID_VALUE") {
  start();
  CUdevice device = -1;
  CHECK_EQ(cu.cuDeviceGetByPCIBusId(&device, "nowhere"), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuDeviceGetByPCIBusId(&device, nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(devices, no_peer_of_itself, "devices_are_their_own_peers", "a device is no peer of itself") {
  start();
  int can = -1;
  CHECK_OK(cu.cuDeviceCanAccessPeer(&can, 0, 0));
  CHECK_EQ(can, 0);
}

RULE(devices, peers_need_devices, "lenient:cuDeviceCanAccessPeer",
     "cuDeviceCanAccessPeer of a device that there is not answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  int can = -1;
  CHECK_EQ(cu.cuDeviceCanAccessPeer(&can, 0, count()), CUDA_ERROR_INVALID_DEVICE);
}

RULE(devices, links_need_two_devices, "lenient:cuDeviceGetP2PAttribute",
     "cuDeviceGetP2PAttribute of a device and itself answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  int value = -1;
  CHECK_EQ(cu.cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0),
           CUDA_ERROR_INVALID_DEVICE);
}

RULE(devices, links_agree_with_peers, "idle:cuDeviceGetP2PAttribute",
     "the link attribute ACCESS_SUPPORTED tells what cuDeviceCanAccessPeer tells") {
  start();
  SKIP_UNLESS(count() >= 2, "needs two GPUs");
  int can = -1;
  int value = -2;
  CHECK_OK(cu.cuDeviceCanAccessPeer(&can, 0, 1));
  CHECK_OK(cu.cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
  CHECK_EQ(value, can);
}

RULE(devices, linear_textures_have_a_width, "idle:cuDeviceGetTexture1DLinearMaxWidth",
     "cuDeviceGetTexture1DLinearMaxWidth tells more than a million elements for floats") {
  start();
  size_t elements = 0;
  CHECK_OK(cu.cuDeviceGetTexture1DLinearMaxWidth(&elements, CU_AD_FORMAT_FLOAT, 1, 0));
  CHECK(elements >= (size_t{1} << 20));
}

RULE(devices, no_luid_under_linux, "idle:cuDeviceGetLuid", "under Linux cuDeviceGetLuid gives no LUID") {
  start();
  char luid[8] = {};
  unsigned mask = 0;
  CHECK_NE(cu.cuDeviceGetLuid(luid, &mask, 0), CUDA_SUCCESS);
}

RULE(devices, affinity_of_a_device, "lenient:cuDeviceGetExecAffinitySupport",
     "cuDeviceGetExecAffinitySupport of a device that there is not answers CUDA_ERROR_INVALID_DEVICE") {
  start();
  int supported = -1;
  CHECK_EQ(cu.cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, count()),
           CUDA_ERROR_INVALID_DEVICE);
}

// CUDA_VISIBLE_DEVICES is read by cuInit.

RULE(devices, hidden_devices, "visible_devices_are_ignored",
     "with an empty CUDA_VISIBLE_DEVICES cuInit answers CUDA_ERROR_NO_DEVICE") {
  CHECK_EQ(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  CHECK_EQ(cu.cuInit(0), CUDA_ERROR_NO_DEVICE);
}

RULE(devices, visible_devices_end_at_an_unknown_one, "visible_devices_are_ignored",
     "CUDA_VISIBLE_DEVICES counts up to its first entry that is no device") {
  CHECK_EQ(setenv("CUDA_VISIBLE_DEVICES", "0,1000,0", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  start();
  CHECK_EQ(count(), 1);
  CHECK_EQ(setenv("CUDA_VISIBLE_DEVICES", "1000,0", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  Child child("tells_start");
  CHECK_EQ(child.receive_value<CUresult>(), CUDA_ERROR_NO_DEVICE);
  child.finish();
}

CHILD(tells_start) {
  parent.send_value(cu.cuInit(0));
}

RULE(devices, visible_devices_by_uuid, "visible_devices_are_ignored",
     "CUDA_VISIBLE_DEVICES takes the beginning of a UUID, and one that nobody has hides all devices") {
  Child first("tells_uuid");
  auto id = first.receive_value<CUuuid>();
  first.finish();
  char text[16];
  auto byte = [&id](int index) { return static_cast<unsigned char>(id.bytes[index]); };
  std::snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x", byte(0), byte(1), byte(2), byte(3));
  CHECK_EQ(setenv("CUDA_VISIBLE_DEVICES", text, 1), 0);  // NOLINT(concurrency-mt-unsafe)
  start();
  CHECK_EQ(count(), 1);
  CHECK_EQ(setenv("CUDA_VISIBLE_DEVICES", "GPU-zz", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  Child child("tells_start");
  CHECK_EQ(child.receive_value<CUresult>(), CUDA_ERROR_NO_DEVICE);
  child.finish();
}
