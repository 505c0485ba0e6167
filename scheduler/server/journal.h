// Lines of the log with fields that the journal keeps apart (systemd.journal-fields(7)), by its native protocol: one
// datagram for each entry.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/base/descriptor.h"

namespace rota::server {

// Names as the journal takes them (capital letters, digits, underscores) and values. Of fields of one name all count.
using JournalFields = std::vector<std::pair<std::string_view, std::string>>;

// Where entries go to the journal that `stream` writes lines to: its other end has the name of the journal's socket for
// lines, and the one for entries is beside it. Empty: the stream is no such connection.
std::string journal_socket_of(int stream);

// An entry. `priority`: syslog's, 3 for an error to 7 for debugging.
std::string journal_entry(int priority, std::string_view message, const JournalFields& fields);

class Journal {
 public:
  // `socket`: its path.
  explicit Journal(std::string socket) : path_(std::move(socket)) {}
  // False: nobody is there, or the journal does not read: the line has to go another way.
  bool send(const std::string& entry);

 private:
  std::string path_;
  Descriptor socket_;
};

}  // namespace rota::server
