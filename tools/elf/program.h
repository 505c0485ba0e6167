// What a program's file says about running it: for which processor it is, whether a dynamic loader starts it, and which
// libraries the loader loads first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::elf {

struct Program {
  enum class Kind : std::uint8_t {
    kNative,        // 64 bits, for the processor that this was compiled for
    k32Bit,         // for whatever processor
    kOtherMachine,  // 64 bits, for another processor
  };
  Kind kind = Kind::kNative;
  // The rest of a native program only.
  bool has_loader = false;                    // otherwise it is statically linked
  std::vector<std::string_view> needed = {};  // DT_NEEDED, in that order; a part of the file's bytes
};

bool is_elf(std::string_view bytes);

// `bytes` must outlive the result. They may be anything: bytes that are not an ELF file, or a damaged native one, are
// an error that names `path`. A file that ends before the processor field counts as one for another machine.
Result<Program> read_program(std::string_view bytes, const std::string& path);

}  // namespace rota::elf
