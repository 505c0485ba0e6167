#include "runtime/memory/turns.h"

namespace rota::memory {

// Never destroyed: threads may use memory while the process exits.
Turns& WithoutTurns::instance() {
  static WithoutTurns& one = *new WithoutTurns;
  return one;
}

}  // namespace rota::memory
