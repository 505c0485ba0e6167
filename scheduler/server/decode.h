// From the bytes that a client sent to a message that may be used. Nothing that a client says gets past here unchecked.
#pragma once

#include <cstddef>
#include <string>

#include "scheduler/protocol/protocol.h"
#include "scheduler/protocol/result.h"
#include "scheduler/protocol/uuid_text.h"

namespace rota::server {

// `length` is how long the packet really was (recv with MSG_TRUNC); `bytes` holds the first kMaxMessageBytes of it.
// The result's names are terminated and printable; what a newer or older peer left out is zero. A kind that is not
// known comes through from version 2 on, to be ignored. The error is for the peer: what was wrong with its message.
Result<protocol::Message> decode(const void* bytes, std::size_t length);

// Why there can be no such GPU, for its client; empty: there can. It concerns that GPU alone.
std::string why_no_gpu(const protocol::AddGpu& gpu);

// Copies `text` as far as it fits and terminates it.
template <std::size_t kSize>
void set_text(char (&field)[kSize], const std::string& text) {
  const std::size_t length = text.size() < kSize - 1 ? text.size() : kSize - 1;
  text.copy(field, length);
  for (std::size_t i = length; i < kSize; ++i) field[i] = '\0';
}

}  // namespace rota::server
