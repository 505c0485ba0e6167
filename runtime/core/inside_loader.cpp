#include "runtime/core/inside_loader.h"

#include <link.h>
#include <sys/auxv.h>
#include <unwind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rota {

namespace {

struct Loader {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// From its program headers, which the kernel has mapped. Nothing: the loader itself was run as the command.
Loader find_loader() {
  Loader loader{.begin = getauxval(AT_BASE)};
  if (loader.begin == 0) return {};
  const auto& header = *reinterpret_cast<const ElfW(Ehdr)*>(loader.begin);
  const auto* const parts = reinterpret_cast<const ElfW(Phdr)*>(loader.begin + header.e_phoff);
  for (std::size_t index = 0; index < header.e_phnum; ++index) {
    if (parts[index].p_type != PT_LOAD) continue;
    loader.end = std::max(loader.end, loader.begin + parts[index].p_vaddr + parts[index].p_memsz);
  }
  return loader;
}

struct Search {
  Loader loader;
  bool found = false;
};

_Unwind_Reason_Code look_at_frame(_Unwind_Context* frame, void* data) {
  auto& search = *static_cast<Search*>(data);
  const std::uintptr_t at = _Unwind_GetIP(frame);
  search.found = search.loader.begin <= at && at < search.loader.end;
  return search.found ? _URC_END_OF_STACK : _URC_NO_REASON;
}

}  // namespace

bool inside_loader() {
  static const Loader loader = find_loader();
  Search search{.loader = loader};
  _Unwind_Backtrace(look_at_frame, &search);
  return search.found;
}

}  // namespace rota
