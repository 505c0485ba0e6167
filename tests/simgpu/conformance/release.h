// Ends a Blocker while another thread may be waiting for it.
#pragma once

#include <thread>

#include "tests/simgpu/conformance/conformance.h"

namespace conformance {

// Releases the blocker a moment later, without a call of the driver (one that waits may keep others out): a call that
// does not wait has returned by then, nearly always. What waits is right however long it takes, so no correct driver
// fails by it.
inline std::thread release_soon(Blocker& blocker) {
  return std::thread([&blocker] {
    for (volatile int turn = 0; turn < 10'000'000;) turn = turn + 1;
    blocker.release();
  });
}

}  // namespace conformance
