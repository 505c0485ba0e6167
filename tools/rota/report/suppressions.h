// Modules whose live memory at exit is no leak, by globs: those that rota knows, and the user's own file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::report {

struct Suppression {
  std::string pattern;  // matched against the module's path as the shell would, `*` also over slashes
  std::string reason;
};

class Suppressions {
 public:
  Suppressions();  // with those that rota knows
  // Lines "PATTERN # reason"; empty ones and those that begin with # are ignored.
  Result<bool> add_file(const std::string& path);
  void add_text(std::string_view text);
  // Null: the module is not suppressed.
  const Suppression* find(const std::string& module) const;

 private:
  std::vector<Suppression> list_;
};

}  // namespace rota::report
