// The sessions that a process belongs to, as `rota run` passes them on in ROTA_SESSION:
// ID[,gpu=BYTES][,host=BYTES][,name=TEXT], with those of nested `rota run`s separated by colons.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/byte_size.h"
#include "scheduler/protocol/protocol.h"

namespace rota::protocol {

struct SessionEntry {
  std::string id;
  std::uint64_t device_bytes = kUnlimited;  // the limit for all its processes on each GPU
  std::uint64_t host_bytes = kUnlimited;    // how much of that may have to be in host memory
  std::string name{};                       // for people; empty: none
  friend bool operator==(const SessionEntry&, const SessionEntry&) = default;
};

// The name, cut to what a session can have: of a path that is too long, the end.
inline std::string as_session_name(std::string_view text) {
  if (text.size() >= kSessionLength) text.remove_prefix(text.size() - kSessionLength + 1);
  std::string name = printable(text);
  for (char& letter : name) {
    if (letter == ',' || letter == ':') letter = '_';
  }
  return name;
}

// Removes the part of `text` before `separator`, and the separator, and returns that part.
inline std::string_view take_until(std::string_view& text, char separator) {
  const auto end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return part;
}

// Nothing if the list cannot be parsed. An empty text is an empty list.
inline std::optional<std::vector<SessionEntry>> parse_sessions(std::string_view text) {
  std::vector<SessionEntry> sessions;
  while (!text.empty()) {
    std::string_view entry = take_until(text, ':');
    SessionEntry session{.id = std::string(take_until(entry, ','))};
    if (session.id.empty() || session.id.size() >= kSessionLength) return std::nullopt;
    while (!entry.empty()) {
      std::string_view bytes = take_until(entry, ',');
      const std::string_view name = take_until(bytes, '=');
      if (name == "name" && bytes.size() < kSessionLength) {
        session.name = printable(bytes);
        continue;
      }
      const auto parsed = parse_bytes(bytes);
      if (!parsed || (name != "gpu" && name != "host")) return std::nullopt;
      (name == "gpu" ? session.device_bytes : session.host_bytes) = *parsed;
    }
    sessions.push_back(std::move(session));
  }
  return sessions;
}

inline std::string session_text(const SessionEntry& session) {
  std::string text = session.id;
  if (session.device_bytes != kUnlimited) text += ",gpu=" + std::to_string(session.device_bytes);
  if (session.host_bytes != kUnlimited) text += ",host=" + std::to_string(session.host_bytes);
  if (!session.name.empty()) text += ",name=" + session.name;
  return text;
}

}  // namespace rota::protocol
