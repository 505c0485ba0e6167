// Reads whole files.
#pragma once

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace rota::codegen {

// A file's content; nothing if it cannot be opened.
inline std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

}  // namespace rota::codegen
