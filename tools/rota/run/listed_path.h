// Paths in lists of paths. LD_PRELOAD separates by spaces and colons, /etc/ld.so.preload also by tabs and lines and
// ends at a '#', LD_LIBRARY_PATH separates by colons and semicolons, ROTA_SIM_KERNELS by colons, and the loader
// replaces what begins with a dollar. None of them has a way to quote. A path that cannot be in all of them is listed
// through a link to its folder, so that everything next to the file is found, too.
#pragma once

#include <string>

#include "scheduler/base/result.h"

namespace rota::tool {

bool fits_lists(const std::string& path);

// The path, or one of the same file that can be listed, through a link in the cache of preloads (preload_cache.h). The
// error is a line that says why there can be none.
Result<std::string> listed_path(const std::string& path);

}  // namespace rota::tool
