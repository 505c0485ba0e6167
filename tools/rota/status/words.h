// Words about a program that both forms of `rota status` use.
#pragma once

#include <string>

#include "scheduler/protocol/snapshot.h"

namespace rota::tool {

struct ServedHow {
  const char* option;  // the word of --memory, for programs
  const char* mode;    // for people
  std::string reason;  // or empty
};

ServedHow served_how(protocol::MemoryMode mode);
std::string gang_why(const protocol::GangRow& gang);
// What people call the program's session: its name, or else its container. Empty: neither is known.
std::string session_of(const protocol::ProgramRow& program);

}  // namespace rota::tool
