// Lines of the log with fields that the journal stores separately (systemd.journal-fields(7)), by its native protocol:
// one datagram for each entry.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/base/descriptor.h"

namespace rota::server {

// Names as the journal takes them (capital letters, digits, underscores) and values. A name may occur several times.
using JournalFields = std::vector<std::pair<std::string_view, std::string>>;

// The socket for entries of the journal that `stream` writes lines to. The stream's other end is the journal's socket
// for lines, and the socket for entries is in the same folder. Empty: the stream is no such connection.
std::string journal_socket_of(int stream);

// An entry. `priority`: syslog's, 3 for an error to 7 for debugging.
std::string journal_entry(int priority, std::string_view message, const JournalFields& fields);

class Journal {
 public:
  // `socket`: its path.
  explicit Journal(std::string socket) : path_(std::move(socket)) {}
  // False: the journal is not there, or does not read: the line has to be written elsewhere.
  bool send(const std::string& entry);

 private:
  std::string path_;
  Descriptor socket_;
};

}  // namespace rota::server
