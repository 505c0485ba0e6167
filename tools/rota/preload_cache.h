// The folder in which fitted preloads wait for the next start. What lies there runs inside every program that is
// started, so nothing is taken from a folder, or made in one, that somebody other than this user or root could change.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tools/elf/result.h"

namespace rota::tool {

class PreloadCache {
 public:
  // At ${ROTA_CACHE:-${XDG_CACHE_HOME:-~/.cache}/rota}.
  PreloadCache();

  // The path of what was made under this key, if it is there, complete and nobody else's; else "".
  std::string find(const std::string& key, std::uintmax_t size) const;

  // Where find would find it.
  std::string place(const std::string& key) const { return folder_ + "/" + key + "/librota.so"; }

  // Makes an entry: `make` writes the library to the path that it is given; `core` is the librota-core.so that it is
  // to find beside itself. Any number of processes may do so at once. Returns the library's path, or one line why there
  // is none.
  elf::Result<std::string> add(const std::string& key, const std::string& core,
                               const std::function<elf::Result<bool>(const std::string&)>& make) const;

 private:
  // Why nothing is taken from the folder; "" if it may be. With `make`, the folder is made first.
  std::string distrust(bool make) const;
  void remove_old(const std::string& but) const;

  std::string folder_;  // "" where there is no home
};

}  // namespace rota::tool
