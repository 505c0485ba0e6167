// What commands print. A message must not cost the program that it is about: one that cannot be written is dropped,
// whether 2 is closed, a full disk, a pipe that nobody reads, a terminal that stops whoever writes to it, or somebody's
// data, of which it would replace some.
#pragma once

#include <chrono>
#include <string_view>

namespace rota::tool {

// To be called before anything is opened. The numbers 0 to 2 that the caller closed are occupied by descriptors that
// can neither be read nor written, so that no file of this process gets such a number and is taken for a standard
// stream. They close on exec: the program finds closed what was closed.
void occupy_standard_descriptors();

// A message on standard error. Does not raise SIGPIPE, SIGXFSZ or SIGTTOU, and waits no longer for a reader who reads
// nothing at all: what is left is dropped. errno is left as it was. Any thread.
void write_message(std::string_view text, std::chrono::milliseconds patience = std::chrono::milliseconds(200));
// For a long text, when the program has ended: its reader has other things to read first.
inline constexpr std::chrono::seconds kReportPatience{5};

// What a command is there to print: waits for a slow reader. False if not all could be written, with errno. Raises the
// usual signals, unless they are blocked.
bool write_all(int descriptor, std::string_view text);

// That on standard output; if it cannot be written, says so in one line that begins with `command` ("rota try"), unless
// the reader of a pipe has ended.
bool print(std::string_view command, std::string_view text);

}  // namespace rota::tool
