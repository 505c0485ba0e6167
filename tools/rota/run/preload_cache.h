// The folder in which fitted preloads wait for the next start. What lies there runs inside every program that is
// started, so nothing is taken from a folder, or made in one, that somebody other than this user or root could change.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "scheduler/protocol/result.h"

namespace rota::tool {

class PreloadCache {
 public:
  // A key is so many hexadecimal digits, which is also how an entry is told from a folder of other use.
  static constexpr std::size_t kKeyDigits = 16;

  // At $ROTA_CACHE; else for root /var/cache/rota, for others ${XDG_CACHE_HOME:-~/.cache}/rota. `library` is the name
  // of the file that this one is about: librota.so or librota-nvml.so.
  explicit PreloadCache(std::string library);

  // The path of what was made under this key, if it is there, of this size, beside a link to this librota-core.so,
  // loadable, and nobody else's than this user's or root's; else "".
  std::string find(const std::string& key, std::uintmax_t size, const std::string& core);

  // Where find would find it.
  std::string place(const std::string& key) const { return folder_ + "/" + key + "/" + library_; }

  // Makes an entry: `make` writes the library, of this size, to the path that it is given; `core` is the
  // librota-core.so that it is to find beside itself. Any number of processes may do so at once: one makes it, the
  // others wait. Returns the library's path, or one line why there is none.
  Result<std::string> add(const std::string& key, std::uintmax_t size, const std::string& core,
                          const std::function<Result<bool>(const std::string&)>& make);

 private:
  // Why nothing is taken from the folder; "" if it may be. With `make`, a folder that is not there is made, unless it
  // would lie where others may change something.
  std::string distrust(bool make);
  void remove_old(const std::string& but) const;

  const std::string library_;
  std::string folder_;  // "" where there is no home; without links once distrust() saw it
  mode_t mode_ = 0700;  // of the folder, for its entries
};

}  // namespace rota::tool
