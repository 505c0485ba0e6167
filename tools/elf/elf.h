// What a shared library exports, and a copy of it that exports something else. For ELF64, little-endian, as the dynamic
// loader reads such a file: by its program headers and dynamic section, whatever its section headers say.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::elf {

struct Exports {
  std::vector<std::string> functions;  // sorted, each once; versions are not told apart
  std::vector<std::string> objects;    // variables, likewise
};

// What dlsym can find in the library, so without symbols that exist only in old versions or are hidden. Only the pages
// with these tables are read, so a driver of 100 MB costs no more than a small one. The file may be anything: a damaged
// file or one that is not a library is an error.
Result<Exports> read_exports(const std::string& path);
// The same of a library's bytes; errors name `path`.
Result<Exports> read_exports(std::string_view bytes, const std::string& path);

struct ExportChange {
  // The exports that stay. All others except those below are removed from the dynamic symbol table; their code stays in
  // the file, where the library itself may use it.
  std::set<std::string> keep;
  // Exports to rename: the old name → the new one, which must not be longer. Need not be in `keep`.
  std::map<std::string, std::string> rename = {};
  // Exports that stay for the programs and libraries linked with them, and that dlsym does not find. The input must
  // have versions for that (any library that needs some of the C library does), and its reader must be glibc. A weak
  // reference counts as linked. Need not be in `keep`.
  std::set<std::string> hide = {};
};

// Writes a copy of the library `input` as `output` with other exports. The copy is a library of its own, with a
// build-id of its own, and of the input's size; its hash tables, versions, relocations and section headers agree with
// what is left. Refused, with nothing written: a name in `rename` that the library does not export, a new name that is
// too long or taken, a relocation that needs a symbol which would be removed (link with -Bsymbolic), a format that is
// not understood (the copy is read again, and must export what was asked for). The file appears complete or not at all
// (it is written next to `output` and renamed). Its mode is the input's without the right to write for group and
// others.
Result<bool> write_with_exports(const std::string& input, const std::string& output, const ExportChange& change);

// The build-id in hexadecimal digits; "" if the library has none. Reads a page or two.
Result<std::string> read_build_id(const std::string& path);

}  // namespace rota::elf
