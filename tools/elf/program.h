// What a program's file says of who can run it: for which processor it is, whether a dynamic loader starts it, and
// which libraries that loads first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/protocol/result.h"

namespace rota::elf {

struct Program {
  enum class Kind : std::uint8_t {
    kNative,        // 64 bits, for the processor that this was compiled for
    k32Bit,         // for whatever processor
    kOtherMachine,  // 64 bits, for another processor
  };
  Kind kind = Kind::kNative;
  // The rest of a native program only.
  bool has_loader = false;                    // else it is linked statically
  std::vector<std::string_view> needed = {};  // DT_NEEDED, in that order; a part of the file's bytes
};

bool is_elf(std::string_view bytes);

// `bytes` must outlive the result. They may be anything: what is no ELF file, or a damaged one of the native kind, is
// an error that names `path`. One that ends before it says for which processor it is counts as another machine's.
Result<Program> read_program(std::string_view bytes, const std::string& path);

}  // namespace rota::elf
