#include "tools/rota/try/native.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

namespace rota::attempt {

std::string without_rota(const std::string& preloads) {
  std::string kept;
  // The loader separates by colons and by spaces.
  for (std::string::size_type begin = 0; begin < preloads.size();) {
    const auto end = std::min(preloads.find_first_of(": ", begin), preloads.size());
    const std::string library = preloads.substr(begin, end - begin);
    begin = end + 1;
    const std::string name = library.substr(library.rfind('/') + 1);
    const bool ours = name == "librota.so" || name == "librota-cudart.so" || name == "librota-nvml.so";
    if (!library.empty() && !ours) kept += (kept.empty() ? "" : ":") + library;
  }
  return kept;
}

void leave_rota() {
  if (const char* preloads = std::getenv("LD_PRELOAD")) {
    const std::string kept = without_rota(preloads);
    kept.empty() ? unsetenv("LD_PRELOAD") : setenv("LD_PRELOAD", kept.c_str(), 1);
  }
  // Variables that a preload set by hand further down would read.
  for (const char* name :
       {"ROTA_SESSION", "ROTA_GANG", "ROTA_GPU_MEM_LIMIT", "ROTA_MEMORY", "ROTA_OVERSUBSCRIBE", "ROTA_TRACE"}) {
    unsetenv(name);
  }
}

void start_again_without_rota() {
  const char* preloads = std::getenv("LD_PRELOAD");
  if (preloads == nullptr) return;
  const std::string kept = without_rota(preloads);
  if (kept.size() == std::strlen(preloads)) return;  // nothing was removed; so this also ends the second run
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<char*> arguments;
  for (std::size_t at = 0; at < all.size(); at += std::strlen(&all[at]) + 1) arguments.push_back(&all[at]);
  if (arguments.empty()) return;
  arguments.push_back(nullptr);
  kept.empty() ? unsetenv("LD_PRELOAD") : setenv("LD_PRELOAD", kept.c_str(), 1);
  execv("/proc/self/exe", arguments.data());
}

}  // namespace rota::attempt
