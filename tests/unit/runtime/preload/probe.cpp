// What the process tests run under the preload: one sub-command per behaviour, which prints facts for the test to
// compare. It knows CUDA only as frameworks do: dlopen, dlsym, cuGetProcAddress.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "wide.h"

namespace {

const char* file_of(void* address) {
  Dl_info info{};
  if (address == nullptr || dladdr(address, &info) == 0) return "-";
  return info.dli_fname;
}

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void* open_cuda() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::printf("no libcuda.so.1: %s\n", dlerror());
    std::exit(3);
  }
  return library;
}

// probe open NAME [deepbind|noload|lazy]: which file answers, and what its cuInit says.
int run_open(int count, char** words) {
  int flags = RTLD_NOW;
  if (count > 1 && std::strcmp(words[1], "deepbind") == 0) flags |= RTLD_DEEPBIND;
  if (count > 1 && std::strcmp(words[1], "noload") == 0) flags |= RTLD_NOLOAD;
  void* library = dlopen(words[0], flags);
  if (library == nullptr) {
    const char* why = dlerror();
    std::printf("null %s\n", why != nullptr ? why : "-");
    return 0;
  }
  auto* init = symbol<int(unsigned)>(library, "cuInit");
  std::printf("%s %d\n", file_of(reinterpret_cast<void*>(init)), init != nullptr ? init(0) : -1);
  return 0;
}

// probe call NAME…: calls each with no argument and prints the results.
int run_call(int count, char** words) {
  void* library = open_cuda();
  for (int index = 0; index < count; ++index) {
    auto* function = symbol<int(void*, void*, void*, void*)>(library, words[index]);
    int ignored = 0;
    if (std::strcmp(words[index], "cuInit") == 0) {
      std::printf("%s %d\n", words[index], symbol<int(unsigned)>(library, "cuInit")(0));
    } else {
      std::printf("%s %d\n", words[index], function(&ignored, &ignored, &ignored, &ignored));
    }
  }
  return 0;
}

using ManyArguments = int(long, double, const char*, double, long, float, long, double, long, double, long, double,
                          double, long, double, double, double, long);

int call_many(ManyArguments* function) {
  return function(1, 2.5, "three", 4.5, 5, 6.5F, 7, 8.5, 9, 10.5, 11, 12.5, 13.5, 14, 15.5, 16.5, 17.5, -18);
}

// probe arguments: the same call twice, first by way of the resolver, then through the filled slot.
int run_arguments(int, char**) {
  auto* function = symbol<ManyArguments>(open_cuda(), "cuProfilerInitialize");
  const int first = call_many(function);
  std::printf("%d %d\n", first, call_many(function));
  return 0;
}

// probe vectors: as run_arguments, but eight whole vectors in, and a result that is returned in memory.
int run_vectors(int, char**) {
  using Vectors = Wide(Vector, Vector, Vector, Vector, Vector, Vector, Vector, Vector);
  auto* function = symbol<Vectors>(open_cuda(), "cuProfilerStop");
  for (int call = 0; call < 2; ++call) {
    const Wide wide = function(Vector{1, -1}, Vector{2, -2}, Vector{3, -3}, Vector{4, -4}, Vector{5, -5}, Vector{6, -6},
                               Vector{7, -7}, Vector{8, -8});
    for (const Vector& part : wide.parts) std::printf("%ld %ld ", part[0], part[1]);
  }
  return 0;
}

// probe threads N: N threads make the process's first call at the same moment.
int run_threads(int, char** words) {
  const int count = std::atoi(words[0]);
  auto* function = symbol<ManyArguments>(open_cuda(), "cuProfilerInitialize");
  std::atomic<int> waiting{count};
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index) {
    threads.emplace_back([&] {
      waiting.fetch_sub(1);
      while (waiting.load() != 0) {
      }
      if (call_many(function) == 4242) right.fetch_add(1);
    });
  }
  for (auto& thread : threads) thread.join();
  std::printf("%d\n", right.load());
  return 0;
}

using ProcAddress2 = int(const char*, void**, int, unsigned long long, int*);
using ProcAddress1 = int(const char*, void**, int, unsigned long long);

// probe address NAME VERSION FLAGS …: result, status, which export of which file.
int run_address(int count, char** words) {
  void* library = open_cuda();
  auto* get = symbol<ProcAddress2>(library, "cuGetProcAddress_v2");
  for (int index = 0; index + 2 < count; index += 3) {
    void* function = nullptr;
    int status = 99;
    const int result = get(words[index], &function, std::atoi(words[index + 1]),
                           static_cast<unsigned long long>(std::atoi(words[index + 2])), &status);
    Dl_info info{};
    if (function != nullptr) dladdr(function, &info);
    const bool exact = info.dli_sname != nullptr && function == dlsym(library, info.dli_sname);
    std::printf("%d %d %s %s\n", result, status, exact ? info.dli_sname : "-", file_of(function));
  }
  return 0;
}

// probe first-form NAME VERSION: the four-argument form.
int run_first_form(int, char** words) {
  void* library = open_cuda();
  void* function = nullptr;
  const int result = symbol<ProcAddress1>(library, "cuGetProcAddress")(words[0], &function, std::atoi(words[1]), 0);
  std::printf("%d %s\n", result, function != nullptr && function == dlsym(library, words[0]) ? words[0] : "-");
  return 0;
}

// probe nulls: null out-parameters go through as they are.
int run_nulls(int, char**) {
  auto* get = symbol<ProcAddress2>(open_cuda(), "cuGetProcAddress_v2");
  void* function = nullptr;
  const int without_status = get("cuInit", &function, 12000, 0, nullptr);
  std::printf("%d %d %d\n", without_status, get("cuInit", nullptr, 12000, 0, nullptr),
              get("cuEcho", &function, 12345, 2, nullptr));
  return 0;
}

// probe table: whether the export table comes from the driver file itself, second word pointing back into it.
int run_table(int, char**) {
  const void* table = nullptr;
  const int result = symbol<int(const void**, const void*)>(open_cuda(), "cuGetExportTable")(&table, nullptr);
  const auto* words = static_cast<const void* const*>(table);
  std::printf("%d %d %s\n", result, words[1] == table ? 1 : 0, file_of(const_cast<void*>(table)));
  return 0;
}

// probe future: a function that no list of ours has still works.
int run_future(int, char**) {
  void* function = nullptr;
  int status = 99;
  auto* get = symbol<ProcAddress2>(open_cuda(), "cuGetProcAddress_v2");
  for (int repeat = 0; repeat < 3; ++repeat) get("cuFromTheFuture", &function, 13000, 0, &status);
  std::printf("%d\n", reinterpret_cast<int (*)()>(function)());
  return 0;
}

// probe fork: first call in the parent, then in the child of a fork and in a child that has called nothing before.
int run_fork(int, char**) {
  auto* function = symbol<ManyArguments>(open_cuda(), "cuProfilerInitialize");
  for (int round = 0; round < 2; ++round) {
    const pid_t child = fork();
    if (child == 0) _exit(call_many(function) == 4242 ? 7 : 8);
    int status = 0;
    waitpid(child, &status, 0);
    std::printf("%d ", WEXITSTATUS(status));
    if (round == 0) std::printf("%d ", call_many(function));
  }
  std::printf("\n");
  return 0;
}

// probe constructor LIB: a thread's first call while another loads a library whose constructor calls CUDA.
int run_constructor(int, char** words) {
  auto* function = symbol<ManyArguments>(open_cuda(), "cuProfilerInitialize");
  std::atomic<bool> go{false};
  std::atomic<int> result{0};
  std::thread other([&] {
    while (!go.load()) {
    }
    result = call_many(function);
  });
  go = true;
  void* library = dlopen(words[0], RTLD_NOW);
  other.join();
  auto* answer = library != nullptr ? static_cast<int*>(dlsym(library, "constructor_result")) : nullptr;
  std::printf("%d %d\n", result.load(), answer != nullptr ? *answer : -1);
  return 0;
}

// probe plugin NAME: a name that only this program's RUNPATH ($ORIGIN/…) can find; then through a library's own
// RUNPATH.
int run_plugin(int, char** words) {
  void* plugin = dlopen(words[0], RTLD_NOW);
  if (plugin == nullptr) {
    std::printf("null %s\n", dlerror());
    return 0;
  }
  auto* inner = symbol<int(const char*)>(plugin, "open_beside_me");
  std::printf("found %d\n", inner != nullptr ? inner("libinterpose_inner.so") : -1);
  return 0;
}

// probe internals: two names that nvshare exported by mistake must be this program's own.
int run_internals(int, char**) {
  std::printf("%s %s\n", file_of(dlsym(RTLD_DEFAULT, "global_mutex")), file_of(dlsym(RTLD_DEFAULT, "strlcpy")));
  return 0;
}

int run_call_after_setenv(int count, char** names) {
  setenv("TEST_TARGET", "//other:test", 1);
  setenv("PYTEST_CURRENT_TEST", "b.py::c (call)", 1);
  return run_call(count, names);
}

struct Command {
  const char* name;
  int (*run)(int, char**);
};
constexpr Command kCommands[] = {
    {"open", run_open},
    {"call", run_call},
    {"arguments", run_arguments},
    {"threads", run_threads},
    {"vectors", run_vectors},
    {"address", run_address},
    {"nulls", run_nulls},
    {"first-form", run_first_form},
    {"table", run_table},
    {"future", run_future},
    {"fork", run_fork},
    {"constructor", run_constructor},
    {"plugin", run_plugin},
    {"internals", run_internals},
    {"call-after-setenv", run_call_after_setenv},
};

}  // namespace

int main(int count, char** words) {
  for (const Command& command : kCommands) {
    if (count > 1 && std::strcmp(words[1], command.name) == 0) return command.run(count - 2, words + 2);
  }
  std::fprintf(stderr, "probe: no such command\n");
  return 2;
}
