#include "tools/rota/status/words.h"

#include <fmt/format.h>

namespace rota::tool {

ServedHow served_how(protocol::MemoryMode mode) {
  using protocol::MemoryMode;
  switch (mode) {
    case MemoryMode::kUnified:
      return {"managed", "Unified Memory", {}};
    case MemoryMode::kUnifiedLarger:
      return {"managed", "Unified Memory", "--oversubscribe"};
    case MemoryMode::kNativeChosen:
      return {"native", "native", "ROTA_MEMORY=native"};
    case MemoryMode::kNativeNoManaged:
      return {"native", "native", "no managed memory"};
    case MemoryMode::kNativeNoPaging:
      return {"native", "native", "no concurrent managed access"};
    case MemoryMode::kNativeShared:
      return {"native", "native", "handed to other processes"};
    case MemoryMode::kNativeWatched:
      return {"native", "native", "a tool or debugger watches it"};
    case MemoryMode::kNativeRefused:
      return {"native", "native from now on", "a function refused memory that moves"};
    case MemoryMode::kSwap:
      return {"swap", "swap", {}};
    case MemoryMode::kUnifiedMps:
    case MemoryMode::kUnifiedMig:
    case MemoryMode::kUnifiedConfidential:
    case MemoryMode::kUnifiedCoherent:
      return {"managed", "Unified Memory", fmt::format("swap has not been tested {}", protocol::untested_where(mode))};
    case MemoryMode::kUnknown:
      break;
  }
  return {"unknown", "unknown", {}};
}

std::string gang_why(const protocol::GangRow& gang) {
  switch (gang.why) {
    case protocol::GangWhy::kNamed:
      return "named by --gang";
    case protocol::GangWhy::kCollective:
      return "use collective kernels";
    case protocol::GangWhy::kMemory:
      return "share memory";
    case protocol::GangWhy::kNone:
      break;
  }
  return "for a reason that this release does not know";
}

std::string session_of(const protocol::ProgramRow& program) {
  if (program.session_name[0] != '\0') return program.session_name;
  return program.container[0] == '\0' ? "" : fmt::format("container {}", program.container);
}

}  // namespace rota::tool
