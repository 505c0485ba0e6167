// Runs part of a test in a child process with its own environment: the simulated driver reads the environment once and
// belongs to one process. The child reports failures as text; no text means success.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "generated/driver_functions.h"
#include "generated/driver_types.h"

namespace simgpu_test {

using namespace rota::api;  // NOLINT

// A folder that is removed at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    char pattern[] = "/tmp/rota-simgpu-XXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A child that runs a function, which returns what failed as text.
class Child {
 public:
  explicit Child(const std::function<std::string()>& work) {
    int ends[2] = {-1, -1};
    if (pipe(ends) != 0) std::abort();
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      std::string text = work();
      ssize_t written = write(ends[1], text.data(), text.size());
      _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 2);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  ~Child() {
    if (pid_ > 0) {
      kill();
      wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pid() const { return pid_; }
  void kill() { ::kill(pid_, SIGKILL); }
  // What the child reported, or how it died.
  std::string wait() {
    std::string text;
    char buffer[256];
    for (ssize_t length = 0; (length = read(output_, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(length));
    }
    close(output_);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
    if (WEXITSTATUS(status) != 0) return text + " (exit " + std::to_string(WEXITSTATUS(status)) + ")";
    return text;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

// The libcuda.so.1 of the build, or a copy that poses as some version, loaded in this process.
class Library {
 public:
  explicit Library(const std::string& state, const char* memory = "64M", const char* scale = "0",
                   const std::string& path = SIMGPU_LIBRARY) {
    setenv("ROTA_SIM_STATE", state.c_str(), 1);     // NOLINT(concurrency-mt-unsafe): in a child with one thread
    setenv("ROTA_SIM_MEMORY", memory, 1);           // NOLINT(concurrency-mt-unsafe)
    setenv("ROTA_SIM_CONTEXT_BYTES", "1M", 1);      // NOLINT(concurrency-mt-unsafe)
    setenv("ROTA_SIM_TIME_SCALE", scale, 1);        // NOLINT(concurrency-mt-unsafe)
    setenv("ROTA_SIM_KERNELS", SIMGPU_KERNELS, 1);  // NOLINT(concurrency-mt-unsafe)
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  void* symbol(const char* name) const { return handle_ != nullptr ? dlsym(handle_, name) : nullptr; }

 private:
  void* handle_ = nullptr;
};

}  // namespace simgpu_test

// A driver function by its exact name.
#define CU(name) reinterpret_cast<rota::api::name##_fn*>(library.symbol(#name))
#define EXPECT(condition)                                                                            \
  do {                                                                                               \
    if (!(condition)) return std::string(#condition " is not so, line ") + std::to_string(__LINE__); \
  } while (0)
// The result of a driver call.
#define EXPECT_RESULT(expected, call)                                                                      \
  do {                                                                                                     \
    int result_ = static_cast<int>(call);                                                                  \
    if (result_ != static_cast<int>(expected))                                                             \
      return std::string(#call " gave ") + std::to_string(result_) + ", line " + std::to_string(__LINE__); \
  } while (0)
#define EXPECT_OK(call) EXPECT_RESULT(CUDA_SUCCESS, call)
