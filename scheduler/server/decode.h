// Decodes and checks the bytes that a client sent. Nothing from a client gets past here unchecked.
#pragma once

#include <cstddef>
#include <string>

#include "scheduler/base/result.h"
#include "scheduler/base/uuid.h"
#include "scheduler/protocol/protocol.h"

namespace rota::server {

// `length` is how long the packet really was (recv with MSG_TRUNC); `bytes` holds the first kMaxMessageBytes of it.
// The result's names are terminated and printable (printable.h); what a newer or older peer left out is zero. From
// version 2 on, a message of an unknown kind is returned, to be ignored. The error is for the peer: what was wrong with
// its message.
Result<protocol::Message> decode(const void* bytes, std::size_t length);

// Why this GPU description is invalid, for its client; empty: it is valid. It concerns only that GPU.
std::string why_no_gpu(const protocol::AddGpu& gpu);

// Copies `text` as far as it fits and terminates it.
template <std::size_t kSize>
void set_text(char (&field)[kSize], const std::string& text) {
  const std::size_t length = text.size() < kSize - 1 ? text.size() : kSize - 1;
  text.copy(field, length);
  for (std::size_t i = length; i < kSize; ++i) field[i] = '\0';
}

}  // namespace rota::server
