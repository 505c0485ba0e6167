#include "tests/simgpu/fuzz/machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include "tools/simgpu/driver/driver.h"

namespace rota::fuzz {
namespace {

// Buffers for several threads, made once: work that is queued may still use them when its input is over.
struct Regions {
  unsigned char* data;
  unsigned char* structs;
  bool taken;
};
std::mutex regions_mutex;
Regions all_regions[4];

// Nothing lies near them, so that what is written beside them by mistake is noticed.
unsigned char* map(size_t bytes) {
  constexpr size_t kGuard = size_t{256} << 20;
  void* memory = mmap(nullptr, bytes + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  auto* region = static_cast<unsigned char*>(memory) + kGuard;
  if (mprotect(region, bytes, PROT_READ | PROT_WRITE) != 0) abort();
  return region;
}

Regions& take_regions() {
  std::lock_guard lock(regions_mutex);
  for (Regions& regions : all_regions) {
    if (regions.taken) continue;
    if (regions.data == nullptr) regions = {map(Machine::kDataRegion), map(Machine::kStructRegion), false};
    regions.taken = true;
    return regions;
  }
  abort();
}

bool in_any_data_region(uint64_t address) {
  for (const Regions& regions : all_regions) {
    if (address - reinterpret_cast<uint64_t>(regions.data) < Machine::kDataRegion) return true;
  }
  return false;
}

constexpr const char* kTexts[] = {"_Z5saxpyifPKfPf",
                                  "_Z4fillPjmj",
                                  "_Z8memtouchPjmmjS_",
                                  "_Z6reducePKjmPm",
                                  "_Z4spinm",
                                  "_Z10spin_untilPj",
                                  "",
                                  "cuMemAlloc",
                                  "cuInit",
                                  "cuStreamCreate",
                                  "cuLaunchKernel",
                                  "cuMemAllocAsync",
                                  "no such thing",
                                  "/nonexistent/file",
                                  "0000:01:00.0",
                                  "0000:02:00.0",
                                  "counter",
                                  "/dev/null",
                                  "%s%n",
                                  "a name that is longer than any buffer which somebody might have thought to be large "
                                  "enough for names of kernels, of "
                                  "devices, of files or of functions of the driver, and therefore quite long"};

constexpr const char* kImages[] = {Machine::kKernelImage, "", "garbage", ".version", "// nothing but a comment\n"};

void nothing(void*) {}
// The documentation forbids calls here; the driver must say so and not lock itself up.
void calls_the_driver(void*) {
  int count = 0;
  reinterpret_cast<cuDeviceGetCount_fn*>(rota_sim_table[static_cast<size_t>(Symbol::k_cuDeviceGetCount)])(&count);
  CUstream stream = nullptr;
  reinterpret_cast<cuStreamCreate_fn*>(rota_sim_table[static_cast<size_t>(Symbol::k_cuStreamCreate)])(&stream, 0);
}
void stream_nothing(CUstream, CUresult, void*) {}
size_t no_shared_memory(int) {
  return 0;
}
size_t shared_memory_by_block(int block) {
  return static_cast<size_t>(block) * 64;
}

}  // namespace

Machine::Machine(Learned& learned, const uint8_t* bytes, size_t size, bool shared)
    : learned_(learned), bytes_(bytes), size_(size), shared_(shared) {
  Regions& regions = take_regions();
  data_ = regions.data;
  structs_ = regions.structs;
}

Machine::~Machine() {
  std::lock_guard lock(regions_mutex);
  for (Regions& regions : all_regions) {
    if (regions.data == data_) regions.taken = false;
  }
}

uint64_t Machine::word() {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | byte();
  return value;
}

uint64_t Machine::whole(Range range) {
  uint8_t kind = byte();
  switch (range) {
    case Range::kCount:
      return kind % (kElements + 1);
    case Range::kFlags:
      return kind < 192 ? kind % 8 : kind < 240 ? uint64_t{1} << kind % 12 : byte();
    case Range::kDimension:
      return kind < 224 ? 1 + kind % 4 : kind == 255 ? 0xffffffff : kind == 254 ? 0 : 1U << kind % 12;
    case Range::kSide:
      return kind < 128 ? kind : kind < 248 ? 64 : 0;
    case Range::kBytes: {
      size_t value = kind < 64 ? kind : kind < 128 ? size_t{4} << kind % 10 : size_t{byte()} << 8 | byte();
      return kind >= 248 ? kDataBytes : value;
    }
    case Range::kPlain:
      break;
  }
  if (kind < 96) return kind % 16;
  if (kind < 160) return uint64_t{1} << kind % 23;
  if (kind < 176) return (uint64_t{1} << kind % 16) - 1;
  if (kind < 208) return uint64_t{byte()} << 8 | byte();
  if (kind < 224) return uint64_t{2} << 20 << kind % 3;  // steps of mappings
  if (kind < 240) return ~uint64_t{0} - kind % 4;
  if (kind < 248) return uint64_t{1} << (44 + kind % 20);
  return word() | uint64_t{1} << 50;
}

void* Machine::any_handle(std::type_index type) {
  uint8_t kind = byte();
  if (kind >= 252)
    return kind == 255 ? reinterpret_cast<void*>(word()) : reinterpret_cast<void*>(uintptr_t{kind} - 252U);
  std::lock_guard lock(learned_.mutex);
  const auto& known = learned_.handles[type];
  if (known.empty() || kind >= 240) return nullptr;
  return known[known.size() - 1 - kind % known.size()];
}

uint64_t Machine::integer_handle(IntegerPool pool) {
  uint8_t kind = byte();
  std::lock_guard lock(learned_.mutex);
  const auto& known = learned_.integers[pool];
  if (known.empty() || kind >= 240) return kind >= 248 ? uint64_t{kind} << 20 : kind - 240;
  return known[known.size() - 1 - kind % known.size()];
}

CUdevice Machine::device() {
  uint8_t kind = byte();
  return kind < 160 ? 0 : kind < 240 ? 1 : kind == 255 ? -1 : kind == 254 ? 0x7fffffff : kind % 16;
}

// Whether a copy may be asked for at this address: a stale one of memory that both sides saw is now nobody's.
bool Machine::may_use(uint64_t address) const {
  auto& memory = sim::driver().memory;
  return memory.in_device_window(address) || (!shared_ && memory.find(address).has_value());
}

uint64_t Machine::device_pointer() {
  uint8_t kind = byte();
  if (kind >= 248) return kind % 2 == 0 ? 0 : reinterpret_cast<uint64_t>(data_ + byte() * size_t{64});
  uint64_t address = 0;
  {
    std::lock_guard lock(learned_.mutex);
    if (learned_.addresses.empty()) return 0;
    address = learned_.addresses[learned_.addresses.size() - 1 - kind % learned_.addresses.size()];
  }
  if (kind >= 200) address += kind >= 240 ? uint64_t{byte()} << 20 : kind >= 220 ? size_t{byte()} * 16 : byte();
  return in_any_data_region(address) || may_use(address) ? address : 0;
}

void* Machine::data() {
  uint8_t kind = byte();
  return kind == 255 ? nullptr : data_ + size_t{kind} * 4096;
}

void* Machine::host_memory() {
  uint8_t kind = byte();
  if (kind < 160) {
    std::lock_guard lock(learned_.mutex);
    if (!learned_.host.empty()) return learned_.host[kind % learned_.host.size()];
  }
  return kind >= 250 ? nullptr : data_ + (kind % 16 << 12) + (kind < 230 ? 0 : 8);
}

void* Machine::file_as_pointer() {
  uint8_t kind = byte();
  std::lock_guard lock(learned_.mutex);
  if (learned_.files.empty() || kind >= 240) return reinterpret_cast<void*>(uintptr_t{4000} + kind);  // no open file
  return reinterpret_cast<void*>(static_cast<uintptr_t>(learned_.files[kind % learned_.files.size()]));
}

const void* Machine::image() {
  uint8_t kind = byte();
  return kind < 160 ? kImages[0] : kind == 255 ? nullptr : kImages[kind % std::size(kImages)];
}

const char* Machine::text() {
  uint8_t kind = byte();
  if (kind == 255) return nullptr;
  if (kind >= 192) return kSymbolNames[below(kSymbolCount)];
  return kTexts[kind % std::size(kTexts)];
}

void** Machine::pointers() {
  if (byte() == 255) return nullptr;
  auto** list = static_cast<void**>(struct_memory(kElements * sizeof(void*)));
  if (list == nullptr) return nullptr;
  for (size_t i = 0; i < kElements; ++i) list[i] = i < kFilledElements ? data() : list[i % kFilledElements];
  return list;
}

void** Machine::kernel_parameters() {
  constexpr size_t kParameters = 16;
  if (byte() >= 250) return nullptr;
  auto** list = static_cast<void**>(struct_memory(kParameters * (sizeof(void*) + sizeof(uint64_t))));
  if (list == nullptr) return nullptr;
  auto* values = reinterpret_cast<uint64_t*>(list + kParameters);
  for (size_t i = 0; i < kParameters; ++i) {
    values[i] = i >= 5 ? values[i % 5] : byte() % 2 == 0 ? device_pointer() : number<uint64_t>(Range::kBytes);
    list[i] = &values[i];
  }
  return list;
}

void** Machine::kernel_extra() {
  if (byte() < 232) return nullptr;
  constexpr size_t kBuffer = 4096;
  auto** list = static_cast<void**>(struct_memory(6 * sizeof(void*) + kBuffer));
  if (list == nullptr) return nullptr;
  list[5] = reinterpret_cast<void*>(uintptr_t{byte()} * 4);
  void* const parts[] = {reinterpret_cast<void*>(1), list + 6, reinterpret_cast<void*>(2), &list[5], nullptr};
  std::copy(std::begin(parts), std::end(parts), list);
  if (byte() % 8 == 7) list[0] = nullptr;
  return list;
}

template <>
CUhostFn Machine::callback<CUhostFn>() {
  uint8_t kind = byte();
  return kind == 255 ? nullptr : kind >= 192 ? &calls_the_driver : &nothing;
}
template <>
CUstreamCallback Machine::callback<CUstreamCallback>() {
  return byte() == 255 ? nullptr : &stream_nothing;
}
template <>
CUoccupancyB2DSize Machine::callback<CUoccupancyB2DSize>() {
  uint8_t kind = byte();
  return kind < 64 ? nullptr : kind < 160 ? &no_shared_memory : &shared_memory_by_block;
}

void Machine::learn_host(void** memory) {
  if (memory == nullptr) return;
  std::lock_guard lock(learned_.mutex);
  // Not among the addresses that are copied from and to: beyond its end lies memory of others, and how far a copy goes
  // is the program's to know.
  learned_.host.push_back(memory[0]);
}

void Machine::learn_file(void* descriptor) {
  if (descriptor == nullptr) return;
  int file = -1;
  std::memcpy(&file, descriptor, sizeof file);
  std::lock_guard lock(learned_.mutex);
  if (file > 2) learned_.files.push_back(file);
}

bool Machine::recall(std::type_index type, void* object, size_t size) {
  std::lock_guard lock(learned_.mutex);
  auto found = learned_.structs.find(type);
  if (found == learned_.structs.end() || byte() >= 192) return false;
  const auto& known = found->second;
  std::memcpy(object, known[known.size() - 1 - byte() % known.size()].data(), size);
  return true;
}

void* Machine::struct_memory(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  if (struct_used_ + bytes > kStructRegion) return nullptr;
  void* memory = structs_ + struct_used_;
  struct_used_ += bytes;
  std::memset(memory, 0, bytes);
  return memory;
}

}  // namespace rota::fuzz
