// Descriptors that clients send. What stands behind one is the client's choice, and closing a file may wait for whoever
// serves it.
#pragma once

#include "scheduler/protocol/descriptor.h"

namespace rota::server {

// Whether it may stand for a piece of GPU memory: an open NVIDIA device, or a simulated GPU's memfd. Asks nobody who
// could take his time.
bool may_be_memory(const Descriptor& descriptor);
// On a thread of its own.
void close_elsewhere(Descriptor descriptor);

}  // namespace rota::server
