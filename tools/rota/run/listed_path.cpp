#include "tools/rota/run/listed_path.h"

#include "tools/rota/run/preload_cache.h"

namespace rota::tool {

bool fits_lists(const std::string& path) {
  return path.find_first_of(" \t\n:;#$") == std::string::npos;
}

Result<std::string> listed_path(const std::string& path) {
  if (fits_lists(path)) return path;
  const std::string::size_type slash = path.rfind('/');
  auto link = PreloadCache::link_to(path.substr(0, slash));
  if (!link) return link.error();
  // The file's name is rota's, or one that the caller has checked.
  return *link + path.substr(slash);
}

}  // namespace rota::tool
