#include "runtime/preload/object.h"

#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace rota::thin {
namespace {

bool holds(const dl_phdr_info& object, const void* address) noexcept {
  for (int index = 0; index < object.dlpi_phnum; ++index) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[index];
    const uintptr_t start = object.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && reinterpret_cast<uintptr_t>(address) - start < segment.p_memsz) return true;
  }
  return false;
}

struct Search {
  const void* address;
  const void* also;
  const char* name;
  bool holds_also;
};

int look_into(dl_phdr_info* object, size_t, void* data) noexcept {
  auto& search = *static_cast<Search*>(data);
  if (!holds(*object, search.address)) return 0;
  search.name = object->dlpi_name;
  search.holds_also = search.also != nullptr && holds(*object, search.also);
  return 1;
}

// Any byte of this library.
constexpr char kHere = 0;

}  // namespace

const char* file_of(const void* address, const void* also, bool* holds_also) noexcept {
  Search search{address, also, nullptr, false};
  dl_iterate_phdr(&look_into, &search);
  if (holds_also != nullptr) *holds_also = search.holds_also;
  return search.name;
}

bool path_beside_us(const char* name, char (&path)[kPathBytes]) noexcept {
  const char* own = file_of(&kHere);
  if (own == nullptr || realpath(own, path) == nullptr) return false;
  char* slash = strrchr(path, '/');
  const size_t bytes = strlen(name) + 1;
  if (slash == nullptr || static_cast<size_t>(slash + 1 - path) + bytes > sizeof path) return false;
  memcpy(slash + 1, name, bytes);
  return true;
}

}  // namespace rota::thin
