#include "runtime/preload/cuda/ld_cache.h"

#include <string.h>

namespace rota::thin {
namespace {

constexpr char kOldMagic[] = "ld.so-1.7.0";
constexpr char kMagic[] = "glibc-ld.so.cache1.1";
constexpr size_t kHeaderBytes = 48;
constexpr size_t kEntryBytes = 24;
constexpr size_t kOldHeaderBytes = 16;
constexpr size_t kOldEntryBytes = 12;

// FLAG_ELF_LIBC6 with the machine's FLAG_…_LIB64 of ldconfig.h.
#if defined(__x86_64__)
constexpr uint32_t kFlags = 0x0303;
#else
constexpr uint32_t kFlags = 0x0a03;
#endif

uint32_t word_at(const char* data, size_t offset) noexcept {
  uint32_t word;
  memcpy(&word, data + offset, sizeof word);
  return word;
}

// A zero-terminated string at an offset of the file, or null if it runs over the end.
const char* string_at(const char* data, size_t size, size_t offset) noexcept {
  if (offset >= size || memchr(data + offset, 0, size - offset) == nullptr) return nullptr;
  return data + offset;
}

}  // namespace

const char* next_in_ld_cache(const char* data, size_t size, const char* name, uint32_t* cursor) noexcept {
  // The older table, where there is one, comes first; the newer one begins behind it at a multiple of 8.
  if (size >= kOldHeaderBytes && memcmp(data, kOldMagic, sizeof kOldMagic - 1) == 0) {
    const size_t old_entries = word_at(data, 12);
    if (old_entries > size / kOldEntryBytes) return nullptr;
    const size_t start = (kOldHeaderBytes + old_entries * kOldEntryBytes + 7) & ~size_t{7};
    if (start >= size) return nullptr;
    data += start;
    size -= start;
  }
  if (size < kHeaderBytes || memcmp(data, kMagic, sizeof kMagic - 1) != 0) return nullptr;
  const uint32_t entries = word_at(data, 20);
  if (entries > (size - kHeaderBytes) / kEntryBytes) return nullptr;
  while (*cursor < entries) {
    const size_t entry = kHeaderBytes + size_t{(*cursor)++} * kEntryBytes;
    if (word_at(data, entry) != kFlags) continue;
    const char* key = string_at(data, size, word_at(data, entry + 4));
    const char* path = string_at(data, size, word_at(data, entry + 8));
    if (key != nullptr && path != nullptr && path[0] == '/' && strcmp(key, name) == 0) return path;
  }
  return nullptr;
}

}  // namespace rota::thin
