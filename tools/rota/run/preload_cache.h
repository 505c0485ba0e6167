// The folder in which fitted preloads are kept for later starts. Its libraries run inside every program that is
// started, so nothing is used from, or created in, a folder that anyone other than this user or root could change.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "scheduler/base/result.h"

namespace rota::tool {

class PreloadCache {
 public:
  // A key has this many hexadecimal digits, which also distinguishes an entry from other folders.
  static constexpr std::size_t kKeyDigits = 16;

  // At $ROTA_CACHE; else for root /var/cache/rota, for others ${XDG_CACHE_HOME:-~/.cache}/rota. Where such a path
  // cannot be in a list of preloads (listed_path.h): in the user's own folder in /tmp. `library` is the file name of
  // the cached library: librota.so or librota-nvml.so.
  explicit PreloadCache(std::string library);

  // The path of the library with this key, if it exists, has this size, is next to a link to this librota-core.so, is
  // loadable, and belongs to this user or root; otherwise "".
  std::string find(const std::string& key, std::uintmax_t size, const std::string& core);

  // The path that find would return.
  std::string place(const std::string& key) const { return folder_ + "/" + key + "/" + library_; }

  // Creates an entry: `make` writes the library, of this size, to the given path; `core` is the librota-core.so that it
  // must find next to itself. Any number of processes may do so at once: one creates it, the others wait. Returns the
  // library's path, or one line that says why there is none.
  Result<std::string> add(const std::string& key, std::uintmax_t size, const std::string& core,
                          const std::function<Result<bool>(const std::string&)>& make);

  // A link to `folder` whose path can be in a list of preloads; made if it does not exist. In the cache, or in the
  // user's own folder in /tmp if there can be no cache. The error is a line that says why neither works.
  static Result<std::string> link_to(const std::string& folder);

 private:
  PreloadCache(std::string library, std::string folder) : library_(std::move(library)), folder_(std::move(folder)) {}
  Result<std::string> link_here(const std::string& folder);
  // Why the folder cannot be used; "" if it can. With `make`, a missing folder is created, unless it would be where
  // others can change something.
  std::string distrust(bool make);
  void remove_old(const std::string& but) const;

  const std::string library_;
  std::string folder_;  // "" if there is no home; without links once distrust() has seen it
  mode_t mode_ = 0700;  // of the folder, for its entries
};

}  // namespace rota::tool
