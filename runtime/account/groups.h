// What a driver function does, as far as accounts and reports tell functions apart: by its base name, so that a new
// version or release needs nothing here.
#pragma once

#include <string_view>

namespace rota::account {

enum class Group { kOther, kLaunch, kCopy, kSynchronize };

// `base`: without _v2 and the like, _ptsz and _ptds.
constexpr Group group_of(std::string_view base) {
  // Host functions run on the host; the others start kernels.
  if (base == "cuGraphLaunch" || (base.starts_with("cuLaunch") && base != "cuLaunchHostFunc")) return Group::kLaunch;
  if (base.starts_with("cuMemcpy")) return Group::kCopy;
  if (base.ends_with("Synchronize")) return Group::kSynchronize;
  return Group::kOther;
}

}  // namespace rota::account
