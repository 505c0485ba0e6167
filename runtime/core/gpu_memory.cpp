#include "runtime/core/gpu_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>

#include "generated/driver_real.h"
#include "runtime/client/waiting.h"
#include "runtime/core/runtime.h"
#include "runtime/memory/settings.h"

namespace rota::interpose {

namespace {

int digit(char character) noexcept {
  if (character >= '0' && character <= '9') return character - '0';
  if (character >= 'a' && character <= 'f') return character - 'a' + 10;
  if (character >= 'A' && character <= 'F') return character - 'A' + 10;
  return -1;
}

// The program's ordinal of the GPU; nothing before cuInit or for one that CUDA_VISIBLE_DEVICES hides.
std::optional<int> device_with(const std::array<unsigned char, 16>& uuid) noexcept {
  int count = 0;
  if (real::cuDeviceGetCount(&count) != api::CUDA_SUCCESS) return std::nullopt;
  for (int index = 0; index < std::min(count, memory::kMaxDevices); ++index) {
    api::CUdevice device = 0;
    api::CUuuid id{};
    static_assert(sizeof id == sizeof uuid);
    if (real::cuDeviceGet(&device, index) != api::CUDA_SUCCESS) continue;
    if (real::cuDeviceGetUuid_v2(&id, device) != api::CUDA_SUCCESS &&
        real::cuDeviceGetUuid(&id, device) != api::CUDA_SUCCESS) {
      continue;
    }
    if (std::memcmp(&id, uuid.data(), sizeof id) == 0) return device;
  }
  return std::nullopt;
}

// What this process could allocate on a GPU where it has no context. With movable memory that includes what other
// programs have, as long as a rotad has them evict it. Asked at most once a second: a program may watch it.
std::uint64_t to_be_had(const std::array<unsigned char, 16>& id, const RotaGpuMemory& gpu, bool native) {
  using Clock = std::chrono::steady_clock;
  struct Known {
    std::optional<std::uint64_t> taken;
    Clock::time_point until;
  };
  static std::mutex mutex;
  static std::map<std::array<unsigned char, 16>, Known> known;
  if (native) return gpu.free;
  Uuid uuid{};
  static_assert(sizeof uuid == sizeof id);
  std::memcpy(&uuid, id.data(), sizeof uuid);
  // Another thread may be asking; in the child of a fork, one that does not exist there.
  const std::unique_lock lock(mutex, std::try_to_lock);
  Known own;
  Known& entry = lock ? known[id] : own;
  if (Clock::now() >= entry.until) {
    entry.taken = client::taken_for_good(uuid);
    entry.until = Clock::now() + std::chrono::seconds(1);
  }
  const std::optional<std::uint64_t> taken = entry.taken;
  return taken ? gpu.total - std::min(gpu.total, *taken) : gpu.free;
}

// The limit also applies to a program that does not call CUDA, such as nvidia-smi.
const memory::Settings& settings_without_cuda() {
  static const memory::Settings settings = memory::settings_from_environment();
  return settings;
}

}  // namespace

std::optional<std::array<unsigned char, 16>> parse_gpu_uuid(const char* text) noexcept {
  constexpr char kPattern[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text == nullptr || std::strlen(text) != sizeof kPattern - 1) return std::nullopt;
  std::array<unsigned char, 16> uuid{};
  std::size_t digits = 0;
  for (std::size_t at = 0; kPattern[at] != '\0'; ++at) {
    if (kPattern[at] != 'x') {
      if (text[at] != kPattern[at]) return std::nullopt;
      continue;
    }
    const int value = digit(text[at]);
    if (value < 0) return std::nullopt;
    uuid[digits / 2] = static_cast<unsigned char>(uuid[digits / 2] << 4 | value);
    ++digits;
  }
  return uuid;
}

int gpu_memory(std::uint32_t version, const char* uuid, RotaGpuMemory* gpu) noexcept {
  try {
    if (version != kRotaGpuMemoryVersion) return 0;
    Runtime* const runtime = made_runtime();
    const memory::Settings& settings = runtime != nullptr ? runtime->memory.settings() : settings_without_cuda();
    const bool own_limit = settings.limit_bytes != memory::kNoLimit;
    if (!own_limit && (runtime == nullptr || !runtime->memory.limited())) return 0;
    if (uuid == nullptr && gpu == nullptr) return 1;
    const auto id = parse_gpu_uuid(uuid);
    if (!id || gpu == nullptr) return 0;
    const auto device = runtime != nullptr ? device_with(*id) : std::nullopt;
    if (device && runtime->monitor.touches(*device)) {
      if (runtime->memory.limit(*device) == memory::kNoLimit) return 0;
      const memory::Memory::Shown shown = runtime->memory.shown(*device, gpu->total, gpu->free);
      *gpu = {shown.total, shown.free, shown.own};
      return 1;
    }
    // A limit that is shared with others applies to NVML where this process has a context.
    if (!own_limit) return 0;
    const std::uint64_t limit = device ? runtime->memory.limit(*device) : settings.limit_bytes;
    const std::uint64_t total = std::min({gpu->total, settings.limit_bytes, limit});
    const auto mode = device ? runtime->memory.mode(*device) : protocol::MemoryMode::kUnknown;
    const bool native = mode != protocol::MemoryMode::kUnknown ? !protocol::can_leave(mode)
                                                               : settings.backend == memory::Choice::kNative;
    *gpu = {total, std::min(total, to_be_had(*id, *gpu, native)), 0};
    return 1;
  } catch (...) {
    return 0;  // no memory: the driver's own answer is returned
  }
}

}  // namespace rota::interpose
