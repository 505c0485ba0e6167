#include "runtime/core/mappings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

namespace rota {

std::optional<Mapping> mapping_at(std::uintptr_t address) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   [](FILE* file) { return file != nullptr ? std::fclose(file) : 0; });
  char line[512];
  bool begins = true;  // a line: the rest of a longer one is a path
  while (maps && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    if (!std::exchange(begins, std::strchr(line, '\n') != nullptr)) continue;
    // BEGIN-END rwxs …: the last letter is s in a shared mapping and p in a private one.
    char* rest = nullptr;
    Mapping mapping;
    mapping.begin = std::strtoull(line, &rest, 16);
    mapping.end = *rest == '-' ? std::strtoull(rest + 1, &rest, 16) : 0;
    if (!mapping.contains(address)) continue;
    mapping.shared = std::strlen(rest) > 4 && rest[4] == 's';
    return mapping;
  }
  return std::nullopt;
}

}  // namespace rota
