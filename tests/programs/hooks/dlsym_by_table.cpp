// Replaces dlsym; the C library's own is found in its symbol table, without any function of the loader.
#include <elf.h>
#include <link.h>

#include "tests/programs/hooks/hook.h"

namespace {

template <typename Type>
Type* at(const dl_phdr_info& object, ElfW(Addr) address) {
  return reinterpret_cast<Type*>(address < object.dlpi_addr ? object.dlpi_addr + address : address);
}

int look(dl_phdr_info* object, size_t, void* found) {
  const char* const slash = strrchr(object->dlpi_name, '/');
  if (strcmp(slash != nullptr ? slash + 1 : object->dlpi_name, "libc.so.6") != 0) return 0;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    if (object->dlpi_phdr[i].p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    }
  }
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    if (dynamic->d_tag == DT_SYMTAB) symbols = at<const ElfW(Sym)>(*object, dynamic->d_un.d_ptr);
    if (dynamic->d_tag == DT_STRTAB) names = at<const char>(*object, dynamic->d_un.d_ptr);
  }
  // The symbol table ends where the names begin.
  for (; symbols != nullptr && reinterpret_cast<const char*>(symbols) < names; ++symbols) {
    if (symbols->st_shndx != SHN_UNDEF && strcmp(names + symbols->st_name, "dlsym") == 0) {
      *static_cast<void**>(found) = reinterpret_cast<void*>(object->dlpi_addr + symbols->st_value);
      return 1;
    }
  }
  return 1;
}

hook::Dlsym* real_dlsym() {
  static hook::Dlsym* const found = [] {
    void* function = nullptr;
    dl_iterate_phdr(&look, &function);
    return reinterpret_cast<hook::Dlsym*>(function);
  }();
  return found;
}

}  // namespace

extern "C" void* dlsym(void* handle, const char* name) noexcept {
  hook::called("dlsym");
  return real_dlsym()(handle, name);
}
