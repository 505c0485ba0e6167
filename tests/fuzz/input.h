// What the fuzz targets share. Each is one file with LLVMFuzzerTestOneInput, which must neither crash nor break a
// promise that the parser's header makes (CHECK aborts, which the fuzzer and the replay both notice). libFuzzer calls
// it, or replay.cpp with the files of the committed corpus.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "scheduler/base/descriptor.h"

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace rota::fuzz {

// The input as a file, for parsers that open one. Nothing is written to a disk.
class InputFile {
 public:
  InputFile(const std::uint8_t* data, std::size_t size) : file_(memfd_create("input", MFD_CLOEXEC)) {
    CHECK(file_ && write(file_.get(), data, size) == static_cast<ssize_t>(size));
  }

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  Descriptor file_;
};

// Errors are one line of text that names what is wrong.
inline bool is_a_line(const std::string& text) {
  return !text.empty() && text.find('\n') == std::string::npos;
}

}  // namespace rota::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
