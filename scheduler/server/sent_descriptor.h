// Descriptors that clients send. The client chooses what one refers to.
#pragma once

#include "scheduler/base/descriptor.h"

namespace rota::server {

// Whether it may refer to GPU memory: an open NVIDIA device, or a simulated GPU's memfd. Makes no call that could
// block.
bool may_be_memory(const Descriptor& descriptor);

}  // namespace rota::server
