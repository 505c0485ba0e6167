// What kind of program a command is: found as a shell finds it, scripts followed to their interpreter, and whether the
// dynamic loader will preload anything into it.
#pragma once

#include <string>

namespace rota::tool {

struct Executable {
  int error = 0;            // 0; ENOENT: no such command; EACCES: it may not be executed
  std::string path;         // the file that the command names
  std::string interpreter;  // for a script, the program that finally runs it; otherwise equal to path
  // Why preloading cannot work, as words that follow "is"; empty if it can. E.g. "statically linked".
  std::string uncovered;
  // Whether LD_PRELOAD is worth setting anyway, for the programs that it starts.
  bool preload_inherited = true;
  // The sanitizer's runtime that the program needs first among its libraries, e.g. "libasan.so.8"; empty if none.
  std::string sanitizer;
};

// `command` with a slash is a path; without, PATH is searched.
Executable inspect_command(const std::string& command);
// The message about a command that does not exist, without a full stop.
std::string not_found_text(const std::string& command);
// Whether the program at this path contains GPU code and loads no libcudart: nvcc links the CUDA runtime statically
// unless told otherwise. Reads the whole file.
bool has_static_cuda_runtime(const std::string& path);

}  // namespace rota::tool
