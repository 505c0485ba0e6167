#include "runtime/preload/cuda/loaded_symbol.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

namespace rota::thin {
namespace {

struct Wanted {
  const char* library;
  const char* name;
  void* found;
};

// The loader has made addresses of what the file holds as offsets, on all but a few processors.
template <typename Type>
const Type* table(const dl_phdr_info& object, ElfW(Addr) place) noexcept {
  return reinterpret_cast<const Type*>(place < object.dlpi_addr ? object.dlpi_addr + place : place);
}

uint32_t gnu_hash(const char* name) noexcept {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

void look_up(const dl_phdr_info& object, const ElfW(Dyn) * dynamic, Wanted& wanted) noexcept {
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const uint32_t* hashes = nullptr;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const ElfW(Addr) place = dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB) symbols = table<ElfW(Sym)>(object, place);
    if (dynamic->d_tag == DT_STRTAB) names = table<char>(object, place);
    if (dynamic->d_tag == DT_GNU_HASH) hashes = table<uint32_t>(object, place);
  }
  if (symbols == nullptr || names == nullptr || hashes == nullptr || hashes[0] == 0) return;
  // Four words, a Bloom filter, a bucket for each remainder, and a chain of hashes; the last one of a chain is odd.
  const uint32_t buckets = hashes[0], first = hashes[1], filter_words = hashes[2];
  const uint32_t* const bucket = hashes + 4 + size_t{filter_words} * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* const chain = bucket + buckets;
  const uint32_t hash = gnu_hash(wanted.name);
  for (uint32_t index = bucket[hash % buckets]; index >= first && index != 0; ++index) {
    const uint32_t here = chain[index - first];
    const ElfW(Sym)& symbol = symbols[index];
    if ((here | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 &&
        strcmp(names + symbol.st_name, wanted.name) == 0) {
      wanted.found = reinterpret_cast<void*>(object.dlpi_addr + symbol.st_value);
      return;
    }
    if ((here & 1) != 0) return;
  }
}

int look_into(dl_phdr_info* object, size_t, void* data) noexcept {
  Wanted& wanted = *static_cast<Wanted*>(data);
  const char* const slash = strrchr(object->dlpi_name, '/');
  if (strcmp(slash != nullptr ? slash + 1 : object->dlpi_name, wanted.library) != 0) return 0;
  for (int index = 0; index < object->dlpi_phnum; ++index) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[index];
    if (segment.p_type != PT_DYNAMIC) continue;
    look_up(*object, reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + segment.p_vaddr), wanted);
  }
  return wanted.found != nullptr ? 1 : 0;
}

}  // namespace

void* loaded_symbol(const char* library, const char* name) noexcept {
  Wanted wanted{library, name, nullptr};
  dl_iterate_phdr(&look_into, &wanted);
  return wanted.found;
}

}  // namespace rota::thin
