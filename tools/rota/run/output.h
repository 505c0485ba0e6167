// What commands print. A message must not harm the program that it is about. A message that cannot be written is
// dropped: if descriptor 2 is closed, a file on a full disk, a pipe that nobody reads, a terminal that stops whoever
// writes to it, or somebody's data, which it would overwrite.
#pragma once

#include <chrono>
#include <string_view>

namespace rota::tool {

// To be called before anything is opened. The numbers 0 to 2 that the caller closed are occupied by descriptors that
// can neither be read nor written, so that no file of this process gets such a number and is taken for a standard
// stream. They close on exec: the program finds closed what was closed.
void occupy_standard_descriptors();

// A message on standard error. Does not raise SIGPIPE, SIGXFSZ or SIGTTOU, and waits no longer than `patience` for a
// reader who reads nothing at all: what is left is dropped. errno is left as it was. Any thread.
void write_message(std::string_view text, std::chrono::milliseconds patience = std::chrono::milliseconds(200));
// For a long text after the program's end: its reader may have other things to read first.
inline constexpr std::chrono::seconds kReportPatience{5};

// Prints a command's result: waits for a slow reader. False, with errno, if not all could be written. Raises the usual
// signals, unless they are blocked.
bool write_all(int descriptor, std::string_view text);

// The same on standard output. If the text cannot be written, says so in one line that begins with `command` ("rota
// try"), unless the reader of a pipe has ended.
bool print(std::string_view command, std::string_view text);

}  // namespace rota::tool
