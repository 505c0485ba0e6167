// Turns a documentation comment into flags and tags; the text itself belongs to the vendor and is not stored.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "codegen/model.h"

namespace rota::codegen {

struct ParsedComment {
  Documentation documentation;
  std::map<std::string, std::string> directions;  // parameter -> "in", "out", "inout"
};

ParsedComment parse_comment(std::string_view comment);

}  // namespace rota::codegen
