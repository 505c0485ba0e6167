#include "runtime/driver/gpu_number.h"

#include <dirent.h>
#include <strings.h>

#include <array>
#include <atomic>
#include <cstring>

#include "generated/driver_real.h"

namespace rota::driver {

namespace {

constexpr std::uint32_t kUnknown = UINT32_MAX;

constexpr int kMostDevices = 64;

// By ordinal, one more than the number; 0: not known.
constinit std::array<std::atomic<std::uint32_t>, kMostDevices> numbers{};

// "0000:3b:00.0": in this form they sort as the addresses do.
struct Address {
  char text[32] = "";
  bool known = false;
  bool before(const char* other) const { return strcasecmp(text, other) < 0; }
};

Address address_of(int device) {
  Address address;
  address.known = real::cuDeviceGetPCIBusId(address.text, sizeof address.text, device) == api::CUDA_SUCCESS;
  return address;
}

// How many GPUs the kernel driver lists before this one; kUnknown: it does not list this one.
std::uint32_t place_in_proc(const Address& own) {
  DIR* const folder = opendir("/proc/driver/nvidia/gpus");
  if (folder == nullptr) return kUnknown;
  std::uint32_t place = 0;
  bool listed = false;
  while (const dirent* entry = readdir(folder)) {  // NOLINT(concurrency-mt-unsafe): a folder of its own
    if (entry->d_name[0] == '.') continue;
    listed = listed || strcasecmp(entry->d_name, own.text) == 0;
    if (!own.before(entry->d_name) && strcasecmp(entry->d_name, own.text) != 0) ++place;
  }
  closedir(folder);
  return listed ? place : kUnknown;
}

std::uint32_t place_of(int device) {
  const auto ordinal = static_cast<std::uint32_t>(device);
  const Address own = address_of(device);
  if (!own.known) return ordinal;
  if (const std::uint32_t place = place_in_proc(own); place != kUnknown) return place;
  int count = 0;
  if (real::cuDeviceGetCount(&count) != api::CUDA_SUCCESS) return ordinal;
  std::uint32_t place = 0;
  for (int other = 0; other < count; ++other) {
    const Address address = address_of(other);
    if (address.known && address.before(own.text)) ++place;
  }
  return place;
}

}  // namespace

std::uint32_t gpu_number(int device) {
  if (device < 0 || device >= kMostDevices) return static_cast<std::uint32_t>(device);
  const std::uint32_t known = numbers[static_cast<std::size_t>(device)].load();
  return known != 0 ? known - 1 : static_cast<std::uint32_t>(device);
}

std::uint32_t find_gpu_number(int device) {
  const std::uint32_t number = place_of(device);
  set_gpu_number(device, number);
  return number;
}

void set_gpu_number(int device, std::uint32_t number) {
  if (device >= 0 && device < kMostDevices) numbers[static_cast<std::size_t>(device)].store(number + 1);
}

}  // namespace rota::driver
