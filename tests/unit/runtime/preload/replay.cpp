// Replays recorded look-ups through the shim and compares every answer with the shim's own export of the recorded name.
//   replay table FILE   every row of cugetprocaddress-580.159.txt, at its version and at the versions up to the next
//   row replay cudart FILE  libcudart's start-up in its order, going over to the pointers that it is handed back
// Prints the rows that differ, then "N rows, M differ"; exit code 0 if none does.
#include <dlfcn.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/unit/recorded_lookups.h"

namespace {

using ProcAddress2 = int(const char*, void**, int, unsigned long long, int*);

constexpr int kNotFound = 500;
constexpr int kRecordedDriver = 13000;

int rows = 0;
int different = 0;
void* library = nullptr;
const char* shim_file = nullptr;

std::string file_of(void* address) {
  Dl_info info{};
  return address != nullptr && dladdr(address, &info) != 0 ? info.dli_fname : "-";
}

void differ(const std::string& what, const std::string& got) {
  std::printf("%s: got %s\n", what.c_str(), got.c_str());
  ++different;
}

// The recorded form of an answer: the export's name, or -[status], or -[status rc 1]. Whether the driver calls a
// function that is not found an error (CUDA_ERROR_NOT_FOUND) or not was not recorded; what the driver here says passes
// through.
std::string answer(ProcAddress2* get, const std::string& name, unsigned long long flags, int version) {
  void* function = nullptr;
  int status = 99;
  const int result = get(name.c_str(), &function, version, flags, &status);
  if (function == nullptr) {
    return "-[" + std::to_string(status) + (result != 0 && result != kNotFound ? " rc " + std::to_string(result) : "") +
           "]";
  }
  Dl_info info{};
  if (dladdr(function, &info) == 0 || info.dli_sname == nullptr) return "a pointer without a name";
  if (dlsym(library, info.dli_sname) != function) return "a pointer inside " + std::string(info.dli_sname);
  if (file_of(function) != shim_file) return std::string(info.dli_sname) + " of " + file_of(function);
  return info.dli_sname;
}

void compare(ProcAddress2* get, const std::string& name, unsigned long long flags, int version,
             const std::string& wanted) {
  ++rows;
  const std::string got = answer(get, name, flags, version);
  if (got != wanted) {
    differ(name + " version " + std::to_string(version) + " flags " + std::to_string(flags) + " recorded " + wanted,
           got);
  }
}

int replay_table(const char* path, ProcAddress2* get) {
  rota::test::RecordedLookup last{};
  for (const rota::test::RecordedLookup& row : rota::test::recorded_lookups(path)) {
    // Just before a change, the previous answer still holds. Nothing was recorded between the driver's own version and
    // the first that is too new.
    const int before = std::min(row.version - 1, kRecordedDriver);
    if (row.name == last.name && row.flags == last.flags) compare(get, row.name, row.flags, before, last.answer);
    compare(get, row.name, row.flags, row.version, row.answer);
    last = row;
  }
  return rows;
}

void replay_cudart(const char* path, ProcAddress2* get) {
  void* function = &rows;
  int status = 99;
  get("", &function, 0, 0, &status);
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    int version = 0;
    unsigned long long flags = 0;
    words >> name >> version >> flags;
    ++rows;
    function = nullptr;
    const int result = get(name.c_str(), &function, version, flags, &status);
    if (result != 0 || function == nullptr) {
      differ(name, "nothing");
      continue;
    }
    if (file_of(function) != shim_file) differ(name, "a pointer into " + file_of(function));
    if (name == "cuInit") reinterpret_cast<int (*)(unsigned)>(function)(0);
    // From here on libcudart asks through the pointer that it was handed.
    if (name == "cuGetProcAddress" && version == 12000) get = reinterpret_cast<ProcAddress2*>(function);
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return 2;
  auto* get = reinterpret_cast<ProcAddress2*>(dlsym(library, "cuGetProcAddress_v2"));
  const std::string shim = file_of(reinterpret_cast<void*>(get));
  shim_file = shim.c_str();
  if (std::strcmp(words[1], "table") == 0) {
    replay_table(words[2], get);
  } else {
    replay_cudart(words[2], get);
  }
  std::printf("%d rows, %d differ\n", rows, different);
  return rows > 400 && different == 0 ? 0 : 1;
}
